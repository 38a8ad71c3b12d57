//! dup, dup2, fcntl.
//!
//! The copy of a placeholder is a placeholder. The kernel finds the number, closes what was there,
//! and keeps the flags that belong to the number. The table gets the same entry for it, and the
//! inner number one reference more.

use core::ffi::c_int;

use libc::{
    EBADF, EBUSY, EINVAL, F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, F_GETLK, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW,
    F_SETFD, F_SETFL, F_SETLK, F_SETLKW, FD_CLOEXEC, O_NONBLOCK, O_RDWR,
};

use crate::dispatch::Fd;
use crate::table::{self, Entry, Kind};
use crate::{auto, errno, fds, next_symbol, open_fds, process, rsocket, rsocket_abi};

/// dup(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: the C contract.
    copy(table::get(fd), || unsafe { next_symbol::dup(fd) })
}

/// Copies a number that has `entry`. `next` makes the kernel's copy.
#[inline(always)]
fn copy(entry: Option<Entry>, next: impl FnOnce() -> c_int) -> c_int {
    match entry {
        None => fds::on_new_fd(next()),
        Some(entry) => copy_entry(entry, next),
    }
}

fn copy_entry(entry: Entry, next: impl FnOnce() -> c_int) -> c_int {
    if process::is_guest() {
        let copy = next();
        if copy >= 0 {
            auto::guest_copies(copy, entry);
        }
        return copy;
    }
    if entry.kind == Kind::Connecting {
        auto::slots::stay_tcp(entry);
        return fds::on_new_fd(next());
    }
    let Some(copy) = fds::hold(entry) else { return errno::fail(EBADF) };
    let new = next();
    if new < 0 {
        errno::keeping(|| fds::release(copy));
        return new;
    }
    if let Err(why) = table::prepare(new) {
        fds::release(copy);
        // SAFETY: the program does not know the number yet.
        unsafe { next_symbol::close(new) };
        return errno::fail(why);
    }
    fds::put(new, copy);
    if entry.kind == Kind::Forwarded && errno::keeping(|| open_fds::is_inheritable(new)) {
        is_given(entry);
    }
    new
}

/// A child of fork(2) that copies a connection is usually about to execute a program, which may
/// only read: its data is forwarded from now on.
fn is_given(entry: Entry) {
    if entry.kind == Kind::Forwarded {
        auto::use_forwarded(entry);
    }
}

/// dup2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if table::any() && old != new {
        return copy_to(old, new);
    }
    // SAFETY: the C contract.
    unsafe { next_symbol::dup2(old, new) }
}

fn copy_to(old: c_int, new: c_int) -> c_int {
    if let Some(entry @ Entry { kind: Kind::Connecting, .. }) = table::get(old) {
        auto::slots::stay_tcp(entry);
    }
    if new <= libc::STDERR_FILENO && is_auto_rsocket(old) && !process::is_guest() {
        // For stdio. Without memory it meets a socket that is not connected. A child of vfork(2)
        // has descriptors of its own but its parent's memory: what it opens must not be entered
        // there.
        let _ = auto::outside::leave_to_kernel(old);
    }
    let source = fds::current_entry(old);
    if let Some(source) = source {
        is_given(source);
    }
    if fds::current_entry(new).is_none() && fds::is_library(new) {
        // The kernel's error for a number that is being opened.
        return errno::fail(EBUSY);
    }
    if process::is_guest() {
        if let Some(source) = source {
            auto::guest_copies(old, source);
        }
        // SAFETY: the C contract.
        return unsafe { next_symbol::dup2(old, new) };
    }
    let copy = match source {
        Some(source) => match prepare_copy(source, new) {
            Ok(copy) => Some(copy),
            Err(why) => return errno::fail(why),
        },
        None => None,
    };
    // SAFETY: the C contract.
    let result = unsafe { next_symbol::dup2(old, new) };
    if result < 0 {
        if let Some(copy) = copy {
            errno::keeping(|| fds::release(copy));
        }
        return result;
    }
    if let Some(before) = table::swap(new, copy) {
        // The kernel, too, ignores errors of this implicit close.
        errno::keeping(|| fds::release(before));
    }
    result
}

