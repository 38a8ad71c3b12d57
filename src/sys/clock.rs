//! Deadlines and the forms in which system calls take them.

use std::ffi::c_int;
use std::time::{Duration, Instant};

/// What is left until `deadline`; `None` when it has passed.
pub fn left(deadline: Instant) -> Option<Duration> {
    deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
}

/// As the kernel's timespec.
pub fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// The monotonic clock in milliseconds, never 0, as coarse and cheap as the kernel has it.
pub fn monotonic_ms() -> u64 {
    let mut now = timespec(Duration::ZERO);
    // SAFETY: now is a timespec of our own. The clock exists since Linux 2.6.32: it cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000).max(1)
}

/// In milliseconds for poll(2), rounded up: never early. -1, without end, for `None`.
pub fn poll_time(deadline: Option<Instant>) -> c_int {
    millis(deadline.map(|deadline| left(deadline).unwrap_or(Duration::ZERO)))
}

/// As [`poll_time`], of a time.
pub fn millis(time: Option<Duration>) -> c_int {
    time.map_or(-1, |time| c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX))
}
