//! fork(): in the child every lock of the process is free, and devices are opened anew.
//!
//! The kernel refuses the parent's channels to the child (it checks who opened them), so no open
//! object can be shared; ids created after the fork work in both processes. This file lists the
//! global locks of the connection manager in the order in which they are taken (docs/concurrency.md).

use super::device_registry::{REGISTRY, Registry};
use super::handles::{self, HANDLES};
use crate::errno::Result;
use crate::os::atfork::{self, Handlers, Layer};

static HANDLERS: Handlers = Handlers { before, in_parent, in_child };

/// Registers the handlers unless they were registered when the library was loaded. Fails with
/// ENOMEM if the C library has no memory for them.
pub fn register() -> Result<()> {
    atfork::register(Layer::Cm, &HANDLERS)
}

fn before() {
    REGISTRY.before_fork();
    HANDLES.before_fork();
}

fn in_parent() {
    HANDLES.after_fork_in_parent();
    REGISTRY.after_fork_in_parent();
}

fn in_child() {
    // SAFETY: the child of a fork() has one thread until its handlers have run.
    unsafe {
        HANDLES.after_fork_in_child(handles::Table::new);
        REGISTRY.after_fork_in_child(Registry::new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::device_registry;

    #[test]
    fn registered_on_load() {
        assert_eq!(register(), Ok(()));
    }

    #[test]
    fn locks_are_free_in_the_child() {
        let _busy = std::thread::spawn(|| {
            for _ in 0..1000 {
                drop(device_registry::lock());
            }
        });
        // SAFETY: the child only takes a lock and leaves.
        match unsafe { libc::fork() } {
            0 => {
                drop(device_registry::lock());
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(7) }
            }
            child => {
                let mut status = 0;
                // SAFETY: our child.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                assert_eq!(libc::WEXITSTATUS(status), 7);
            }
        }
    }
}
