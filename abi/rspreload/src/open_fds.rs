//! Descriptors of the process: how many it may have, which are open, and which are the library's
//! own. The program must not close a descriptor of the library, or put another file there.

use core::ffi::{CStr, c_char, c_int};
use core::mem;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, AtomicUsize};

use base::raised_limit::{RaisedLimit, limits};

use crate::memory::zero;
use crate::sockets::{self, kernel};
use crate::table::Growing;
use crate::{errno, next_symbol};

/// Duplicates a descriptor for the library. Returns a high descriptor, which the program does not
/// need, or -1.
fn duplicate_high(fd: c_int) -> c_int {
    let limit = limits();
    let lowest = base::private::lowest_library_fd(limit.rlim_cur, limit.rlim_max);
    let duplicate = || kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest);
    if limit.rlim_cur > lowest as libc::rlim_t { duplicate() } else { RAISED.during(duplicate) }
}

/// The program's limit while this library has raised it. librdmacm has a record of its own.
static RAISED: RaisedLimit = RaisedLimit::new();

/// Creates a descriptor with `make`. If the program has reached its limit, the limit is raised for
/// the call. Returns the descriptor, or -1.
pub fn make(make: impl Fn() -> c_int) -> c_int {
    let fd = make();
    if fd < 0 && errno::get() == libc::EMFILE { RAISED.during(make) } else { fd }
}

/// Returns whether the library may take descriptors for another connection. `used` is the number of
/// those that it has accepted, `attempts` of those that it begins, this one included, `forwarded`
/// the number of forwarded connections, `librdmacms` the number of librdmacm's descriptors. With
/// `few`, which is set after a lack of room, a third of the library's share must be free. The share
/// is a quarter of the soft limit if the library's descriptors begin below the soft limit: then they
/// are the program's loss, and all of them count.
pub fn has_room([used, attempts, forwarded]: [usize; 3], librdmacms: usize, few: bool) -> bool {
    /// Descriptors of an accepted connection: the rsocket, its completion channel, the stand-in,
    /// and a temporary one.
    const DESCRIPTORS: usize = 4;
    /// Those without connections: of a device, the reactor, the thread of automatic mode.
    const BASE: usize = 12;
    let limit = limits();
    let lowest = base::private::lowest_library_fd(limit.rlim_cur, limit.rlim_max) as libc::rlim_t;
    let (share, taken) = if lowest < limit.rlim_cur {
        let open = librdmacms + MARKED.load(Relaxed);
        let taken = open.max(BASE).max(used * DESCRIPTORS) + attempts.max(1) * DESCRIPTORS;
        (limit.rlim_cur / 4, taken)
    } else {
        (limit.rlim_max - lowest, used * DESCRIPTORS)
    };
    let share = if few { share / 3 * 2 } else { share };
    // A forwarded connection has two entries in a poll(2) list, which may be as long as the soft
    // limit.
    taken as libc::rlim_t <= share && forwarded as libc::rlim_t <= limit.rlim_cur / 4
}

/// Returns whether the process has an instance of io_uring. Descriptors for which `is_known`
/// returns true are not checked.
pub fn find_ring(is_known: impl Fn(c_int) -> bool) -> bool {
    const NAME: &[u8] = b"anon_inode:[io_uring]";
    let mut found = false;
    each(0..c_int::MAX, |fd| {
        if is_known(fd) {
            return;
        }
        let (mut path, mut name) = ([0_u8; 40], [0_u8; NAME.len()]);
        // SAFETY: both buffers have the lengths that are passed, and the format takes one int.
        let len = unsafe {
            let path = path.as_mut_ptr().cast::<c_char>();
            libc::snprintf(path, 40, c"/proc/self/fd/%d".as_ptr(), fd);
            libc::readlink(path, name.as_mut_ptr().cast(), name.len())
        };
        found |= len == NAME.len() as isize && name == NAME;
    });
    found
}

/// Returns the status of an open descriptor, or `None` if fstatat(2) fails.
pub fn status(fd: c_int) -> Option<libc::stat> {
    status_at(fd, c"", libc::AT_EMPTY_PATH)
}

/// Returns the result of fstatat(2), or `None` if it fails.
pub fn status_at(fd: c_int, path: &CStr, flags: c_int) -> Option<libc::stat> {
    let mut status = zero::<libc::stat>();
    // SAFETY: `path` ends with a NUL byte, and `status` is writable.
    let result = unsafe { libc::fstatat(fd, path.as_ptr(), &raw mut status, flags) };
    (result == 0).then_some(status)
}

