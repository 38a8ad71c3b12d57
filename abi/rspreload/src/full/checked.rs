//! The names that calls have in programs compiled with _FORTIFY_SOURCE: they know the size of the
//! buffer.

use core::ffi::{c_int, c_void};

use libc::{nfds_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::{next, waits};
use crate::calls;
use crate::dispatch::Fd;
use crate::table;

/// Whether glibc's function does the whole work, or aborts the program because the buffer is too
/// small.
fn is_kernels(fd: c_int, len: size_t, room: size_t) -> bool {
    len > room || matches!(Fd::of(fd), Fd::Kernel)
}

/// The same for a list of descriptors.
fn are_kernels(count: nfds_t, room: size_t) -> bool {
    !table::any() || (count as usize).checked_mul(size_of::<pollfd>()).is_none_or(|len| len > room)
}

/// read(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    // SAFETY: the C contract.
    unsafe { if is_kernels(fd, len, room) { next::__read_chk(fd, buf, len, room) } else { calls::read(fd, buf, len) } }
}

/// recv(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the C contract.
    unsafe {
        if is_kernels(fd, len, room) {
            next::__recv_chk(fd, buf, len, room, flags)
        } else {
            calls::recv(fd, buf, len, flags)
        }
    }
}

/// recvfrom(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the C contract.
    unsafe {
        if is_kernels(fd, len, room) {
            next::__recvfrom_chk(fd, buf, len, room, flags, addr, addrlen)
        } else {
            calls::recvfrom(fd, buf, len, flags, addr, addrlen)
        }
    }
}

/// poll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
    // SAFETY: the C contract.
    unsafe {
        if are_kernels(count, room) {
            next::__poll_chk(fds, count, timeout, room)
        } else {
            calls::poll::poll(fds, count, timeout)
        }
    }
}

/// ppoll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    // SAFETY: the C contract.
    unsafe {
        if are_kernels(count, room) {
            next::__ppoll_chk(fds, count, timeout, mask, room)
        } else {
            waits::ppoll(fds, count, timeout, mask)
        }
    }
}
