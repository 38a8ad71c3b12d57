//! The descriptors that the library has opened for itself.
//!
//! A program under librspreload.so does not know of these descriptors, and may close every possible
//! descriptor. Before librspreload closes a descriptor that is none of its sockets, it asks whether
//! the descriptor is marked here (`rgetsockopt`, [`base::private`]); marked descriptors stay open.
//! Some programs can only use low descriptors, for example with select(2): at the request of
//! librspreload (`rsetsockopt`), the library moves its descriptors above a limit.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use base::raised_limit::RaisedLimit;

use crate::errno::{Errno, Result};
use crate::os::event;

/// The kernel's default maximum of descriptors (fs.nr_open). Greater descriptors are not marked.
const MAX_FDS: usize = 1 << 20;

/// One bit for each descriptor, changed only by the thread that opens or closes the descriptor. No
/// lock is needed, because the kernel reuses a descriptor only after it was closed.
static MARKS: [AtomicU64; MAX_FDS / 64] = [const { AtomicU64::new(0) }; MAX_FDS / 64];

/// One bit for each descriptor of an rsocket that is being closed ([`begin_close`]).
static CLOSING: [AtomicU64; MAX_FDS / 64] = [const { AtomicU64::new(0) }; MAX_FDS / 64];

/// Returns the word and the bit of a descriptor; `None` if the descriptor is out of range.
fn bit_of(marks: &'static [AtomicU64], fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((marks.get(fd / 64)?, 1 << (fd % 64)))
}

fn mark_of(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    bit_of(&MARKS, fd)
}

/// Notes that an rsocket is being closed, before it leaves the table of rsockets and until its
/// descriptor is closed, which may take a while: meanwhile the descriptor is not one of the program's
/// own, for which rpoll(3) would wait in the kernel.
pub fn begin_close(fd: RawFd) {
    if let Some((word, bit)) = bit_of(&CLOSING, fd) {
        word.fetch_or(bit, Ordering::Release);
    }
}

/// Undoes [`begin_close`].
pub fn end_close(fd: RawFd) {
    if let Some((word, bit)) = bit_of(&CLOSING, fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Returns whether an rsocket with this descriptor is being closed.
pub fn is_closing(fd: RawFd) -> bool {
    bit_of(&CLOSING, fd).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
}

/// Returns the marks for librspreload, which checks them whenever the program closes a descriptor.
pub fn marks() -> base::private::Marks {
    base::private::Marks { words: MARKS.as_ptr(), count: MARKS.len(), used: &raw const USED }
}

/// Number of marks.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Lowest descriptor for the library, as long as descriptors above it are free. 0: no limit.
static FLOOR: AtomicI32 = AtomicI32::new(0);

/// Reserves the low descriptors for the program from now on.
pub fn reserve_low_fds() {
    if FLOOR.load(Ordering::Relaxed) == 0 {
        let limit = base::raised_limit::limits();
        FLOOR.store(base::private::lowest_library_fd(limit.rlim_cur, limit.rlim_max), Ordering::Relaxed);
    }
}

/// Moves a new descriptor of the library above those reserved for the program, if possible, and
/// marks it. Returns the descriptor that is marked.
pub fn relocate_fd(fd: RawFd) -> RawFd {
    let floor = FLOOR.load(Ordering::Relaxed);
    let moved = if fd < floor { duplicate_from(fd, floor) } else { -1 };
    if moved < 0 {
        mark(fd);
        return fd;
    }
    mark(moved);
    // SAFETY: `fd` is a new descriptor of the library that is used nowhere else.
    unsafe { libc::close(fd) };
    moved
}

/// Duplicates a descriptor. Returns a descriptor of at least `floor`, or -1 if none is free there.
/// The soft limit is raised for a moment if `floor` is beyond it.
fn duplicate_from(fd: RawFd, floor: RawFd) -> RawFd {
    // SAFETY: no pointers.
    let duplicate = || unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, floor) };
    let limit = base::raised_limit::limits();
    // Another thread may have raised the soft limit. That thread restores it.
    if limit.rlim_cur > floor as libc::rlim_t || limit.rlim_max <= floor as libc::rlim_t {
        return duplicate();
    }
    RAISED.during(duplicate)
}

/// The raised soft limit of this library.
static RAISED: RaisedLimit = RaisedLimit::new();

/// Restores a raised soft limit in a child of fork().
pub fn in_child() {
    RAISED.in_child();
}

/// Calls [`relocate_fd`] for a descriptor in a structure, and stores the new descriptor there.
///
/// # Safety
/// `fd` is valid for reads and writes.
pub unsafe fn relocate_fd_in(fd: *mut RawFd) {
    // SAFETY: `fd` is valid for reads and writes: guaranteed by the caller.
    unsafe { fd.write(relocate_fd(fd.read())) };
}

