//! The token of a connection that was not accepted from a listener: the program's number, whose TCP
//! socket was never connected, is connected to this process itself.

use core::ffi::c_int;

use libc::{F_SETFL, O_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, SOL_SOCKET};

use super::log::Reason;
use crate::tcp;
use crate::tcp::name::{self, Name};
use crate::time::Deadline;
use crate::{errno, next_symbol, own_fd};

/// Connects the TCP socket of a number that was connected by RDMA to this process itself. Returns the
/// token, or fails with the reason for the log.
pub fn connect(fd: c_int, inner: c_int) -> Result<c_int, Reason> {
    let (family, at) = (tcp::family(fd).ok_or_else(failed)?, address(fd, inner).ok_or_else(failed)?);
    // SAFETY: addresses and their lengths; a descriptor that no other thread knows.
    let token = unsafe {
        let listener = next_symbol::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if listener < 0 {
            return Err(failed());
        }
        let listens = next_symbol::bind(listener, at.as_ptr(), at.len) == 0 && next_symbol::listen(listener, 1) == 0;
        let token = if listens { connect_to(fd, listener) } else { -1 };
        errno::keeping(|| next_symbol::close(listener));
        token
    };
    if token < 0 {
        let reason = failed();
        disconnect(fd);
        return Err(reason);
    }
    next_symbol::fcntl_int(token, F_SETFL, O_NONBLOCK);
    Ok(token)
}

/// The reason that `errno` gives.
pub fn failed() -> Reason {
    Reason::NoToken(errno::get())
}

/// The address of the pair, of which the port is any. Not a loopback address: a program that is
/// executed may take it for the peer's.
fn address(fd: c_int, inner: c_int) -> Option<Name> {
    let bound = name::own(fd).filter(|own| !own.address().is_unspecified());
    Some(name::any_port(&bound.or_else(|| name::rsocket_own(inner))?).in_family(tcp::family(fd)?))
}

/// Lets a socket without a token be connected again, by the next fork(2).
pub fn disconnect(fd: c_int) {
    // SAFETY: all zeros are an address of no family (AF_UNSPEC), as long as said.
    errno::keeping(|| unsafe {
        let nowhere: libc::sockaddr = core::mem::zeroed();
        next_symbol::connect(fd, &raw const nowhere, size_of::<libc::sockaddr>() as libc::socklen_t);
    });
}

/// Returns the other end of the connection that `fd` makes to the listener, or -1 with `errno`.
///
/// # Safety
/// Both are sockets.
unsafe fn connect_to(fd: c_int, listener: c_int) -> c_int {
    let Some(to) = name::own(listener) else { return -1 };
    let family = tcp::family(fd).unwrap_or(libc::AF_INET);
    let to = to.in_family(family);
    let mut fds = [libc::pollfd { fd: listener, events: libc::POLLIN, revents: 0 }];
    // SAFETY: an address and its length; no addresses are asked for.
    unsafe {
        if next_symbol::connect(fd, to.as_ptr(), to.len) != 0 && errno::get() != libc::EINPROGRESS {
            return -1;
        }
        if !tcp::poll(&mut fds, &Deadline::after(1_000)) {
            return errno::fail(libc::ETIMEDOUT);
        }
        let token = next_symbol::accept4(listener, core::ptr::null_mut(), core::ptr::null_mut(), SOCK_CLOEXEC);
        if token < 0 {
            return -1;
        }
        let is_ours = match (name::peer(token), name::own(fd)) {
            (Some(peer), Some(own)) => name::same_end(&peer, &own),
            _ => false,
        };
        if is_ours {
            return own_fd::relocate(token);
        }
        close_token(token);
    }
    errno::fail(libc::ECONNREFUSED)
}

/// Closes this end of a token. By a reset: no connection is left waiting, which would keep the
/// port.
pub fn close_token(token: c_int) {
    if token >= 0 {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let len = size_of::<libc::linger>() as libc::socklen_t;
        // SAFETY: a live structure of that length; a descriptor that only this library knows.
        errno::keeping(|| unsafe {
            next_symbol::setsockopt(token, SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len);
        });
        own_fd::close(token);
    }
}
