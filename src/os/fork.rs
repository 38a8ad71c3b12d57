//! fork(): the library's fork handlers, and the process to which an object belongs. Each layer of
//! the library has a slot for its handlers, and the handlers of all layers are registered with the
//! C library once. A child has copies of its parent's objects, but the devices, connections and
//! locks in them are the parent's.
//!
//! The order of the handlers does not depend on which layer registers first: before the fork from
//! the upper layer to the lower one, as the layers' locks nest; afterwards from the lower layer to
//! the upper one. In the child, `GENERATION` changes before any handler runs.
//!
//! The registration is made when the library is loaded (`rsocket/process.rs`): if it were made
//! later, a fork() in another thread could come first. In a program that is linked with the static
//! library, the program's constructors may run before the library's: a call in such a constructor
//! registers the handlers of its layer itself. A fork() that another thread has begun before the
//! registration may then run only the handlers of its later steps. The handlers allow for this:
//! none of them waits for another thread, which the child of a fork() may not have.

use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use crate::errno::{Errno, Result};
use crate::os::mark;
use crate::os::sync::{Guard, Lock};

/// The handlers of a layer.
pub struct Handlers {
    /// Called by the thread that forks, before the fork.
    pub before: fn(),
    /// Called by the same thread after the fork.
    pub in_parent: fn(),
    /// Called by the only thread of the child.
    pub in_child: fn(),
}

/// The layers that have handlers, the lowest first.
#[derive(Clone, Copy)]
pub enum Layer {
    /// The connection manager.
    Cm,
    /// Rsockets, which are built on the connection manager.
    Rsocket,
}

const LAYERS: usize = 2;

/// The handlers of each [`Layer`]; NULL until the layer registers them.
type Slots = [AtomicPtr<Handlers>; LAYERS];

static HANDLERS: Slots = [const { AtomicPtr::new(ptr::null_mut()) }; LAYERS];

/// Returns the handlers that are registered, the lowest layer's first.
fn registered(slots: &Slots) -> impl DoubleEndedIterator<Item = &'static Handlers> {
    // SAFETY: each slot is NULL, or points to handlers with a static lifetime.
    slots.iter().filter_map(|slot| unsafe { slot.load(Ordering::Acquire).as_ref() })
}

/// Errno of the registration with the C library; 0 during the registration and after success.
static REGISTERED: AtomicI32 = AtomicI32::new(NOT_YET);

/// Value of [`REGISTERED`] before the first registration.
const NOT_YET: i32 = -1;

/// Registers the handlers of a layer, which are called around every fork() from now on. Has no
/// effect when repeated.
///
/// # Errors
/// Fails with `ENOMEM` if the C library has no memory for handlers.
pub fn register(layer: Layer, handlers: &'static Handlers) -> Result<()> {
    HANDLERS[layer as usize].store(ptr::from_ref(handlers).cast_mut(), Ordering::Release);
    let result = match REGISTERED.compare_exchange(NOT_YET, 0, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => register_with_libc(),
        Err(known) => known,
    };
    if result == 0 { Ok(()) } else { Err(Errno::new(result)) }
}

fn register_with_libc() -> i32 {
    // SAFETY: the functions live as long as the library, which is never unloaded (-z nodelete).
    let result = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    REGISTERED.store(result, Ordering::Relaxed);
    result
}

/// Runs the handlers before a fork.
pub extern "C" fn before() {
    mark::begin_fork();
    registered(&HANDLERS).rev().for_each(|handlers| (handlers.before)());
}

/// Runs the handlers after a fork, in the parent.
pub extern "C" fn in_parent() {
    registered(&HANDLERS).for_each(|handlers| (handlers.in_parent)());
    mark::end_fork();
}

/// Runs the handlers after a fork, in the child.
pub extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    registered(&HANDLERS).for_each(|handlers| (handlers.in_child)());
    mark::end_fork();
}

/// Number of forks between the process that loaded the library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process that made an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// A process that does not exist.
    #[cfg(test)]
    pub const NO_PROCESS: Owner = Owner(u32::MAX);

    /// Returns this process.
    #[inline]
    pub fn this_process() -> Owner {
        Owner(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns the number of forks between the process that loaded the library and the owner.
    #[inline]
    pub fn number(self) -> u32 {
        self.0
    }

    /// Returns whether the owner is this process: false in a child that was forked later.
    #[inline]
    pub fn is_this_process(self) -> bool {
        self == Owner::this_process()
    }

    /// Locks an object's state for a call of the program. Fails with `EBADF` for an object of the
    /// parent process.
    #[inline]
    pub fn enter<T>(self, state: &Lock<T>) -> Result<Guard<'_, T>> {
        if self.is_this_process() { Ok(state.lock()) } else { Err(Errno::EBADF) }
    }
}

/// The owner of an object that a child may take over. A thread that finds this process as the owner
/// sees everything that was written before [`take_over`](AtomicOwner::take_over).
#[derive(Debug)]
pub struct AtomicOwner(AtomicU32);

impl AtomicOwner {
    /// Returns this process.
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
    /// Makes the object look as if it were inherited from the parent process.
    pub fn belong_to_parent(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn every_layer_is_registered_on_load() {
        assert_eq!(REGISTERED.load(Ordering::Relaxed), 0);
        assert_eq!(registered(&HANDLERS).count(), LAYERS);
    }

    #[test]
    fn the_lowest_layer_is_the_first() {
        static CALLED: Mutex<Vec<&str>> = Mutex::new(Vec::new());
        fn call(name: &'static str) {
            CALLED.lock().unwrap().push(name);
        }
        static CM: Handlers = Handlers { before: || call("cm"), in_parent: || (), in_child: || () };
        static RSOCKET: Handlers = Handlers { before: || call("rsocket"), in_parent: || (), in_child: || () };
        let slots: Slots = [const { AtomicPtr::new(ptr::null_mut()) }; LAYERS];
        for (layer, handlers) in [(Layer::Rsocket, &RSOCKET), (Layer::Cm, &CM)] {
            slots[layer as usize].store(ptr::from_ref(handlers).cast_mut(), Ordering::Release);
        }
        registered(&slots).for_each(|handlers| (handlers.before)());
        assert_eq!(*CALLED.lock().unwrap(), ["cm", "rsocket"]);
    }

    #[test]
    fn what_a_child_takes_over_is_its_own() {
        let mark = AtomicOwner::this_process();
        mark.belong_to_parent();
        assert!(!mark.is_this_process());
        mark.take_over();
        assert!(mark.is_this_process());
    }
}
