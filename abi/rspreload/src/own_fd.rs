//! The library's own descriptors. The program must not close one, or put another file there.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::sockets::{self, kernel};
use crate::table::Growing;
use crate::{errno, next_symbol, open_fds};

/// By number: whether it is one. A thread of the program that learns of such a number learns of it
/// in a way that orders the mark, too.
static MARKS: Growing<AtomicU64> = Growing::new();

/// Marks a descriptor, or -1. Without memory the program can close it. Returns `fd`.
fn mark(fd: c_int) -> c_int {
    if let Ok(mark) = MARKS.get_or_grow(fd) {
        mark.store(1, Relaxed);
    }
    fd
}

/// Duplicates a descriptor, out of the program's way if possible. Returns the number, or -1.
pub fn duplicate(fd: c_int) -> c_int {
    let high = open_fds::duplicate(fd);
    mark(if high < 0 { kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) } else { high })
}

/// Takes a new descriptor, or -1, and moves it out of the program's way if possible. Returns its
/// number.
pub fn relocate(low: c_int) -> c_int {
    let high = if low < 0 { low } else { open_fds::duplicate(low) };
    if high < 0 {
        return mark(low);
    }
    next_symbol::close(low);
    mark(high)
}

/// Makes a descriptor out of the program's way if possible, also where the program has as many as
/// it may have. Returns the number, or -1.
pub fn create(make: impl Fn() -> c_int) -> c_int {
    let low = make();
    let is_full = low < 0 && errno::get() == libc::EMFILE;
    relocate(if is_full { open_fds::beyond_limit(&make) } else { low })
}

/// Closes one, or nothing for -1.
pub fn close(fd: c_int) {
    if fd >= 0 {
        if let Some(mark) = MARKS.get(fd) {
            mark.store(0, Relaxed);
        }
        errno::keeping(|| next_symbol::close(fd));
    }
}

/// Creates an eventfd(2) that does not block. Returns its number, or -1.
pub fn create_eventfd() -> c_int {
    // SAFETY: no pointers.
    create(|| unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Makes an eventfd readable.
pub fn signal_eventfd(fd: c_int) {
    sockets::write(fd, &1_u64.to_ne_bytes());
}

/// Makes an eventfd unreadable.
pub fn clear_eventfd(fd: c_int) {
    sockets::read(fd, &mut [0; 8]);
}

/// A descriptor, closed when it is dropped.
pub struct OwnFd(c_int);

impl OwnFd {
    /// Duplicates a descriptor.
    pub fn duplicate(fd: c_int) -> Option<OwnFd> {
        Some(OwnFd(duplicate(fd))).filter(|own| own.0 >= 0)
    }

    pub fn fd(&self) -> c_int {
        self.0
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// Whether `fd` is one of the descriptors.
pub fn has(fd: c_int) -> bool {
    MARKS.get(fd).is_some_and(|mark| mark.load(Relaxed) != 0)
}

/// In a child of fork(2), which does not have the threads that use them: it may close its copies.
pub fn in_child() {
    MARKS.all().filter(|(_, mark)| mark.load(Relaxed) != 0).for_each(|(_, mark)| mark.store(0, Relaxed));
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::calls;

    #[test]
    fn the_program_can_neither_close_nor_replace_one() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let own = OwnFd::duplicate(socket.as_raw_fd()).unwrap();
        crate::table::expect_library_fds();
        assert_eq!((calls::close(own.fd()), errno::get()), (-1, libc::EBADF));
        assert_eq!((calls::dup2(socket.as_raw_fd(), own.fd()), errno::get()), (-1, libc::EBUSY));
        let fd = own.fd();
        assert!(has(fd));
        drop(own);
        assert!(!has(fd));
        assert!(OwnFd::duplicate(-1).is_none());
    }
}
