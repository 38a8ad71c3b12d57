//! eventfd(2) descriptors of the library, by which its threads are woken.

use core::ffi::c_int;

use crate::{next_symbol, own_fd};

/// Creates one that does not block, out of the program's way. Returns its number, or -1.
pub fn create() -> c_int {
    // SAFETY: no pointers.
    own_fd::create(|| unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Makes it readable.
pub fn signal(fd: c_int) {
    let one = 1_u64;
    // SAFETY: `one` has eight bytes.
    unsafe { next_symbol::write(fd, (&raw const one).cast(), size_of::<u64>()) };
}

/// Makes it unreadable.
pub fn clear(fd: c_int) {
    let mut count = 0_u64;
    // SAFETY: room for eight bytes.
    unsafe { next_symbol::read(fd, (&raw mut count).cast(), size_of::<u64>()) };
}
