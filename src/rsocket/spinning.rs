//! Whether calls that wait should poll for polling_time before they sleep.

use std::sync::atomic::{AtomicU32, Ordering};

/// Polling ends after this many waits in a row in which nothing changed within polling_time.
const MISSES: u32 = 8;
/// From then on one of so many waits polls, to notice that it pays again.
const RETRY_EVERY: u32 = 16;

/// Counts the waits in which polling was in vain. Threads that race lose a count at worst.
#[derive(Debug, Default)]
pub struct Spinning {
    /// Waits since the last one in which something changed within polling_time.
    misses: AtomicU32,
}

impl Spinning {
    pub const fn new() -> Spinning {
        Spinning { misses: AtomicU32::new(0) }
    }

    /// A call begins to wait. Returns whether it should poll first.
    pub fn begin(&self) -> bool {
        let misses = self.misses.load(Ordering::Relaxed);
        self.misses.store(misses.wrapping_add(1), Ordering::Relaxed);
        misses < MISSES || misses.is_multiple_of(RETRY_EVERY)
    }

    /// Something changed while the call polled.
    pub fn succeeded(&self) {
        self.misses.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_when_it_is_in_vain() {
        let spinning = Spinning::new();
        assert!((0..MISSES).all(|_| spinning.begin()));
        let tries = (0..10 * RETRY_EVERY).filter(|_| spinning.begin()).count();
        assert_eq!(tries, 10);
    }

    #[test]
    fn begins_again_when_it_pays() {
        let spinning = Spinning::new();
        while spinning.begin() {}
        while !spinning.begin() {}
        spinning.succeeded();
        assert!((0..MISSES).all(|_| spinning.begin()));
        assert!(!spinning.begin());
    }
}
