//! A lock of the whole process that survives fork().
//!
//! fork() takes it, so that the child finds what it guards whole. It does not wait for its own
//! thread, nor for ever for another one.

use std::cell::UnsafeCell;
use std::time::Duration;

use crate::sys::lock::{Guard, Lock, Unavailable};

/// How long fork() waits for a thread that holds the lock. What is done under it takes no such
/// time, unless a device or its driver does not answer.
const PATIENCE: Duration = if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(5) };

/// See the module.
pub struct GlobalLock<T: 'static> {
    lock: Lock<T>,
    /// Taken by fork(): the guard, and how many of its handlers have run before, less those after.
    /// They may be registered more than once.
    held: UnsafeCell<Option<(Guard<'static, T>, u32)>>,
}

// SAFETY: `held` is touched only by the thread that holds the lock.
unsafe impl<T: Send> Sync for GlobalLock<T> {}

impl<T> GlobalLock<T> {
    /// An open lock around `value`.
    pub const fn new(value: T) -> GlobalLock<T> {
        GlobalLock { lock: Lock::new(value), held: UnsafeCell::new(None) }
    }

    /// Waits for the lock. Nothing panics while it is held: the library aborts instead.
    pub fn lock(&self) -> Guard<'_, T> {
        self.lock.lock()
    }

    /// The lock, unless a thread has it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.lock.try_lock().ok()
    }

    /// Before fork(): takes the lock and keeps it until [`after_fork`](Self::after_fork). Not if
    /// this thread holds it (fork() was called by a signal handler over one of our calls), and not
    /// if another one keeps it too long.
    pub fn before_fork(&'static self) {
        match self.lock.lock_within(PATIENCE) {
            // SAFETY: this thread holds the lock.
            Ok(guard) => unsafe { *self.held.get() = Some((guard, 1)) },
            Err(Unavailable::Mine) => {
                // SAFETY: this thread holds the lock.
                if let Some((_, times)) = unsafe { &mut *self.held.get() } {
                    *times += 1;
                }
            }
            Err(Unavailable::Taken) => {}
        }
    }

    /// After fork(): releases what [`before_fork`](Self::before_fork) took. Nothing is allocated.
    ///
    /// In the child, what another thread was changing at the moment of fork() is left where it is,
    /// and `fresh` takes its place. What this thread was changing is not touched: the call that the
    /// signal handler interrupted goes on with it.
    ///
    /// # Safety
    /// In the thread that called [`before_fork`](Self::before_fork), or its copy in the child.
    pub unsafe fn after_fork(&'static self, in_child: bool, fresh: impl FnOnce() -> T) {
        if self.lock.is_mine() {
            // SAFETY: this thread holds the lock.
            let held = unsafe { &mut *self.held.get() };
            if let Some((_, times)) = held {
                *times -= 1;
                if *times == 0 {
                    drop(held.take());
                }
            }
        } else if in_child && self.try_lock().is_none() {
            // SAFETY: the holder is not in this process, nor is anybody else. The old value may be
            // half changed: it is neither used nor dropped. Nor is a guard of another thread that
            // was forking, too.
            unsafe {
                self.held.get().write(None);
                self.lock.abandon().get().write(fresh());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that waits for the lock when another one forks is not there in the child: nobody
    /// may be waited for.
    #[test]
    fn free_in_the_child_of_a_fork() {
        static LOCK: GlobalLock<u32> = GlobalLock::new(0);
        for _ in 0..50 {
            LOCK.before_fork();
            let waiter = std::thread::spawn(|| *LOCK.lock() += 1);
            // Whether it waits already is left to chance; over the rounds it does both.
            std::thread::yield_now();
            // SAFETY: the child takes a lock and leaves.
            let child = unsafe { libc::fork() };
            // SAFETY: this thread called `before_fork`.
            unsafe { LOCK.after_fork(child == 0, || 0) };
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

    /// Forks with the lock's handlers around it, registered twice; whether `in_child` is true
    /// there.
    fn fork(lock: &'static GlobalLock<u32>, in_child: impl FnOnce() -> bool) -> bool {
        lock.before_fork();
        lock.before_fork();
        // SAFETY: the child looks at a lock and leaves.
        let child = unsafe { libc::fork() };
        for _ in 0..2 {
            // SAFETY: this thread called `before_fork`.
            unsafe { lock.after_fork(child == 0, || 1000) };
        }
        if child == 0 {
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(if in_child() { 7 } else { 1 }) }
        }
        let mut status = 0;
        // SAFETY: our child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        libc::WEXITSTATUS(status) == 7
    }

    #[test]
    fn handlers_may_run_twice() {
        static LOCK: GlobalLock<u32> = GlobalLock::new(1);
        assert!(fork(&LOCK, || *LOCK.lock() == 1));
        assert_eq!(LOCK.try_lock().map(|value| *value), Some(1));
    }

    /// A signal handler over a call that holds the lock.
    #[test]
    fn fork_does_not_wait_for_its_own_thread() {
        static LOCK: GlobalLock<u32> = GlobalLock::new(1);
        let mut guard = LOCK.lock();
        // In the child the call that was interrupted still holds it.
        assert!(fork(&LOCK, || LOCK.lock.is_mine()));
        *guard += 1;
        drop(guard);
        assert_eq!(LOCK.try_lock().map(|value| *value), Some(2));
    }

    #[test]
    fn fork_does_not_wait_for_ever() {
        static LOCK: GlobalLock<u32> = GlobalLock::new(1);
        let (held, done) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let guard = LOCK.lock();
                held.wait();
                done.wait();
                drop(guard);
            });
            held.wait();
            assert!(fork(&LOCK, || *LOCK.lock() == 1000));
            done.wait();
        });
        assert_eq!(*LOCK.lock(), 1);
    }
}
