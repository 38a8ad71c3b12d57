//! A CQ that threads poll without the lock that guards it.
//!
//! The lock's holder lends the CQ and releases the lock. A thread then polls the CQ in a loop: it
//! takes the lease for one poll at a time, which never waits. Whoever needs the CQ under the lock
//! takes it back first, and waits for one poll at most. What a poll has found is kept with the
//! lease, and the one who takes the CQ back gets it: completions are processed in order.
//!
//! As with [`super::lock`], a waiting thread sleeps on a futex. The crate in `tests/models` model-checks
//! this (`scripts/check loom`).

use std::cell::UnsafeCell;
use std::sync::Arc;

use super::lock::outside::{LOOKS, pause, wait, wake_one};
use super::sync::atomic::{AtomicU64, Ordering};

/// Belongs to the lock's holder.
const HELD: u64 = 0;
/// Is lent, and no thread polls.
const LENT: u64 = 1;
/// Is lent, and a thread polls.
const POLLING: u64 = 2;
/// As above; the lock's holder takes the CQ back when the poll ends.
const ASKED: u64 = 3;
/// As above; the lock's holder sleeps until then.
const AWAITED: u64 = 4;

/// The lease of a CQ; `T` is a completion. Has a cache line of its own: a polling thread writes it
/// all the time.
#[cfg_attr(not(all(test, loom)), repr(align(64)))]
pub struct Lease<T> {
    word: AtomicU64,
    /// A completion that was polled and not processed. Belongs to the thread that polls while the
    /// word says so, and to the lock's holder while the word is [`HELD`].
    found: UnsafeCell<Option<T>>,
}

// SAFETY: one thread at a time accesses the completion, ordered by the word's acquire and release.
unsafe impl<T: Send> Sync for Lease<T> {}

/// The leases of a connection's CQs.
#[derive(Debug)]
pub struct Leases<T> {
    /// That of the receive CQ.
    pub receive: Lease<T>,
    /// That of the send CQ.
    pub send: Lease<T>,
}

/// CQs that are not lent.
impl<T> Default for Leases<T> {
    fn default() -> Leases<T> {
        Leases { receive: Lease::default(), send: Lease::default() }
    }
}

/// CQs that were lent to a call, which polls them through `cqs`.
pub struct Lent<C, T> {
    /// Live until they are taken back.
    pub cqs: C,
    /// Say whether they may be polled.
    pub leases: Arc<Leases<T>>,
}

/// The result of an attempt to poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// There was no completion, or another thread polls.
    Nothing,
    /// The CQ is not lent any more: it was taken back, or a completion was found.
    Ended,
}

/// The caller is a signal handler that interrupted a poll.
#[derive(Debug)]
pub struct Interrupted;

impl<T> Lease<T> {
    /// Lends the CQ. Called by the lock's holder; the CQ is not lent.
    pub fn lend(&self) {
        self.word.store(LENT, Ordering::Release);
    }

    /// Polls the CQ if it is lent.
    pub fn poll(&self, poll: impl FnOnce() -> Option<T>) -> Turn {
        // Load first: a failing exchange takes the cache line from the thread that polls.
        let word = match self.word.load(Ordering::Relaxed) {
            LENT => self.word.compare_exchange(LENT, POLLING, Ordering::Acquire, Ordering::Relaxed),
            other => Err(other),
        };
        match word {
            Ok(_) => {}
            Err(HELD) => return Turn::Ended,
            Err(_) => return Turn::Nothing,
        }
        let found = poll();
        let mut next = LENT;
        if found.is_some() {
            next = HELD;
            // SAFETY: the word is POLLING, or says that another thread waits: it belongs to this
            // thread.
            unsafe { *self.found.get() = found };
        }
        if self.word.compare_exchange(POLLING, next, Ordering::Release, Ordering::Relaxed).is_err() {
            next = HELD;
            if self.word.swap(HELD, Ordering::Release) == AWAITED {
                wake_one(&self.word);
            }
        }
        if next == LENT { Turn::Nothing } else { Turn::Ended }
    }

