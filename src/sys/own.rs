//! Which descriptors are the library's own.
//!
//! Programs under librspreload.so do not know of these numbers, and some close every number there
//! is. The preload library asks before it closes one that is none of its sockets (`rgetsockopt` of
//! the level in `abi/private`); what is marked here stays open. And some have room only for numbers
//! as small as they would be without us: the preload library has ours kept apart from theirs, above
//! them (`rsetsockopt`, the same level).

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use super::event;

/// The kernel's usual limit of a process (fs.nr_open); numbers beyond are not marked.
const MOST: usize = 1 << 20;

/// A bit a number. Changed by whoever makes or closes the descriptor, which the kernel orders; no lock.
static MARKS: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((MARKS.get(fd / 64)?, 1 << (fd % 64)))
}

/// Where the library's own numbers begin, as far as there is room; 0: anywhere.
static FLOOR: AtomicI32 = AtomicI32::new(0);

/// No number for select(2).
const ABOVE_SELECT: usize = libc::FD_SETSIZE;

/// From now on the library's descriptors leave the small numbers to the program.
pub fn keep_apart() {
    if FLOOR.load(Ordering::Relaxed) == 0 {
        // Half of what a process may have is the program's in any case.
        let floor = (event::descriptor_limit() / 2).min(ABOVE_SELECT);
        FLOOR.store(c_int::try_from(floor).unwrap_or(0), Ordering::Relaxed);
    }
}

/// Marks what the library has made, under the number that it gets: another one than `fd` if it is kept apart.
pub fn settle(fd: RawFd) -> RawFd {
    let floor = FLOOR.load(Ordering::Relaxed);
    // SAFETY: numbers only; it fails where no number is free there.
    let moved = if fd < floor { unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor) } } else { -1 };
    if moved < 0 {
        mark(fd);
        return fd;
    }
    mark(moved);
    // SAFETY: the library's own, which nobody knows yet.
    unsafe { libc::close(fd) };
    moved
}

/// [`settle`] for a descriptor that stands in a structure of libibverbs' or ours.
///
/// # Safety
/// `place` is good to read and write.
pub unsafe fn settle_in(place: *mut RawFd) {
    // SAFETY: `place` is good to read and write: guaranteed by the caller.
    unsafe { place.write(settle(place.read())) };
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
    if place(fd).is_none_or(|(word, bit)| word.load(Ordering::Relaxed) & bit == 0) {
        return false;
    }
    let another = is_file_or_pipe(fd);
    if another {
        unmark(fd);
    }
    !another
}

/// Whether it is of a kind that the library has none of: its own was closed by a way that nobody intercepts, such as the close_range(2) of a
/// child that cleans up, and the number is another file's by now.
fn is_file_or_pipe(fd: RawFd) -> bool {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for what the kernel writes.
    if unsafe { libc::fstat(fd, status.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: written, for it succeeded.
    let mode = unsafe { status.assume_init() }.st_mode;
    matches!(mode & libc::S_IFMT, libc::S_IFIFO | libc::S_IFREG | libc::S_IFDIR | libc::S_IFBLK)
}

/// Closes one that is kept as a number.
pub fn close(fd: RawFd) {
    unmark(fd);
    // SAFETY: closing a number is harmless to memory; it was the caller's.
    unsafe { libc::close(fd) };
}

/// Puts a file under the number of another one, which keeps its flags and mark. By the system call: librspreload.so interposes the C
/// library's function.
pub fn replace(fd: RawFd, new: impl AsRawFd) -> crate::errno::Result<()> {
    let flags = event::fcntl(fd, libc::F_GETFL, 0)?;
    event::fcntl(new.as_raw_fd(), libc::F_SETFL, flags)?;
    let close_on_exec = if event::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    loop {
        // SAFETY: numbers only.
        if unsafe { libc::syscall(libc::SYS_dup3, new.as_raw_fd(), fd, close_on_exec) } >= 0 {
            return Ok(());
        }
        match crate::errno::Errno::last() {
            crate::errno::Errno::EINTR => {}
            error => return Err(error),
        }
    }
}

/// socket(2), by the system call: librspreload.so interposes the C library's function. The new descriptor, or -1.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> RawFd {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as RawFd }
}

/// The kernel's name for the socket behind `fd` (SO_COOKIE), which no other socket has. `None` if
/// it is no socket, or the kernel is older than 4.12. A program that closes all its descriptors
/// (closefrom(3)) closes the library's, too, and their numbers are its own files' afterwards: what
/// the library keeps beyond the life of the program's objects is compared by this before it is used
/// or closed.
pub fn cookie(fd: RawFd) -> Option<u64> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // By the system call: librspreload.so interposes the C library's function.
    // SAFETY: room for the cookie, as `len` says.
    let got = unsafe {
        libc::syscall(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_COOKIE, &raw mut cookie, &raw mut len)
    };
    (got == 0).then_some(cookie)
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
        // SAFETY: a system call has just made it for us.
        Ok(OwnFd(unsafe { OwnedFd::from_raw_fd(settle(result)) }))
    }

    /// Gives up a descriptor that the program has closed: the number may be that of a file of the
    /// program's.
    pub fn forget(self) {
        unmark(self.0.as_raw_fd());
        std::mem::forget(self);
    }

    /// What already stands under its number as the library's own.
    ///
    /// # Safety
    /// An open descriptor that nobody else closes.
    pub unsafe fn adopt(fd: RawFd) -> OwnFd {
        mark(fd);
        // SAFETY: open and owned by nobody else, by this function's contract.
        OwnFd(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The number, which stays open and marked.
    pub fn into_number(self) -> RawFd {
        std::mem::ManuallyDrop::new(self).as_raw_fd()
    }

    /// Another number for an open file.
    pub fn duplicate(fd: RawFd) -> crate::errno::Result<OwnFd> {
        // SAFETY: plain system call.
        OwnFd::new(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) })
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

    /// In a process of its own: the setting is for good.
    #[test]
    fn kept_apart() {
        // SAFETY: the child makes system calls only, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            keep_apart();
            let floor = FLOOR.load(Ordering::Relaxed);
            // SAFETY: plain system calls.
            let fd = settle(unsafe { libc::eventfd(0, 0) });
            let apart = floor > 100 && fd >= floor && is_own(fd) && settle(fd) == fd;
            // SAFETY: plain system calls.
            let apart = apart && unsafe { libc::fcntl(fd, libc::F_GETFD) } == libc::FD_CLOEXEC;
            // SAFETY: no destructors are wanted.
            unsafe { libc::_exit(i32::from(!apart)) };
        }
        let mut status = -1;
        // SAFETY: `status` is writable.
        assert_eq!((unsafe { libc::waitpid(child, &raw mut status, 0) }, status), (child, 0));
    }

    #[test]
    fn cookies_differ() {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (number, copy) = (one.as_raw_fd(), one.try_clone().unwrap());
        assert!(cookie(number).is_some());
        assert_eq!(cookie(number), cookie(copy.as_raw_fd()));
        assert_ne!(cookie(number), cookie(other.as_raw_fd()));
        assert_eq!(cookie(-1), None);
        assert_eq!(cookie(std::fs::File::open("/proc/self/stat").unwrap().as_raw_fd()), None);
    }

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

    #[test]
    fn another_file_under_a_marked_number() {
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        let number = file.as_raw_fd();
        mark(number);
        assert!(!is_own(number));
        // The mark is gone with it.
        drop(file);
        assert!(!is_own(number));
    }
}
