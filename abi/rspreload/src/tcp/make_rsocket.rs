//! The rsocket that takes the place of a TCP socket.

use core::ffi::c_int;

use libc::{F_GETFL, F_SETFL, O_NONBLOCK};

use super::name::Name;
use crate::{errno, next_symbol, rsocket, rsocket_abi, tcp};

/// Makes an rsocket of the address's family and passes it to `use_it`. If that returns false the
/// rsocket is closed, with `errno` left as `use_it` has set it.
pub fn for_address(name: &Name, use_it: impl FnOnce(c_int) -> bool) -> Option<c_int> {
    let inner = rsocket::create(c_int::from(name.storage.ss_family), libc::SOCK_STREAM, 0);
    if inner < 0 {
        return None;
    }
    if use_it(inner) {
        return Some(inner);
    }
    errno::keeping(|| rsocket_abi::rclose(inner));
    None
}

/// Sets on the rsocket what the program has set on the TCP socket, as far as rsockets have it.
pub fn copy_options(tcp: c_int, inner: c_int) {
    copy_reuse(tcp, inner);
    copy_connected_options(tcp, inner);
}

/// The option that an rsocket takes before it is bound only.
pub fn copy_reuse(tcp: c_int, inner: c_int) {
    if let Some((value, _)) = tcp::option(tcp, libc::SOL_SOCKET, libc::SO_REUSEADDR) {
        let _ = rsocket::set_option(inner, libc::SOL_SOCKET, libc::SO_REUSEADDR, value[0]);
    }
}

/// The options that an rsocket takes when it is connected, too.
pub fn copy_connected_options(tcp: c_int, inner: c_int) {
    use libc::{IPPROTO_TCP, SOL_SOCKET};
    const ALWAYS: [(c_int, c_int); 3] =
        [(IPPROTO_TCP, libc::TCP_NODELAY), (SOL_SOCKET, libc::SO_RCVTIMEO), (SOL_SOCKET, libc::SO_SNDTIMEO)];
    const KEEPALIVE: [(c_int, c_int); 4] = [
        (IPPROTO_TCP, libc::TCP_KEEPIDLE),
        (IPPROTO_TCP, libc::TCP_KEEPINTVL),
        (IPPROTO_TCP, libc::TCP_KEEPCNT),
        (SOL_SOCKET, libc::SO_KEEPALIVE),
    ];
    // Keepalive and linger: TCP's defaults are not those of rsockets, so only what the program has
    // turned on is copied.
    let is_on = |level, name| tcp::int(tcp, level, name).is_some_and(|value| value != 0);
    let keepalive = if is_on(SOL_SOCKET, libc::SO_KEEPALIVE) { &KEEPALIVE[..] } else { &[] };
    let linger = if is_on(SOL_SOCKET, libc::SO_LINGER) { &[(SOL_SOCKET, libc::SO_LINGER)][..] } else { &[] };
    for &(level, name) in ALWAYS.iter().chain(keepalive).chain(linger) {
        if let Some((value, len)) = tcp::option(tcp, level, name) {
            // SAFETY: `value` has at least `len` bytes.
            unsafe { rsocket_abi::rsetsockopt(inner, level, name, value.as_ptr().cast(), len) };
        }
    }
    let flags = next_symbol::fcntl_int(tcp, F_GETFL, 0);
    rsocket_abi::rfcntl_int(inner, F_SETFL, if flags < 0 { 0 } else { flags & O_NONBLOCK });
}
