//! Whether this process owns the memory it runs in. A child of vfork(2) has descriptors of its own,
//! but its parent's table and rsockets: what it closes and copies before execve(2) must not change
//! those.

use core::sync::atomic::{AtomicI32, Ordering};

/// The process that owns the memory, 0 before the library is loaded completely.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// This process. The C library's getpid makes a system call.
pub fn this() -> i32 {
    // SAFETY: always succeeds.
    unsafe { libc::getpid() }
}

/// This process has memory of its own: called when the library is loaded, and in each child of
/// fork(2).
pub fn own() {
    OWNER.store(this(), Ordering::Relaxed);
}

/// Whether this is a child that uses its parent's memory.
pub fn is_guest() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    owner != 0 && owner != this()
}
