//! The lock that a thread holds from before fork(2) until after it.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::thread::{SignalsBlocked, yield_now};
use crate::errno;

/// The lock. It is held with all signals blocked: a handler that ran meanwhile, and forked or needed
/// what is held for fork(2), would wait for its own thread. A fork handler of another library may
/// fork all the same.
pub struct ForkLock {
    /// The errno location of the thread that forks, null when no thread does.
    holder: AtomicPtr<c_int>,
    /// How many calls of fork(2) this thread is in. Only the holder uses this and what follows.
    depth: AtomicU32,
    signals: UnsafeCell<Option<SignalsBlocked>>,
}

// SAFETY: the cell is used by the holder only.
unsafe impl Sync for ForkLock {}

impl ForkLock {
    pub const fn new() -> ForkLock {
        let (holder, depth) = (AtomicPtr::new(ptr::null_mut()), AtomicU32::new(0));
        ForkLock { holder, depth, signals: UnsafeCell::new(None) }
    }

    /// Waits until no other thread forks. Returns whether this is the thread's outermost fork(2).
    pub fn enter(&self) -> bool {
        if self.is_mine() {
            self.depth.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let (signals, this) = (SignalsBlocked::new(), errno::location());
        while self.holder.compare_exchange(ptr::null_mut(), this, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // Another thread forks, which is over soon.
            yield_now();
        }
        self.depth.store(1, Ordering::Relaxed);
        // SAFETY: this thread holds the lock.
        unsafe { *self.signals.get() = Some(signals) };
        true
    }

    /// Whether this thread holds the lock.
    pub fn is_mine(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == errno::location()
    }

    /// Whether this thread holds the lock, and the fork(2) that ends now is the one that took it.
    pub fn is_outermost(&self) -> bool {
        self.is_mine() && self.depth.load(Ordering::Relaxed) == 1
    }

    /// Ends a fork(2) of the holder.
    pub fn leave(&self) {
        if self.depth.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.release();
        }
    }

    /// In a child of fork(2): the thread that holds the lock may not be in this process, and further
    /// calls of fork(2) that this thread is in find it free.
    pub fn reset(&self) {
        if self.is_mine() {
            self.release();
        } else {
            // Those of a thread of the parent, which must not change this thread's.
            // SAFETY: this process has one thread.
            unsafe { self.signals.get().write(None) };
            self.holder.store(ptr::null_mut(), Ordering::Release);
        }
    }

    fn release(&self) {
        // SAFETY: this thread holds the lock.
        let signals = unsafe { (*self.signals.get()).take() };
        self.holder.store(ptr::null_mut(), Ordering::Release);
        drop(signals);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI32;

    use super::*;

    static LOCK: ForkLock = ForkLock::new();
    /// Whether the handler took the lock as one that no fork(2) held; -1 before it has run.
    static RESULT: AtomicI32 = AtomicI32::new(-1);

    extern "C" fn fork_in_handler(_: c_int) {
        RESULT.store(LOCK.enter().into(), Ordering::SeqCst);
        LOCK.leave();
    }

    #[test]
    fn a_handler_that_forks_does_not_wait_for_its_own_thread() {
        assert!(LOCK.enter() && LOCK.is_outermost());
        // SAFETY: a function; a signal to this thread.
        unsafe {
            libc::signal(libc::SIGUSR2, fork_in_handler as *const () as libc::sighandler_t);
            libc::raise(libc::SIGUSR2);
        }
        assert_eq!(RESULT.load(Ordering::SeqCst), -1, "the handler ran while the thread forked");
        LOCK.leave();
        assert_eq!(RESULT.load(Ordering::SeqCst), 1);
        assert!(!LOCK.is_mine());
    }

    #[test]
    fn a_fork_within_a_fork_releases_nothing() {
        let lock = ForkLock::new();
        assert!(lock.enter());
        assert!(!lock.enter());
        assert!(lock.is_mine() && !lock.is_outermost());
        lock.leave();
        assert!(lock.is_outermost(), "the inner fork has released the lock");
        lock.leave();
        assert!(!lock.is_mine());
    }

    #[test]
    fn the_child_of_an_inner_fork_holds_nothing() {
        let lock = ForkLock::new();
        assert!(lock.enter() && !lock.enter());
        lock.reset();
        assert!(!lock.is_mine() && !lock.is_outermost());
        assert!(lock.enter());
        lock.leave();
    }
}
