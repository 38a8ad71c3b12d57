//! Several numbers for one socket: dup, dup2 and fcntl(F_DUPFD); and the rest of fcntl.
//!
//! The copy of a placeholder is a placeholder: the kernel finds the number, closes what was there before, and keeps the
//! flags that belong to the number. The table gets the same entry for it, and the inner number one reference more.

use core::ffi::c_int;

use libc::{
    EBADF, EBUSY, EINVAL, F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, F_GETLK, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW,
    F_SETFD, F_SETFL, F_SETLK, F_SETLKW, O_NONBLOCK, O_RDWR,
};

use crate::table::{self, Entry, Kind};
use crate::{errno, fds, process, r, real};

/// dup(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the C contract.
    copy(table::get(fd), || unsafe { real::dup(fd) })
}

/// Copies by `real` a number that has `entry`.
#[inline(always)]
fn copy(entry: Option<Entry>, real: impl FnOnce() -> c_int) -> c_int {
    match entry {
        None => fds::born(real()),
        Some(entry) => copy_entry(entry, real),
    }
}

fn copy_entry(entry: Entry, real: impl FnOnce() -> c_int) -> c_int {
    if process::is_guest() {
        return real();
    }
    let Some(copy) = fds::hold(entry) else { return errno::fail(EBADF) };
    let new = real();
    if new < 0 {
        errno::keeping(|| fds::release(copy));
        return new;
    }
    if let Err(why) = table::prepare(new) {
        fds::release(copy);
        // SAFETY: nobody else was told of it.
        unsafe { real::close(new) };
        return errno::fail(why);
    }
    fds::put(new, copy);
    new
}

/// dup2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if table::any() && old != new {
        return copy_to(old, new);
    }
    // SAFETY: the C contract.
    unsafe { real::dup2(old, new) }
}

fn copy_to(old: c_int, new: c_int) -> c_int {
    let source = fds::entry(old);
    if fds::entry(new).is_none() && fds::is_library(new) {
        // What the kernel says of a number that is being opened.
        return errno::fail(EBUSY);
    }
    if process::is_guest() {
        // SAFETY: the C contract.
        return unsafe { real::dup2(old, new) };
    }
    let copy = match source {
        Some(source) => match prepare_copy(source, new) {
            Ok(copy) => Some(copy),
            Err(why) => return errno::fail(why),
        },
        None => None,
    };
    // SAFETY: the C contract.
    let result = unsafe { real::dup2(old, new) };
    if result < 0 {
        if let Some(copy) = copy {
            errno::keeping(|| fds::release(copy));
        }
        return result;
    }
    if let Some(before) = table::swap(new, copy) {
        // As with the kernel, nobody hears of what goes wrong here.
        errno::keeping(|| fds::release(before));
    }
    result
}

/// The entry that `new` is to have.
fn prepare_copy(source: Entry, new: c_int) -> Result<Entry, c_int> {
    // Before there is room made for it: it may be any number.
    if !is_possible(new) {
        return Err(EBADF);
    }
    table::prepare(new)?;
    fds::hold(source).ok_or(EBADF)
}

/// Whether the process may have such a number.
fn is_possible(fd: c_int) -> bool {
    libc::rlim_t::try_from(fd).is_ok_and(|fd| fds::limit().is_none_or(|limit| fd < limit))
}

/// fcntl(2). It is variadic in C; a third argument that was not given is a register's content which nobody looks at.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    match table::get(fd) {
        // SAFETY: the C contract.
        None => copied(cmd, unsafe { real::fcntl(fd, cmd, arg) }),
        Some(entry) => control(fd, entry, cmd, arg),
    }
}

/// fcntl(2) by the name it has for programs that were compiled for large files.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    match table::get(fd) {
        // SAFETY: the C contract.
        None => copied(cmd, unsafe { real::fcntl64(fd, cmd, arg) }),
        Some(entry) => control(fd, entry, cmd, arg),
    }
}

/// The result of fcntl(2) on a number of the kernel's alone, which may be a new number.
#[inline(always)]
fn copied(cmd: c_int, result: c_int) -> c_int {
    if matches!(cmd, F_DUPFD | F_DUPFD_CLOEXEC) { fds::born(result) } else { result }
}

fn control(fd: c_int, entry: Entry, cmd: c_int, arg: usize) -> c_int {
    // SAFETY: the C contract.
    let real = || unsafe { real::fcntl64(fd, cmd, arg) };
    match (cmd, entry.kind) {
        (F_DUPFD | F_DUPFD_CLOEXEC, _) => copy_entry(entry, real),
        (_, Kind::Pending | Kind::Epoll | Kind::Relayed) => real(),
        (F_GETFL, Kind::Socket) => {
            fds::sync_nonblock(fd, entry.inner);
            // SAFETY: numbers only.
            let flags = unsafe { r::rfcntl(entry.inner, cmd, 0) };
            // Programs look whether they may write.
            if flags < 0 { flags } else { flags | O_RDWR }
        }
        // An int, whatever is above it in the register.
        (F_SETFL, Kind::Socket) => set_flags(fd, entry.inner, arg as c_int),
        // Both belong to the number. Locks are none of the socket's, and harmless.
        (F_GETFD | F_SETFD | F_GETLK | F_SETLK | F_SETLKW | F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW, _) => real(),
        // Signals, owners, leases: there would be no effect.
        _ => errno::fail(EINVAL),
    }
}

/// The placeholder has O_NONBLOCK, too: see [`fds::sync_nonblock`].
fn set_flags(fd: c_int, inner: c_int, flags: c_int) -> c_int {
    // SAFETY: numbers only.
    unsafe {
        let result = r::rfcntl(inner, F_SETFL, flags);
        if result >= 0 {
            errno::keeping(|| real::fcntl(fd, F_SETFL, (flags & O_NONBLOCK) as usize));
        }
        result
    }
}
