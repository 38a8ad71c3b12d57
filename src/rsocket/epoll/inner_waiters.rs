//! The threads that wait in the inner epoll.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::sys::owner::Owner;

/// Number of threads of this process that wait. The parent's do not exist in a child: the number is
/// stored with the process that it is of, so nobody has to reset it.
#[derive(Debug, Default)]
pub struct InnerWaiters(AtomicU64);

fn pack(count: u32) -> u64 {
    u64::from(Owner::this_process().number()) << 32 | u64::from(count)
}

fn count_of(word: u64) -> u32 {
    if word >> 32 == pack(0) >> 32 { word as u32 } else { 0 }
}

impl InnerWaiters {
    pub fn count(&self) -> u32 {
        count_of(self.0.load(SeqCst))
    }

    pub fn add(&self) {
        let _ = self.0.fetch_update(SeqCst, SeqCst, |word| Some(pack(count_of(word) + 1)));
    }

    /// Returns whether this was the last one. The child of a fork in a signal handler may return to
    /// its parent's wait, which does not count.
    pub fn remove(&self) -> bool {
        self.0
            .fetch_update(SeqCst, SeqCst, |word| Some(pack(count_of(word).checked_sub(1)?)))
            .is_ok_and(|word| count_of(word) == 1)
    }

    #[cfg(test)]
    pub fn belong_to_parent(&self) {
        self.0.fetch_sub(1 << 32, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_the_parent_do_not_count() {
        let waiters = InnerWaiters::default();
        waiters.add();
        waiters.add();
        assert_eq!(waiters.count(), 2);
        assert!(!waiters.remove() && waiters.remove());
        waiters.add();
        waiters.belong_to_parent();
        assert_eq!(waiters.count(), 0);
        assert!(!waiters.remove());
        waiters.add();
        assert_eq!(waiters.count(), 1);
        assert!(waiters.remove());
        assert!(!waiters.remove());
    }
}