/// Marks a descriptor that the library has opened.
pub fn mark(fd: RawFd) {
    if let Some((word, bit)) = mark_of(fd)
        && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
    {
        USED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Removes the marks of a descriptor that is about to be closed.
pub fn unmark(fd: RawFd) {
    if let Some((word, bit)) = mark_of(fd)
        && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    {
        USED.fetch_sub(1, Ordering::Relaxed);
    }
    end_close(fd);
}

/// Returns whether the library has opened the descriptor and not closed it. Removes the mark of a
/// descriptor that the program has reused for a file or pipe.
pub fn is_own(fd: RawFd) -> bool {
    if mark_of(fd).is_none_or(|(word, bit)| word.load(Ordering::Relaxed) & bit == 0) {
        return false;
    }
    let reused = is_file_or_pipe(fd);
    if reused {
        unmark(fd);
    }
    !reused
}

/// Inode of the only regular file that the library keeps open: the memory file of the table of
/// rsockets. 0: there is none.
static TABLE_INODE: AtomicU64 = AtomicU64::new(0);

/// Sets `TABLE_INODE` to the inode of `fd`, the memory file of the table of rsockets.
pub fn set_table(fd: RawFd) {
    TABLE_INODE.store(status(fd).map_or(0, |status| status.st_ino), Ordering::Relaxed);
}

fn status(fd: RawFd) -> Option<libc::stat> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `status` is writable.
    let result = unsafe { libc::fstat(fd, status.as_mut_ptr()) };
    // SAFETY: fstat(2) succeeded, so it has written the structure.
    (result == 0).then(|| unsafe { status.assume_init() })
}

/// Returns whether the file behind `fd` is of a kind that the library never keeps open. If so, the
/// library's descriptor was closed by a call that is not intercepted, such as close_range(2) in a
/// child, and was reused.
fn is_file_or_pipe(fd: RawFd) -> bool {
    let Some(status) = status(fd) else { return false };
    match status.st_mode & libc::S_IFMT {
        // No inode has the number 0.
        libc::S_IFREG => status.st_ino != TABLE_INODE.load(Ordering::Relaxed),
        kind => matches!(kind, libc::S_IFIFO | libc::S_IFDIR | libc::S_IFBLK),
    }
}

/// Closes a descriptor of the library and removes its mark.
pub fn close(fd: RawFd) {
    unmark(fd);
    // SAFETY: the descriptor belongs to the caller.
    unsafe { libc::close(fd) };
}

/// Makes `fd` refer to the file of `new`, and keeps the flags and the mark of `fd`. dup3(2) is a
/// direct system call: librspreload.so interposes the C library's function.
pub fn replace(fd: RawFd, new: impl AsRawFd) -> Result<()> {
    let flags = event::fcntl(fd, libc::F_GETFL, 0)?;
    event::fcntl(new.as_raw_fd(), libc::F_SETFL, flags)?;
    let close_on_exec = if event::fcntl(fd, libc::F_GETFD, 0)? & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    // SAFETY: no pointers.
    let result = unsafe { libc::syscall(libc::SYS_dup3, new.as_raw_fd(), fd, close_on_exec) };
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// Calls socket(2) directly: librspreload.so interposes the C library's function. Returns the new
/// descriptor, or -1.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> RawFd {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) as RawFd }
}

/// Returns the kernel's unique number for the socket behind `fd` (SO_COOKIE); `None` if `fd` is not
/// a socket or the kernel is older than 4.12. A program that closes all descriptors (closefrom(3))
/// also closes the library's descriptors, and may reuse them: compare the cookie before using or
/// closing a socket that the library keeps longer than the program's objects.
pub fn cookie(fd: RawFd) -> Option<u64> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // A direct system call: librspreload.so interposes the C library's function.
    // SAFETY: `len` bytes at the cookie's address are writable.
    let got = unsafe {
        libc::syscall(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, libc::SO_COOKIE, &raw mut cookie, &raw mut len)
    };
    (got == 0).then_some(cookie)
}

/// A descriptor of the library, marked while it is open. Not an `OwnedFd`, which aborts if the
/// program has closed the descriptor, for example in a child.
#[derive(Debug)]
pub struct OwnFd(RawFd);

impl OwnFd {
    /// Takes the result of a system call that opens a descriptor. Fails with `errno` if the result
    /// is negative.
    pub fn new(result: RawFd) -> Result<OwnFd> {
        if result < 0 { Err(Errno::last()) } else { Ok(OwnFd(relocate_fd(result))) }
    }

