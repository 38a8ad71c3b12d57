//! How the library's threads exclude each other and wait for each other, on futexes and without
//! allocation.
//!
//! [`Lock`] knows which thread holds it. A signal handler may fork while its thread holds a lock
//! that the fork handlers take. An ordinary lock would deadlock; a `Lock` reports that the thread
//! holds it already ([`Lock::is_mine`]). The lock's word contains the holder's number from locking
//! to unlocking, so a handler can call `is_mine` at any instant. In the child of a fork(), a `Lock`
//! has no trace of the parent's waiting threads. Locking costs as much as the standard library's
//! lock and pthread_self(3) together. The locks that are taken around fork(), and those of
//! rsockets, are `Lock`s.
//!
//! [`Changes`] is a counter that threads wait on. The wait is like that of a socket call: every
//! signal handler ends it, except that a wait without a deadline continues after a handler with
//! SA_RESTART.
//!
//! [`Mutex`] is the standard library's mutex without poisoning: the library aborts when it panics,
//! so no lock is ever poisoned.
//!
//! The crate in `tests/models` model-checks mutual exclusion, and that no wake-up is lost
//! (`scripts/check loom`). There the standard library's types and the atomics are loom's.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use self::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use self::kernel::Futex;
use self::outside::{here, looks, pause, wait, wake_one};
use crate::errno;
use crate::os::event::Deadline;

#[cfg(not(all(test, loom)))]
use std::sync as model;
#[cfg(not(all(test, loom)))]
pub use std::{sync::atomic, thread::yield_now};

#[cfg(all(test, loom))]
use loom::sync as model;
#[cfg(all(test, loom))]
pub use loom::{sync::atomic, thread::yield_now};

pub use model::Arc;

/// The word of a free lock.
const FREE: u64 = 0;
/// Bit beside the holder's number: threads may be waiting. Thread numbers are even.
const AWAITED: u64 = 1;

/// A lock that knows which thread holds it.
pub struct Lock<T> {
    word: AtomicU64,
    /// Number of threads in [`Lock::sleep`]. In the child of a fork() it may include the parent's,
    /// and the child makes superfluous wake-ups.
    sleepers: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time accesses the value, ordered by the word's acquire and release.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: only the value, which is `Send`, may be bound to a thread.
unsafe impl<T: Send> Send for Lock<T> {}

/// Gives access to the value; dropping the guard unlocks.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    /// Returns a free lock around `value`.
    #[cfg(not(all(test, loom)))]
    pub const fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU64::new(FREE), sleepers: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Returns a free lock around `value`.
    #[cfg(all(test, loom))]
    pub fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU64::new(FREE), sleepers: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }
}

impl<T> Lock<T> {
    /// Waits for the lock. Must not be called in a signal handler: if the interrupted thread holds
    /// the lock, the call would never return.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        loop {
            match self.take(FREE, here()).or_else(|| self.lock_slowly(None)) {
                Some(guard) => return guard,
                None => wait(&self.word, here(), None),
            }
        }
    }

    /// Waits for the lock for at most `time`. Returns `None` after this time, and at once if this
    /// thread holds the lock.
    pub fn lock_within(&self, time: Duration) -> Option<Guard<'_, T>> {
        self.take(FREE, here()).or_else(|| self.lock_slowly(Some(time)))
    }

    /// Takes the lock. Returns `None` if a thread holds it, including the calling thread.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.take(FREE, here())
    }

    /// Returns a new guard in place of one that was forgotten.
    ///
    /// # Safety
    /// This thread holds the lock, and has no other guard of it.
    #[inline]
    pub unsafe fn resume(&self) -> Guard<'_, T> {
        Guard { lock: self }
    }

    /// Returns whether this thread holds the lock.
    pub fn is_mine(&self) -> bool {
        self.word.load(Ordering::Relaxed) & !AWAITED == here()
    }

    /// Returns the value; `&mut self` shows that no other thread has access.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Releases the lock in place of its holder, and returns the value.
    ///
    /// # Safety
    /// The holder no longer exists, and the value is valid as the holder left it, or is replaced.
    pub unsafe fn abandon(&self) -> &UnsafeCell<T> {
        self.word.store(FREE, Ordering::Relaxed);
        self.sleepers.store(0, Ordering::Relaxed);
        &self.value
    }

    #[inline]
    fn take(&self, from: u64, to: u64) -> Option<Guard<'_, T>> {
        let taken = self.word.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok();
        taken.then(|| Guard { lock: self })
    }

    /// Waits for the lock. Returns `None` after `time`, and at once if this thread holds the lock.
    #[cold]
    fn lock_slowly(&self, time: Option<Duration>) -> Option<Guard<'_, T>> {
        let me = here();
        if self.is_mine() {
            return None;
        }
        for _ in 0..looks() {
            let word = self.word.load(Ordering::Relaxed);
            if word == FREE
                && let Some(guard) = self.take(FREE, me)
            {
                return Some(guard);
            }
            if word & AWAITED != 0 {
                break;
            }
            pause();
        }
        // The holder that ends a sleep here sees who is counted; who is counted later sees that
        // holder, and sets the mark.
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let guard = self.sleep(me, Deadline::after(time));
        fence(Ordering::SeqCst);
        let is_last = self.sleepers.fetch_sub(1, Ordering::Relaxed) == 1;
        if guard.is_some() && !is_last {
            // The unlock that ended this sleep has removed the mark of the others.
            self.word.fetch_or(AWAITED, Ordering::Relaxed);
        }
        guard
    }

    /// Sleeps until the lock is free, and takes it. Returns `None` at the deadline.
    fn sleep(&self, me: u64, deadline: Deadline) -> Option<Guard<'_, T>> {
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if word == FREE {
                match self.take(FREE, me) {
                    Some(guard) => return Some(guard),
                    None => continue,
                }
            }
            let awaited = word | AWAITED;
            if word == awaited
                || self.word.compare_exchange(word, awaited, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                match deadline.left() {
                    Some(Duration::ZERO) => return None,
                    left => wait(&self.word, awaited, left),
                }
            }
        }
    }

    #[inline]
    fn unlock(&self) {
        if self.word.swap(FREE, Ordering::Release) & AWAITED != 0 {
            wake_one(&self.word);
        }
    }
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Lock<T> {
        Lock::new(T::default())
    }
}

