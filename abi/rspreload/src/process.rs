//! Whose memory this is: a child of vfork(2) has numbers of its own, but its parent's table and rsockets. What it closes
//! and duplicates on its way to execve(2) must not change those.

use core::sync::atomic::{AtomicI32, Ordering};

use crate::table;

/// The process that the memory belongs to.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Notes that this process has memory of its own: when the library is loaded, and in each child of fork(2).
extern "C" fn own() {
    // SAFETY: always succeeds.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// Called when the library is loaded.
pub fn watch() {
    own();
    // SAFETY: the handlers only store a number. Without memory for them children of fork(2) are taken for those of
    // vfork(2): then what they close stays open in librdmacm until they end.
    unsafe {
        libc::pthread_atfork(None, None, Some(own));
        libc::pthread_atfork(None, None, Some(table::forked));
    };
}

/// Whether this is a child that uses its parent's memory. Before the library is loaded completely there is none.
pub fn is_guest() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    // SAFETY: always succeeds.
    owner != 0 && owner != unsafe { libc::getpid() }
}
