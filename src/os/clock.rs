//! Converts deadlines to the time formats of system calls.

use std::ffi::c_int;
use std::time::{Duration, Instant};

/// Returns the time until `deadline`; `None` once it has passed.
pub fn left(deadline: Instant) -> Option<Duration> {
    deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
}

/// Returns `time` as a timespec.
pub fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Returns the coarse monotonic clock in milliseconds, never 0.
pub fn monotonic_ms() -> u64 {
    let mut now = timespec(Duration::ZERO);
    // SAFETY: `now` is writable. The clock exists since Linux 2.6.32, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000).max(1)
}

/// Returns the timeout for poll(2) in milliseconds, rounded up so that it never ends early; -1 (no
/// timeout) for `None`.
pub fn poll_time(deadline: Option<Instant>) -> c_int {
    millis(deadline.map(|deadline| left(deadline).unwrap_or(Duration::ZERO)))
}

/// As [`poll_time`], for a duration.
pub fn millis(time: Option<Duration>) -> c_int {
    time.map_or(-1, |time| c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX))
}
