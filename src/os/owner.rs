//! Which process an object belongs to: a child of fork() has copies of its parent's objects, whose
//! devices, connections and locks are the parent's.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the process that loaded the library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Called in the child of a fork(), before anything else.
pub fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process that made an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// The process that loaded the library, for values that exist before any call.
    pub const FIRST_PROCESS: Owner = Owner(0);

    /// Returns the mark of this process.
    #[inline]
    pub fn this_process() -> Owner {
        Owner(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns the number of forks before this process.
    #[inline]
    pub fn number(self) -> u32 {
        self.0
    }

    /// Returns whether the mark is that of this process, which has not forked since.
    #[inline]
    pub fn is_this_process(self) -> bool {
        self == Owner::this_process()
    }
}

/// The owner of an object that a child may take over. A thread that finds this process as the owner
/// sees what was done before [`take_over`](AtomicOwner::take_over).
#[derive(Debug)]
pub struct AtomicOwner(AtomicU32);

impl AtomicOwner {
    /// Returns the mark of this process.
    pub fn this_process() -> AtomicOwner {
        AtomicOwner(AtomicU32::new(Owner::this_process().0))
    }

    /// Returns whether this process is the owner.
    #[inline]
    pub fn is_this_process(&self) -> bool {
        Owner(self.0.load(Ordering::Acquire)).is_this_process()
    }

    /// Makes this process the owner.
    pub fn take_over(&self) {
        self.0.store(Owner::this_process().0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
impl AtomicOwner {
    /// Makes the object look like one that a child has from its parent.
    pub fn belong_to_parent(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_a_child_takes_over_is_its_own() {
        let mark = AtomicOwner::this_process();
        mark.belong_to_parent();
        assert!(!mark.is_this_process());
        mark.take_over();
        assert!(mark.is_this_process());
    }
}
