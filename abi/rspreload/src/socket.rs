//! New sockets: socket, accept, accept4. And connect, which in fork mode begins the making of one.

use core::ffi::c_int;

use libc::{
    AF_INET, AF_INET6, EINVAL, F_SETFL, O_NONBLOCK, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_NONBLOCK, SOCK_STREAM, sockaddr,
    socklen_t,
};

use crate::table::{self, Kind};
use crate::{config, errno, fds, fork, r, real};

/// The address family of InfiniBand, of which the C library's headers know nothing.
pub const AF_IB: c_int = 27;
const FLAGS: c_int = SOCK_CLOEXEC | SOCK_NONBLOCK;

/// socket(2): an rsocket where the configuration allows it and librdmacm makes it, else the kernel's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let plain = kind & !FLAGS;
    let known = matches!(domain, AF_INET | AF_INET6 | AF_IB) && matches!(plain, SOCK_STREAM | SOCK_DGRAM);
    // SAFETY: numbers only.
    unsafe {
        if !known || !errno::keeping(|| config::intercepts(domain, plain, protocol)) {
            return fds::born(real::socket(domain, kind, protocol));
        }
        if fork::wanted(domain, plain) {
            return fork::socket(domain, kind, protocol);
        }
        errno::keeping(|| make(domain, kind, protocol))
            .unwrap_or_else(|_| fds::born(real::socket(domain, kind, protocol)))
    }
}

fn make(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int, c_int> {
    // First, so that it is the lowest number: programs close 0 and expect the next socket there.
    let fd = fds::placeholder(kind & SOCK_CLOEXEC != 0, kind & SOCK_NONBLOCK != 0)?;
    adopt(fd, fds::rsocket(domain, kind, protocol))
}

/// Lets the placeholder `fd` stand for what a call of librdmacm returned. If that failed, or this fails, nothing is
/// left of either.
fn adopt(fd: c_int, inner: c_int) -> Result<c_int, c_int> {
    let adopted = if inner < 0 { Err(errno::get()) } else { fds::adopt(fd, inner) };
    adopted.map(|()| fd).inspect_err(|_| {
        // SAFETY: nobody else was told of either.
        unsafe {
            if inner >= 0 {
                r::rclose(inner);
            }
            real::close(fd);
        }
    })
}

/// accept(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if table::get(fd).is_none() {
        // SAFETY: the C contract.
        return fds::born(unsafe { real::accept(fd, addr, len) });
    }
    // SAFETY: the C contract.
    unsafe { accept4(fd, addr, len, 0) }
}

/// accept4(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: the C contract.
    unsafe {
        match table::get(fd) {
            Some(entry) if entry.kind == Kind::Socket => match accept_from(fd, entry.inner, addr, len, flags) {
                Ok(new) => new,
                Err(why) => errno::fail(why),
            },
            Some(entry) if entry.kind == Kind::Pending => fork::accept(fd, entry, addr, len, flags),
            _ => fds::born(real::accept4(fd, addr, len, flags)),
        }
    }
}

/// # Safety
/// As accept4's.
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
    // As in the kernel the number comes first: without one no connection is taken from the queue and lost.
    let new = fds::placeholder(flags & SOCK_CLOEXEC != 0, flags & SOCK_NONBLOCK != 0)?;
    fds::sync_nonblock(fd, inner);
    // SAFETY: as accept4's: guaranteed by the caller.
    let taken = unsafe { r::raccept(inner, addr, len) };
    if taken >= 0 {
        // An rsocket starts out with its listener's flags, a socket on Linux does not.
        let status = if flags & SOCK_NONBLOCK != 0 { O_NONBLOCK } else { 0 };
        // SAFETY: numbers only.
        unsafe { r::rfcntl(taken, F_SETFL, status) };
    }
    adopt(new, taken)
}

/// connect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the C contract.
    unsafe {
        match table::get(fd) {
            Some(entry) if entry.kind == Kind::Socket => {
                fds::sync_nonblock(fd, entry.inner);
                r::rconnect(entry.inner, addr, len)
            }
            Some(entry) if entry.kind == Kind::Pending => fork::connect(fd, entry, addr, len),
            _ => real::connect(fd, addr, len),
        }
    }
}
