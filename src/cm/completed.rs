//! Counting acknowledged events: an id may go when the program has acknowledged as many as the kernel reported.

use std::sync::{Condvar, Mutex, PoisonError};

/// The number of events that the program (or the library, for those it never shows) is done with.
///
/// A lock of the standard library: it waits on a futex and never allocates.
#[derive(Default)]
pub struct Completed {
    counts: Mutex<Counts>,
    more: Condvar,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    given: u32,
    done: u32,
    /// Threads in `wait_for`: the usual event is acknowledged without a system call.
    waiting: u32,
}

impl Completed {
    /// An event was read from the kernel; it now refers to `self`.
    pub fn give(&self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.given = counts.given.wrapping_add(1);
    }

    /// Whether no event refers to `self`.
    pub fn is_done(&self) -> bool {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.given == counts.done
    }

    /// One more. The notification happens under the lock, so that a waiter that then frees `self` comes after it.
    pub fn complete(&self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.done = counts.done.wrapping_add(1);
        if counts.waiting > 0 {
            self.more.notify_all();
        }
    }

    /// Waits until `reported` events are complete.
    pub fn wait_for(&self, reported: u32) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.waiting += 1;
        let behind = |counts: &mut Counts| (reported.wrapping_sub(counts.done) as i32) > 0;
        let mut counts = self.more.wait_while(counts, behind).unwrap_or_else(PoisonError::into_inner);
        counts.waiting -= 1;
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
        completed.give();
        assert!(!completed.is_done());
        completed.complete();
        assert!(completed.is_done());
        let other = completed.clone();
        let waiter = std::thread::spawn(move || {
            other.wait_for(3);
            other.counts.lock().unwrap_or_else(PoisonError::into_inner).done
        });
        completed.complete();
        completed.complete();
        assert_eq!(waiter.join().ok(), Some(3));
    }
}
