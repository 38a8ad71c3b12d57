//! Calls that create, copy and close descriptors.

use core::ffi::c_int;

use libc::{
    AF_IB, AF_INET, AF_INET6, EAGAIN, EALREADY, EBADF, EBUSY, EINVAL, F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL,
    F_GETLK, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_SETFD, F_SETFL, F_SETLK, F_SETLKW, FD_CLOEXEC, O_ASYNC,
    O_NONBLOCK, O_RDWR, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM, sockaddr, socklen_t,
};

use crate::epoll::members;
use crate::fds::Fd;
use crate::sockets::{kernel, rdma};
use crate::table::{Entry, Kind};
use crate::thread::{with_cleanup, without_cancel};
use crate::{auto, config, errno, fds, fork, next_symbol, open_fds, process, rsocket, rsocket_abi, table};

// socket, accept, accept4, connect.

const FLAGS: c_int = SOCK_CLOEXEC | SOCK_NONBLOCK;

exports! {
    /// socket(2): returns an rsocket if the configuration asks for one and librdmacm can create it,
    /// otherwise a kernel socket.
    safe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let plain = kind & !FLAGS;
        let known = matches!(domain, AF_INET | AF_INET6 | AF_IB) && matches!(plain, SOCK_STREAM | SOCK_DGRAM);
        let kernels = || fds::on_new_fd(next_symbol::socket(domain, kind, protocol));
        if !known || !errno::keeping(|| config::intercepts(domain, plain, protocol)) {
            return kernels();
        }
        if auto::leaves_to_kernel(domain, plain) {
            return members::begin(kernels());
        }
        if fork::wanted(domain, plain) {
            return enter_pending(next_symbol::socket(domain, kind, protocol), fork::Role::Fresh.entry());
        }
        errno::keeping(|| make(domain, kind, protocol)).unwrap_or_else(|_| kernels())
    }

    /// accept(2).
    fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        match Fd::of(fd) {
            Fd::Kernel | Fd::Tracked(_) => {
                auto::accept(fd, addr, len, |addr, len| fds::on_new_fd(next_symbol::accept(fd, addr, len)))
            }
            _ => accept4(fd, addr, len, 0),
        }
    }

    /// accept4(2).
    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        match Fd::of(fd) {
            Fd::Rsocket(entry) => match accept_from(fd, entry.handle, addr, len, flags) {
                Ok(new) => new,
                // TCP's errno for a socket that does not listen. Mode `rdma` keeps the errno of
                // raccept.
                Err(EBADF) if auto::is_auto(entry) => errno::fail(EINVAL),
                Err(why) => errno::fail(why),
            },
            Fd::Pending(_) => enter_pending(next_symbol::accept4(fd, addr, len, flags), fork::Role::Passive.entry()),
            Fd::Kernel | Fd::Epoll | Fd::Connecting(_) | Fd::Tracked(_) => {
                auto::accept(fd, addr, len, |addr, len| fds::on_new_fd(next_symbol::accept4(fd, addr, len, flags)))
            }
        }
    }

    /// connect(2).
    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        if let Some(entry) = table::get(fd).filter(|_| auto::is_on() && auto::outside::is_asked(addr, len)) {
            auto::outside::leave_rdma(fd, entry);
        }
        match Fd::of(fd) {
            Fd::Rsocket(entry) => {
                rsocket::sync_nonblock(fd, entry.handle);
                rsocket_abi::rconnect(entry.handle, addr, len)
            }
            Fd::Pending(_) => fork::connect(fd, addr, len),
            Fd::Kernel if auto::is_on() => auto::connect(fd, addr, len),
            Fd::Connecting(_) => errno::fail(EALREADY),
            Fd::Kernel | Fd::Epoll | Fd::Tracked(_) => next_symbol::connect(fd, addr, len),
        }
    }
}

