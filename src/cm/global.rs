//! A lock of the whole process that survives fork().
//!
//! The standard library's lock: it waits on a futex, so that the child of a fork() has no trace of threads that were
//! waiting, and it never allocates.

use std::cell::UnsafeCell;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// See the module.
pub struct GlobalLock<T: 'static> {
    lock: Mutex<T>,
    /// The guard of a thread that is about to fork.
    held: UnsafeCell<Option<MutexGuard<'static, T>>>,
}

// SAFETY: `held` is touched only by the thread that holds the lock.
unsafe impl<T: Send> Sync for GlobalLock<T> {}

impl<T> GlobalLock<T> {
    /// An open lock around `value`.
    pub const fn new(value: T) -> GlobalLock<T> {
        GlobalLock { lock: Mutex::new(value), held: UnsafeCell::new(None) }
    }

    /// Waits for the lock. Nothing panics while it is held: the library aborts instead.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, unless another thread has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.lock.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Before fork(): takes the lock and keeps it until [`let_go`](Self::let_go).
    pub fn hold(&'static self) {
        let guard = self.lock();
        // SAFETY: this thread holds the lock.
        unsafe { *self.held.get() = Some(guard) };
    }

    /// After fork(): changes what it guards, and releases it. Nothing is allocated.
    ///
    /// # Safety
    /// In the thread that called [`hold`](Self::hold), or its copy in the child.
    pub unsafe fn let_go(&'static self, change: impl FnOnce(&mut T)) {
        // SAFETY: this thread holds the lock, by the caller's word.
        if let Some(mut guard) = unsafe { (*self.held.get()).take() } {
            change(&mut guard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that waits for the lock when another one forks is not there in the child: nobody may be waited for.
    #[test]
    fn free_in_the_child_of_a_fork() {
        static LOCK: GlobalLock<u32> = GlobalLock::new(0);
        for _ in 0..50 {
            LOCK.hold();
            let waiter = std::thread::spawn(|| *LOCK.lock() += 1);
            // Whether it waits already is left to chance; over the rounds it does both.
            std::thread::yield_now();
            // SAFETY: the child takes a lock and leaves.
            let child = unsafe { libc::fork() };
            // SAFETY: this thread called `hold`.
            unsafe { LOCK.let_go(|_| {}) };
            if child == 0 {
                let free = LOCK.try_lock().is_some();
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(if free { 7 } else { 1 }) }
            }
            let mut status = 0;
            // SAFETY: our child.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(libc::WEXITSTATUS(status), 7);
            waiter.join().expect("the waiter got the lock");
        }
        assert_eq!(*LOCK.lock(), 50);
    }
}
