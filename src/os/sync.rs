//! The standard library's locks without poison: the library aborts when it panics, so no lock is
//! ever poisoned. In the models of `tests/models` they are loom's, as are the atomics.
//!
//! They wait on a futex and never allocate. Locks that are taken around fork(), and those of
//! rsockets, are [`Lock`](crate::os::lock::Lock)s.

use std::sync::{PoisonError, TryLockError};

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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lock unless a thread holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the value; `&mut self` shows that no other thread has access.
    #[cfg(not(all(test, loom)))]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Access to the value; dropping it unlocks.
pub type MutexGuard<'a, T> = model::MutexGuard<'a, T>;

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
        self.0.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