fn make(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int, c_int> {
    // Open the placeholder first, so that it gets the lowest free descriptor: some programs close
    // descriptor 0 and expect the next socket there.
    let fd = fds::open_placeholder(kind & FLAGS)?;
    adopt(fd, rsocket::create(domain, kind, protocol))
}

/// Stores the entry of a new TCP socket of fork mode. `fd` is the kernel's result. Returns `fd`, or
/// -1 with `errno`.
fn enter_pending(fd: c_int, entry: Entry) -> c_int {
    if fd < 0 {
        return fd;
    }
    if let Err(error) = table::prepare(fd) {
        next_symbol::close(fd);
        return errno::fail(error);
    }
    fds::put(fd, entry);
    members::begin(fd)
}

/// Makes the placeholder `fd` stand for `rsocket`, the result of a call of librdmacm. Returns `fd`.
/// If the call of librdmacm or this function fails, closes `fd` and `rsocket`, and returns the
/// errno.
fn adopt(fd: c_int, rsocket: c_int) -> Result<c_int, c_int> {
    let made = if rsocket < 0 { Err(errno::get()) } else { Ok(()) };
    let prepared = made.and_then(|()| table::prepare(fd)).and_then(|()| table::first(rsocket, 0));
    prepared.inspect_err(|_| {
        rsocket::close(rsocket);
        next_symbol::close(fd);
    })?;
    fds::put(fd, Entry::rsocket(rsocket, 0));
    Ok(fd)
}

/// Accepts a connection from the listener `fd`, whose rsocket is `rsocket`. Returns the new
/// descriptor or an errno.
///
/// # Safety
/// `addr` and `len` are valid or NULL as accept4(2) allows.
unsafe fn accept_from(
    fd: c_int,
    rsocket: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Result<c_int, c_int> {
    if flags & !FLAGS != 0 {
        return Err(EINVAL);
    }
    // Open the descriptor first, as the kernel does: without a free descriptor, no connection is
    // taken from the queue.
    let new = fds::open_placeholder(flags)?;
    rsocket::sync_nonblock(fd, rsocket);
    // If the thread is cancelled, close the placeholder, which the program does not know yet.
    let close_placeholder = || {
        next_symbol::close(new);
    };
    // SAFETY: `addr` and `len` are valid for accept4(2): guaranteed by the caller.
    let taken = with_cleanup(close_placeholder, || unsafe { rsocket_abi::raccept(rsocket, addr, len) });
    if taken >= 0 {
        // An accepted rsocket inherits its listener's flags; a kernel socket does not.
        let status = if flags & SOCK_NONBLOCK != 0 { O_NONBLOCK } else { 0 };
        rdma::fcntl(taken, F_SETFL, status);
    }
    adopt(new, taken)
}

// close.

exports! {
    /// close(2). An rsocket is closed before its placeholder: otherwise another thread could reuse
    /// the descriptor meanwhile, and its new entry would be lost.
    safe fn close(fd: c_int) -> c_int {
        if table::any() && table::get(fd).is_some() { close_known(fd) } else { close_unknown(fd) }
    }
}

/// close(2) of a descriptor without an entry. Fails with `EBADF` for a descriptor of the library.
#[inline(always)]
fn close_unknown(fd: c_int) -> c_int {
    if table::any() && fds::is_library(fd) {
        return errno::fail(EBADF);
    }
    auto::log::before_close(fd);
    members::forget(fd);
    next_symbol::close(fd)
}

#[inline(never)]
fn close_known(fd: c_int) -> c_int {
    loop {
        let Some(entry) = fds::current_entry(fd) else { return close_unknown(fd) };
        if process::is_guest() {
            return next_symbol::close(fd);
        }
        if entry.handle == table::CLOSING {
            return errno::fail(EBADF);
        }
        // Disable cancellation: otherwise the thread could end before the placeholder is closed.
        if let Some(result) = without_cancel(|_| close_entry(fd, entry)) {
            return result;
        }
    }
}

/// Closes a descriptor whose entry is `entry`. Returns the result of close(2), or `None` if the
/// entry has changed.
fn close_entry(fd: c_int, entry: Entry) -> Option<c_int> {
    // While an rsocket is closed, which takes time, calls on the descriptor must not reach the
    // placeholder.
    let meanwhile = (entry.kind == Kind::Socket).then_some(Entry { handle: table::CLOSING, ..entry });
    table::replace(fd, Some(entry), meanwhile).then(|| {
        let released = fds::release(entry);
        let why = errno::get();
        if released < 0 && why == EAGAIN {
            // A signal handler that has interrupted another call cannot close the rsocket, which
            // stays open.
            let _ = table::first(entry.handle, entry.index());
            table::replace(fd, meanwhile, Some(entry));
            return errno::fail(why);
        }
        let closed = close_placeholder(fd, meanwhile);
        if released < 0 { errno::fail(why) } else { closed }
    })
}

/// Closes `fd`, whose entry is `meanwhile`. Returns 0 without closing `fd` if dup2(2) has put
/// another file there.
fn close_placeholder(fd: c_int, meanwhile: Option<Entry>) -> c_int {
    if meanwhile.is_some() && !table::replace(fd, meanwhile, None) {
        return 0;
    }
    members::forget(fd);
    next_symbol::close(fd)
}

// dup, dup2, fcntl.
//
// The copy of a placeholder is a placeholder. The kernel chooses the new descriptor, closes the
// file that was there, and keeps the descriptor flags. The table gets an entry for the same
// rsocket, whose reference count goes up.

exports! {
    /// dup(2).
    safe fn dup(fd: c_int) -> c_int {
        let next = || next_symbol::dup(fd);
        match table::get(fd) {
            None => fds::on_new_fd(next()),
            Some(entry) => copy_entry(fd, entry, next),
        }
    }

    /// dup2(2).
    safe fn dup2(old: c_int, new: c_int) -> c_int {
        if table::any() && old != new {
            return copy_to(old, new);
        }
        if old != new {
            members::forget(new);
        }
        next_symbol::dup2(old, new)
    }

    /// fcntl(2). It is variadic in C: without a third argument, `arg` is an arbitrary register
    /// value, and is not used.
    fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int {
        control(fd, cmd, arg, || next_symbol::fcntl(fd, cmd, arg))
    }

    /// fcntl(2) under its name for programs that are compiled for large files.
    fn fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int {
        control(fd, cmd, arg, || next_symbol::fcntl64(fd, cmd, arg))
    }
}

/// Copies a descriptor whose entry is `entry`. Returns the kernel's copy, which `next` creates, or
/// -1 with `errno`.
fn copy_entry(fd: c_int, entry: Entry, next: impl FnOnce() -> c_int) -> c_int {
    if process::is_guest() {
        let copy = next();
        if copy >= 0 {
            auto::guest_copies(copy, entry);
        }
        return copy;
    }
    let copy = match hold_current(fd, entry) {
        Ok(Some(copy)) => copy,
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
    if copy.kind == Kind::Forwarded && errno::keeping(|| open_fds::is_inheritable(new)) {
        auto::execute_with(copy);
    }
    new
}

/// Adds a reference to the object behind `fd`, for a copy of `fd`. `entry` is the entry that the
/// caller has read. Returns the copy's entry, or `None` if `fd` has no entry any more. Fails with
/// `EBADF` if the rsocket is being closed.
fn hold_current(fd: c_int, mut entry: Entry) -> Result<Option<Entry>, c_int> {
    loop {
        if entry.kind == Kind::Connecting {
            auto::end_attempt(fd, entry);
        } else if entry.kind == Kind::Pending && fork::stay_tcp(fd, entry) {
            // The entry may have changed: read it again.
        } else if let Some(copy) = fds::hold(entry) {
            return Ok(Some(copy));
        }
        let Some(now) = table::get(fd) else { return Ok(None) };
        // If the entry is unchanged, the descriptor is being closed. Otherwise try again.
        if now == entry && entry.kind != Kind::Connecting {
            return Err(EBADF);
        }
        entry = now;
    }
}

fn copy_to(old: c_int, new: c_int) -> c_int {
    if fds::current_entry(new).is_none() && fds::is_library(new) {
        // The kernel fails with this errno if `new` is being opened.
        return errno::fail(EBUSY);
    }
    if process::is_guest() {
        // A child of vfork(2) has descriptors of its own, but its parent's memory: its new
        // descriptors must not get entries in the parent's table.
        if let Some(source) = table::get(old) {
            auto::execute_with(source);
            auto::guest_copies(old, source);
        }
        return next_symbol::dup2(old, new);
    }
    let is_rsocket = |entry: Entry| entry.kind == Kind::Connecting || auto::is_auto(entry);
    if new <= libc::STDERR_FILENO && table::get(old).is_some_and(is_rsocket) {
        // stdio's system calls are not intercepted. If the connection cannot be forwarded, stdio
        // gets an unconnected socket.
        let _ = auto::outside::leave_to_kernel(old);
    }
    let copy = match fds::current_entry(old).map_or(Ok(None), |source| prepare_copy(old, source, new)) {
        Ok(copy) => copy,
        Err(why) => return errno::fail(why),
    };
    let result = next_symbol::dup2(old, new);
    if result < 0 {
        copy.map(|copy| errno::keeping(|| fds::release(copy)));
        return result;
    }
    members::forget(new);
    if let Some(before) = table::swap(new, copy) {
        // The kernel ignores errors of this implicit close, too.
        errno::keeping(|| fds::release(before));
    }
    if let Some(copy) = copy {
        auto::copied(new, copy);
    }
    result
}

/// Returns the entry for the copy `new`, or `None` if `old` has no entry any more. Fails with an
/// errno.
fn prepare_copy(old: c_int, source: Entry, new: c_int) -> Result<Option<Entry>, c_int> {
    // A child that copies a connection usually executes a program next. Forward the data from now
    // on, because a program that only reads would not start the forwarding.
    auto::execute_with(source);
    // Check `new`, which may be any int, before the table grows for it.
    if !open_fds::is_possible(new) {
        return Err(EBADF);
    }
    table::prepare(new)?;
    hold_current(old, source)
}

fn control(fd: c_int, cmd: c_int, arg: usize, next: impl FnOnce() -> c_int) -> c_int {
    let Some(entry) = table::get(fd) else {
        return if matches!(cmd, F_DUPFD | F_DUPFD_CLOEXEC) { fds::on_new_fd(next()) } else { next() };
    };
    if cmd == F_SETFD && arg as c_int & FD_CLOEXEC == 0 {
        auto::outside::loses_cloexec(fd);
    }
    if matches!(cmd, F_DUPFD | F_DUPFD_CLOEXEC) {
        return copy_entry(fd, entry, next);
    }
    if entry.kind != Kind::Socket {
        return next();
    }
    match cmd {
        F_GETFL => {
            rsocket::sync_nonblock(fd, entry.handle);
            let flags = rdma::fcntl(entry.handle, cmd, 0);
            // Programs check the access mode, which an rsocket's flags do not contain.
            if flags < 0 { flags } else { flags | O_RDWR }
        }
        // Only a kernel socket sends signals (O_ASYNC). `arg` is an int, so the upper half of the
        // register is undefined.
        F_SETFL
            if arg as c_int & O_ASYNC != 0 && auto::is_auto(entry) && auto::outside::leave_to_kernel(fd).is_ok() =>
        {
            next()
        }
        F_SETFL => set_flags(fd, entry.handle, arg as c_int),
        // Descriptor flags and locks are the placeholder's. Locks mean nothing for sockets.
        F_GETFD | F_SETFD | F_GETLK | F_SETLK | F_SETLKW | F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW => next(),
        // The placeholder is a TCP socket, which accepts all commands for sockets.
        _ if auto::is_auto(entry) => next(),
        // Commands for signals, owners and leases would have no effect.
        _ => errno::fail(EINVAL),
    }
}

/// Sets the flags of an rsocket, and O_NONBLOCK of its placeholder. Returns 0, or -1 with `errno`.
fn set_flags(fd: c_int, rsocket: c_int, flags: c_int) -> c_int {
    let result = rdma::fcntl(rsocket, F_SETFL, flags);
    if result >= 0 {
        errno::keeping(|| kernel::fcntl(fd, F_SETFL, flags & O_NONBLOCK));
        // Another thread may have read the placeholder's flags before this change and set the
        // rsocket's flags after it.
        rsocket::sync_nonblock(fd, rsocket);
    }
    result
}

#[cfg(test)]
mod tests_of_dup {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::*;

    #[test]
    fn both_flags_are_the_same_after_threads_have_changed_them() {
        let [placeholder, rsocket] = [0; 2].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let (fd, rsocket) = (placeholder.as_raw_fd(), rsocket.as_raw_fd());
        let (barrier, changed) = (Barrier::new(2), AtomicBool::new(false));
        // SAFETY: F_GETFL takes no pointer.
        let is_nonblocking = |fd| unsafe { libc::fcntl(fd, F_GETFL) } & O_NONBLOCK != 0;
        let mut wrong = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    barrier.wait();
                    while !changed.load(SeqCst) {
                        rsocket::sync_nonblock(fd, rsocket);
                    }
                    barrier.wait();
                }
            });
            for round in 0..10_000 {
                barrier.wait();
                set_flags(fd, rsocket, if round % 2 == 0 { O_NONBLOCK } else { 0 });
                changed.store(true, SeqCst);
                barrier.wait();
                changed.store(false, SeqCst);
                // The other thread waits for the next round.
                wrong += usize::from([fd, rsocket].map(is_nonblocking) != [round % 2 == 0; 2]);
            }
        });
        assert_eq!(wrong, 0);
    }
}
