//! socket, accept, accept4, connect.

use core::ffi::c_int;

use libc::{
    AF_IB, AF_INET, AF_INET6, EBADF, EINVAL, F_SETFL, O_NONBLOCK, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM,
    sockaddr, socklen_t,
};

use crate::dispatch::Fd;
use crate::epoll::members;
use crate::table::{self, Entry};
use crate::{auto, cancel, config, errno, fds, fork, next_symbol, rsocket, rsocket_abi};

const FLAGS: c_int = SOCK_CLOEXEC | SOCK_NONBLOCK;

/// socket(2): an rsocket if the configuration wants one and librdmacm can make it, otherwise the
/// kernel's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
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

fn make(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int, c_int> {
    // Before the rsocket's own descriptors, to get the lowest number: programs close 0 and expect
    // the next socket there.
    let fd = fds::open_placeholder(kind & SOCK_CLOEXEC != 0, kind & SOCK_NONBLOCK != 0)?;
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
fn adopt(fd: c_int, inner: c_int) -> Result<c_int, c_int> {
    let adopted = if inner < 0 { Err(errno::get()) } else { fds::adopt(fd, inner) };
    adopted.map(|()| fd).inspect_err(|_| {
        if inner >= 0 {
            rsocket_abi::rclose(inner);
        }
        next_symbol::close(fd);
    })
}

/// accept(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if let Fd::Kernel | Fd::Known(_) = Fd::of(fd) {
        if auto::has_tokens() {
            // SAFETY: the C contract.
            return unsafe {
                auto::accept(fd, addr, len, |addr, len| fds::on_new_fd(next_symbol::accept(fd, addr, len)))
            };
        }
        // SAFETY: the C contract.
        return fds::on_new_fd(unsafe { next_symbol::accept(fd, addr, len) });
    }
    // SAFETY: the C contract.
    unsafe { accept4(fd, addr, len, 0) }
}

/// accept4(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: the C contract.
    unsafe {
        match Fd::of(fd) {
            Fd::Rsocket(entry) => match accept_from(fd, entry.inner, addr, len, flags) {
                Ok(new) => new,
                // As TCP's socket, unless it is the rsocket's own errno that is wanted.
                Err(EBADF) if auto::is_auto(entry) => errno::fail(EINVAL),
                Err(why) => errno::fail(why),
            },
            Fd::Pending(_) => enter_pending(next_symbol::accept4(fd, addr, len, flags), fork::accepted_entry()),
            Fd::Kernel | Fd::Known(_) if auto::has_tokens() => {
                auto::accept(fd, addr, len, |addr, len| fds::on_new_fd(next_symbol::accept4(fd, addr, len, flags)))
            }
            Fd::Kernel | Fd::Epoll(_) | Fd::Connecting(_) | Fd::Known(_) => {
                fds::on_new_fd(next_symbol::accept4(fd, addr, len, flags))
            }
        }
    }
}

/// # Safety
/// As for accept4(2).
unsafe fn accept_from(
    fd: c_int,
    inner: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Result<c_int, c_int> {
    if flags & !FLAGS != 0 {
        return Err(EINVAL);
    }
    // As in the kernel, the number comes first: without one, no connection is taken from the queue.
    let new = fds::open_placeholder(flags & SOCK_CLOEXEC != 0, flags & SOCK_NONBLOCK != 0)?;
    rsocket::sync_nonblock(fd, inner);
    let close_placeholder = || {
        // SAFETY: the program does not know the number yet.
        next_symbol::close(new);
    };
    // SAFETY: the arguments of accept4(2): guaranteed by the caller.
    let taken = cancel::with_cleanup(close_placeholder, || unsafe { rsocket_abi::raccept(inner, addr, len) });
    if taken >= 0 {
        // An rsocket inherits its listener's flags, a socket on Linux does not.
        let status = if flags & SOCK_NONBLOCK != 0 { O_NONBLOCK } else { 0 };
        rsocket_abi::rfcntl_int(taken, F_SETFL, status);
    }
    adopt(new, taken)
}

/// connect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the C contract.
    unsafe {
        if let Some(entry) = table::get(fd).filter(|_| auto::is_on() && auto::disconnect::is_asked(addr, len)) {
            auto::disconnect::leave_rdma(fd, entry);
        }
        match Fd::of(fd) {
            Fd::Rsocket(entry) => {
                rsocket::sync_nonblock(fd, entry.inner);
                rsocket_abi::rconnect(entry.inner, addr, len)
            }
            Fd::Pending(entry) => fork::connect(fd, entry, addr, len),
            Fd::Kernel if auto::is_on() => auto::connect(fd, addr, len),
            Fd::Connecting(_) => auto::connect_again(),
            Fd::Kernel | Fd::Epoll(_) | Fd::Known(_) => next_symbol::connect(fd, addr, len),
        }
    }
}
