//! Time that is left of a wait in milliseconds.

use core::ffi::c_int;

/// The end of a wait.
pub struct Deadline {
    /// In milliseconds of the monotonic clock, rounded up; `None` without end.
    end: Option<i64>,
}

impl Deadline {
    /// In so many milliseconds from now; never if negative.
    pub fn after(timeout: c_int) -> Deadline {
        Deadline { end: (timeout >= 0).then(|| if timeout == 0 { 0 } else { now() + i64::from(timeout) + 1 }) }
    }

    /// What is left, as poll(2) has it.
    pub fn left(&self) -> c_int {
        match self.end {
            None => -1,
            Some(end) => c_int::try_from((end - now()).max(0)).unwrap_or(c_int::MAX),
        }
    }
}

fn now() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists, and the time is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}
