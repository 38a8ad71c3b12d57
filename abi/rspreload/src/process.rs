//! The process and its clock.
//!
//! A child of vfork(2) has descriptors of its own, but uses its parent's memory, with the table and
//! the rsockets. What such a child closes and copies before execve(2) must not change the table and
//! the rsockets. So this module records which process owns the memory.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, Ordering};
use core::time::Duration;

/// The process that owns the memory. 0 until the library is loaded completely.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Returns the id of this process. The C library's getpid(2) makes a system call each time.
pub fn this() -> i32 {
    // SAFETY: getpid(2) has no arguments and always succeeds.
    unsafe { libc::getpid() }
}

/// Records that this process has memory of its own. Called when the library is loaded, and in each
/// child of fork(2).
pub fn own() {
    OWNER.store(this(), Ordering::Relaxed);
}

/// Whether this process is a child of vfork(2) that uses its parent's memory.
pub fn is_guest() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    owner != 0 && owner != this()
}

/// The end of a time-out, in nanoseconds of the monotonic clock. A time-out that is not positive
/// means no waiting (0) or no limit (negative), as in poll(2).
pub struct Deadline {
    timeout: c_int,
    end: i64,
}

impl Deadline {
    /// Returns the end of a time-out of `timeout` milliseconds that begins now.
    pub fn after(timeout: c_int) -> Self {
        let end = if timeout > 0 { now() + i64::from(timeout) * 1_000_000 } else { 0 };
        Deadline { timeout, end }
    }

    /// Returns the milliseconds left, rounded up so that a wait does not end early, or the time-out
    /// itself if it is not positive.
    pub fn left(&self) -> c_int {
        if self.timeout > 0 { left_until(self.end) } else { self.timeout }
    }
}

/// Returns the milliseconds until `end`, rounded up. `end` is the end of a time-out, in nanoseconds
/// of the monotonic clock. The time-out was given as an int of milliseconds, so the result fits an
/// int.
pub fn left_until(end: i64) -> c_int {
    base::clock::millis(Some(Duration::from_nanos((end - now()).max(0) as u64)))
}

/// Converts a time to milliseconds for a time-out, rounded up.
pub fn milliseconds(seconds: i64, nanoseconds: i64) -> c_int {
    let rounded = seconds.saturating_mul(1000).saturating_add(nanoseconds.saturating_add(999_999) / 1_000_000);
    c_int::try_from(rounded).unwrap_or(c_int::MAX).max(0)
}

/// Returns the time of the monotonic clock in nanoseconds.
pub fn now() -> i64 {
    let now = base::clock::read(libc::CLOCK_MONOTONIC);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

#[cfg(test)]
mod tests_of_times {
    use super::*;

    #[test]
    fn milliseconds_are_rounded_up() {
        let times = [(0, 0), (0, 1), (1, 999_000_001), (-1, 0), (i64::MAX, i64::MAX)];
        assert_eq!(times.map(|(seconds, rest)| milliseconds(seconds, rest)), [0, 1, 2000, 0, c_int::MAX]);
        assert_eq!([-1, 0].map(|timeout| Deadline::after(timeout).left()), [-1, 0]);
        assert!((59_000..=60_000).contains(&Deadline::after(60_000).left()));
    }
}
