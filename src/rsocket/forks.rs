//! fork(): a child starts without a reactor, and may close its copies of sockets without harming the parent's.

use std::sync::atomic::{AtomicI32, Ordering};

use super::{calls, reactor, watch};
use crate::errno::{Errno, Result};

/// Errno of the registration, 0 when fork() is watched.
static REGISTERED: AtomicI32 = AtomicI32::new(libc::EAGAIN);

/// Runs when the library is loaded: later, a fork() in another thread could come before it.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = watch;

extern "C" fn watch() {
    // SAFETY: functions that live as long as the library, which is never unloaded (-z nodelete).
    let result = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    REGISTERED.store(result, Ordering::Relaxed);
}

/// `ENOMEM` when the C library had no room for our handlers.
pub fn watched() -> Result<()> {
    match REGISTERED.load(Ordering::Relaxed) {
        0 => Ok(()),
        error => Err(Errno::new(error)),
    }
}

/// What was made under another generation belongs to an ancestor of this process.
pub fn generation() -> u32 {
    watch::fork_generation()
}

extern "C" fn before() {
    reactor::before_fork();
}

extern "C" fn in_parent() {
    // SAFETY: after `before`, in the same thread.
    unsafe { reactor::after_fork(false) };
}

extern "C" fn in_child() {
    watch::in_child();
    // SAFETY: after `before`, in the copy of the same thread, which is the only one.
    unsafe {
        calls::after_fork();
        reactor::after_fork(true);
    }
}
