//! Two ends of a connection, a network between them, and programs on both sides, all of it driven by random numbers: every
//! byte arrives once and in order, nothing is overrun, nobody waits for ever, and everything that was posted completes.
//!
//! `cargo test` runs some of the schedules; `FLOW_SCHEDULES=N` asks for N of them, as scripts/check does.

mod end;
mod hostile;
mod random;

use end::{End, Setup, deliver};
use random::Random;

/// Schedules of a plain run: what takes a moment with and without optimisation.
const SCHEDULES: u64 = if cfg!(debug_assertions) { 20_000 } else { 200_000 };

/// How many schedules to run.
fn schedules() -> u64 {
    std::env::var("FLOW_SCHEDULES").ok().and_then(|number| number.parse().ok()).unwrap_or(SCHEDULES)
}

/// A connection, and how often each thing happens to it.
struct Simulation {
    random: Random,
    ends: [End; 2],
    weights: [[u32; ACTIONS]; 2],
}

/// Per end: see [`Simulation::act`].
const ACTIONS: usize = 9;

impl Simulation {
    fn new(seed: u64, rare: bool) -> Simulation {
        let mut random = Random::new(seed);
        let iwarp = random.chance(2);
        let setups = [Setup::random(&mut random, iwarp), Setup::random(&mut random, iwarp)];
        let totals = [total(&mut random, &setups[1], rare), total(&mut random, &setups[0], rare)];
        let ends = [End::new(setups[0], &setups[1], totals[0]), End::new(setups[1], &setups[0], totals[1])];
        Simulation { random, ends, weights: [[1; ACTIONS]; 2] }
    }

    /// Slow networks, slow readers, programs that seldom look: each while has its own kind of bad luck.
    fn change_luck(&mut self) {
        let weights = std::array::from_fn(|_| self.random.below(8) as u32);
        self.weights = [weights; 2];
        if self.random.chance(2) {
            self.weights[1] = std::array::from_fn(|_| self.random.below(8) as u32);
        }
    }

    /// Does one thing to one end.
    fn act(&mut self, end: usize, action: usize) {
        let most = 1 << self.random.below(14);
        let len = self.random.below(most) + 1;
        let (from, to) = self.pair(end);
        match action {
            0 => from.write(len),
            1 => from.read(len, false),
            2 => from.read(len, true),
            3 => from.poll(),
            4 | 5 => deliver(from, to),
            6 => from.complete(),
            7 => from.shut(),
            _ => self.extra(end, len),
        }
    }

    /// What is not part of the stream but shares its send queue.
    fn extra(&mut self, end: usize, len: u64) {
        match self.random.below(3) {
            0 => self.ends[end].update(),
            1 => self.ends[end].write_mapped(len),
            _ => self.ends[end].keep_alive(),
        }
    }

    fn pair(&mut self, end: usize) -> (&mut End, &mut End) {
        let [first, second] = &mut self.ends;
        if end == 0 { (first, second) } else { (second, first) }
    }

    /// A while of random things.
    fn wander(&mut self, steps: u64) {
        let sums = self.weights.map(|weights| weights.iter().sum::<u32>());
        for _ in 0..steps {
            let end = self.random.below(2) as usize;
            let mut place = self.random.below(u64::from(sums[end].max(1))) as u32;
            let action = self.weights[end].iter().position(|&weight| {
                let here = place < weight;
                place = place.wrapping_sub(weight);
                here
            });
            self.act(end, action.unwrap_or(4));
        }
    }

    /// Everybody does what can be done, until all is done: a round that changes nothing is a deadlock.
    fn finish(&mut self) {
        while !self.ends.iter().all(End::is_finished) {
            let before = self.changes();
            for end in 0..2 {
                let (from, to) = self.pair(end);
                from.write(u64::MAX);
                from.read(u64::MAX, false);
                from.shut();
                deliver(from, to);
                from.complete();
                to.poll();
            }
            assert_ne!(before, self.changes(), "deadlock");
        }
        // The last messages are under way still.
        while self.ends.iter().any(End::is_busy) {
            for end in 0..2 {
                let (from, to) = self.pair(end);
                deliver(from, to);
                from.complete();
                from.poll();
            }
        }
        let [first, second] = &self.ends;
        first.check_end(second);
        second.check_end(first);
    }

    fn changes(&self) -> u64 {
        self.ends.iter().map(|end| end.changes).sum()
    }
}

/// How much a program sends: something near the points where a half, a buffer or a queue is used up.
fn total(random: &mut Random, peer: &Setup, rare: bool) -> u64 {
    let half = u64::from(peer.ring / 2);
    if peer.ring > 8192 && !rare {
        return random.below(2048);
    }
    match random.below(4) {
        0 => random.below(4),
        1 => random.below(half + 2),
        2 => random.below(4 * half + 64),
        _ => random.below(half + 500),
    }
}

/// Says which schedule it is that fails.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("schedule {}", self.0);
        }
    }
}

#[test]
fn every_schedule_ends_with_all_data_in_order() {
    for seed in 0..schedules() {
        let named = Named(seed);
        // Large buffers take time to fill: not every schedule does.
        let mut simulation = Simulation::new(seed, seed % 256 == 0);
        for _ in 0..simulation.random.below(5) {
            simulation.change_luck();
            let steps = simulation.random.below(60);
            simulation.wander(steps);
        }
        simulation.finish();
        drop(named);
    }
}

#[test]
fn numbers_of_messages_wrap() {
    for iwarp in [false, true] {
        let setup = Setup { ring: 2, queue: 16, sends: 16, buffer: 2048, inline: 0, iwarp, whims: 0 };
        let total = 150_000;
        let ends = [End::new(setup, &setup, total), End::new(setup, &setup, total)];
        Simulation { random: Random::new(1), ends, weights: [[1; ACTIONS]; 2] }.finish();
    }
}

#[test]
fn a_receiver_that_only_looks_is_not_overrun() {
    // The peer's grants use receives of ours while it sends no data; then it sends as much as it may.
    for iwarp in [false, true] {
        let setup = Setup { ring: 4096, queue: 384, sends: 384, buffer: 131_072, inline: 64, iwarp, whims: 0 };
        let mut ends = [End::new(setup, &setup, 200_000), End::new(setup, &setup, 1000)];
        let [first, second] = &mut ends;
        for _ in 0..60 {
            first.write(2048);
            for _ in 0..8 {
                deliver(first, second);
                first.complete();
                second.read(u64::MAX, false);
                deliver(second, first);
                second.complete();
                first.poll();
            }
        }
        for _ in 0..500 {
            second.write(1);
            deliver(second, first);
            second.complete();
        }
        Simulation { random: Random::new(1), ends, weights: [[1; ACTIONS]; 2] }.finish();
    }
}
