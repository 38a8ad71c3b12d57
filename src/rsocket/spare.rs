//! Memory that buffers of this process's streams may grow by in all: the file `grow_limit`, 64 MB without one.
//!
//! The largest buffers are for processes with few busy streams: they come out of the first sixteenth of it, which caches may hold.
//!
//! It is a quarter of the memory that the process may lock at most: connections to come need the
//! rest. When one of them lacks memory all the same, idle streams give back what their send buffers
//! have grown by, receive buffers shrink as soon as the peer needs another half, and none grows for
//! a while.
//!
//! A counter, without a lock: whoever takes a share gives it back when it is dropped.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use once_cell::race::OnceRef;

use super::config::defaults;
use crate::errno::{Errno, Result};
use crate::sys::{clock, memlock};

static USED: AtomicU32 = AtomicU32::new(0);

/// The part of it that buffers of more than so many bytes are taken from.
const PART: u32 = 16;
const LARGE: u32 = 1 << 19;
/// The part of the memory that may be locked.
const LOCKED_PART: u64 = 4;
/// How long no buffer grows after a connection lacked memory, milliseconds.
const PAUSE: u64 = 10_000;

/// Until when none grows, in milliseconds of the monotonic clock.
static PAUSED: AtomicU64 = AtomicU64::new(0);

/// Has idle streams give memory back: their table is above this module.
static RECLAIM: OnceRef<'static, fn()> = OnceRef::new();

/// Sets what [`with_memory`] calls when memory is short; only the first call counts.
pub fn set_reclaim(reclaim: &'static fn()) {
    let _ = RECLAIM.set(reclaim);
}

/// Whether a connection has lacked memory that buffers have grown by.
pub fn is_needed() -> bool {
    match PAUSED.load(Ordering::Relaxed) {
        0 => false,
        until => clock::monotonic_ms() < until,
    }
}

/// Calls `make`, which locks memory, once more after streams have given theirs back if there is too
/// little of it. The caller holds no rsocket's lock but its own.
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

/// What all may grow by.
fn limit_of(grow_limit: u32, lockable: Option<u64>) -> u32 {
    match lockable {
        Some(bytes) => u32::try_from(bytes / LOCKED_PART).map_or(grow_limit, |part| part.min(grow_limit)),
        None => grow_limit,
    }
}

/// Part of it, held as long as the buffer.
#[derive(Debug)]
pub struct Share(u32);

impl Share {
    /// So many bytes, unless too few are left.
    pub fn take(bytes: u32) -> Option<Share> {
        if is_needed() {
            return None;
        }
        Share::take_of(&USED, bytes, limit_of(defaults().grow_limit, memlock::limit()))
    }

    fn take_of(used: &AtomicU32, bytes: u32, limit: u32) -> Option<Share> {
        let limit = if bytes > LARGE { limit / PART } else { limit };
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&sum| sum <= limit)
        })
        .ok()
        .map(|_| Share(bytes))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        USED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// A child has none of its parent's buffers.
pub fn in_child() {
    USED.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_there_is() {
        let used = AtomicU32::new(0);
        let take = |bytes| Share::take_of(&used, bytes, 100).map(std::mem::forget).is_some();
        assert!(take(60) && !take(41) && take(40) && !take(1));
        used.store(u32::MAX - 1, Ordering::Relaxed);
        assert!(!take(u32::MAX));
    }

    #[test]
    fn a_quarter_of_what_may_be_locked() {
        assert_eq!((limit_of(100, None), limit_of(100, Some(1000)), limit_of(100, Some(200))), (100, 100, 50));
        assert_eq!(limit_of(100, Some(u64::MAX)), 100);
    }

    #[test]
    fn the_largest_are_for_few() {
        let used = AtomicU32::new(0);
        let take = |bytes| Share::take_of(&used, bytes, 32 * LARGE).map(std::mem::forget).is_some();
        assert!(take(LARGE) && !take(LARGE + 1) && take(LARGE));
        used.store(0, Ordering::Relaxed);
        assert!(take(2 * LARGE) && !take(2 * LARGE));
        assert!((0..30).all(|_| take(LARGE)) && !take(1));
    }
}
