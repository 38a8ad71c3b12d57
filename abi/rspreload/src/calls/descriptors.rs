//! Calls that make, copy and close descriptors.

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
    /// socket(2): an rsocket if the configuration wants one and librdmacm can make it, otherwise
    /// the kernel's.
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
            return enter_pending(next_symbol::socket(domain, kind, protocol), fork::new_entry());
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
                // As TCP's socket, unless it is the rsocket's own errno that is wanted.
                Err(EBADF) if auto::is_auto(entry) => errno::fail(EINVAL),
                Err(why) => errno::fail(why),
            },
            Fd::Pending(_) => enter_pending(next_symbol::accept4(fd, addr, len, flags), fork::accepted_entry()),
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
    // Before the rsocket's own descriptors, to get the lowest descriptor: programs close 0 and
    // expect the next socket there.
    let fd = fds::open_placeholder(kind & FLAGS)?;
    adopt(fd, rsocket::create(domain, kind, protocol))
}

/// Puts a new TCP socket of fork mode into the table. `fd` is the kernel's result.
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

/// Makes the placeholder `fd` stand for what a call of librdmacm returned. Closes both on failure
/// of either.
fn adopt(fd: c_int, rsocket: c_int) -> Result<c_int, c_int> {
    let adopted = if rsocket < 0 { Err(errno::get()) } else { fds::adopt(fd, rsocket) };
    adopted.map(|()| fd).inspect_err(|_| {
        if rsocket >= 0 {
            rsocket_abi::rclose(rsocket);
        }
        next_symbol::close(fd);
    })
}

/// # Safety
/// As for accept4(2).
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
    // As in the kernel, the descriptor comes first: without one, no connection is taken from the
    // queue.
    let new = fds::open_placeholder(flags)?;
    rsocket::sync_nonblock(fd, rsocket);
    // The program does not know the descriptor yet.
    let close_placeholder = || {
        next_symbol::close(new);
    };
    // SAFETY: the arguments of accept4(2): guaranteed by the caller.
    let taken = with_cleanup(close_placeholder, || unsafe { rsocket_abi::raccept(rsocket, addr, len) });
    if taken >= 0 {
        // An rsocket inherits its listener's flags, a socket on Linux does not.
        let status = if flags & SOCK_NONBLOCK != 0 { O_NONBLOCK } else { 0 };
        rdma::fcntl(taken, F_SETFL, status);
    }
    adopt(new, taken)
}

// close.

exports! {
    /// close(2). The rsocket is closed while its descriptor is still taken: otherwise another
    /// thread could get the descriptor, and lose its entry.
    safe fn close(fd: c_int) -> c_int {
        if table::any() && table::get(fd).is_some() { close_known(fd) } else { close_unknown(fd) }
    }
}

/// close(2) of a descriptor without an entry: the kernel's, or one of the library's own.
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
        // A thread that is cancelled before the placeholder is closed would leave the descriptor
        // taken.
        if let Some(result) = without_cancel(|_| close_entry(fd, entry)) {
            return result;
        }
    }
}

/// Closes a descriptor that has `entry`. Returns `None` if it has another one by now.
fn close_entry(fd: c_int, entry: Entry) -> Option<c_int> {
    // Closing an rsocket takes time, in which calls on the descriptor must not meet the
    // placeholder.
    let meanwhile = (entry.kind == Kind::Socket).then_some(Entry { handle: table::CLOSING, ..entry });
    table::replace(fd, Some(entry), meanwhile).then(|| {
        let released = fds::release(entry);
        let why = errno::get();
        if released < 0 && why == EAGAIN {
            // In a signal handler, in the middle of another call: the rsocket stays open.
            let _ = table::first(entry.handle, entry.index());
            table::replace(fd, meanwhile, Some(entry));
            return errno::fail(why);
        }
        let closed = close_placeholder(fd, meanwhile);
        if released < 0 { errno::fail(why) } else { closed }
    })
}

/// Closes a placeholder whose entry is `meanwhile`, unless dup2(2) has put another file there.
fn close_placeholder(fd: c_int, meanwhile: Option<Entry>) -> c_int {
    if meanwhile.is_some() && !table::replace(fd, meanwhile, None) {
        return 0;
    }
    members::forget(fd);
    next_symbol::close(fd)
}

// dup, dup2, fcntl.
//
// The copy of a placeholder is a placeholder. The kernel finds the descriptor, closes what was
// there, and keeps the flags that belong to the descriptor. The table gets the same entry for it,
// and the rsocket descriptor one reference more.

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

    /// fcntl(2) by the name that it has in programs compiled for large files.
    fn fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int {
        control(fd, cmd, arg, || next_symbol::fcntl64(fd, cmd, arg))
    }
}

/// Copies a descriptor that has `entry`. `next` makes the kernel's copy.
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
        auto::execute_with(entry);
    }
    new
}

