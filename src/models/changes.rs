//! The counter that threads wait on (`os::sync::Changes`).

use std::time::Instant;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, Ordering};

use super::explore;
use crate::errno::Errno;
use crate::os::sync::Changes;

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

/// Units that threads take one by one, as raccept(3) takes a listener's connections.
#[derive(Default)]
struct Units {
    left: Mutex<u32>,
    changes: Changes,
}

impl Units {
    fn add_two(&self) {
        for _ in 0..2 {
            let mut left = self.left.lock().unwrap();
            *left += 1;
            self.changes.notify_one();
        }
    }

    fn take(&self) {
        self.take_until(None);
    }

    /// Takes a unit if a unit is there before the time-out.
    fn take_or_give_up(&self) {
        self.take_until(Some(Instant::now()));
    }

    fn take_until(&self, deadline: Option<Instant>) {
        let mut has_expired = false;
        loop {
            let mut left = self.left.lock().unwrap();
            if *left > 0 {
                *left -= 1;
                return;
            }
            if has_expired {
                return;
            }
            let count = self.changes.count();
            drop(left);
            has_expired = self.changes.wait(count, deadline).is_err();
        }
    }
}

#[test]
fn each_unit_wakes_a_sleeper() {
    explore(3, Units::default, [Units::take, Units::take, Units::add_two], |_| {});
}

#[test]
fn a_unit_is_not_left_to_one_that_gives_up() {
    explore(3, Units::default, [Units::take, Units::take_or_give_up, Units::add_two], |_| {});
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
