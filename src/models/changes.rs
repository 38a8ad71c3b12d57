//! The counter that threads wait on (`sys::futex::Changes`).

use std::time::Instant;

use loom::sync::atomic::{AtomicBool, Ordering};

use super::explore;
use crate::errno::Errno;
use crate::sys::futex::Changes;

#[derive(Default)]
struct Shared {
    /// The condition that threads wait for.
    done: AtomicBool,
    changes: Changes,
}

impl Shared {
    fn change(&self) {
        self.done.store(true, Ordering::Relaxed);
        self.changes.notify();
    }

    fn wait(&self) {
        loop {
            let count = self.changes.count();
            if self.done.load(Ordering::Relaxed) {
                return;
            }
            self.changes.wait(count, None).unwrap();
        }
    }

    fn wait_for_a_while(&self) {
        let count = self.changes.count();
        if !self.done.load(Ordering::Relaxed) {
            let result = self.changes.wait(count, Some(Instant::now()));
            assert!(matches!(result, Ok(()) | Err(Errno::ETIMEDOUT)));
        }
    }
}

#[test]
fn a_sleeper_is_woken() {
    explore(4, Shared::default, [Shared::wait, Shared::change], |_| {});
}

#[test]
fn all_sleepers_are_woken() {
    explore(3, Shared::default, [Shared::wait, Shared::wait, Shared::change], |_| {});
}

#[test]
fn one_gives_up() {
    explore(3, Shared::default, [Shared::wait, Shared::wait_for_a_while, Shared::change], |_| {});
}
