//! Counting acknowledged events: an id may go when the program has acknowledged as many as the kernel reported.

use std::sync::{Condvar, Mutex, PoisonError};

/// The number of events that the program (or the library, for those it never shows) is done with.
///
/// A lock of the standard library: it waits on a futex and never allocates.
#[derive(Default)]
pub struct Completed {
    count: Mutex<u32>,
    more: Condvar,
}

impl Completed {
    /// One more. The notification happens under the lock, so that a waiter that then frees `self` comes after it.
    pub fn complete(&self) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.wrapping_add(1);
        self.more.notify_all();
    }

    /// Waits until `reported` events are complete.
    pub fn wait_for(&self, reported: u32) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let behind = |count: &mut u32| (reported.wrapping_sub(*count) as i32) > 0;
        drop(self.more.wait_while(count, behind).unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn waits_for_the_last_one() {
        let completed = Arc::new(Completed::default());
        completed.wait_for(0);
        completed.complete();
        let other = completed.clone();
        let waiter = std::thread::spawn(move || {
            other.wait_for(3);
            *other.count.lock().unwrap_or_else(PoisonError::into_inner)
        });
        completed.complete();
        completed.complete();
        assert_eq!(waiter.join().ok(), Some(3));
    }
}
