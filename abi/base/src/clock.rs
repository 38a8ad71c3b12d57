//! The clock, and times in the formats of system calls.

use core::ffi::c_int;
use core::time::Duration;

/// Reads a clock. The clocks of Linux 2.6.32 and later cannot fail.
pub fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut now = timespec(Duration::ZERO);
    // SAFETY: `now` is writable.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now
}

/// Returns the time of the monotonic clock.
pub fn now() -> Duration {
    let now = read(libc::CLOCK_MONOTONIC);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Returns the coarse monotonic clock in milliseconds, never 0.
pub fn monotonic_ms() -> u64 {
    let now = read(libc::CLOCK_MONOTONIC_COARSE);
    (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000).max(1)
}

/// Returns `time` as a timespec.
pub fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Returns a duration in milliseconds for poll(2), rounded up so that a wait never ends early; -1
/// (no timeout) for `None`.
pub fn millis(time: Option<Duration>) -> c_int {
    time.map_or(-1, |time| c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX))
}
