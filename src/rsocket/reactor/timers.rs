//! Timers in the order of their times.

use std::time::Instant;

use crate::errno::{Errno, Result};

/// Timers for `T`, which identifies them together with their times.
pub(super) struct Timers<T> {
    /// Latest first.
    entries: Vec<(Instant, T)>,
}

impl<T: PartialEq> Timers<T> {
    pub const fn new() -> Timers<T> {
        Timers { entries: Vec::new() }
    }

    /// Reserves memory for `count` timers in total: [`insert`](Self::insert) does not allocate for
    /// them.
    pub fn reserve(&mut self, count: usize) -> Result<()> {
        let missing = count.saturating_sub(self.entries.len());
        self.entries.try_reserve(missing).map_err(|_| Errno::ENOMEM)
    }

    /// Adds a timer. Returns whether it is the first to expire.
    pub fn insert(&mut self, time: Instant, timer: T) -> bool {
        let index = self.entries.partition_point(|&(later, _)| later > time);
        self.entries.insert(index, (time, timer));
        index + 1 == self.entries.len()
    }

    /// Removes a timer that was added for `time`, unless it has expired. Looks only at the timers
    /// for the same time.
    pub fn cancel(&mut self, time: Instant, timer: &T) {
        let start = self.entries.partition_point(|&(later, _)| later > time);
        let mut same = self.entries[start..].iter().take_while(|&&(equal, _)| equal == time);
        if let Some(offset) = same.position(|(_, other)| other == timer) {
            self.entries.remove(start + offset);
        }
    }

    /// Returns the time of the first timer.
    pub fn first(&self) -> Option<Instant> {
        self.entries.last().map(|&(time, _)| time)
    }

    /// Takes the first timer that has expired at `due`.
    pub fn take_expired(&mut self, due: Instant) -> Option<T> {
        self.entries.pop_if(|&mut (time, _)| time <= due).map(|(_, timer)| timer)
    }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::time::Duration;

    use super::*;

    /// Returns timers that were added with these seconds, numbered in this order, and their start.
    fn timers(seconds: &[u64]) -> (Timers<usize>, Instant) {
        let (mut timers, start) = (Timers::new(), Instant::now());
        timers.reserve(seconds.len()).unwrap();
        for (number, &after) in seconds.iter().enumerate() {
            timers.insert(start + Duration::from_secs(after), number);
        }
        (timers, start)
    }

    fn take_all(timers: &mut Timers<usize>, due: Instant) -> Vec<usize> {
        iter::from_fn(|| timers.take_expired(due)).collect()
    }

    #[test]
    fn expire_in_the_order_of_their_times() {
        let (mut timers, start) = timers(&[3, 1, 2, 1]);
        assert_eq!(timers.first(), Some(start + Duration::from_secs(1)));
        assert!(take_all(&mut timers, start).is_empty());
        assert_eq!(take_all(&mut timers, start + Duration::from_secs(2)), [1, 3, 2]);
        assert_eq!(take_all(&mut timers, start + Duration::from_secs(3)), [0]);
        assert_eq!(timers.first(), None);
    }

    #[test]
    fn tell_whether_they_are_first() {
        let (mut timers, start) = timers(&[2]);
        assert!(timers.insert(start + Duration::from_secs(1), 1));
        assert!(!timers.insert(start + Duration::from_secs(3), 2));
    }

    #[test]
    fn only_the_cancelled_one_is_removed() {
        let (mut timers, start) = timers(&[1, 2, 2, 2, 3]);
        timers.cancel(start + Duration::from_secs(2), &2);
        // Another time, and one that was cancelled before.
        timers.cancel(start + Duration::from_secs(1), &3);
        timers.cancel(start + Duration::from_secs(2), &2);
        timers.cancel(start + Duration::from_secs(4), &4);
        assert_eq!(take_all(&mut timers, start + Duration::from_secs(9)), [0, 1, 3, 4]);
    }

    #[test]
    fn inserting_into_reserved_memory_does_not_allocate() {
        let (mut timers, start) = timers(&[1, 2]);
        timers.reserve(5).unwrap();
        let capacity = timers.entries.capacity();
        for number in 2..5 {
            timers.insert(start, number);
        }
        assert!(capacity >= 5);
        assert_eq!(timers.entries.capacity(), capacity);
    }
}
