//! Timers in the order of their times.
//!
//! A cancelled timer stays in the heap until it is the first one, or until the heap is full. So
//! setting and cancelling one of n take log n steps, on average: cleaning the heap looks at all of
//! them, after at least as many were cancelled as it has space for beyond those that are set.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use crate::errno::{Errno, Result};

/// Timers for `T`, each of which is set once. Their owner knows which of them have been cancelled:
/// the functions `is_set` are its answer.
pub(super) struct Timers<T> {
    entries: BinaryHeap<Reverse<(Instant, T)>>,
    /// [`insert`](Self::insert) does not allocate for as many that are set.
    reserved: usize,
}

impl<T: Ord + Copy> Timers<T> {
    pub const fn new() -> Timers<T> {
        Timers { entries: BinaryHeap::new(), reserved: 0 }
    }

    /// Reserves memory for `count` timers in total: [`insert`](Self::insert) does not allocate for
    /// them.
    pub fn reserve(&mut self, count: usize) -> Result<()> {
        let missing = count.saturating_sub(self.entries.len());
        self.entries.try_reserve(missing).map_err(|_| Errno::ENOMEM)?;
        self.reserved = self.reserved.max(count);
        Ok(())
    }

    /// Adds a timer. Returns whether it is the first to expire.
    pub fn insert(&mut self, time: Instant, timer: T, is_set: impl Fn(T) -> bool) -> bool {
        if self.entries.len() >= self.reserved {
            self.entries.retain(|&Reverse((_, timer))| is_set(timer));
        }
        let is_first = self.entries.peek().is_none_or(|&Reverse((first, _))| time < first);
        self.entries.push(Reverse((time, timer)));
        is_first
    }

    /// Returns the time of the first timer.
    pub fn first(&mut self, is_set: impl Fn(T) -> bool) -> Option<Instant> {
        loop {
            let &Reverse((time, timer)) = self.entries.peek()?;
            if is_set(timer) {
                return Some(time);
            }
            self.entries.pop();
        }
    }

    /// Takes the first timer that is set and has expired at `due`.
    pub fn take_expired(&mut self, due: Instant, is_set: impl Fn(T) -> bool) -> Option<T> {
        while let Some(&Reverse((time, timer))) = self.entries.peek()
            && time <= due
        {
            self.entries.pop();
            if is_set(timer) {
                return Some(timer);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::time::Duration;

    use super::*;

    /// Timers and their owner: each has a number, and how often it was set.
    struct Fixture {
        timers: Timers<(usize, u32)>,
        start: Instant,
        set: [(bool, u32); 10],
    }

    impl Fixture {
        /// Sets timers for these seconds after the start, numbered in this order.
        fn new(seconds: &[u64]) -> Fixture {
            let mut fixture = Fixture { timers: Timers::new(), start: Instant::now(), set: [(false, 0); 10] };
            fixture.timers.reserve(seconds.len()).unwrap();
            for (number, &after) in seconds.iter().enumerate() {
                fixture.set(number, after);
            }
            fixture
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        fn set(&mut self, number: usize, after: u64) -> bool {
            let time = self.at(after);
            self.set[number] = (true, self.set[number].1 + 1);
            self.timers.insert(time, (number, self.set[number].1), is_set(&self.set))
        }

        fn cancel(&mut self, number: usize) {
            self.set[number].0 = false;
        }

        fn first(&mut self) -> Option<Instant> {
            self.timers.first(is_set(&self.set))
        }

        fn take_all(&mut self, seconds: u64) -> Vec<usize> {
            let due = self.at(seconds);
            iter::from_fn(|| {
                let (number, _) = self.timers.take_expired(due, is_set(&self.set))?;
                self.cancel(number);
                Some(number)
            })
            .collect()
        }
    }

    fn is_set(set: &[(bool, u32); 10]) -> impl Fn((usize, u32)) -> bool {
        |(number, times)| set[number] == (true, times)
    }

    #[test]
    fn expire_in_the_order_of_their_times() {
        let mut fixture = Fixture::new(&[3, 1, 2, 1]);
        assert_eq!(fixture.first(), Some(fixture.at(1)));
        assert!(fixture.take_all(0).is_empty());
        assert_eq!(fixture.take_all(2), [1, 3, 2]);
        assert_eq!(fixture.take_all(3), [0]);
        assert_eq!(fixture.first(), None);
    }

    #[test]
    fn tell_whether_they_are_first() {
        let mut fixture = Fixture::new(&[2]);
        assert!(fixture.set(1, 1));
        assert!(!fixture.set(2, 3));
    }

    #[test]
    fn only_the_cancelled_one_does_not_expire() {
        let mut fixture = Fixture::new(&[1, 2, 2, 2, 3]);
        fixture.cancel(0);
        fixture.cancel(2);
        assert_eq!(fixture.first(), Some(fixture.at(2)));
        assert_eq!(fixture.take_all(9), [1, 3, 4]);
    }

    #[test]
    fn expire_once_when_set_again() {
        let mut fixture = Fixture::new(&[1, 5]);
        for after in [3, 2, 2] {
            fixture.set(0, after);
        }
        assert!(fixture.take_all(1).is_empty());
        assert_eq!(fixture.take_all(9), [0, 1]);
    }

    #[test]
    fn cancelled_ones_need_no_more_memory() {
        let mut fixture = Fixture::new(&[1, 2]);
        fixture.timers.reserve(5).unwrap();
        let capacity = fixture.timers.entries.capacity();
        for round in 0..1000 {
            fixture.set(round % 4, 1000 + round as u64);
        }
        assert!(capacity >= 5);
        assert_eq!(fixture.timers.entries.capacity(), capacity);
        assert_eq!(fixture.take_all(2000), [0, 1, 2, 3]);
    }
}
