//! Sockets of the kernel that may become rsockets: what has arrived on one, its options, its
//! identity; names, and the rsocket in its place.

pub mod bind;
pub mod make_rsocket;
pub mod name;

use core::ffi::c_int;

use libc::{EAGAIN, F_GETFL, O_NONBLOCK};

use crate::time::Deadline;
use crate::{errno, next_symbol, rsocket_abi};

/// Reads up to `bytes.len()` bytes without consuming them. Returns their number, or the errno of
/// recv(2).
pub fn peek(tcp: c_int, bytes: &mut [u8], flags: c_int) -> Result<usize, c_int> {
    // SAFETY: `bytes.len()` bytes at `bytes` are writable.
    let count = unsafe { next_symbol::recv(tcp, bytes.as_mut_ptr().cast(), bytes.len(), flags | libc::MSG_PEEK) };
    usize::try_from(count).map_err(|_| errno::get())
}

/// Whether nothing has come from the peer so far: no data, no end, no error.
pub fn is_silent(tcp: c_int) -> bool {
    peek(tcp, &mut [0], libc::MSG_DONTWAIT) == Err(EAGAIN)
}

/// poll(2) until `end`, over TCP sockets and rsockets. Returns false if nothing was ready by then.
pub fn poll(fds: &mut [libc::pollfd], end: &Deadline) -> bool {
    loop {
        // SAFETY: `fds.len()` structures at `fds` are writable.
        let count = unsafe { rsocket_abi::rpoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, end.left()) };
        // A signal handler of the program does not end a decision, which has a deadline of its own.
        if count >= 0 || errno::get() != libc::EINTR {
            return count > 0;
        }
    }
}

/// Whether the socket is a blocking one.
pub fn is_blocking(fd: c_int) -> bool {
    next_symbol::fcntl_int(fd, F_GETFL, 0) & O_NONBLOCK == 0
}

/// Whether the socket sends SIGIO.
pub fn is_signalled(fd: c_int) -> bool {
    let flags = next_symbol::fcntl_int(fd, F_GETFL, 0);
    flags > 0 && flags & libc::O_ASYNC != 0
}

/// SO_RCVTIMEO in milliseconds, -1 if there is none.
pub fn receive_timeout(fd: c_int) -> c_int {
    timeout(fd, libc::SO_RCVTIMEO)
}

/// SO_SNDTIMEO in milliseconds, -1 if there is none.
pub fn send_timeout(fd: c_int) -> c_int {
    timeout(fd, libc::SO_SNDTIMEO)
}

fn timeout(fd: c_int, name: c_int) -> c_int {
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut len = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: `time` is a live structure of `len` bytes.
    unsafe {
        next_symbol::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut time).cast(), &raw mut len);
    }
    match time.tv_sec.saturating_mul(1000).saturating_add(time.tv_usec / 1000) {
        0 => -1,
        some => c_int::try_from(some).unwrap_or(c_int::MAX),
    }
}

/// Returns the value and the length of a socket option of up to 16 bytes.
pub fn option(tcp: c_int, level: c_int, name: c_int) -> Option<([c_int; 4], libc::socklen_t)> {
    // The largest structure among the options that are copied is a timeval.
    let (mut value, mut len) = ([0; 4], size_of::<libc::timeval>() as libc::socklen_t);
    // SAFETY: `len` bytes at `value` are writable.
    let result = unsafe { next_symbol::getsockopt(tcp, level, name, value.as_mut_ptr().cast(), &raw mut len) };
    (result == 0).then_some((value, len))
}

/// Returns the value of a socket option that is an int, or the first one of a structure of them.
pub fn int(tcp: c_int, level: c_int, name: c_int) -> Option<c_int> {
    option(tcp, level, name).map(|(value, _)| value[0])
}

/// The socket's address family (SO_DOMAIN).
pub fn family(fd: c_int) -> Option<c_int> {
    int(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)
}

/// Lets the kernel ask after so many seconds of silence whether the other end is still there.
pub fn keep_alive(fd: c_int, seconds: c_int) {
    let set = |level, name, value: c_int| {
        let len = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: a live int of that length.
        unsafe { next_symbol::setsockopt(fd, level, name, (&raw const value).cast(), len) };
    };
    set(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds);
    set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
}

/// States of `<net/tcp_states.h>`.
pub const CLOSED: u8 = 7;
pub const CLOSE_WAIT: u8 = 8;
pub const LAST_ACK: u8 = 9;
pub const LISTEN: u8 = 10;
pub const CLOSING: u8 = 11;

/// The state of the connection, as in /proc/net/tcp: the first byte of `struct tcp_info`.
pub fn state(tcp: c_int) -> Option<u8> {
    int(tcp, libc::IPPROTO_TCP, libc::TCP_INFO).map(|info| info.to_ne_bytes()[0])
}

/// Whether a socket listens.
pub fn is_listening(fd: c_int) -> bool {
    state(fd) == Some(LISTEN)
}

/// The kernel's identifier of the socket (SO_COOKIE), which all copies of the number share.
pub fn identity(fd: c_int) -> Option<u64> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `cookie` is a live integer of `len` bytes.
    let result = unsafe {
        next_symbol::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut cookie).cast(), &raw mut len)
    };
    (result == 0).then_some(cookie)
}