impl<T> Guard<'_, T> {
    /// Returns the number of the thread that holds the lock, which is the calling thread.
    #[inline]
    pub fn holder(&self) -> u64 {
        debug_assert!(self.lock.is_mine());
        here()
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard's thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard's thread holds the lock, and this is the only guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.unlock();
    }
}

/// Thread numbers, and futex(2).
#[cfg(not(all(test, loom)))]
mod outside {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use crate::os::event;
    use crate::os::mark::Words;

    /// Returns the number of polls before sleeping, which last about as long as the longest usual
    /// call of a holder: a post to a software device, which transmits meanwhile. On one CPU the
    /// holder does not run meanwhile.
    pub fn looks() -> u32 {
        if event::cpus() > 1 { 3000 } else { 0 }
    }

    pub fn pause() {
        std::hint::spin_loop();
    }

    /// Returns the thread's number, which is even. In a child of fork(), the forking thread keeps
    /// its number.
    #[inline]
    pub fn here() -> u64 {
        Words::here().address() as u64
    }

    /// Returns the half of the word that contains [`AWAITED`](super::AWAITED).
    fn half(word: &AtomicU64) -> *const u32 {
        let halves = word.as_ptr().cast_const().cast::<u32>();
        if cfg!(target_endian = "big") { halves.wrapping_add(1) } else { halves }
    }

    /// Sleeps if the half of the word that contains `AWAITED` equals this half of `value`. The
    /// other half is not compared: a new holder whose number differs only there still wakes the
    /// sleeper, because `AWAITED` is set.
    pub fn wait(word: &AtomicU64, value: u64, time: Option<Duration>) {
        let time = time.map(base::clock::timespec);
        base::sleep::futex_wait(half(word), value as u32, time.as_ref());
    }

    pub fn wake_one(word: &AtomicU64) {
        base::sleep::futex_wake(half(word), 1);
    }
}

/// The same functions for models: `queue` stands for the lock of the kernel's futex queue.
#[cfg(all(test, loom))]
mod outside {
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::time::Duration;

    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::sync::{Condvar, Mutex};

    pub fn looks() -> u32 {
        1
    }

    #[derive(Default)]
    struct Kernel {
        queue: Mutex<()>,
        woken: Condvar,
    }

    loom::lazy_static! {
        static ref KERNEL: Kernel = Kernel::default();
    }

    pub fn pause() {
        loom::thread::yield_now();
    }

    pub fn here() -> u64 {
        let mut hasher = DefaultHasher::new();
        loom::thread::current().id().hash(&mut hasher);
        (hasher.finish() & !1).max(2)
    }

    pub fn wait(word: &AtomicU64, value: u64, _: Option<Duration>) {
        let queue = KERNEL.queue.lock().unwrap();
        if word.load(Ordering::Relaxed) == value {
            drop(KERNEL.woken.wait(queue).unwrap());
        }
    }

    pub fn wake_one(_: &AtomicU64) {
        let _queue = KERNEL.queue.lock().unwrap();
        KERNEL.woken.notify_one();
    }
}

/// A counter of changes that threads can wait on.
#[derive(Debug, Default)]
pub struct Changes {
    /// The number of changes, times [`CHANGE`], and [`AWAITED_CHANGE`].
    word: Futex,
}

/// A change of a [`Changes`]' word.
const CHANGE: u32 = 2;
/// Bit of the word: threads may be waiting.
const AWAITED_CHANGE: u32 = 1;

impl Changes {
    /// Returns a counter at 0, for a static.
    #[cfg(not(all(test, loom)))]
    pub const fn new() -> Changes {
        Changes { word: Futex::new() }
    }

