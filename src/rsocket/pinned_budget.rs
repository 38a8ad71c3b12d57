//! Process-wide budget for stream buffers: the memory of idle connections, full receive buffers, and
//! buffers that have grown beyond the full size.
//!
//! Buffers grow while all of these together take less than `grow_limit` (rsocket(7)), 64 MB by
//! default, and less than a quarter of the memory that the process may lock. Receive buffers get
//! the full size within three quarters of that memory. The rest is for new connections, and for
//! send buffers of the full size. If a connection or buffer still fails for lack of memory, idle
//! streams return the growth of their send buffers, receive buffers shrink when the peer moves to
//! the other half, and no buffer grows for a while.
//!
//! The budget is an atomic counter without a lock. A [`Reservation`] returns its bytes when it is
//! dropped.

use std::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceRef;

use super::config::defaults;
use crate::errno::{Errno, Result};
use crate::os::{event, pages};

/// Bytes taken from the budget.
static USED: AtomicU64 = AtomicU64::new(0);

/// Buffers grow beyond the full size within one quarter of the lockable memory, and to the full size
/// within three.
const QUARTERS: u64 = 4;
const FULL_QUARTERS: u64 = 3;
/// Time during which no buffer grows after a connection lacked memory, in milliseconds.
const PAUSE: u64 = 10_000;

/// End of the pause, in milliseconds of the monotonic clock; 0 if there was no pause yet.
static PAUSED: AtomicU64 = AtomicU64::new(0);

/// The function that makes idle streams return memory. Set by `calls`, which has the table of
/// streams.
static RECLAIM: OnceRef<'static, fn()> = OnceRef::new();

/// Sets the function that [`with_memory`] calls when memory is short. Only the first call has an
/// effect.
pub fn set_reclaim(reclaim: &'static fn()) {
    let _ = RECLAIM.set(reclaim);
}

/// Returns whether a connection lacked memory a short while ago, so that buffers should shrink.
pub fn is_needed() -> bool {
    let until = PAUSED.load(Ordering::Relaxed);
    until > 0 && event::monotonic_ms() < until
}

/// Calls `make`, which locks memory. If `make` fails with `ENOMEM` and streams hold reservations,
/// idle streams return memory and `make` is called once more. The caller holds at most its own
/// rsocket's lock.
pub fn with_memory<T>(make: impl Fn() -> Result<T>) -> Result<T> {
    match make() {
        Err(Errno::ENOMEM) if USED.load(Ordering::Relaxed) > 0 => {
            PAUSED.store(event::monotonic_ms() + PAUSE, Ordering::Relaxed);
            if let Some(reclaim) = RECLAIM.get() {
                reclaim();
            }
            make()
        }
        result => result,
    }
}

/// Returns this number of quarters of the lockable memory, in bytes. `lockable` is `None` if memory
/// locking is unlimited.
fn quarters(count: u64, lockable: Option<u64>) -> u64 {
    lockable.map_or(u64::MAX, |bytes| bytes / QUARTERS * count)
}

/// A reserved part of the budget. Lives as long as the buffer that it is for.
#[derive(Debug)]
pub struct Reservation {
    used: &'static AtomicU64,
    bytes: u32,
}

impl Reservation {
    /// Reserves `bytes` for a buffer that exceeds the full size. Returns `None` if too few are left,
    /// or if a connection lacked memory lately.
    pub fn take_growth(bytes: u32) -> Option<Reservation> {
        let limit = quarters(1, pages::locked_memory_limit()).min(defaults().grow_limit.into());
        Reservation::take_of(&USED, bytes, limit)
    }

    /// Reserves `bytes` for a new stream, even if too few are left.
    pub fn take_idle(bytes: u32) -> Reservation {
        USED.fetch_add(bytes.into(), Ordering::Relaxed);
        Reservation { used: &USED, bytes }
    }

    /// Reserves `bytes` for a full receive buffer. Returns `None` if too few are left, or if a
    /// connection lacked memory lately.
    pub fn take_full(bytes: u32) -> Option<Reservation> {
        Reservation::take_of(&USED, bytes, quarters(FULL_QUARTERS, pages::locked_memory_limit()))
    }

    fn take_of(used: &'static AtomicU64, bytes: u32, limit: u64) -> Option<Reservation> {
        if is_needed() {
            return None;
        }
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes.into()).filter(|&sum| sum <= limit)
        })
        .ok()
        .map(|_| Reservation { used, bytes })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes.into(), Ordering::Relaxed);
    }
}

/// Resets the counter in a child of fork(), which has none of its parent's buffers.
pub fn in_child() {
    USED.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_never_exceed_the_budget() {
        static USED: AtomicU64 = AtomicU64::new(0);
        let take = |bytes| Reservation::take_of(&USED, bytes, 100);
        let first = take(60);
        let second = take(40);
        assert!(first.is_some() && second.is_some() && take(1).is_none());
        drop(second);
        assert!(take(41).is_none() && take(40).is_some());
        USED.store(u64::MAX - 1, Ordering::Relaxed);
        assert!(Reservation::take_of(&USED, 2, u64::MAX).is_none());
    }

    #[test]
    fn quarters_of_the_lockable_memory() {
        assert_eq!((quarters(1, None), quarters(3, None), quarters(1, Some(203))), (u64::MAX, u64::MAX, 50));
        assert_eq!(quarters(FULL_QUARTERS, Some(8 << 20)), 6 << 20);
    }
}
