//! Memory that buffers of this process's streams may grow by in all: the file `grow_limit`, 64 MB without one.
//!
//! The largest buffers are for processes with few busy streams: they come out of the first sixteenth of it, which caches may hold.
//!
//! A counter, without a lock: whoever takes a share gives it back when it is dropped.

use std::sync::atomic::{AtomicU32, Ordering};

use super::config::defaults;

static USED: AtomicU32 = AtomicU32::new(0);

/// The part of it that buffers of more than so many bytes are taken from.
const PART: u32 = 16;
const LARGE: u32 = 1 << 19;

/// Part of it, held as long as the buffer.
#[derive(Debug)]
pub struct Share(u32);

impl Share {
    /// So many bytes, unless too few are left.
    pub fn take(bytes: u32) -> Option<Share> {
        Share::take_of(&USED, bytes, defaults().grow_limit)
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
    fn the_largest_are_for_few() {
        let used = AtomicU32::new(0);
        let take = |bytes| Share::take_of(&used, bytes, 32 * LARGE).map(std::mem::forget).is_some();
        assert!(take(LARGE) && !take(LARGE + 1) && take(LARGE));
        used.store(0, Ordering::Relaxed);
        assert!(take(2 * LARGE) && !take(2 * LARGE));
        assert!((0..30).all(|_| take(LARGE)) && !take(1));
    }
}