    /// Releases a descriptor that the program has closed, without closing it: it may refer to
    /// a file of the program by now.
    pub fn forget(self) {
        unmark(self.0);
        std::mem::forget(self);
    }

    /// Takes over a descriptor without moving it.
    ///
    /// # Safety
    /// `fd` is an open descriptor that nothing else closes.
    pub unsafe fn adopt(fd: RawFd) -> OwnFd {
        mark(fd);
        OwnFd(fd)
    }

    /// Returns the descriptor, which stays open and marked.
    pub fn into_fd(self) -> RawFd {
        std::mem::ManuallyDrop::new(self).0
    }

    /// Duplicates an open descriptor of the library or the program, by a direct system call:
    /// librspreload.so would treat the copy as a descriptor of the program.
    pub fn duplicate(fd: RawFd) -> Result<OwnFd> {
        // SAFETY: no pointers.
        OwnFd::new(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 3) } as RawFd)
    }
}

impl AsRawFd for OwnFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Drop for OwnFd {
    fn drop(&mut self) {
        close(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a child, because the setting cannot be undone.
    #[test]
    fn low_descriptors_are_left_to_the_program() {
        // SAFETY: the child makes system calls only, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            reserve_low_fds();
            let floor = FLOOR.load(Ordering::Relaxed);
            // SAFETY: plain system call.
            let low = unsafe { libc::eventfd(0, 0) };
            let fd = relocate_fd(low);
            let apart = floor > 100 && fd >= floor && is_own(fd) && relocate_fd(fd) == fd;
            // SAFETY: plain system calls.
            let flags = unsafe { [libc::fcntl(fd, libc::F_GETFD), libc::fcntl(low, libc::F_GETFD)] };
            let apart = apart && flags == [libc::FD_CLOEXEC, -1];
            // SAFETY: no destructors are wanted.
            unsafe { libc::_exit(i32::from(!apart)) };
        }
        let mut status = -1;
        // SAFETY: `status` is writable.
        assert_eq!((unsafe { libc::waitpid(child, &raw mut status, 0) }, status), (child, 0));
    }

    #[test]
    fn a_replaced_file_keeps_the_flags_of_its_descriptor() {
        for flags in [0, libc::EFD_CLOEXEC, libc::EFD_NONBLOCK] {
            // SAFETY: plain system calls.
            let (fd, new) = unsafe { (libc::eventfd(0, flags), OwnFd::new(libc::eventfd(7, 0)).unwrap()) };
            replace(fd, new).unwrap();
            let read = |command| event::fcntl(fd, command, 0).unwrap();
            let (on_exec, status) = (read(libc::F_GETFD), read(libc::F_GETFL) & libc::O_NONBLOCK);
            let mut count = [0_u8; 8];
            // SAFETY: 8 bytes at `count` are writable; the descriptor was opened here.
            unsafe { libc::read(fd, count.as_mut_ptr().cast(), 8) };
            close(fd);
            assert_eq!((on_exec, status), (c_int::from(flags & libc::EFD_CLOEXEC != 0), flags & libc::EFD_NONBLOCK));
            assert_eq!(u64::from_ne_bytes(count), 7);
        }
    }

    #[test]
    fn cookies_differ() {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let (fd, copy) = (one.as_raw_fd(), one.try_clone().unwrap());
        assert!(cookie(fd).is_some());
        assert_eq!(cookie(fd), cookie(copy.as_raw_fd()));
        assert_ne!(cookie(fd), cookie(other.as_raw_fd()));
        assert_eq!(cookie(-1), None);
        assert_eq!(cookie(std::fs::File::open("/proc/self/stat").unwrap().as_raw_fd()), None);
    }

    #[test]
    fn marked_while_open() {
        // SAFETY: plain system call.
        let owned = OwnFd::new(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }).unwrap();
        let fd = owned.as_raw_fd();
        assert!(is_own(fd) && !is_own(-1) && !is_own(RawFd::MAX));
        // SAFETY: the words are static.
        let has_mark = |fd| unsafe { marks().has(fd) };
        assert!(has_mark(fd) && !has_mark(-1) && !has_mark(RawFd::MAX));
        drop(owned);
        assert!(!is_own(fd) && !has_mark(fd));
        assert!(OwnFd::new(-1).is_err());
    }

    #[test]
    fn another_file_under_a_marked_descriptor() {
        let file = std::fs::File::open("/proc/self/stat").unwrap();
        let fd = file.as_raw_fd();
        mark(fd);
        assert!(!is_own(fd));
        // The mark was removed.
        drop(file);
        assert!(!is_own(fd));
    }
}
