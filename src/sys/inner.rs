//! Whether the calling thread holds one of the library's inner locks: those that are taken under an
//! rsocket's lock, or instead of it ([`super::sync::Mutex`], `cm::GlobalLock`).
//!
//! They are held for a short time and never while a call waits, so a call of the program that finds
//! its own thread holding one is made by a signal handler that interrupted the library. Such a call
//! must not take an inner lock, which may be the same, and must not wait for an rsocket's lock:
//! another thread may hold that one and wait for this thread's inner lock. It fails with `EAGAIN`
//! ([`super::lock::Lock::enter`]).

#[cfg(not(all(test, loom)))]
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{Ordering, compiler_fence};

#[cfg(not(all(test, loom)))]
thread_local! {
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Exists from before an inner lock is taken until after it was released.
#[derive(Debug)]
struct Held(());

#[cfg(not(all(test, loom)))]
impl Held {
    /// The calling thread is about to take an inner lock.
    #[inline]
    fn begin() -> Held {
        HELD.set(HELD.get() + 1);
        // A handler sees the count before the lock, although both are this thread's.
        compiler_fence(Ordering::SeqCst);
        Held(())
    }
}

#[cfg(not(all(test, loom)))]
impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        HELD.set(HELD.get() - 1);
    }
}

/// The guard of an inner lock, which is counted while it exists.
#[derive(Debug)]
pub struct Counted<G> {
    // Dropped in this order.
    guard: G,
    _held: Held,
}

impl<G> Counted<G> {
    /// Takes an inner lock.
    #[inline]
    pub fn take(take: impl FnOnce() -> G) -> Counted<G> {
        let held = Held::begin();
        Counted { guard: take(), _held: held }
    }

    /// As [`take`](Self::take), for a lock that may not be had.
    #[inline]
    pub fn try_take<E>(take: impl FnOnce() -> Result<G, E>) -> Result<Counted<G>, E> {
        let held = Held::begin();
        take().map(|guard| Counted { guard, _held: held })
    }

    /// Returns the guard, which is not counted any more.
    pub fn into_guard(self) -> G {
        self.guard
    }
}

impl<G: Deref> Deref for Counted<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Counted<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

/// Returns whether the calling thread holds an inner lock.
#[cfg(not(all(test, loom)))]
#[inline]
pub fn is_held() -> bool {
    HELD.get() != 0
}

/// Models have no signal handlers, and their threads share the thread-local variables.
#[cfg(all(test, loom))]
impl Held {
    fn begin() -> Held {
        Held(())
    }
}

#[cfg(all(test, loom))]
pub fn is_held() -> bool {
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys::lock::{Lock, Unavailable};
    use crate::sys::sync::{Condvar, Mutex};

    /// What a signal handler of this thread would find.
    fn may_enter() -> bool {
        let socket = Lock::new(());
        let refused = socket.enter().err();
        assert_eq!(refused, socket.try_enter().err());
        assert_eq!(refused, is_held().then_some(Unavailable::Mine));
        refused.is_none()
    }

    #[test]
    fn no_call_is_made_under_an_inner_lock() {
        let (inner, other) = (Mutex::new(()), Mutex::new(()));
        assert!(may_enter());
        let guard = inner.lock();
        assert!(!may_enter());
        let second = other.try_lock();
        drop(guard);
        assert!(second.is_some() && !may_enter());
        assert!(other.try_lock().is_none());
        drop(second);
        assert!(may_enter());
        assert!(std::thread::scope(|scope| {
            let _guard = inner.lock();
            scope.spawn(may_enter).join().unwrap()
        }));
    }

    #[test]
    fn a_wait_for_a_condition_holds_none() {
        let (inner, condition) = (Mutex::new(0), Condvar::default());
        let guard = condition.wait_while(inner.lock(), |number| {
            *number += 1;
            false
        });
        assert!(*guard == 1 && !may_enter());
        drop(guard);
        assert!(may_enter());
    }
}
