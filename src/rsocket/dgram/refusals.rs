//! Local addresses at which no port could be made, for who need not know the reason anew with each
//! packet. No I/O.

use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Most addresses; beyond, the oldest is forgotten.
const MAX_REFUSALS: usize = 16;
/// How long an address is left alone.
const RETRY: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(super) struct Refusals {
    list: [Option<(IpAddr, Instant)>; MAX_REFUSALS],
    /// The place of the next one.
    next: usize,
}

impl Refusals {
    pub fn new() -> Refusals {
        Refusals { list: [None; MAX_REFUSALS], next: 0 }
    }

    /// Whether a port at `address` failed less than [`RETRY`] ago.
    pub fn refused(&self, address: &IpAddr, now: Instant) -> bool {
        let recent = |since: Instant| now.saturating_duration_since(since) < RETRY;
        self.list.iter().flatten().any(|(other, since)| other == address && recent(*since))
    }

    /// A port at `address` was tried.
    pub fn note(&mut self, address: IpAddr, failed: bool, now: Instant) {
        let known = self.list.iter_mut().find(|place| place.is_some_and(|(other, _)| other == address));
        let place = match known {
            Some(place) => place,
            None if !failed => return,
            None => {
                let Some(place) = self.list.get_mut(self.next) else { return };
                self.next = (self.next + 1) % MAX_REFUSALS;
                place
            }
        };
        *place = failed.then_some((address, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn left_alone_for_a_while() {
        let (mut refusals, now, address) = (Refusals::new(), Instant::now(), IpAddr::from([127, 0, 0, 1]));
        assert!(!refusals.refused(&address, now));
        refusals.note(address, true, now);
        assert!(refusals.refused(&address, now) && !refusals.refused(&IpAddr::from([127, 0, 0, 2]), now));
        assert!(!refusals.refused(&address, now + RETRY));
        refusals.note(address, false, now);
        assert!(!refusals.refused(&address, now), "a port could be made");
    }

    #[test]
    fn the_list_is_bounded() {
        let (mut refusals, now) = (Refusals::new(), Instant::now());
        let address = |last| IpAddr::from([127, 0, 0, last]);
        (0..=MAX_REFUSALS as u8).for_each(|last| refusals.note(address(last), true, now));
        assert!(!refusals.refused(&address(0), now));
        assert!((1..=MAX_REFUSALS as u8).all(|last| refusals.refused(&address(last), now)));
    }
}
