//! Which process an object belongs to: a child of fork() has copies of its parent's objects, whose
//! connections and locks are the parent's.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the process that loaded the library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Returns a number that differs between a process and its children.
#[inline]
pub fn fork_generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Called in the child of a fork().
pub fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// The process that made an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// This process.
    #[inline]
    pub fn this_process() -> Owner {
        Owner(fork_generation())
    }

    /// Returns whether it is this process, and not one that has forked since.
    #[inline]
    pub fn is_this_process(self) -> bool {
        self == Owner::this_process()
    }
}
