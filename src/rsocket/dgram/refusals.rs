//! Local addresses for which no port could be created recently, so that packets do not cause
//! further attempts. No I/O.

use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Maximum number of addresses. The oldest one is replaced.
const MAX_REFUSALS: usize = 16;
/// Time without further attempts.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// A list of addresses with the times of the failures.
#[derive(Debug)]
pub(super) struct Refusals {
    list: [Option<(IpAddr, Instant)>; MAX_REFUSALS],
    /// Index of the next entry.
    next: usize,
}

impl Refusals {
    pub fn new() -> Refusals {
        Refusals { list: [None; MAX_REFUSALS], next: 0 }
    }

    /// Returns whether creating a port for `address` failed less than [`RETRY_DELAY`] ago.
    pub fn is_refused(&self, address: &IpAddr, now: Instant) -> bool {
        let recent = |since: Instant| now.saturating_duration_since(since) < RETRY_DELAY;
        self.list.iter().flatten().any(|(other, since)| other == address && recent(*since))
    }

    /// A port for `address` was created, or could not be created if `failed` is set.
    pub fn note(&mut self, address: IpAddr, failed: bool, now: Instant) {
        let known = self.list.iter_mut().find(|entry| entry.is_some_and(|(other, _)| other == address));
        let entry = match known {
            Some(entry) => entry,
            None if !failed => return,
            None => {
                let Some(entry) = self.list.get_mut(self.next) else { return };
                self.next = (self.next + 1) % MAX_REFUSALS;
                entry
            }
        };
        *entry = failed.then_some((address, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_refused_for_a_while() {
        let (mut refusals, now, address) = (Refusals::new(), Instant::now(), IpAddr::from([127, 0, 0, 1]));
        assert!(!refusals.is_refused(&address, now));
        refusals.note(address, true, now);
        assert!(refusals.is_refused(&address, now) && !refusals.is_refused(&IpAddr::from([127, 0, 0, 2]), now));
        assert!(!refusals.is_refused(&address, now + RETRY_DELAY));
        refusals.note(address, false, now);
        assert!(!refusals.is_refused(&address, now), "a port was created");
    }

    #[test]
    fn the_list_is_bounded() {
        let (mut refusals, now) = (Refusals::new(), Instant::now());
        let address = |last| IpAddr::from([127, 0, 0, last]);
        (0..=MAX_REFUSALS as u8).for_each(|last| refusals.note(address(last), true, now));
        assert!(!refusals.is_refused(&address(0), now));
        assert!((1..=MAX_REFUSALS as u8).all(|last| refusals.is_refused(&address(last), now)));
    }
}
