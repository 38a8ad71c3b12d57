//! The process-wide locks of the connection manager, which survive fork(): in the child every lock
//! is free, and devices are opened anew.
//!
//! fork() takes the locks, so that their data is consistent in the child. fork() does not wait for
//! a lock that its own thread holds, and waits only for a limited time for a lock that another
//! thread holds.
//!
//! The kernel does not let the child use the parent's channels (it checks who opened them), so no
//! open object can be shared. Ids created after the fork work in both processes. `before` takes the
//! global locks in the order in which all code takes them (docs/concurrency.md).

use std::cell::UnsafeCell;
use std::time::Duration;

use super::device_registry::{REGISTRY, Registry};
use super::id::{self, HANDLES};
use crate::errno::Result;
use crate::os::fork::{self, Handlers, Layer};
use crate::os::sync::{self, Lock};

/// How long fork() waits for another thread that holds the lock: five seconds. Work under the lock
/// takes less time, unless a device or its driver does not answer.
const FORK_LOCK_TIMEOUT: Duration = if cfg!(test) { Duration::from_millis(200) } else { Duration::from_secs(5) };

/// A process-wide lock around a `T`, which fork() takes.
pub struct GlobalLock<T: 'static> {
    lock: Lock<T>,
    /// The guard of a lock that fork() has taken.
    held: UnsafeCell<Option<Guard<'static, T>>>,
}

/// Access to the value; dropping the guard releases the lock.
pub type Guard<'a, T> = sync::Guard<'a, T>;

// SAFETY: `held` is touched only by the thread that holds the lock.
unsafe impl<T: Send> Sync for GlobalLock<T> {}

impl<T> GlobalLock<T> {
    /// Creates an unlocked lock around `value`.
    pub const fn new(value: T) -> GlobalLock<T> {
        GlobalLock { lock: Lock::new(value), held: UnsafeCell::new(None) }
    }

    /// Waits for the lock. The lock cannot be poisoned: the library aborts instead of panicking.
    pub fn lock(&self) -> Guard<'_, T> {
        self.lock.lock()
    }

    /// Takes the lock unless a thread holds it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.lock.try_lock()
    }

    /// Called before fork(): takes the lock and keeps it until the handlers after fork() run.
    /// Leaves the lock alone if this thread holds it (a signal handler that interrupted one of our
    /// calls forks), or if another thread does not release it in time.
    pub fn before_fork(&'static self) {
        if let Some(guard) = self.lock.lock_within(FORK_LOCK_TIMEOUT) {
            // SAFETY: this thread holds the lock.
            unsafe { *self.held.get() = Some(guard) };
        }
    }

    /// Called after fork() in the parent: releases the lock if [`before_fork`](Self::before_fork)
    /// took it. Allocates nothing.
    pub fn after_fork_in_parent(&'static self) {
        if self.lock.is_mine() {
            self.release();
        }
    }

    /// Called after fork() in the child: releases the lock if [`before_fork`](Self::before_fork)
    /// took it.
    ///
    /// A value that another thread was changing during fork() is leaked and replaced by `fresh`. A
    /// value that this thread was changing stays: the call that the signal handler interrupted
    /// continues to change it.
    ///
    /// # Safety
    /// The process has no other thread.
    pub unsafe fn after_fork_in_child(&'static self, fresh: impl FnOnce() -> T) {
        if self.lock.is_mine() {
            self.release();
        } else if self.try_lock().is_none() {
            // SAFETY: the holder does not exist in this process, whose only thread is this one. The
            // old value may be inconsistent: it is neither used nor dropped. Nor is the guard of
            // another thread that was forking at the same time.
            unsafe {
                self.held.get().write(None);
                self.lock.abandon().get().write(fresh());
            }
        }
    }

    /// Releases the lock that `before_fork` took. The calling thread holds the lock.
    fn release(&self) {
        // SAFETY: only the thread that holds the lock touches `held`.
        drop(unsafe { (*self.held.get()).take() });
    }
}

static HANDLERS: Handlers = Handlers { before, in_parent, in_child };

/// Registers the handlers unless they were registered when the library was loaded.
///
/// # Errors
/// Fails with `ENOMEM` if the C library has no memory for the handlers.
pub fn register() -> Result<()> {
    fork::register(Layer::Cm, &HANDLERS)
}

fn before() {
    REGISTRY.before_fork();
    HANDLES.before_fork();
}

fn in_parent() {
    HANDLES.after_fork_in_parent();
    REGISTRY.after_fork_in_parent();
}

fn in_child() {
    // SAFETY: the child of a fork() has one thread until its handlers have run.
    unsafe {
        HANDLES.after_fork_in_child(id::Handles::new);
        REGISTRY.after_fork_in_child(Registry::new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_fork(lock: &'static GlobalLock<u32>, in_child: bool, fresh: u32) {
        if in_child {
            // SAFETY: the child of a fork() has one thread.
            unsafe { lock.after_fork_in_child(|| fresh) };
        } else {
            lock.after_fork_in_parent();
        }
    }

    /// A thread that waits for the lock while another thread forks does not exist in the child, and
    /// must not keep the child from taking the lock.
    #[test]
    fn free_in_the_child_of_a_fork() {
        static LOCK: GlobalLock<u32> = GlobalLock::new(0);
        for _ in 0..50 {
            LOCK.before_fork();
            let waiter = std::thread::spawn(|| *LOCK.lock() += 1);
            // The thread may wait already or not: over the rounds both happen.
            std::thread::yield_now();
            // SAFETY: the child takes a lock and leaves.
            let child = unsafe { libc::fork() };
            after_fork(&LOCK, child == 0, 0);
            if child == 0 {
                let free = LOCK.try_lock().is_some();
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(if free { 7 } else { 1 }) }
            }
            let mut status = 0;
            // SAFETY: the child is ours, and `status` is writable.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(libc::WEXITSTATUS(status), 7);
            waiter.join().expect("the waiter got the lock");
        }
        assert_eq!(*LOCK.lock(), 50);
    }

    /// Forks with the lock's handlers around it. Returns whether `in_child` is true in the child.
    fn fork(lock: &'static GlobalLock<u32>, in_child: impl FnOnce() -> bool) -> bool {
        lock.before_fork();
        // SAFETY: the child looks at a lock and leaves.
        let child = unsafe { libc::fork() };
        after_fork(lock, child == 0, 1000);
        if child == 0 {
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(if in_child() { 7 } else { 1 }) }
        }
        let mut status = 0;
        // SAFETY: the child is ours, and `status` is writable.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        libc::WEXITSTATUS(status) == 7
    }

    /// A signal handler interrupts a call that holds the lock.
    #[test]
    fn fork_does_not_wait_for_its_own_thread() {
        static LOCK: GlobalLock<u32> = GlobalLock::new(1);
        let mut guard = LOCK.lock();
        // In the child, too, the interrupted call holds the lock.
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

    #[test]
    fn registered_on_load() {
        assert_eq!(register(), Ok(()));
    }

    #[test]
    fn locks_are_free_in_the_child() {
        let _busy = std::thread::spawn(|| {
            for _ in 0..1000 {
                drop(REGISTRY.lock());
            }
        });
        // SAFETY: the child only takes a lock and leaves.
        match unsafe { libc::fork() } {
            0 => {
                drop(REGISTRY.lock());
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(7) }
            }
            child => {
                let mut status = 0;
                // SAFETY: the child is ours, and `status` is writable.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!(libc::WEXITSTATUS(status), 7);
            }
        }
    }
}
