//! Timers as descriptors: timerfd_create(2).

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::time::Duration;

use rdmacm_core::sys::clock;
use rdmacm_core::{Errno, Result};

/// A timerfd, readable from its expiration until it is set again.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// A disarmed timer.
    pub fn new() -> Result<Timer> {
        // SAFETY: plain system call.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        if fd < 0 {
            return Err(Errno::last());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        Ok(Timer(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Arms the timer; disarms it for `None`.
    pub fn set(&self, after: Option<Duration>) -> Result<()> {
        // A time of zero would disarm it.
        let first = clock::timespec(after.map_or(Duration::ZERO, |after| after.max(Duration::from_nanos(1))));
        let time = libc::itimerspec { it_interval: clock::timespec(Duration::ZERO), it_value: first };
        // SAFETY: `time` is readable, and the old time is not requested.
        let done = unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &raw const time, ptr::null_mut()) };
        if done == 0 { Ok(()) } else { Err(Errno::last()) }
    }
}

impl AsRawFd for Timer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmacm_core::sys::event;

    fn readable(timer: &Timer, wait: Option<Duration>) -> bool {
        let mut fds = [libc::pollfd { fd: timer.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        event::poll(&mut fds, wait).unwrap() == 1
    }

    #[test]
    fn readable_after_its_expiration() {
        let timer = Timer::new().unwrap();
        assert!(!readable(&timer, Some(Duration::ZERO)));
        timer.set(Some(Duration::from_secs(3600))).unwrap();
        assert!(!readable(&timer, Some(Duration::ZERO)));
        timer.set(Some(Duration::ZERO)).unwrap();
        assert!(readable(&timer, None) && readable(&timer, None));
        timer.set(None).unwrap();
        assert!(!readable(&timer, Some(Duration::ZERO)));
    }
}
