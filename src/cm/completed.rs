//! Counts acknowledged events: an id can be freed once the program has acknowledged all events that
//! the kernel reported.

use std::sync::atomic::{AtomicU32, Ordering};

use base::futex;

/// The number of completed events: those that the program has acknowledged, and those that the
/// library has consumed.
#[derive(Default)]
pub struct Completed {
    /// Events that were read from the kernel.
    read: AtomicU32,
    /// Twice the number of completed events, and [`AWAITED`].
    completed: AtomicU32,
}

/// Set while threads may be in `wait_for`. Without one, completing an event needs no system call.
const AWAITED: u32 = 1;

impl Completed {
    /// Counts an event that was read from the kernel. It refers to `self` until it is completed.
    pub fn give(&self) {
        self.read.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether no event refers to `self`.
    pub fn is_done(&self) -> bool {
        let completed = self.completed.load(Ordering::Acquire) & !AWAITED;
        completed == self.read.load(Ordering::Relaxed).wrapping_mul(2)
    }

    /// Counts a completed event. From then on, a thread in `wait_for` may free `self`.
    pub fn complete(&self) {
        let word = self.completed.as_ptr();
        let next = |before: u32| Some((before & !AWAITED).wrapping_add(2));
        let (Ok(before) | Err(before)) = self.completed.fetch_update(Ordering::Release, Ordering::Relaxed, next);
        if before & AWAITED != 0 {
            futex::wake(word, i32::MAX);
        }
    }

    /// Waits until `reported` events are complete.
    pub fn wait_for(&self, reported: u32) {
        loop {
            let word = self.completed.load(Ordering::Acquire);
            if reported.wrapping_mul(2).wrapping_sub(word & !AWAITED) as i32 <= 0 {
                return;
            }
            let awaited = word | AWAITED;
            if self.completed.compare_exchange(word, awaited, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                futex::wait(self.completed.as_ptr(), awaited, None);
            }
        }
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
        let waiter = std::thread::spawn(move || other.wait_for(3));
        // The waiter sleeps, or is about to: one more event does not suffice.
        let await_waiter = || {
            while completed.completed.load(Ordering::Relaxed) & AWAITED == 0 {
                std::thread::yield_now();
            }
        };
        await_waiter();
        completed.complete();
        await_waiter();
        assert!(!waiter.is_finished());
        completed.complete();
        assert!(waiter.join().is_ok());
    }
}
