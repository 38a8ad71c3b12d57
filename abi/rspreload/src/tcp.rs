//! Kernel TCP sockets that may become rsockets: their received data, options and identity. Also
//! creates and binds the rsockets, with the errno values of TCP.

use core::ffi::c_int;

use libc::{
    AF_INET6, EADDRINUSE, EADDRNOTAVAIL, EAGAIN, F_GETFL, F_SETFL, IPPROTO_TCP, O_NONBLOCK, SOCK_CLOEXEC, SOCK_STREAM,
    SOL_SOCKET, socklen_t,
};

use crate::process::{Deadline, milliseconds};
use crate::sockets::{SockAddr, kernel, rdma};
use crate::{errno, next_symbol, rsocket, rsocket_abi};

/// Reads up to `bytes.len()` bytes without consuming them. Returns the number of bytes, or the
/// errno of recv(2).
pub fn peek(tcp: c_int, bytes: &mut [u8], flags: c_int) -> Result<usize, c_int> {
    kernel::receive(tcp, bytes, flags | libc::MSG_PEEK)
}

/// Whether nothing has come from the peer so far: no data, no end of the data, no error.
pub fn is_silent(tcp: c_int) -> bool {
    peek(tcp, &mut [0], libc::MSG_DONTWAIT) == Err(EAGAIN)
}

/// Polls TCP sockets and rsockets until `end`. Returns true if a socket is ready, false after a
/// time-out or an error.
pub fn poll(fds: &mut [libc::pollfd], end: &Deadline) -> bool {
    loop {
        let count = rdma::poll(fds, end.left());
        // A signal handler of the program does not end the wait, which has its own deadline.
        if count >= 0 || errno::get() != libc::EINTR {
            return count > 0;
        }
    }
}

/// Whether the socket is blocking.
pub fn is_blocking(fd: c_int) -> bool {
    kernel::fcntl(fd, F_GETFL, 0) & O_NONBLOCK == 0
}

/// Whether the socket sends SIGIO (O_ASYNC).
pub fn is_signalled(fd: c_int) -> bool {
    let flags = kernel::fcntl(fd, F_GETFL, 0);
    flags > 0 && flags & libc::O_ASYNC != 0
}

/// Returns SO_SNDTIMEO in milliseconds, 0 if it is not set.
pub fn send_timeout(fd: c_int) -> c_int {
    let time = kernel::get::<libc::timeval>(fd, (SOL_SOCKET, libc::SO_SNDTIMEO));
    time.map_or(0, |(time, _)| milliseconds(time.tv_sec, time.tv_usec.saturating_mul(1_000)))
}

/// Returns the value of a socket option that is an int, or the first int of a structure.
pub fn int(tcp: c_int, level: c_int, name: c_int) -> Option<c_int> {
    kernel::get::<c_int>(tcp, (level, name)).map(|(value, _)| value)
}

/// Whether a socket option that is an int is set to another value than 0.
pub fn is_on(tcp: c_int, level: c_int, name: c_int) -> bool {
    int(tcp, level, name).is_some_and(|value| value != 0)
}

/// The socket's address family (SO_DOMAIN).
pub fn family(fd: c_int) -> Option<c_int> {
    int(fd, SOL_SOCKET, libc::SO_DOMAIN)
}

/// Makes the kernel probe the peer after the peer was silent for `seconds` seconds.
pub fn keep_alive(fd: c_int, seconds: c_int) {
    let _ = kernel::set(fd, (IPPROTO_TCP, libc::TCP_KEEPIDLE), &seconds);
    let _ = kernel::set(fd, (SOL_SOCKET, libc::SO_KEEPALIVE), &1);
}

/// The state of the connection as in /proc/net/tcp: the first byte of `struct tcp_info`.
pub fn state(tcp: c_int) -> Option<u8> {
    int(tcp, IPPROTO_TCP, libc::TCP_INFO).map(|info| info.to_ne_bytes()[0])
}

/// Whether a socket listens.
pub fn is_listening(fd: c_int) -> bool {
    state(fd) == Some(base::sock_diag::LISTEN)
}

/// The kernel's identifier of the socket (SO_COOKIE), which all copies of the descriptor share.
pub fn identity(fd: c_int) -> Option<u64> {
    kernel::get::<u64>(fd, (SOL_SOCKET, libc::SO_COOKIE)).map(|(cookie, _)| cookie)
}

// The rsocket that takes the place of a TCP socket.

/// Creates an rsocket of the address's family and passes it to `use_it`. Returns the rsocket, or
/// `None` with `errno` if the creation fails or `use_it` returns false. In the latter case, closes
/// the rsocket.
pub fn make_rsocket(name: &SockAddr, use_it: impl FnOnce(c_int) -> bool) -> Option<c_int> {
    let rsocket = rsocket::create(name.family(), SOCK_STREAM, 0);
    if rsocket < 0 {
        return None;
    }
    if use_it(rsocket) {
        return Some(rsocket);
    }
    rsocket::close(rsocket);
    None
}

/// Copies SO_REUSEADDR, which an rsocket only accepts before it is bound.
pub fn copy_reuse(tcp: c_int, rsocket: c_int) {
    copy_option(tcp, rsocket, (SOL_SOCKET, libc::SO_REUSEADDR));
}

