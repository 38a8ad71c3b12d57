//! Counts acknowledged events: an id can be freed once the program has acknowledged all events that
//! the kernel reported.

use crate::sys::sync::{Condvar, Mutex};

/// The number of completed events: those that the program has acknowledged, and those that the
/// library has consumed.
///
/// The lock is one of the standard library, which waits on a futex and never allocates.
#[derive(Default)]
pub struct Completed {
    counts: Mutex<Counts>,
    more: Condvar,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    /// Events that were read from the kernel.
    read: u32,
    completed: u32,
    /// Threads in `wait_for`. Without one, completing an event needs no system call.
    waiting: u32,
}

impl Completed {
    /// Counts an event that was read from the kernel. It refers to `self` until it is completed.
    pub fn give(&self) {
        let mut counts = self.counts.lock();
        counts.read = counts.read.wrapping_add(1);
    }

    /// Whether no event refers to `self`.
    pub fn is_done(&self) -> bool {
        let counts = self.counts.lock();
        counts.read == counts.completed
    }

    /// Counts a completed event. Notifies under the lock: a waiter may free `self` once it has the
    /// lock.
    pub fn complete(&self) {
        let mut counts = self.counts.lock();
        counts.completed = counts.completed.wrapping_add(1);
        if counts.waiting > 0 {
            self.more.notify_all();
        }
    }

    /// Waits until `reported` events are complete.
    pub fn wait_for(&self, reported: u32) {
        let mut counts = self.counts.lock();
        counts.waiting += 1;
        let behind = |counts: &mut Counts| (reported.wrapping_sub(counts.completed) as i32) > 0;
        let mut counts = self.more.wait_while(counts, behind);
        counts.waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn waits_until_all_reported_events_are_completed() {
        let completed = Arc::new(Completed::default());
        completed.wait_for(0);
        completed.give();
        assert!(!completed.is_done());
        completed.complete();
        assert!(completed.is_done());
        let other = completed.clone();
        let waiter = std::thread::spawn(move || {
            other.wait_for(3);
            other.counts.lock().completed
        });
        // `waiting` is counted and the lock released by one step of the waiter: from here on the
        // waiter sleeps, and one more event does not suffice.
        while completed.counts.lock().waiting == 0 {
            std::thread::yield_now();
        }
        completed.complete();
        assert!(!waiter.is_finished());
        assert_eq!(completed.counts.lock().waiting, 1);
        completed.complete();
        assert_eq!(waiter.join().ok(), Some(3));
    }
}
