//! Waiting for a change, as sockets wait: a signal handler that asks for it (SA_RESTART) does not end the wait, another
//! one does.

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Instant;

use super::clock;
use crate::errno::{Errno, Result};

/// A counter of changes that threads can wait on.
#[derive(Debug, Default)]
pub struct Changes {
    count: AtomicU32,
    sleepers: AtomicU32,
}

impl Changes {
    /// Where the counter is. Taken before looking at what may change.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Something changed: wakes everybody.
    pub fn notify(&self) {
        self.count.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) == 0 {
            return;
        }
        // SAFETY: the address of a live atomic.
        unsafe {
            libc::syscall(libc::SYS_futex, self.count.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX)
        };
    }

    /// Waits until the counter is no longer at `count`; `ETIMEDOUT` at the deadline, `EINTR` after a signal.
    pub fn wait(&self, count: u32, deadline: Option<Instant>) -> Result<()> {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let result = self.sleep(count, deadline);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        result
    }

    fn sleep(&self, count: u32, deadline: Option<Instant>) -> Result<()> {
        let limit = match deadline.map(clock::left) {
            Some(None) => return Err(Errno::ETIMEDOUT),
            Some(Some(left)) => Some(clock::timespec(left)),
            None => None,
        };
        let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
        let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the address of a live atomic; the time-out is NULL or a live timespec.
        let result = unsafe { libc::syscall(libc::SYS_futex, self.count.as_ptr(), operation, count, limit) };
        match result {
            0 => Ok(()),
            _ => match Errno::last() {
                Errno::EAGAIN => Ok(()),
                error => Err(error),
            },
        }
    }
}