fn copy_option(tcp: c_int, rsocket: c_int, option: (c_int, c_int)) {
    // 16 bytes are enough: the largest of the copied options is a timeval.
    if let Some((value, len)) = kernel::get::<[c_int; 4]>(tcp, option) {
        let _ = rdma::set_bytes(rsocket, option, &value, len);
    }
}

/// Copies O_NONBLOCK, and the options that an rsocket accepts even after it is connected.
pub fn copy_connected_options(tcp: c_int, rsocket: c_int) {
    const ALWAYS: [(c_int, c_int); 3] =
        [(IPPROTO_TCP, libc::TCP_NODELAY), (SOL_SOCKET, libc::SO_RCVTIMEO), (SOL_SOCKET, libc::SO_SNDTIMEO)];
    const KEEPALIVE: [(c_int, c_int); 4] = [
        (IPPROTO_TCP, libc::TCP_KEEPIDLE),
        (IPPROTO_TCP, libc::TCP_KEEPINTVL),
        (IPPROTO_TCP, libc::TCP_KEEPCNT),
        (SOL_SOCKET, libc::SO_KEEPALIVE),
    ];
    // TCP and rsockets have different defaults for keepalive and linger, so these options are only
    // copied if the program has turned them on.
    let keepalive = if is_on(tcp, SOL_SOCKET, libc::SO_KEEPALIVE) { &KEEPALIVE[..] } else { &[] };
    let linger = if is_on(tcp, SOL_SOCKET, libc::SO_LINGER) { &[(SOL_SOCKET, libc::SO_LINGER)][..] } else { &[] };
    ALWAYS.iter().chain(keepalive).chain(linger).for_each(|&option| copy_option(tcp, rsocket, option));
    let flags = kernel::fcntl(tcp, F_GETFL, 0);
    rdma::fcntl(rsocket, F_SETFL, if flags < 0 { 0 } else { flags & O_NONBLOCK });
}

// Binding rsockets with the errno values of TCP, and listening at a port together with TCP.

/// Binds an rsocket. Returns true on success, or false with `errno`.
pub fn bind(rsocket: c_int, at: &SockAddr) -> bool {
    like_tcp(rdma::bind(rsocket, at), || Some(*at)) == 0
}

/// Returns `result`, the result of binding an rsocket to `name`, with the errno of TCP.
///
/// If the port is in use, and either address is a wildcard, the kernel's RDMA CM fails with
/// EADDRNOTAVAIL, as it does for an address of another host. Programs expect EADDRINUSE.
pub fn like_tcp(result: c_int, name: impl FnOnce() -> Option<SockAddr>) -> c_int {
    if result != 0 && errno::get() == EADDRNOTAVAIL && errno::keeping(|| name().is_some_and(|name| is_local(&name))) {
        return errno::fail(EADDRINUSE);
    }
    result
}

/// Whether an address belongs to this host. bind(2) cannot tell: with IP_FREEBIND or
/// ip_nonlocal_bind it accepts the addresses of other hosts.
fn is_local(name: &SockAddr) -> bool {
    let mut is_local = name.address().is_unspecified() || name.address().is_loopback();
    each_local(|local| is_local |= local.address() == name.address());
    is_local
}

/// Calls `call` with each address of an interface that is up.
pub fn each_local(mut call: impl FnMut(SockAddr)) {
    let mut list: *mut libc::ifaddrs = core::ptr::null_mut();
    // SAFETY: the list is valid until it is freed, and each address is complete for its family.
    unsafe {
        if libc::getifaddrs(&raw mut list) != 0 {
            return;
        }
        let mut next = list;
        while let Some(interface) = next.as_ref() {
            next = interface.ifa_next;
            let len = match interface.ifa_addr.as_ref().map_or(0, |addr| addr.sa_family.into()) {
                libc::AF_INET => size_of::<libc::sockaddr_in>(),
                AF_INET6 => size_of::<libc::sockaddr_in6>(),
                _ => continue,
            };
            let name = SockAddr::read(interface.ifa_addr, len as socklen_t);
            name.filter(|_| interface.ifa_flags & libc::IFF_UP as u32 != 0).map(&mut call);
        }
        libc::freeifaddrs(list);
    }
}

/// Whether rsockets can listen at a port on which TCP listens, at `address`; `None` if the address
/// is not this host's.
///
/// Rsockets cannot listen there without RDMA, nor with soft-iWARP, whose listeners are kernel TCP
/// sockets and conflict with the program's. Both ends of a connection test this, each with a TCP
/// listener of the library, so neither end waits for a peer that cannot use RDMA.
pub fn shares_port(address: &SockAddr) -> Option<bool> {
    let tcp = next_symbol::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    if tcp < 0 {
        return Some(false);
    }
    let is_own = kernel::bind(tcp, &address.with_port(0)) == 0 || errno::get() != EADDRNOTAVAIL;
    let shared = is_own && next_symbol::listen(tcp, 1) == 0 && kernel::own(tcp).is_some_and(|name| can_listen(&name));
    next_symbol::close(tcp);
    is_own.then_some(shared)
}

fn can_listen(name: &SockAddr) -> bool {
    let mut can = false;
    let rsocket = make_rsocket(name, |rsocket| {
        // If another rsocket has this port by chance, rsockets can listen.
        can = if bind(rsocket, name) { rsocket_abi::rlisten(rsocket, 1) == 0 } else { errno::get() == EADDRINUSE };
        true
    });
    rsocket::close(rsocket.unwrap_or(-1));
    can
}
