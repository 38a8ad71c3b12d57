//! futex(2), between the threads of a process. Addresses are the kernel's to check: it neither
//! writes nor follows them.

use core::ffi::c_long;
use core::ptr;

use libc::{FUTEX_PRIVATE_FLAG, FUTEX_WAIT, FUTEX_WAKE, SYS_futex, syscall, timespec};

/// Sleeps if the word has this value, until it is woken, a handler has run, or the time is over.
/// Returns what the system call does: 0, or -1 with `errno`.
#[inline]
pub fn wait(word: *const u32, value: u32, limit: Option<&timespec>) -> c_long {
    let limit = limit.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the time lives as long as the call.
    unsafe { syscall(SYS_futex, word.addr(), FUTEX_WAIT | FUTEX_PRIVATE_FLAG, value, limit) }
}

/// Wakes up to `count` of the threads that sleep at a word. Does not change `errno`. The word's
/// memory may have been freed: then nobody sleeps there, or somebody is woken for nothing.
pub fn wake(word: *const u32, count: i32) {
    // SAFETY: integers, and an address.
    crate::errno::keeping(|| unsafe { syscall(SYS_futex, word.addr(), FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count) });
}