/// Adds a reference to what is behind a descriptor, which has had `entry`, for a copy. Returns the
/// descriptor's entry and the copy's; `None` for a number of the kernel's.
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

fn copy_to(old: c_int, new: c_int) -> c_int {
    // A child of vfork(2) has descriptors of its own but its parent's memory: what it opens must
    // not be entered there.
    let is_guest = process::is_guest();
    let is_rsocket = |entry: Entry| entry.kind == Kind::Connecting || is_auto_rsocket(entry);
    if new <= libc::STDERR_FILENO && !is_guest && table::get(old).is_some_and(is_rsocket) {
        // For stdio. Without memory it meets a socket that is not connected.
        let _ = auto::outside::leave_to_kernel(old);
    }
    let source = if is_guest { table::get(old) } else { fds::current_entry(old) };
    if is_taken(new) {
        return errno::fail(EBUSY);
    }
    let copy = source.map_or(Ok(None), |source| {
        // A child that copies a connection is usually about to execute a program, which may only
        // read: its data is forwarded from now on.
        auto::execute_with(source);
        if is_guest {
            auto::guest_copies(old, source);
            return Ok(None);
        }
        prepare_copy(old, source, new)
    });
    let copy = match copy {
        Ok(copy) => copy,
        Err(why) => return errno::fail(why),
    };
    let result = next_symbol::dup2(old, new);
    if result < 0 {
        copy.map(|copy| errno::keeping(|| fds::release(copy)));
        return result;
    }
    if is_guest {
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

/// Whether `new` is a descriptor of the library's: the kernel's error for a descriptor that is
/// being opened is EBUSY.
fn is_taken(new: c_int) -> bool {
    fds::current_entry(new).is_none() && fds::is_library(new)
}

fn is_auto_rsocket(entry: Entry) -> bool {
    entry.kind == Kind::Socket && auto::is_auto(entry)
}

/// Returns the entry that `new` is to have.
fn prepare_copy(old: c_int, source: Entry, new: c_int) -> Result<Option<Entry>, c_int> {
    // Checked before the table grows for it: `new` may be any descriptor.
    if !open_fds::is_possible(new) {
        return Err(EBADF);
    }
    table::prepare(new)?;
    Ok(hold_current(old, Some(source))?.map(|(_, copy)| copy))
}

fn control(fd: c_int, cmd: c_int, arg: usize, next: impl FnOnce() -> c_int) -> c_int {
    let Some(entry) = table::get(fd) else {
        return if matches!(cmd, F_DUPFD | F_DUPFD_CLOEXEC) { fds::on_new_fd(next()) } else { next() };
    };
    if cmd == F_SETFD && arg as c_int & FD_CLOEXEC == 0 {
        auto::outside::loses_cloexec(fd);
    }
    match (cmd, Fd::from(entry)) {
        (F_DUPFD | F_DUPFD_CLOEXEC, _) => copy_entry(fd, entry, next),
        (_, Fd::Kernel | Fd::Pending(_) | Fd::Epoll | Fd::Connecting(_) | Fd::Tracked(_)) => next(),
        (F_GETFL, Fd::Rsocket(_)) => {
            rsocket::sync_nonblock(fd, entry.handle);
            let flags = rdma::fcntl(entry.handle, cmd, 0);
            // Programs check the access mode.
            if flags < 0 { flags } else { flags | O_RDWR }
        }
        // The argument is an int: the upper half of the register is undefined.
        // The kernel's socket sends signals.
        (F_SETFL, Fd::Rsocket(_))
            if arg as c_int & O_ASYNC != 0 && is_auto_rsocket(entry) && auto::outside::leave_to_kernel(fd).is_ok() =>
        {
            next()
        }
        (F_SETFL, Fd::Rsocket(_)) => set_flags(fd, entry.handle, arg as c_int),
        // Flags of the descriptor, and locks, are those of the placeholder. Sockets have no use for
        // locks.
        (F_GETFD | F_SETFD | F_GETLK | F_SETLK | F_SETLKW | F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW, _) => next(),
        // The descriptor is a socket of the kernel, which takes what sockets take.
        (_, Fd::Rsocket(entry)) if auto::is_auto(entry) => next(),
        // Commands for signals, owners and leases would have no effect.
        _ => errno::fail(EINVAL),
    }
}

/// Sets O_NONBLOCK of the placeholder, too: see [`rsocket::sync_nonblock`].
fn set_flags(fd: c_int, rsocket: c_int, flags: c_int) -> c_int {
    let result = rdma::fcntl(rsocket, F_SETFL, flags);
    if result >= 0 {
        errno::keeping(|| kernel::fcntl(fd, F_SETFL, flags & O_NONBLOCK));
        // Another thread may have read the placeholder's flags before this change and set the
        // rsocket's after it.
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
        // SAFETY: no pointers.
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
