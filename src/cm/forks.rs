//! fork(): the child gets every lock of the process free, and starts with devices of its own.
//!
//! The kernel refuses the parent's channels to the child (it checks who opened them), so nothing of what is open can
//! be shared; ids made after the fork work in both. This is the written list of the library's global locks, in the
//! order in which they are taken here (docs/locking.md).

use std::sync::atomic::{AtomicU32, Ordering};

use super::{device, handles};
use crate::sys::atfork::watch_forks;

watch_forks!(before, in_parent, in_child);

extern "C" fn before() {
    device::before_fork();
    handles::before_fork();
}

extern "C" fn in_parent() {
    // SAFETY: after `before`, in the same thread.
    unsafe {
        handles::after_fork(false);
        device::after_fork(false);
    }
}

/// Counts the fork()s between the program's first process and this one: what was opened before
/// belongs to an ancestor.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// See [`GENERATION`].
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: after `before`, in the copy of the same thread.
    unsafe {
        handles::after_fork(true);
        device::after_fork(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_on_load() {
        assert_eq!(watched(), Ok(()));
    }

    #[test]
    fn locks_are_free_in_the_child() {
        let _busy = std::thread::spawn(|| {
            for _ in 0..1000 {
                drop(device::lock());
            }
        });
        // SAFETY: the child only takes a lock and leaves.
        match unsafe { libc::fork() } {
            0 => {
                drop(device::lock());
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
