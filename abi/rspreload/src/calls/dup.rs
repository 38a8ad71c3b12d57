//! dup, dup2, fcntl.
//!
//! The copy of a placeholder is a placeholder. The kernel finds the number, closes what was there,
//! and keeps the flags that belong to the number. The table gets the same entry for it, and the
//! inner number one reference more.

use core::ffi::c_int;

use libc::{
    EBADF, EBUSY, EINVAL, F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, F_GETLK, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW,
    F_SETFD, F_SETFL, F_SETLK, F_SETLKW, FD_CLOEXEC, O_ASYNC, O_NONBLOCK, O_RDWR,
};

use crate::dispatch::Fd;
use crate::epoll::members;
use crate::table::{self, Entry, Kind};
use crate::{auto, errno, fds, fork, next_symbol, open_fds, process, rsocket, rsocket_abi};

/// dup(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    let next = || next_symbol::dup(fd);
    match table::get(fd) {
        None => fds::on_new_fd(next()),
        Some(entry) => copy_entry(fd, entry, next),
    }
}

/// Copies a number that has `entry`. `next` makes the kernel's copy.
fn copy_entry(fd: c_int, entry: Entry, next: impl FnOnce() -> c_int) -> c_int {
    if process::is_guest() {
        let copy = next();
        if copy >= 0 {
            auto::guest_copies(copy, entry);
        }
        return copy;
    }
    let (entry, copy) = match hold_current(fd, Some(entry)) {
        Ok(Some(held)) => held,
        Ok(None) => return fds::on_new_fd(next()),
        Err(why) => return errno::fail(why),
    };
    let new = next();
    if new < 0 {
        errno::keeping(|| fds::release(copy));
        return new;
    }
    if let Err(why) = table::prepare(new) {
        fds::release(copy);
        next_symbol::close(new);
        return errno::fail(why);
    }
    fds::put(new, copy);
    auto::copied(new, copy);
    if entry.kind == Kind::Forwarded && errno::keeping(|| open_fds::is_inheritable(new)) {
        is_given(entry);
    }
    new
}

/// Adds a reference to what is behind a number, which has had `entry`, for a copy. Returns the
/// number's entry and the copy's; `None` for a number of the kernel's.
fn hold_current(fd: c_int, mut entry: Option<Entry>) -> Result<Option<(Entry, Entry)>, c_int> {
    loop {
        let Some(before) = entry else { return Ok(None) };
        if before.kind == Kind::Connecting {
            auto::end_attempt(fd, before);
        } else if before.kind == Kind::Pending && fork::stay_tcp(fd, before) {
            // It has another entry.
        } else if let Some(copy) = fds::hold(before) {
            return Ok(Some((before, copy)));
        }
        entry = table::get(fd);
        // Otherwise it has begun to be forwarded, or is another socket by now.
        if entry == Some(before) && before.kind != Kind::Connecting {
            return Err(EBADF);
        }
    }
}

/// A child of fork(2) that copies a connection is usually about to execute a program, which may
/// only read: its data is forwarded from now on.
fn is_given(entry: Entry) {
    if entry.kind == Kind::Forwarded {
        auto::execute_with(entry);
    }
}

/// dup2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if table::any() && old != new {
        return copy_to(old, new);
    }
    if old != new {
        members::forget(new);
    }
    next_symbol::dup2(old, new)
}

fn copy_to(old: c_int, new: c_int) -> c_int {
    if process::is_guest() {
        return copy_to_by_guest(old, new);
    }
    if let Some(entry @ Entry { kind: Kind::Connecting, .. }) = table::get(old) {
        auto::end_attempt(old, entry);
    }
    if new <= libc::STDERR_FILENO && is_auto_rsocket(old) {
        // For stdio. Without memory it meets a socket that is not connected.
        let _ = auto::outside::leave_to_kernel(old);
    }
    let source = fds::current_entry(old);
    if let Some(source) = source {
        is_given(source);
    }
    if is_taken(new) {
        return errno::fail(EBUSY);
    }
    let copy = match source {
        Some(source) => match prepare_copy(old, source, new) {
            Ok(copy) => copy,
            Err(why) => return errno::fail(why),
        },
        None => None,
    };
    let result = next_symbol::dup2(old, new);
    if result < 0 {
        if let Some(copy) = copy {
            errno::keeping(|| fds::release(copy));
        }
        return result;
    }
    members::forget(new);
    if let Some(before) = table::swap(new, copy) {
        // The kernel, too, ignores errors of this implicit close.
        errno::keeping(|| fds::release(before));
    }
    if let Some(copy) = copy {
        auto::copied(new, copy);
    }
    result
}

