//! Process-wide budget for growing stream buffers: the file `grow_limit`, 64 MB by default.
//!
//! Buffers larger than 512 KB are for processes with few busy streams: they are taken from the
//! first sixteenth of the budget, which may fit into the CPU's caches.
//!
//! The budget never exceeds a quarter of the memory that the process may lock, because new
//! connections need the rest. If a new connection still fails for lack of memory, idle streams
//! return the growth of their send buffers, receive buffers shrink when the peer moves to the other
//! half, and no buffer grows for a while.
//!
//! The budget is an atomic counter without a lock. A [`Reservation`] returns its bytes when it is
//! dropped.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use once_cell::race::OnceRef;

use super::config::defaults;
use crate::errno::{Errno, Result};
use crate::sys::{clock, memlock};

static USED: AtomicU32 = AtomicU32::new(0);

/// Buffers larger than [`LARGE`] bytes may use this fraction of the budget: one sixteenth.
const LARGE_PART: u32 = 16;
const LARGE: u32 = 1 << 19;
/// The budget is at most this fraction of the lockable memory: one quarter.
const LOCKED_PART: u64 = 4;
/// How long no buffer grows after a connection lacked memory, in milliseconds.
const PAUSE: u64 = 10_000;

/// End of the pause, in milliseconds of the monotonic clock. 0: there was none.
static PAUSED: AtomicU64 = AtomicU64::new(0);

/// Makes idle streams return memory. Set by the module above that has their table.
static RECLAIM: OnceRef<'static, fn()> = OnceRef::new();

/// Sets the function that [`with_memory`] calls when memory is short. Only the first call has an
/// effect.
pub fn set_reclaim(reclaim: &'static fn()) {
    let _ = RECLAIM.set(reclaim);
}

/// Returns whether a connection lacked memory a short while ago, so that buffers should shrink.
pub fn is_needed() -> bool {
    match PAUSED.load(Ordering::Relaxed) {
        0 => false,
        until => clock::monotonic_ms() < until,
    }
}

/// Calls `make`, which locks memory. If it fails with `ENOMEM`, streams return memory and `make` is
/// called once more. The caller holds no rsocket's lock but its own.
pub fn with_memory<T>(make: impl Fn() -> Result<T>) -> Result<T> {
    match make() {
        Err(Errno::ENOMEM) if USED.load(Ordering::Relaxed) > 0 => {
            PAUSED.store(clock::monotonic_ms() + PAUSE, Ordering::Relaxed);
            if let Some(reclaim) = RECLAIM.get() {
                reclaim();
            }
            make()
        }
        result => result,
    }
}

/// Returns the budget in bytes.
fn limit_of(grow_limit: u32, lockable: Option<u64>) -> u32 {
    match lockable {
        Some(bytes) => u32::try_from(bytes / LOCKED_PART).map_or(grow_limit, |part| part.min(grow_limit)),
        None => grow_limit,
    }
}

/// A part of the budget, held as long as the buffer exists.
#[derive(Debug)]
pub struct Reservation(u32);

impl Reservation {
    /// Reserves `bytes`, unless too few are left.
    pub fn take(bytes: u32) -> Option<Reservation> {
        if is_needed() {
            return None;
        }
        Reservation::take_of(&USED, bytes, limit_of(defaults().grow_limit, memlock::limit()))
    }

    fn take_of(used: &AtomicU32, bytes: u32, limit: u32) -> Option<Reservation> {
        let limit = if bytes > LARGE { limit / LARGE_PART } else { limit };
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&sum| sum <= limit)
        })
        .ok()
        .map(|_| Reservation(bytes))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        USED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// A child of fork() has none of its parent's buffers.
pub fn in_child() {
    USED.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_never_exceed_the_budget() {
        let used = AtomicU32::new(0);
        let take = |bytes| Reservation::take_of(&used, bytes, 100).map(std::mem::forget).is_some();
        assert!(take(60) && !take(41) && take(40) && !take(1));
        used.store(u32::MAX - 1, Ordering::Relaxed);
        assert!(!take(u32::MAX));
    }

    #[test]
    fn the_budget_is_a_quarter_of_the_lockable_memory() {
        assert_eq!((limit_of(100, None), limit_of(100, Some(1000)), limit_of(100, Some(200))), (100, 100, 50));
        assert_eq!(limit_of(100, Some(u64::MAX)), 100);
    }

    #[test]
    fn large_buffers_use_a_sixteenth() {
        let used = AtomicU32::new(0);
        let take = |bytes| Reservation::take_of(&used, bytes, 32 * LARGE).map(std::mem::forget).is_some();
        assert!(take(LARGE) && !take(LARGE + 1) && take(LARGE));
        used.store(0, Ordering::Relaxed);
        assert!(take(2 * LARGE) && !take(2 * LARGE));
        assert!((0..30).all(|_| take(LARGE)) && !take(1));
    }
}
