//! A peer that sends arbitrary messages: each one is rejected or harmless.

use super::end::{End, Setup};
use super::random::Random;
use super::schedules;
use crate::rsocket::wire::{MAX_DATA, Message};

/// Returns immediate data close to the limits that are checked.
fn word(random: &mut Random, setup: &Setup) -> u32 {
    let half = setup.ring / 2;
    let numbers = [0, 1, half - 1, half, half + 1, setup.ring, u32::from(setup.queue), 0xffff, 0x1_0000, MAX_DATA];
    let data = match random.below(3) {
        0 => random.pick(&numbers),
        1 => random.below(64) as u32,
        _ => random.next() as u32,
    };
    (random.next() as u32 & 7) << 29 | data & MAX_DATA
}

#[test]
fn arbitrary_messages_are_rejected_or_harmless() {
    let (mut rejected, mut accepted) = (0_u64, 0_u64);
    for seed in 0..schedules() {
        let mut random = Random::new(seed);
        let iwarp = random.chance(2);
        let setup = Setup { ring: random.pick(&[2, 3, 16, 64, 256]), ..Setup::random(&mut random, iwarp) };
        let peer = Setup { queue: random.pick(&[1, 16, 384, 0x7fff, 0x8000, 0xffff]), ..setup };
        let mut end = End::new(setup, &peer, 1 << 16);
        for _ in 0..random.below(60) {
            match random.below(6) {
                0 => end.write(random.next() >> 50),
                1 => end.read_without_checks(random.next() >> 58),
                2 => end.write_sgl(&mut random),
                3 => end.execute(),
                4 => end.poll(),
                // A connection fails on invalid immediate data before it updates the flow control.
                _ => match Message::parse(word(&mut random, &setup)).map(|message| end.receive_now(message)) {
                    Some(()) => accepted += 1,
                    None => rejected += 1,
                },
            }
            end.check();
        }
        rejected += u64::from(end.violation.is_some());
    }
    assert!(rejected > 0 && accepted > 0, "{rejected} rejected, {accepted} accepted");
}