/// dup2(2) in a child of vfork(2), which has descriptors of its own but its parent's memory: what
/// it opens must not be entered there.
fn copy_to_by_guest(old: c_int, new: c_int) -> c_int {
    let source = table::get(old);
    if is_taken(new) {
        return errno::fail(EBUSY);
    }
    if let Some(source) = source {
        is_given(source);
        auto::guest_copies(old, source);
    }
    next_symbol::dup2(old, new)
}

/// Whether `new` is a descriptor of the library's: the kernel's error for a number that is being
/// opened is EBUSY.
fn is_taken(new: c_int) -> bool {
    fds::current_entry(new).is_none() && fds::is_library(new)
}

fn is_auto_rsocket(fd: c_int) -> bool {
    table::get(fd).is_some_and(|entry| entry.kind == Kind::Socket && auto::is_auto(entry))
}

/// Returns the entry that `new` is to have.
fn prepare_copy(old: c_int, source: Entry, new: c_int) -> Result<Option<Entry>, c_int> {
    // Checked before the table grows for it: `new` may be any number.
    if !open_fds::is_possible(new) {
        return Err(EBADF);
    }
    table::prepare(new)?;
    Ok(hold_current(old, Some(source))?.map(|(_, copy)| copy))
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
        (F_DUPFD | F_DUPFD_CLOEXEC, _) => copy_entry(fd, entry, next),
        (_, Fd::Kernel | Fd::Pending(_) | Fd::Epoll(_) | Fd::Connecting(_) | Fd::Known(_)) => next(),
        (F_GETFL, Fd::Rsocket(_)) => {
            rsocket::sync_nonblock(fd, entry.inner);
            let flags = rsocket_abi::rfcntl_int(entry.inner, cmd, 0);
            // Programs check the access mode.
            if flags < 0 { flags } else { flags | O_RDWR }
        }
        // The argument is an int: the upper half of the register is undefined.
        // The kernel's socket sends signals.
        (F_SETFL, Fd::Rsocket(_))
            if arg as c_int & O_ASYNC != 0 && is_auto_rsocket(fd) && auto::outside::leave_to_kernel(fd).is_ok() =>
        {
            next()
        }
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
    let result = rsocket_abi::rfcntl_int(inner, F_SETFL, flags);
    if result >= 0 {
        errno::keeping(|| next_symbol::fcntl_int(fd, F_SETFL, flags & O_NONBLOCK));
        // A thread that has read the placeholder's flags before may have set the rsocket's
        // since.
        rsocket::sync_nonblock(fd, inner);
    }
    result
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::*;

    #[test]
    fn both_flags_are_the_same_after_threads_have_changed_them() {
        let [placeholder, inner] = [0; 2].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let (fd, inner) = (placeholder.as_raw_fd(), inner.as_raw_fd());
        let (barrier, changed) = (Barrier::new(2), AtomicBool::new(false));
        // SAFETY: no pointers.
        let is_nonblocking = |fd| unsafe { libc::fcntl(fd, F_GETFL) } & O_NONBLOCK != 0;
        let mut wrong = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    barrier.wait();
                    while !changed.load(SeqCst) {
                        rsocket::sync_nonblock(fd, inner);
                    }
                    barrier.wait();
                }
            });
            for round in 0..10_000 {
                barrier.wait();
                set_flags(fd, inner, if round % 2 == 0 { O_NONBLOCK } else { 0 });
                changed.store(true, SeqCst);
                barrier.wait();
                changed.store(false, SeqCst);
                // The other thread waits for the next round.
                wrong += usize::from([fd, inner].map(is_nonblocking) != [round % 2 == 0; 2]);
            }
        });
        assert_eq!(wrong, 0);
    }
}
