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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_for_system_calls() {
        let millis = |nanoseconds| millis(Some(Duration::from_nanos(nanoseconds)));
        assert_eq!([0, 1, 1_000_000, 1_000_001].map(millis), [0, 1, 1, 2]);
        assert_eq!((super::millis(None), super::millis(Some(Duration::MAX))), (-1, c_int::MAX));
        let (time, most) = (timespec(Duration::from_nanos(2_000_000_003)), timespec(Duration::MAX));
        assert_eq!((time.tv_sec, time.tv_nsec, most.tv_sec), (2, 3, libc::time_t::MAX));
    }

    #[test]
    fn the_clock_does_not_go_back() {
        let (before, coarse) = (now(), monotonic_ms());
        assert!(before <= now() && u128::from(coarse) <= now().as_millis().max(1));
    }
}