    /// Returns the counter's value. Read it before checking the condition to wait for.
    pub fn count(&self) -> u32 {
        self.word.value().load(Ordering::Acquire) & !AWAITED_CHANGE
    }

    /// Counts a change and wakes all waiters.
    #[inline]
    pub fn notify(&self) {
        let next = |word: u32| Some((word & !AWAITED_CHANGE).wrapping_add(CHANGE));
        let before = self.word.value().fetch_update(Ordering::Release, Ordering::Relaxed, next);
        if before.is_ok_and(|word| word & AWAITED_CHANGE != 0) {
            self.word.wake_all();
        }
    }

    /// Counts a change that only one waiter can use, and wakes one of the waiters, if there are
    /// any. Every waiter must check for such a change whenever [`wait`](Self::wait) returns, also
    /// after a signal or at the deadline, because it may be the waiter that was woken.
    pub fn notify_one(&self) {
        // Others may go on waiting, so the bit stays set until all are woken.
        if self.word.value().fetch_add(CHANGE, Ordering::Release) & AWAITED_CHANGE != 0 {
            self.word.wake_one();
        }
    }

    /// Waits until the counter differs from `count`.
    ///
    /// # Errors
    /// Fails with `ETIMEDOUT` at the deadline, and with `EINTR` after a signal.
    pub fn wait(&self, count: u32, deadline: Option<Instant>) -> errno::Result<()> {
        let awaited = count | AWAITED_CHANGE;
        match self.word.value().compare_exchange(count, awaited, Ordering::Relaxed, Ordering::Relaxed) {
            Err(word) if word != awaited => Ok(()),
            // A thread that is cancelled may have been woken before: it wakes another one.
            _ => self.word.wait(awaited, deadline, || self.notify_one()),
        }
    }
}

#[cfg(not(all(test, loom)))]
mod kernel {
    use std::sync::atomic::AtomicU32;
    use std::time::Instant;

    use crate::errno::{Errno, Result};
    use crate::os::{cancel, event};

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
            base::sleep::futex_wake(self.0.as_ptr(), i32::MAX);
        }

        pub fn wake_one(&self) {
            base::sleep::futex_wake(self.0.as_ptr(), 1);
        }

        /// Sleeps if the word is `value`; comparing and sleeping are one atomic step. Runs `undo`
        /// if the thread is cancelled. Fails with `ETIMEDOUT` or `EINTR`.
        pub fn wait(&self, value: u32, deadline: Option<Instant>, undo: impl FnMut()) -> Result<()> {
            let limit = event::left(deadline)?.map(base::clock::timespec);
            let sleep = || base::sleep::futex_wait(self.0.as_ptr(), value, limit.as_ref());
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

/// futex(2) for models: `queue` stands for the lock of the kernel's futex queue. Every deadline
/// expires immediately.
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

/// A lock around a value.
#[derive(Debug, Default)]
pub struct Mutex<T>(model::Mutex<T>);

impl<T> Mutex<T> {
    /// Returns a free lock around `value`.
    #[cfg(not(all(test, loom)))]
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(model::Mutex::new(value))
    }

    /// Returns a free lock around `value`.
    #[cfg(all(test, loom))]
    pub fn new(value: T) -> Mutex<T> {
        Mutex(model::Mutex::new(value))
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock. Returns `None` if a thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

/// Gives access to the value; dropping the guard unlocks.
pub type MutexGuard<'a, T> = model::MutexGuard<'a, T>;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        const ROUNDS: u64 = 20_000;
        let (lock, start) = (Lock::new((0_u64, 0_u64)), Barrier::new(4));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..ROUNDS {
                        let mut both = lock.lock();
                        assert_eq!(both.0, both.1);
                        both.0 += 1;
                        both.1 += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), (4 * ROUNDS, 4 * ROUNDS));
        assert_eq!(lock.word.load(Ordering::Relaxed), FREE);
    }

    #[test]
    fn its_holder_is_told_so() {
        let lock = Lock::new(());
        let guard = lock.lock();
        assert!(lock.is_mine());
        assert!(lock.lock_within(Duration::MAX).is_none());
        assert!(lock.try_lock().is_none());
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(!lock.is_mine());
                assert!(lock.lock_within(Duration::from_millis(1)).is_none());
            });
        });
        // The bit `AWAITED`, which the waiting thread has set, does not hide the holder.
        assert!(lock.is_mine());
        drop(guard);
        assert!(!lock.is_mine() && lock.try_lock().is_some());
    }

    #[test]
    fn a_sleeper_is_woken() {
        let lock = Lock::new(false);
        let mut guard = lock.lock();
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| *lock.lock());
            while lock.word.load(Ordering::Relaxed) & AWAITED == 0 {
                thread::yield_now();
            }
            *guard = true;
            drop(guard);
            assert_eq!(sleeper.join().ok(), Some(true));
        });
    }
}
