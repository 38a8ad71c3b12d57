//! The lock under which a number's table entry and its membership in an epoll change together.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, Ordering};

use super::thread::{SignalsBlocked, yield_now};

/// The number that is changing, -1 if there is none.
static MOVING: AtomicI32 = AtomicI32::new(-1);

/// The lock, held with all signals blocked.
pub struct Moving {
    _signals: SignalsBlocked,
}

impl Moving {
    /// Waits for the lock.
    pub fn begin(fd: c_int) -> Moving {
        let signals = SignalsBlocked::new();
        while MOVING.compare_exchange(-1, fd, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            yield_now();
        }
        Moving { _signals: signals }
    }

    /// In a child of fork(2).
    pub fn reset() {
        MOVING.store(-1, Ordering::SeqCst);
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        Moving::reset();
    }
}

/// Waits while `fd` is moving. Returns whether it was: its entry is another one then.
pub fn wait_for_move(fd: c_int) -> bool {
    if MOVING.load(Ordering::SeqCst) != fd {
        return false;
    }
    while MOVING.load(Ordering::SeqCst) == fd {
        yield_now();
    }
    true
}
