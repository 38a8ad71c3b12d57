//! The lock under which a number's table entry and its membership in an epoll change together.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, Ordering};

use super::thread::{SignalsBlocked, yield_now};
use crate::time::Deadline;

/// The number that is changing, -1 if there is none, or [`FORKING`].
static MOVING: AtomicI32 = AtomicI32::new(-1);

/// In place of a number: the process forks.
const FORKING: c_int = -2;

/// How long fork(2) waits for the lock, in milliseconds.
const FORK_TIMEOUT: c_int = 1_000;

/// The lock, held with all signals blocked.
pub struct Moving {
    _signals: SignalsBlocked,
}

impl Moving {
    /// Waits for the lock.
    pub fn begin(fd: c_int) -> Moving {
        let signals = SignalsBlocked::new();
        while !Moving::try_begin(fd) {
            yield_now();
        }
        Moving { _signals: signals }
    }

    /// Takes the lock for fork(2), so that the child finds only rsockets that it is given. Waits
    /// for a limited time, because the holder may wait for a lock that fork(2) has taken.
    pub fn stop_for_fork() {
        let end = Deadline::after(FORK_TIMEOUT);
        while !Moving::try_begin(FORKING) && end.left() > 0 {
            yield_now();
        }
    }

    /// In the parent, after [`Moving::stop_for_fork`].
    pub fn go_on() {
        let _ = MOVING.compare_exchange(FORKING, -1, Ordering::SeqCst, Ordering::SeqCst);
    }

    fn try_begin(who: c_int) -> bool {
        MOVING.compare_exchange(-1, who, Ordering::SeqCst, Ordering::SeqCst).is_ok()
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
