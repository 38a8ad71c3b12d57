//! A peer that sends anything: each message is refused or harmless.

use super::end::{End, Setup};
use super::random::Random;
use super::schedules;
use crate::rsocket::wire::{MOST_DATA, Message};

/// A word near the points where a check is.
fn word(random: &mut Random, setup: &Setup) -> u32 {
    let half = setup.ring / 2;
    let numbers = [0, 1, half - 1, half, half + 1, setup.ring, u32::from(setup.queue), 0xffff, 0x1_0000, MOST_DATA];
    let data = match random.below(3) {
        0 => random.pick(&numbers),
        1 => random.below(64) as u32,
        _ => random.next() as u32,
    };
    (random.next() as u32 & 7) << 29 | data & MOST_DATA
}

#[test]
fn any_words_are_refused_or_harmless() {
    let (mut refused, mut accepted) = (0_u64, 0_u64);
    for seed in 0..schedules() {
        let mut random = Random::new(seed);
        let iwarp = random.chance(2);
        let setup = Setup { ring: random.pick(&[2, 3, 16, 64, 256]), ..Setup::random(&mut random, iwarp) };
        let peer = Setup { queue: random.pick(&[1, 16, 384, 0x7fff, 0x8000, 0xffff]), ..setup };
        let mut end = End::new(setup, &peer, 1 << 16);
        for _ in 0..random.below(60) {
            match random.below(6) {
                0 => end.write(random.next() >> 50),
                1 => end.look(random.next() >> 58),
                2 => end.forge(&mut random),
                3 => end.carry(),
                4 => end.poll(),
                // A word that is none fails the connection before it comes here.
                _ => match Message::parse(word(&mut random, &setup)).map(|message| end.hear(message)) {
                    Ok(()) => accepted += 1,
                    Err(_) => refused += 1,
                },
            }
            end.check();
        }
        refused += u64::from(end.violation.is_some());
    }
    assert!(refused > 0 && accepted > 0, "{refused} refused, {accepted} accepted");
}
