//! The lock that knows its holder ([`Lock`]).

use std::time::Duration;

use super::explore;
use crate::os::sync::Lock;

struct Shared {
    lock: Lock<(u32, u32)>,
}

fn shared() -> Shared {
    Shared { lock: Lock::new((0, 0)) }
}

fn change(shared: &Shared) {
    let mut both = shared.lock.lock();
    assert!(shared.lock.is_mine());
    assert!(shared.lock.lock_within(Duration::MAX).is_none());
    assert_eq!(both.0, both.1);
    both.0 += 1;
    both.1 += 1;
}

fn try_change(shared: &Shared) {
    assert!(!shared.lock.is_mine());
    if let Some(mut both) = shared.lock.try_lock() {
        both.0 += 1;
        both.1 += 1;
    }
}

fn at_least(changes: u32) -> impl Fn(&Shared) {
    move |shared| {
        let both = shared.lock.lock();
        assert!(both.0 == both.1 && both.0 >= changes);
    }
}

#[test]
fn two_in_turn() {
    explore(4, shared, [change, change], at_least(2));
}

#[test]
fn three_in_turn() {
    explore(2, shared, [change, change, change], at_least(3));
}

#[test]
fn one_that_does_not_wait() {
    explore(2, shared, [change, try_change, change], at_least(2));
}
