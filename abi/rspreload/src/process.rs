//! The process and its clock.
//!
//! Whether this process owns the memory it runs in: a child of vfork(2) has descriptors of its own, but
//! its parent's table and rsockets: what it closes and copies before execve(2) must not change those.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, Ordering};

use libc::timespec;

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

/// The end of a time-out, in nanoseconds of the monotonic clock.
pub struct Deadline {
    timeout: c_int,
    end: i64,
}

impl Deadline {
    /// The end of a time-out of milliseconds that begins now.
    pub fn after(timeout: c_int) -> Self {
        let end = if timeout > 0 { now() + i64::from(timeout) * 1_000_000 } else { 0 };
        Deadline { timeout, end }
    }

    /// The end itself, for comparisons. Does not read the clock.
    pub fn end(&self) -> i64 {
        self.end
    }

    /// The milliseconds left, rounded up: a wait must not end early.
    pub fn left(&self) -> c_int {
        if self.timeout <= 0 {
            return self.timeout;
        }
        // At most the original time-out, which is an int.
        ((self.end - now()).max(0) as u64).div_ceil(1_000_000) as c_int
    }
}

/// A time-out in milliseconds, rounded up.
pub fn milliseconds(seconds: i64, nanoseconds: i64) -> c_int {
    let rounded = seconds.saturating_mul(1000).saturating_add(nanoseconds.saturating_add(999_999) / 1_000_000);
    c_int::try_from(rounded).unwrap_or(c_int::MAX).max(0)
}

/// Nanoseconds of the monotonic clock.
pub fn now() -> i64 {
    let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
