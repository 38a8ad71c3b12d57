//! The standard library's locks without poison: the library aborts when it panics, so no lock is
//! ever poisoned. In the models of `models/` they are loom's, as are the atomics.
//!
//! They wait on a futex and never allocate. They are inner locks (see [`super::inner`]): a signal
//! handler that interrupts their holder does not get as far as taking one. Locks that are taken
//! around fork(), and those of rsockets, are [`Lock`](super::lock::Lock)s.

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, TryLockError};

use super::inner::Held;

#[cfg(not(all(test, loom)))]
use std::sync as model;
#[cfg(not(all(test, loom)))]
pub use std::{sync::atomic, thread::yield_now};

#[cfg(all(test, loom))]
use loom::sync as model;
#[cfg(all(test, loom))]
pub use loom::{sync::atomic, thread::yield_now};

pub use model::Arc;

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
        let held = Held::begin();
        MutexGuard { guard: self.0.lock().unwrap_or_else(PoisonError::into_inner), held }
    }

    /// Returns the lock unless a thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = Held::begin();
        match self.0.try_lock() {
            Ok(guard) => Some(MutexGuard { guard, held }),
            Err(TryLockError::Poisoned(poisoned)) => Some(MutexGuard { guard: poisoned.into_inner(), held }),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Access to the value; dropping it unlocks.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    // Dropped in this order.
    guard: model::MutexGuard<'a, T>,
    held: Held,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A condition that threads with a [`Mutex`] wait for.
#[cfg(not(all(test, loom)))]
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

#[cfg(not(all(test, loom)))]
impl Condvar {
    /// Releases the lock and waits as long as `condition` holds.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let MutexGuard { guard, held } = guard;
        drop(held);
        let guard = self.0.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner);
        MutexGuard { guard, held: Held::begin() }
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
