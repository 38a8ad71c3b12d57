//! Cleared pages for the next buffer of a stream. Mapping 32 new pages takes a fifth of the time of
//! a connection's first 64 KB, and clearing used ones a tenth of that.
//!
//! A few areas of freed buffers are kept, and one is prepared while a connection is set up, so that
//! the first data need not wait for it. The areas are registered with no device, so they do not
//! count as locked memory.
//!
//! There is no lock: buffers are also allocated and freed by signal handlers and in children of
//! fork(2), in which the areas are mapped, and zeros.

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Bytes of an area: the size of a full receive ring by default.
pub const AREA: usize = 1 << 17;
/// The smallest buffer, in bytes, for which an area is used: that of a first message of 64 KB.
pub const LEAST: usize = 1 << 16;
/// Number of areas that are kept.
const AREAS: usize = 4;

/// The process's areas.
pub(super) static SPARE: Spare = Spare::new();

/// See the module.
pub(super) struct Spare([AtomicPtr<u8>; AREAS]);

impl Spare {
    const fn new() -> Spare {
        Spare([const { AtomicPtr::new(ptr::null_mut()) }; AREAS])
    }

    /// Takes an area of [`AREA`] cleared bytes.
    pub fn take(&self) -> Option<NonNull<u8>> {
        // Acquire: the thread that gave the area has cleared it.
        self.0.iter().find_map(|slot| NonNull::new(slot.swap(ptr::null_mut(), Ordering::Acquire)))
    }

    /// Keeps an area of [`AREA`] cleared bytes, unless there are enough. Returns whether it was
    /// kept.
    pub fn give(&self, start: NonNull<u8>) -> bool {
        // Release: the area is cleared before another thread takes it.
        let keep = |slot: &AtomicPtr<u8>| {
            slot.compare_exchange(ptr::null_mut(), start.as_ptr(), Ordering::Release, Ordering::Relaxed).is_ok()
        };
        self.0.iter().any(keep)
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|slot| slot.load(Ordering::Relaxed).is_null())
    }

    /// Returns whether there are enough.
    pub fn is_full(&self) -> bool {
        self.0.iter().all(|slot| !slot.load(Ordering::Relaxed).is_null())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_few_areas_are_kept() {
        let spare = Spare::new();
        let mut bytes = [0_u8; AREAS + 1];
        assert!(spare.is_empty() && spare.take().is_none());
        for byte in &mut bytes[..AREAS] {
            assert!(!spare.is_full() && spare.give(NonNull::from(byte)));
        }
        assert!(spare.is_full() && !spare.give(NonNull::from(&mut bytes[AREAS])));
        let taken: Vec<_> = std::iter::from_fn(|| spare.take()).collect();
        assert_eq!(taken, bytes[..AREAS].iter_mut().map(NonNull::from).collect::<Vec<_>>());
        assert!(spare.is_empty());
    }
}
