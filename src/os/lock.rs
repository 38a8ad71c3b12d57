//! A lock that knows which thread holds it.
//!
//! A signal handler may fork in the middle of one of the library's changes. An ordinary lock would
//! deadlock; this one reports it ([`Unavailable::Mine`]).
//!
//! The word holds the thread's number from locking to unlocking, so a handler can tell at any
//! instant. Threads wait on a futex, so the child of a fork() has no trace of the parent's waiting
//! threads, and nothing is allocated. It costs as much as the standard library's lock and
//! pthread_self(3).
//!
//! Mutual exclusion and wake-ups are model-checked by the crate in `tests/models` (`scripts/check
//! loom`).

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use self::outside::{LOOKS, here, pause, wait, wake_one};
use crate::os::event::Deadline;
use crate::os::sync::atomic::{AtomicU64, Ordering};

/// The word of a free lock.
const FREE: u64 = 0;
/// Set beside the holder's number when threads may be waiting. Numbers are even.
const AWAITED: u64 = 1;

/// Knows its holder.
pub struct Lock<T> {
    word: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time accesses the value, ordered by the word's acquire and release.
unsafe impl<T: Send> Sync for Lock<T> {}
// SAFETY: nothing but the value is bound to a thread.
unsafe impl<T: Send> Send for Lock<T> {}

/// Reasons why the lock was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// This thread holds the lock: the caller is a signal handler that interrupted it.
    Mine,
    /// Another thread holds the lock.
    Taken,
}

/// Access to the value; dropping it unlocks.
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Lock<T> {
    /// Returns a free lock around `value`.
    #[cfg(not(all(test, loom)))]
    pub const fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU64::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Returns a free lock around `value`.
    #[cfg(all(test, loom))]
    pub fn new(value: T) -> Lock<T> {
        Lock { word: AtomicU64::new(FREE), value: UnsafeCell::new(value) }
    }
}

impl<T> Lock<T> {
    /// Waits for the lock. Must not be called in a signal handler: a thread that holds the lock
    /// would wait forever.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        loop {
            match self.lock_unless_mine() {
                Ok(guard) => return guard,
                Err(_) => wait(&self.word, here(), None),
            }
        }
    }

    /// Waits for the lock, unless this thread holds it.
    #[inline]
    pub fn lock_unless_mine(&self) -> Result<Guard<'_, T>, Unavailable> {
        self.take(FREE, here()).or_else(|_| self.lock_slowly(None))
    }

    /// As [`lock_unless_mine`](Self::lock_unless_mine), and gives up after `time`, with
    /// [`Unavailable::Taken`].
    pub fn lock_within(&self, time: Duration) -> Result<Guard<'_, T>, Unavailable> {
        self.take(FREE, here()).or_else(|_| self.lock_slowly(Some(time)))
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Result<Guard<'_, T>, Unavailable> {
        self.take(FREE, here())
    }

    /// Returns the guard that was forgotten.
    ///
    /// # Safety
    /// This thread holds the lock, and has no other guard of it.
    #[inline]
    pub unsafe fn resume(&self) -> Guard<'_, T> {
        Guard { lock: self }
    }

    /// Returns whether this thread holds it.
    pub fn is_mine(&self) -> bool {
        self.word.load(Ordering::Relaxed) & !AWAITED == here()
    }

    /// Returns the value; `&mut self` shows that no other thread has access.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Releases the lock of another thread.
    ///
    /// # Safety
    /// The holder no longer exists, and the value is valid as the holder left it, or is replaced.
    pub unsafe fn abandon(&self) -> &UnsafeCell<T> {
        self.word.store(FREE, Ordering::Relaxed);
        &self.value
    }

    #[inline]
    fn take(&self, from: u64, to: u64) -> Result<Guard<'_, T>, Unavailable> {
        match self.word.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Guard { lock: self }),
            Err(_) => Err(Unavailable::Taken),
        }
    }

    #[cold]
    fn lock_slowly(&self, time: Option<Duration>) -> Result<Guard<'_, T>, Unavailable> {
        let me = here();
        for _ in 0..LOOKS {
            let word = self.word.load(Ordering::Relaxed);
            if word & !AWAITED == me {
                return Err(Unavailable::Mine);
            }
            if word == FREE
                && let Ok(guard) = self.take(FREE, me)
            {
                return Ok(guard);
            }
            if word & AWAITED != 0 {
                break;
            }
            pause();
        }
        let deadline = Deadline::after(time);
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if word == FREE {
                // More threads may be waiting: the next unlock must wake them.
                match self.take(FREE, me | AWAITED) {
                    Ok(guard) => return Ok(guard),
                    Err(_) => continue,
                }
            }
            let awaited = word | AWAITED;
            if word == awaited
                || self.word.compare_exchange(word, awaited, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                match deadline.left() {
                    Some(Duration::ZERO) => return Err(Unavailable::Taken),
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
    /// Returns a number of the thread that holds the lock, which is the calling one.
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
pub(super) mod outside {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use crate::os::clock;
    use crate::os::thread_word::Words;

    /// Number of polls before sleeping: the holder usually unlocks soon.
    pub const LOOKS: u32 = 100;

    pub fn pause() {
        std::hint::spin_loop();
    }

    /// Returns this thread's number, which is even. The thread's copy in a child of fork() has the
    /// same number.
    #[inline]
    pub fn here() -> u64 {
        Words::here().address() as u64
    }

    /// Returns the half of the word that contains [`AWAITED`](super::AWAITED).
    fn half(word: &AtomicU64) -> *const u32 {
        let halves = word.as_ptr().cast_const().cast::<u32>();
        if cfg!(target_endian = "big") { halves.wrapping_add(1) } else { halves }
    }

    /// Sleeps if the word has this value. The other half is not compared: a holder whose number
    /// differs only there still wakes the sleeper, because the bit is set.
    pub fn wait(word: &AtomicU64, value: u64, time: Option<Duration>) {
        let time = time.map(clock::timespec);
        base::futex::wait(half(word), value as u32, time.as_ref());
    }

    pub fn wake_one(word: &AtomicU64) {
        base::futex::wake(half(word), 1);
    }
}

/// The same for models: the lock stands for the lock of the kernel's queue.
#[cfg(all(test, loom))]
pub(super) mod outside {
    use std::hash::{DefaultHasher, Hash, Hasher};
    use std::time::Duration;

    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::sync::{Condvar, Mutex};

    pub const LOOKS: u32 = 1;

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
        assert_eq!(lock.lock_unless_mine().err(), Some(Unavailable::Mine));
        assert_eq!(lock.lock_within(Duration::MAX).err(), Some(Unavailable::Mine));
        assert_eq!(lock.try_lock().err(), Some(Unavailable::Taken));
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!(!lock.is_mine());
                assert_eq!(lock.lock_within(Duration::from_millis(1)).err(), Some(Unavailable::Taken));
            });
        });
        // The bit that the waiting thread set does not hide the holder.
        assert!(lock.is_mine());
        drop(guard);
        assert!(!lock.is_mine() && lock.try_lock().is_ok());
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
