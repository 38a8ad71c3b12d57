//! Which descriptors are the library's own.
//!
//! Programs under librspreload.so do not know of these numbers, and some close every number there is. The preload library
//! asks before it closes one that is none of its sockets (`rgetsockopt`, level [`LEVEL`]); what is marked here stays open.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Private level of rgetsockopt(): an int, 1 if the number is marked.
pub const LEVEL: c_int = 0x7273_6f63;

/// The kernel's usual limit of a process (fs.nr_open); numbers beyond are not marked.
const MOST: usize = 1 << 20;

/// A bit a number. Changed by whoever makes or closes the descriptor, which the kernel orders; no lock.
static MARKS: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((MARKS.get(fd / 64)?, 1 << (fd % 64)))
}

/// The library has made it.
pub fn mark(fd: RawFd) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// It is about to be closed.
pub fn unmark(fd: RawFd) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Whether the library has made it and not closed it.
pub fn is_own(fd: RawFd) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Closes one that is kept as a number.
pub fn close(fd: RawFd) {
    unmark(fd);
    // SAFETY: closing a number is harmless to memory; it was the caller's.
    unsafe { libc::close(fd) };
}

/// socket(2), by the system call: librspreload.so interposes the C library's function. The new descriptor, or -1.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> RawFd {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as RawFd }
}

/// A descriptor that is marked while it is open.
#[derive(Debug)]
pub struct OwnFd(OwnedFd);

impl OwnFd {
    /// The result of a system call that makes a descriptor.
    pub fn new(result: RawFd) -> crate::errno::Result<OwnFd> {
        if result < 0 {
            return Err(crate::errno::Errno::last());
        }
        mark(result);
        // SAFETY: a system call has just made it for us.
        Ok(OwnFd(unsafe { OwnedFd::from_raw_fd(result) }))
    }
}

impl AsRawFd for OwnFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        // It closes next.
        unmark(self.0.as_raw_fd());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_while_open() {
        // SAFETY: plain system call.
        let fd = OwnFd::new(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }).unwrap();
        let number = fd.as_raw_fd();
        assert!(is_own(number) && !is_own(-1) && !is_own(RawFd::MAX));
        drop(fd);
        assert!(!is_own(number));
        assert!(OwnFd::new(-1).is_err());
    }
}
