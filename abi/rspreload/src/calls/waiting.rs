//! What poll and select have in common: which numbers librdmacm polls for the program's.

use core::ffi::{c_int, c_short};

use crate::auto;
use crate::dispatch::Fd;
use crate::fork;

/// Whether `fd` is or may become an rsocket.
pub fn concerns(fd: c_int) -> bool {
    match Fd::of(fd) {
        Fd::Rsocket(_) | Fd::Pending(_) | Fd::Connecting(_) => true,
        Fd::Known(entry) => {
            auto::before_wait(entry);
            false
        }
        Fd::Kernel | Fd::Epoll(_) => false,
    }
}

/// The number that librdmacm polls for `fd`, without settling what a pending socket is.
pub fn inner_number(fd: c_int) -> c_int {
    match Fd::of(fd) {
        Fd::Rsocket(entry) => entry.inner,
        Fd::Connecting(entry) => auto::slots::done(entry),
        Fd::Kernel | Fd::Pending(_) | Fd::Epoll(_) | Fd::Known(_) => fd,
    }
}

/// The number that librdmacm polls for `fd`, before a wait: settles a pending socket.
pub fn begin_wait(fd: c_int) -> c_int {
    match Fd::of(fd) {
        Fd::Rsocket(entry) => entry.inner,
        // SAFETY: `entry` is what the table has for the program's number.
        Fd::Pending(entry) => unsafe { fork::resolve_for_poll(fd, entry).unwrap_or(fd) },
        Fd::Connecting(entry) => auto::slots::done(entry),
        Fd::Kernel | Fd::Epoll(_) | Fd::Known(_) => fd,
    }
}

/// Whether `fd`, for which `revents` of `number` was reported, was in fork mode and has become
/// another kind of socket by it, or while it was waited for.
pub fn settled(fd: c_int, number: c_int, revents: c_short) -> bool {
    match Fd::of(fd) {
        // It was a socket whose attempt was under way.
        Fd::Rsocket(entry) if auto::is_auto(entry) => number != entry.inner,
        // The latter has begun to be forwarded.
        Fd::Kernel | Fd::Known(_) if number != fd => true,
        Fd::Connecting(_) => true,
        Fd::Rsocket(_) => number == fd,
        // SAFETY: `fd` is a descriptor of the program.
        Fd::Pending(_) => unsafe { fork::after_poll(fd, revents) },
        Fd::Kernel | Fd::Epoll(_) | Fd::Known(_) => false,
    }
}
