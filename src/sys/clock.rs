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

/// In milliseconds for poll(2), rounded up: never early. -1, without end, for `None`.
pub fn poll_time(deadline: Option<Instant>) -> c_int {
    let Some(deadline) = deadline else { return -1 };
    let left = left(deadline).unwrap_or(Duration::ZERO);
    c_int::try_from(left.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX)
}
