//! Process-wide budget for growing stream buffers. The file `grow_limit` sets it, 64 MB by default
//! (rsocket(7)).
//!
//! Buffers larger than 512 KB are for processes with few busy streams: they may use only the first
//! sixteenth of the budget, which may fit into the CPU's caches.
//!
//! The budget never exceeds a quarter of the memory that the process may lock, because new
//! connections need the rest. If a new connection still fails for lack of memory, idle streams
//! return the growth of their send buffers, receive buffers shrink when the peer moves to the other
//! half, and no buffer grows for a while.
//!
//! The full receive buffer that a new stream gets is not growth. It is taken from a budget of its
//! own: three quarters of the memory that the process may lock, less what all connections need
//! while they are idle. The rest is for new connections, and for send buffers.
//!
//! Each budget is an atomic counter without a lock. A [`Reservation`] returns its bytes when it is
//! dropped.

use std::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceRef;

use super::config::defaults;
use crate::errno::{Errno, Result};
use crate::os::{event, pages};

/// Bytes taken from the budget for growth, and from the one for full receive buffers.
static USED: AtomicU64 = AtomicU64::new(0);
static USED_FULL: AtomicU64 = AtomicU64::new(0);

/// Buffers larger than [`LARGE`] bytes may use this fraction of the budget: one sixteenth.
const LARGE_PART: u64 = 16;
const LARGE: u32 = 1 << 19;
/// The budget is at most this fraction of the lockable memory: one quarter.
const LOCKED_PART: u64 = 4;
/// The budget for full receive buffers is this many quarters of the lockable memory.
const FULL_PARTS: u64 = 3;
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
        Err(Errno::ENOMEM) if [&USED, &USED_FULL].iter().any(|used| used.load(Ordering::Relaxed) > 0) => {
            PAUSED.store(event::monotonic_ms() + PAUSE, Ordering::Relaxed);
            if let Some(reclaim) = RECLAIM.get() {
                reclaim();
            }
            make()
        }
        result => result,
    }
}

/// Returns the budget for growth, in bytes. `lockable` is `None` if memory locking is unlimited.
fn limit_of(grow_limit: u32, lockable: Option<u64>) -> u64 {
    lockable.map_or(u64::MAX, |bytes| bytes / LOCKED_PART).min(grow_limit.into())
}

/// Returns the budget for full receive buffers, in bytes.
fn full_limit_of(lockable: Option<u64>) -> u64 {
    lockable.map_or(u64::MAX, |bytes| bytes / LOCKED_PART * FULL_PARTS)
}

/// A reserved part of a budget. Lives as long as the buffer that it is for.
#[derive(Debug)]
pub struct Reservation {
    used: &'static AtomicU64,
    bytes: u32,
}

impl Reservation {
    /// Reserves `bytes` for growth. Returns `None` if too few are left, or if a connection lacked
    /// memory lately.
    pub fn take(bytes: u32) -> Option<Reservation> {
        let limit = limit_of(defaults().grow_limit, pages::locked_memory_limit());
        Reservation::take_of(&USED, bytes, if bytes > LARGE { limit / LARGE_PART } else { limit })
    }

    /// Reserves `bytes` for a new stream, in the budget for full receive buffers, even if too few
    /// are left.
    pub fn take_idle(bytes: u32) -> Reservation {
        USED_FULL.fetch_add(bytes.into(), Ordering::Relaxed);
        Reservation { used: &USED_FULL, bytes }
    }

    /// Reserves `bytes` for a full receive buffer. Returns `None` if too few are left, or if a
    /// connection lacked memory lately.
    pub fn take_full(bytes: u32) -> Option<Reservation> {
        Reservation::take_of(&USED_FULL, bytes, full_limit_of(pages::locked_memory_limit()))
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

/// Resets the counters in a child of fork(), which has none of its parent's buffers.
pub fn in_child() {
    USED.store(0, Ordering::Relaxed);
    USED_FULL.store(0, Ordering::Relaxed);
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
    fn the_budget_is_a_quarter_of_the_lockable_memory() {
        assert_eq!((limit_of(100, None), limit_of(100, Some(1000)), limit_of(100, Some(200))), (100, 100, 50));
        assert_eq!(limit_of(100, Some(u64::MAX)), 100);
        assert_eq!((full_limit_of(None), full_limit_of(Some(8 << 20))), (u64::MAX, 6 << 20));
    }
}
