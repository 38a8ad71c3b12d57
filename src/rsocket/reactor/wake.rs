//! What wakes a reactor's thread.

use std::os::fd::AsRawFd;

use crate::errno::Result;
use crate::sys::library_fds::{self, OwnFd};

/// The epoll's data for the socket: no registration has this key.
const WAKE: u64 = 0;

/// A socket that is always writable: making the epoll report it wakes the thread. Nothing is ever
/// written to it, because the program may have closed it and opened a file of its own under the
/// same number.
pub(super) struct Wake {
    pub fd: OwnFd,
    /// Identifies the socket ([`library_fds::cookie`]).
    cookie: Option<u64>,
    pub raised: bool,
}

impl Wake {
    pub fn new() -> Result<Wake> {
        let fd = OwnFd::new(library_fds::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?;
        Ok(Wake { cookie: library_fds::cookie(fd.as_raw_fd()), fd, raised: false })
    }

    pub fn event(&self) -> Option<libc::epoll_event> {
        let events = if self.raised { libc::EPOLLOUT as u32 } else { 0 };
        Some(libc::epoll_event { events, u64: WAKE })
    }

    pub fn is_unchanged(&self) -> bool {
        library_fds::cookie(self.fd.as_raw_fd()) == self.cookie
    }
}