/// Whether `fd` is open and will be inherited by programs that the process executes.
pub fn is_inheritable(fd: c_int) -> bool {
    let flags = kernel::fcntl(fd, libc::F_GETFD, 0);
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// Whether the soft limit permits the descriptor `fd`.
pub fn is_possible(fd: c_int) -> bool {
    libc::rlim_t::try_from(fd).is_ok_and(|fd| fd < limits().rlim_cur)
}

/// Calls `call` with each open descriptor in a range. Includes every descriptor that stays open; a
/// descriptor that is opened or closed meanwhile may be missing. Allocates nothing, because
/// select(2) uses this function and may be called in signal handlers.
pub fn each(range: Range<c_int>, mut call: impl FnMut(c_int)) {
    if !each_of_folder(|fd| {
        if range.contains(&fd) {
            call(fd);
        }
    }) {
        // Descriptors may be above a limit that was lowered: check all up to the default of
        // fs.nr_open.
        (range.start..range.end.min(1 << 20)).filter(|&fd| kernel::fcntl(fd, libc::F_GETFD, 0) >= 0).for_each(call);
    }
}

/// Calls `call` with each open descriptor in `/proc/self/fd`. Returns false, without calling
/// `call`, if there is no /proc, or no free descriptor to read it.
fn each_of_folder(mut call: impl FnMut(c_int)) -> bool {
    let folder = sockets::open(c"/proc/self/fd", libc::O_RDONLY | libc::O_DIRECTORY);
    if folder < 0 {
        return false;
    }
    let mut buffer = [0_u8; 4096];
    loop {
        // SAFETY: `buffer.len()` bytes at `buffer` are writable.
        let count = unsafe { libc::syscall(libc::SYS_getdents64, folder, buffer.as_mut_ptr(), buffer.len()) };
        let Some(entries) = usize::try_from(count).ok().and_then(|count| buffer.get(..count)) else { break };
        if entries.is_empty() {
            break;
        }
        each_fd(entries, |fd| {
            if fd != folder {
                call(fd);
            }
        });
    }
    next_symbol::close(folder);
    true
}

/// Calls `call` with the descriptors among the names in a buffer of `struct linux_dirent64`.
fn each_fd(mut entries: &[u8], mut call: impl FnMut(c_int)) {
    const NAME: usize = mem::offset_of!(libc::dirent64, d_name);
    const LENGTH: usize = mem::offset_of!(libc::dirent64, d_reclen);
    while let Some(&[low, high]) = entries.get(LENGTH..LENGTH + 2) {
        let length = usize::from(u16::from_ne_bytes([low, high])).clamp(NAME, entries.len());
        let (entry, following) = entries.split_at(length);
        let name = entry[NAME..].split(|&byte| byte == 0).next().unwrap_or(&[]);
        if let Some(fd) = core::str::from_utf8(name).ok().and_then(|name| name.parse().ok()) {
            call(fd);
        }
        entries = following;
    }
}

/// For each descriptor, 1 if it belongs to the library. Relaxed is enough: a thread of the program
/// can only learn the descriptor in a way that also makes the mark visible.
static MARKS: Growing<AtomicU64> = Growing::new();
/// Number of marks.
static MARKED: AtomicUsize = AtomicUsize::new(0);

/// Marks `fd` as the library's, if it is not -1. If there is no memory for the mark, the program
/// can close the descriptor. Returns `fd`.
fn mark(fd: c_int) -> c_int {
    if let Ok(mark) = MARKS.get_or_grow(fd)
        && mark.swap(1, Relaxed) == 0
    {
        MARKED.fetch_add(1, Relaxed);
    }
    fd
}

/// Duplicates a descriptor for the library, to a high descriptor if possible. Returns the new
/// descriptor, or -1.
pub fn duplicate(fd: c_int) -> c_int {
    let high = duplicate_high(fd);
    mark(if high < 0 { kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) } else { high })
}

/// Replaces the library's new descriptor `low` by a high one if possible. Returns the resulting
/// descriptor, or -1 if `low` is -1.
pub fn relocate(low: c_int) -> c_int {
    let high = if low < 0 { low } else { duplicate_high(low) };
    if high < 0 {
        return mark(low);
    }
    next_symbol::close(low);
    mark(high)
}

/// Creates a descriptor of the library with [`make`], and replaces it by a high one if possible.
/// Returns the descriptor, or -1.
pub fn create(call: impl Fn() -> c_int) -> c_int {
    relocate(make(call))
}

/// Closes a descriptor of the library; does nothing for -1.
pub fn close(fd: c_int) {
    if fd >= 0 {
        if let Some(mark) = MARKS.get(fd)
            && mark.swap(0, Relaxed) != 0
        {
            MARKED.fetch_sub(1, Relaxed);
        }
        errno::keeping(|| next_symbol::close(fd));
    }
}

/// Creates an eventfd(2) that does not block. Returns its descriptor, or -1.
pub fn create_eventfd() -> c_int {
    // SAFETY: eventfd(2) takes no pointers.
    create(|| unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// Whether `fd` is a descriptor of the library.
pub fn has(fd: c_int) -> bool {
    MARKS.get(fd).is_some_and(|mark| mark.load(Relaxed) != 0)
}

/// Called in the child of fork(2): removes all marks. The library's threads do not exist in the
/// child, so it may close its copies of the library's descriptors.
pub fn in_child() {
    RAISED.in_child();
    MARKED.store(0, Relaxed);
    MARKS.all().filter(|(_, mark)| mark.load(Relaxed) != 0).for_each(|(_, mark)| mark.store(0, Relaxed));
}

#[cfg(test)]
mod tests_of_open_fds {
    use super::*;

    #[test]
    fn descriptors_are_below_the_limit() {
        let limit = limits().rlim_cur as c_int;
        assert_eq!([-1, 0, limit - 1, limit].map(is_possible), [false, true, true, false]);
    }

    #[test]
    fn relayed_connections_leave_room_in_the_limit() {
        let quarter = limits().rlim_cur as usize / 4;
        assert!(
            has_room([0, 0, quarter], 0, false)
                && !has_room([0, 0, quarter + 1], 0, false)
                && !has_room([usize::MAX / 8, 0, 0], 0, false)
        );
    }
}

#[cfg(test)]
mod tests_of_marks {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::calls;

    #[test]
    fn the_program_can_neither_close_nor_replace_one() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let own = duplicate(socket.as_raw_fd());
        crate::table::expect_library_fds();
        assert_eq!((calls::close(own), errno::get()), (-1, libc::EBADF));
        assert_eq!((calls::dup2(socket.as_raw_fd(), own), errno::get()), (-1, libc::EBUSY));
        assert!(has(own));
        close(own);
        assert!(!has(own));
        assert_eq!(duplicate(-1), -1);
    }
}
