//! Waits for a change as socket calls do: a signal handler with SA_RESTART does not end the wait,
//! any other does.
//!
//! The crate in `tests/models` model-checks that no wake-up is lost (`scripts/check loom`).

use std::time::Instant;

use self::kernel::Futex;
use crate::errno::Result;
use crate::os::sync::atomic::{AtomicU32, Ordering, fence};

/// A counter of changes that threads can wait on.
#[derive(Debug, Default)]
pub struct Changes {
    count: Futex,
    sleepers: AtomicU32,
}

impl Changes {
    /// Returns a counter at 0, for a static.
    #[cfg(not(all(test, loom)))]
    pub const fn new() -> Changes {
        Changes { count: Futex::new(), sleepers: AtomicU32::new(0) }
    }

    /// Returns the counter's value. Take it before checking what may change.
    pub fn count(&self) -> u32 {
        self.count.value().load(Ordering::Acquire)
    }

    /// Counts a change and wakes all waiters.
    pub fn notify(&self) {
        if self.add() {
            self.count.wake_all();
        }
    }

    /// Counts a change and wakes one of the waiters, if there are any. For a change that one waiter
    /// takes: each waiter looks whether there is one when it returns from [`wait`](Self::wait),
    /// also after a signal or at the deadline.
    pub fn notify_one(&self) {
        if self.add() {
            self.count.wake_one();
        }
    }

    /// Counts a change. Returns whether there may be waiters.
    fn add(&self) -> bool {
        self.count.value().fetch_add(1, Ordering::Release);
        // A thread either has registered as a sleeper before this, or sees the new count.
        fence(Ordering::SeqCst);
        self.sleepers.load(Ordering::Relaxed) != 0
    }

    /// Waits until the counter is no longer at `count`; `ETIMEDOUT` at the deadline, `EINTR` after
    /// a signal.
    pub fn wait(&self, count: u32, deadline: Option<Instant>) -> Result<()> {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let awake = || {
            self.sleepers.fetch_sub(1, Ordering::Relaxed);
        };
        let cancelled = || {
            awake();
            // It may have been woken before it was cancelled.
            self.notify_one();
        };
        let result = self.count.wait(count, deadline, cancelled);
        awake();
        result
    }
}

#[cfg(not(all(test, loom)))]
mod kernel {
    use std::sync::atomic::AtomicU32;
    use std::time::Instant;

    use crate::errno::{Errno, Result};
    use crate::os::cancel;
    use crate::os::clock;

    /// The word of a futex(2).
    #[derive(Debug, Default)]
    pub struct Futex(AtomicU32);

    impl Futex {
        pub const fn new() -> Futex {
            Futex(AtomicU32::new(0))
        }

        pub fn value(&self) -> &AtomicU32 {
            &self.0
        }

        pub fn wake_all(&self) {
            base::futex::wake(self.0.as_ptr(), i32::MAX);
        }

        pub fn wake_one(&self) {
            base::futex::wake(self.0.as_ptr(), 1);
        }

        /// Compares and sleeps atomically. A thread that is cancelled meanwhile runs `undo`.
        pub fn wait(&self, value: u32, deadline: Option<Instant>, undo: impl FnMut()) -> Result<()> {
            let limit = match deadline.map(clock::left) {
                Some(None) => return Err(Errno::ETIMEDOUT),
                Some(Some(left)) => Some(clock::timespec(left)),
                None => None,
            };
            let sleep = || base::futex::wait(self.0.as_ptr(), value, limit.as_ref());
            let result = cancel::with_cleanup(undo, || cancel::sleep_anywhere(sleep));
            match result {
                0 => Ok(()),
                _ => match Errno::last() {
                    Errno::EAGAIN => Ok(()),
                    error => Err(error),
                },
            }
        }
    }
}

/// futex(2) for models: the lock stands for the lock of the kernel's queue. Every deadline expires
/// immediately.
#[cfg(all(test, loom))]
mod kernel {
    use std::time::Instant;

    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};

    use crate::errno::{Errno, Result};

    #[derive(Debug, Default)]
    pub struct Futex {
        value: AtomicU32,
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl Futex {
        pub fn value(&self) -> &AtomicU32 {
            &self.value
        }

        pub fn wake_all(&self) {
            let _queue = self.queue.lock().unwrap();
            self.woken.notify_all();
        }

        pub fn wake_one(&self) {
            let _queue = self.queue.lock().unwrap();
            self.woken.notify_one();
        }

        pub fn wait(&self, value: u32, deadline: Option<Instant>, _undo: impl FnMut()) -> Result<()> {
            let queue = self.queue.lock().unwrap();
            if self.value.load(Ordering::Relaxed) != value {
                return Ok(());
            }
            if deadline.is_some() {
                return Err(Errno::ETIMEDOUT);
            }
            drop(self.woken.wait(queue).unwrap());
            Ok(())
        }
    }
}
