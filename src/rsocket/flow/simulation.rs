//! Simulates both ends of a connection, the network, and the programs, driven by random numbers.
//! Checks that every byte arrives once and in order, no queue overflows, there is no deadlock, and
//! all work requests complete.
//!
//! `cargo test` runs some schedules. `FLOW_SCHEDULES=N` runs N of them, as in scripts/check.

mod end;
mod hostile;
mod random;

use end::{End, Setup, deliver};
use random::Random;

/// Default number of schedules, which takes a moment with or without optimisation.
const SCHEDULES: u64 = if cfg!(debug_assertions) { 20_000 } else { 200_000 };

/// Returns the number of schedules to run.
fn schedules() -> u64 {
    std::env::var("FLOW_SCHEDULES").ok().and_then(|count| count.parse().ok()).unwrap_or(SCHEDULES)
}

/// A connection, and the probability of each action.
struct Simulation {
    random: Random,
    ends: [End; 2],
    weights: [[u32; ACTIONS]; 2],
}

/// Number of actions of one end, see [`Simulation::act`].
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

    /// Changes the probabilities: simulates slow networks, slow readers and programs that rarely
    /// poll.
    fn change_weights(&mut self) {
        let weights = std::array::from_fn(|_| self.random.below(8) as u32);
        self.weights = [weights; 2];
        if self.random.chance(2) {
            self.weights[1] = std::array::from_fn(|_| self.random.below(8) as u32);
        }
    }

    /// Performs an action for one end.
    fn act(&mut self, end: usize, action: usize) {
        let max = 1 << self.random.below(14);
        let len = self.random.below(max) + 1;
        let (from, to) = self.pair(end);
        match action {
            0 => from.write(len),
            1 => from.read(len, false),
            2 => from.read(len, true),
            3 => from.poll(),
            4 | 5 => deliver(from, to),
            6 => from.complete(),
            7 => from.shutdown(),
            _ => self.act_outside_stream(end, len),
        }
    }

    /// Performs an action that uses the send queue without being a part of the stream.
    fn act_outside_stream(&mut self, end: usize, len: u64) {
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

    /// Performs random actions.
    fn act_randomly(&mut self, steps: u64) {
        let sums = self.weights.map(|weights| weights.iter().sum::<u32>());
        for _ in 0..steps {
            let end = self.random.below(2) as usize;
            let mut position = self.random.below(u64::from(sums[end].max(1))) as u32;
            let action = self.weights[end].iter().position(|&weight| {
                let found = position < weight;
                position = position.wrapping_sub(weight);
                found
            });
            self.act(end, action.unwrap_or(4));
        }
    }

    /// Performs all possible actions until everything has arrived. A round without a change is a
    /// deadlock.
    fn finish(&mut self) {
        while !self.ends.iter().all(End::is_finished) {
            let previous = self.changes();
            for end in 0..2 {
                let (from, to) = self.pair(end);
                from.write(u64::MAX);
                from.read(u64::MAX, false);
                from.shutdown();
                deliver(from, to);
                from.complete();
                to.poll();
            }
            assert_ne!(previous, self.changes(), "deadlock");
        }
        // The last messages are still in transit.
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

/// Returns the number of bytes that a program sends, close to the capacity of a half, a buffer or a
/// queue.
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

/// Prints the number of a schedule that fails.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("schedule {}", self.0);
        }
    }
}

#[test]
fn all_data_arrives_in_order() {
    for seed in 0..schedules() {
        let seed_on_panic = SeedOnPanic(seed);
        // Large buffers take time to fill, so only some schedules fill them.
        let mut simulation = Simulation::new(seed, seed % 256 == 0);
        for _ in 0..simulation.random.below(5) {
            simulation.change_weights();
            let steps = simulation.random.below(60);
            simulation.act_randomly(steps);
        }
        simulation.finish();
        drop(seed_on_panic);
    }
}

#[test]
fn message_numbers_wrap_around() {
    for iwarp in [false, true] {
        let setup = Setup {
            ring: 2,
            small: false,
            queue: 16,
            sends: 16,
            buffer: 2048,
            inline: 0,
            iwarp,
            extra_receives: !iwarp,
            resizes: 0,
        };
        let total = 150_000;
        let ends = [End::new(setup, &setup, total), End::new(setup, &setup, total)];
        Simulation { random: Random::new(1), ends, weights: [[1; ACTIONS]; 2] }.finish();
    }
}

#[test]
fn a_slow_receiver_is_not_overrun() {
    // The peer's credit updates use receives while it sends no data. Then it sends as much as
    // possible.
    for iwarp in [false, true] {
        let setup = Setup {
            ring: 4096,
            small: false,
            queue: 384,
            sends: 384,
            buffer: 131_072,
            inline: 64,
            iwarp,
            extra_receives: !iwarp,
            resizes: 0,
        };
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

#[test]
fn a_peer_with_receives_for_its_credits_only_is_not_overrun() {
    // It processes nothing while as many messages as possible are sent to it.
    for queue in [16, 17, 64, 384] {
        let (ring, buffer) = (4096, 131_072);
        let setup = Setup {
            ring,
            small: false,
            queue,
            sends: 384,
            buffer,
            inline: 64,
            iwarp: true,
            extra_receives: false,
            resizes: 0,
        };
        let mut ends = [End::new(setup, &setup, 200_000), End::new(setup, &setup, 2000)];
        let [first, second] = &mut ends;
        for _ in 0..3 {
            first.write(2048);
            deliver(first, second);
            first.complete();
            second.read(u64::MAX, false);
        }
        for _ in 0..2 * queue {
            second.write(1);
            deliver(second, first);
            second.complete();
            second.poll();
        }
        second.shutdown();
        deliver(second, first);
        Simulation { random: Random::new(1), ends, weights: [[1; ACTIONS]; 2] }.finish();
    }
}

#[test]
fn a_sender_that_does_not_wait_is_not_overrun() {
    // Each message fills a half, and the peer reads it at once. The sender processes the peer's
    // CREDIT_UPDATEs only when it cannot send.
    for queue in [16, 17, 32] {
        for extra_receives in [false, true] {
            let sender = Setup {
                ring: 131_072,
                small: false,
                queue,
                sends: 384,
                buffer: 131_072,
                inline: 0,
                iwarp: true,
                extra_receives,
                resizes: 0,
            };
            let receiver = Setup { ring: 16_384, queue: 384, ..sender };
            let mut ends = [End::new(sender, &receiver, 1 << 20), End::new(receiver, &sender, 0)];
            let [first, second] = &mut ends;
            for _ in 0..200 {
                first.write(8192);
                deliver(first, second);
                first.complete();
                second.poll();
                second.read(u64::MAX, false);
                deliver(second, first);
                second.complete();
            }
            Simulation { random: Random::new(1), ends, weights: [[1; ACTIONS]; 2] }.finish();
        }
    }
}