    /// Takes the CQ back; waits for the poll that is in progress. Called by the lock's holder. Fails if
    /// `is_polling_here` says that the calling thread polls: the caller is a signal handler then.
    pub fn end(&self, is_polling_here: impl FnOnce() -> bool) -> Result<(), Interrupted> {
        match self.word.compare_exchange(LENT, HELD, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) | Err(HELD) => {}
            Err(_) if is_polling_here() => return Err(Interrupted),
            Err(_) => self.take_from_poller(),
        }
        Ok(())
    }

    /// Returns the completion that was found, after the lease has ended. Called by the lock's holder.
    pub fn take(&self) -> Option<T> {
        if self.word.load(Ordering::Acquire) != HELD {
            return None;
        }
        // SAFETY: the word is HELD, and stays so while the caller holds the lock.
        unsafe { (*self.found.get()).take() }
    }

    /// Ends the lease unless a poll is in progress: [`end`](Self::end) does not wait
    /// then. Returns false in the middle of a poll. Called by the lock's holder.
    pub fn try_end(&self) -> bool {
        let word = self.word.compare_exchange(LENT, HELD, Ordering::Acquire, Ordering::Acquire);
        matches!(word, Ok(_) | Err(HELD))
    }

    /// Ends the lease, or makes the poll that is in progress end it. Called by the lock's holder.
    /// Returns false if that poll was asked before.
    pub fn end_soon(&self) -> bool {
        while !self.try_end() {
            match self.word.compare_exchange(POLLING, ASKED, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(ASKED) => return false,
                Err(_) => {}
            }
        }
        true
    }

    #[cold]
    fn take_from_poller(&self) {
        self.end_soon();
        for _ in 0..LOOKS {
            if self.word.load(Ordering::Acquire) == HELD {
                return;
            }
            pause();
        }
        let _ = self.word.compare_exchange(ASKED, AWAITED, Ordering::Relaxed, Ordering::Relaxed);
        while self.word.load(Ordering::Acquire) != HELD {
            wait(&self.word, AWAITED, None);
        }
    }
}

/// A CQ that is not lent.
impl<T> Default for Lease<T> {
    fn default() -> Lease<T> {
        Lease { word: AtomicU64::new(HELD), found: UnsafeCell::new(None) }
    }
}

impl<T> std::fmt::Debug for Lease<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("word", &self.word).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    fn take_back(lease: &Lease<i32>) -> Option<i32> {
        assert!(lease.end(|| false).is_ok());
        lease.take()
    }

    #[test]
    fn a_completion_ends_the_lease() {
        let lease = Lease::default();
        assert_eq!(lease.poll(|| Some(0)), Turn::Ended);
        lease.lend();
        assert_eq!(lease.poll(|| None), Turn::Nothing);
        assert_eq!(lease.poll(|| Some(1)), Turn::Ended);
        assert_eq!(lease.poll(|| Some(2)), Turn::Ended);
        assert_eq!(take_back(&lease), Some(1));
        assert_eq!(take_back(&lease), None);
        assert_eq!(lease.poll(|| Some(3)), Turn::Ended);
    }

    #[test]
    fn a_handler_does_not_wait_for_its_own_thread() {
        let lease = Lease::default();
        lease.lend();
        let turn = lease.poll(|| {
            assert!(lease.end(|| true).is_err());
            assert_eq!(lease.poll(|| Some(1)), Turn::Nothing);
            None
        });
        assert_eq!(turn, Turn::Nothing);
        lease.end(|| true).unwrap();
        assert_eq!(lease.take(), None);
    }

    #[test]
    fn a_lease_ends_without_a_wait() {
        let lease = Lease::default();
        assert!(lease.try_end());
        lease.lend();
        let turn = lease.poll(|| {
            assert!(!lease.try_end());
            None
        });
        assert_eq!(turn, Turn::Nothing);
        let turn = lease.poll(|| {
            lease.end_soon();
            lease.end_soon();
            assert!(!lease.try_end());
            Some(1)
        });
        assert_eq!(turn, Turn::Ended);
        assert!(lease.try_end());
        assert_eq!(take_back(&lease), Some(1));
        lease.lend();
        lease.end_soon();
        assert_eq!(lease.poll(|| Some(2)), Turn::Ended);
    }

    #[test]
    fn a_sleeper_gets_what_the_poll_finds() {
        let lease = Lease::default();
        lease.lend();
        thread::scope(|scope| {
            let mut taker = None;
            let turn = lease.poll(|| {
                taker = Some(scope.spawn(|| take_back(&lease)));
                while lease.word.load(Ordering::Relaxed) != AWAITED {
                    thread::yield_now();
                }
                Some(7)
            });
            assert_eq!(turn, Turn::Ended);
            assert_eq!(taker.unwrap().join().ok(), Some(Some(7)));
        });
    }
}
