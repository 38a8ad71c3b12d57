//! Objects that the calling thread uses without their locks, in the middle of a call.
//!
//! A signal handler that interrupts such a call must find the object as if the lock were held: its
//! own call on it would wait for what the interrupted call has to finish.

#[cfg(not(all(test, loom)))]
use std::cell::Cell;
#[cfg(not(all(test, loom)))]
use std::ptr;
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{Ordering, compiler_fence};

/// Number of objects: of a call, and of handlers that interrupt it and one another.
#[cfg(not(all(test, loom)))]
const NESTED: usize = 4;

#[cfg(not(all(test, loom)))]
thread_local! {
    /// Addresses; 0 is free.
    static USED: [Cell<usize>; NESTED] = const { [const { Cell::new(0) }; NESTED] };
}

/// Exists while the calling thread uses an object without its lock.
#[derive(Debug)]
pub struct Use(#[cfg(not(all(test, loom)))] usize);

#[cfg(not(all(test, loom)))]
impl Use {
    /// Begins to use an object. Called with its lock held, or before what is used is claimed in
    /// another way: a handler in between must find the object in use. Returns `None` if too many
    /// are used: the caller keeps the lock. That is also so where handlers have left calls by
    /// siglongjmp(3).
    pub fn begin<T>(object: &T) -> Option<Use> {
        let address = ptr::from_ref(object).addr();
        let slot = USED.with(|used| {
            let slot = used.iter().position(|slot| slot.get() == 0)?;
            used[slot].set(address);
            Some(slot)
        })?;
        // A handler sees it before the lock is released.
        compiler_fence(Ordering::SeqCst);
        Some(Use(slot))
    }
}

#[cfg(not(all(test, loom)))]
impl Drop for Use {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        USED.with(|used| used[self.0].set(0));
    }
}

/// Returns whether the caller is a signal handler that interrupted a use of `object`.
#[cfg(not(all(test, loom)))]
pub fn is_used_here<T>(object: &T) -> bool {
    let address = ptr::from_ref(object).addr();
    USED.with(|used| used.iter().any(|slot| slot.get() == address))
}

/// The child of a fork(), even of one in a signal handler, uses none of its parent's objects.
#[cfg(not(all(test, loom)))]
pub fn in_child() {
    USED.with(|used| used.iter().for_each(|slot| slot.set(0)));
}

/// Models have no signal handlers.
#[cfg(all(test, loom))]
pub fn is_used_here<T>(_: &T) -> bool {
    false
}

#[cfg(all(test, loom))]
impl Use {
    pub fn begin<T>(_: &T) -> Option<Use> {
        Some(Use())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn uses_are_those_of_the_thread() {
        let objects = [1_u8; NESTED + 1];
        assert!(!is_used_here(&objects[0]));
        let uses: Vec<_> = objects.iter().map(Use::begin).collect();
        assert!(uses[..NESTED].iter().all(Option::is_some) && uses[NESTED].is_none());
        assert!(objects[..NESTED].iter().all(is_used_here) && !is_used_here(&objects[NESTED]));
        assert!(!std::thread::scope(|scope| scope.spawn(|| is_used_here(&objects[0])).join().unwrap()));
        drop(uses);
        assert!(!objects.iter().any(is_used_here));
        let _use = Use::begin(&objects[1]);
        in_child();
        assert!(!is_used_here(&objects[1]));
    }
}