fn is_auto_rsocket(fd: c_int) -> bool {
    table::get(fd).is_some_and(|entry| entry.kind == Kind::Socket && auto::is_auto(entry))
}

/// Returns the entry that `new` is to have.
fn prepare_copy(source: Entry, new: c_int) -> Result<Entry, c_int> {
    // Checked before the table grows for it: `new` may be any number.
    if !open_fds::is_possible(new) {
        return Err(EBADF);
    }
    table::prepare(new)?;
    fds::hold(source).ok_or(EBADF)
}

/// fcntl(2). It is variadic in C: a third argument that was not given is whatever the register has,
/// and is not used.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    match table::get(fd) {
        // SAFETY: the C contract.
        None => copied(cmd, unsafe { next_symbol::fcntl(fd, cmd, arg) }),
        Some(entry) => control(fd, entry, cmd, arg),
    }
}

/// fcntl(2) by the name that it has in programs compiled for large files.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    match table::get(fd) {
        // SAFETY: the C contract.
        None => copied(cmd, unsafe { next_symbol::fcntl64(fd, cmd, arg) }),
        Some(entry) => control(fd, entry, cmd, arg),
    }
}

/// `result` of fcntl(2) on a descriptor of the kernel's, which may be a new number.
#[inline(always)]
fn copied(cmd: c_int, result: c_int) -> c_int {
    if matches!(cmd, F_DUPFD | F_DUPFD_CLOEXEC) { fds::on_new_fd(result) } else { result }
}

fn control(fd: c_int, entry: Entry, cmd: c_int, arg: usize) -> c_int {
    // SAFETY: the C contract.
    let next = || unsafe { next_symbol::fcntl64(fd, cmd, arg) };
    if cmd == F_SETFD && arg as c_int & FD_CLOEXEC == 0 {
        auto::outside::loses_cloexec(fd);
    }
    match (cmd, Fd::from(entry)) {
        (F_DUPFD | F_DUPFD_CLOEXEC, _) => copy_entry(entry, next),
        (_, Fd::Kernel | Fd::Pending(_) | Fd::Epoll(_) | Fd::Relayed(_) | Fd::Connecting(_) | Fd::Known(_)) => next(),
        (F_GETFL, Fd::Rsocket(_)) => {
            rsocket::sync_nonblock(fd, entry.inner);
            // SAFETY: no pointers.
            let flags = unsafe { rsocket_abi::rfcntl(entry.inner, cmd, 0) };
            // Programs check the access mode.
            if flags < 0 { flags } else { flags | O_RDWR }
        }
        // The argument is an int: the upper half of the register is undefined.
        (F_SETFL, Fd::Rsocket(_)) => set_flags(fd, entry.inner, arg as c_int),
        // Flags of the number, and locks, are those of the placeholder. Sockets have no use for locks.
        (F_GETFD | F_SETFD | F_GETLK | F_SETLK | F_SETLKW | F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW, _) => next(),
        // The number is a socket of the kernel, which takes what sockets take.
        (_, Fd::Rsocket(entry)) if auto::is_auto(entry) => next(),
        // Signals, owners, leases would have no effect.
        _ => errno::fail(EINVAL),
    }
}

/// Sets O_NONBLOCK of the placeholder, too: see [`rsocket::sync_nonblock`].
fn set_flags(fd: c_int, inner: c_int, flags: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe {
        let result = rsocket_abi::rfcntl(inner, F_SETFL, flags);
        if result >= 0 {
            errno::keeping(|| next_symbol::fcntl(fd, F_SETFL, (flags & O_NONBLOCK) as usize));
        }
        result
    }
}
