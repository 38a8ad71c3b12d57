//! A lock for a few instructions, held with all signals blocked, so that handlers may take it too.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::fork::thread::{SignalsBlocked, yield_now};

/// The lock.
pub struct Lock(AtomicBool);

/// The lock is held until this is dropped.
pub struct Held<'a> {
    lock: &'a Lock,
    _signals: SignalsBlocked,
}

impl Lock {
    pub const fn new() -> Lock {
        Lock(AtomicBool::new(false))
    }

    /// Waits for the lock.
    pub fn hold(&self) -> Held<'_> {
        let signals = SignalsBlocked::new();
        while self.0.swap(true, Ordering::Acquire) {
            yield_now();
        }
        Held { lock: self, _signals: signals }
    }

    /// In a child of fork(2), which does not have the thread that may hold it.
    pub fn reset(&self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.lock.0.store(false, Ordering::Release);
    }
}
