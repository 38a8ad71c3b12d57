//! Socket options that only a kernel TCP connection supports. Setting such an option on an rsocket
//! fails: otherwise the program would rely on an effect that its data does not get, such as
//! encryption (kTLS).
//!
//! A socket that has such an option before it connects or listens stays TCP.

use core::ffi::{c_int, c_void};

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, socklen_t};

use crate::memory::{Bits, zero};
use crate::sockets::kernel;
use crate::{errno, tcp};

/// What an option is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Rsockets have the option, or an RDMA connection can do without it: sizes, times, priorities,
    /// and options that have no effect on TCP either.
    Hint,
    /// The option changes what the program's calls on a TCP socket do: encryption by the kernel,
    /// ancillary data, the error queue. Any kernel TCP socket supports the option, including a
    /// socket whose data is forwarded.
    Calls,
    /// The option decides where packets go, or which socket gets a connection.
    Route,
    /// The option authenticates, encrypts or filters packets, or is not in the lists below.
    Guard,
}

/// Options that the value 0 switches off: setting 0 needs no support (asm-generic/socket.h,
/// linux/in.h, linux/in6.h, linux/tcp.h).
const SWITCHES: &[(c_int, &[c_int])] = &[
    // SO_DONTROUTE, SO_TIMESTAMP, SO_TIMESTAMPNS, SO_MARK, SO_TIMESTAMPING, SO_RXQ_OVFL,
    // SO_ZEROCOPY, SO_BINDTOIFINDEX, the SO_TIMESTAMP* with 64-bit times, SO_RESERVE_MEM.
    (SOL_SOCKET, &[5, 29, 35, 36, 37, 40, 60, 62, 63, 64, 65, 73]),
    // IP_TRANSPARENT, IP_MINTTL, IP_UNICAST_IF.
    (IPPROTO_IP, &[19, 21, 50]),
    // IPV6_MINHOPCOUNT, IPV6_TRANSPARENT, IPV6_UNICAST_IF.
    (IPPROTO_IPV6, &[73, 75, 76]),
    // TCP_REPAIR, TCP_SAVE_SYN, TCP_INQ.
    (IPPROTO_TCP, &[19, 27, 36]),
];

const HINTS: &[(c_int, &[c_int])] = &[
    // SO_DEBUG, SO_REUSEADDR, SO_BROADCAST, SO_SNDBUF, SO_RCVBUF, SO_KEEPALIVE, SO_OOBINLINE,
    // SO_NO_CHECK, SO_PRIORITY, SO_LINGER, SO_REUSEPORT, SO_PASSCRED, SO_RCVLOWAT, SO_RCVTIMEO,
    // SO_SNDTIMEO; from 27 on SO_DETACH_FILTER (such a socket has no filter), SO_SNDBUFFORCE,
    // SO_RCVBUFFORCE, SO_BUSY_POLL, SO_MAX_PACING_RATE, SO_INCOMING_CPU, SO_PREFER_BUSY_POLL,
    // SO_BUSY_POLL_BUDGET, SO_BUF_LOCK, SO_TXREHASH.
    (SOL_SOCKET, &[1, 2, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 18, 20, 21, 27, 32, 33, 46, 47, 49, 69, 70, 72, 74]),
    // IP_TOS, IP_TTL; ancillary data that TCP does not deliver; IP_MTU_DISCOVER, IP_RECVERR,
    // IP_FREEBIND, IP_BIND_ADDRESS_NO_PORT; multicast; IP_LOCAL_PORT_RANGE.
    (IPPROTO_IP, &[1, 2, 6, 7, 8, 10, 11, 12, 13, 15, 18, 20, 24, 25, 26, 32, 33, 34, 49, 51]),
    // The counterparts of these options for IPv6; IPV6_V6ONLY, flow labels, IPV6_ADDR_PREFERENCES.
    (
        IPPROTO_IPV6,
        &[16, 17, 18, 19, 23, 24, 25, 26, 29, 31, 32, 33, 49, 51, 53, 56, 58, 60, 62, 66, 67, 70, 72, 74, 77, 78],
    ),
    // TCP_NODELAY to TCP_WINDOW_CLAMP, TCP_QUICKACK, TCP_CONGESTION, TCP_THIN_*, TCP_USER_TIMEOUT;
    // from 23 on TCP_FASTOPEN, TCP_TIMESTAMP, TCP_NOTSENT_LOWAT, TCP_FASTOPEN_CONNECT,
    // TCP_FASTOPEN_KEY, TCP_FASTOPEN_NO_COOKIE, TCP_TX_DELAY, TCP_RTO_MAX_MS, TCP_RTO_MIN_US,
    // TCP_DELACK_MAX_US.
    (IPPROTO_TCP, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 18, 23, 24, 25, 30, 33, 34, 37, 44, 45, 46]),
];

const CALLS: &[(c_int, &[c_int])] = &[
    // The SO_TIMESTAMP*, SO_RXQ_OVFL, SO_PEEK_OFF, SO_ZEROCOPY, SO_TXTIME, SO_RCVTIMEO and
    // SO_SNDTIMEO with 64-bit times.
    (SOL_SOCKET, &[29, 35, 37, 40, 42, 60, 61, 63, 64, 65, 66, 67]),
    // TCP_ULP, TCP_INQ.
    (IPPROTO_TCP, &[31, 36]),
];

const ROUTES: &[(c_int, &[c_int])] = &[
    // SO_DONTROUTE, SO_BINDTODEVICE, SO_MARK, the BPF programs of SO_REUSEPORT, SO_BINDTOIFINDEX.
    (SOL_SOCKET, &[5, 25, 36, 51, 52, 62, 68]),
    // IP_OPTIONS, IP_TRANSPARENT, IP_UNICAST_IF.
    (IPPROTO_IP, &[4, 19, 50]),
    // IPV6_PKTINFO, IPV6_TRANSPARENT, IPV6_UNICAST_IF.
    (IPPROTO_IPV6, &[50, 75, 76]),
    // TCP_SAVE_SYN: the SYN of a stand-in (a connection within the host) is not the peer's.
    (IPPROTO_TCP, &[27]),
];

const SOL_TLS: c_int = 282;
const SOL_RDMA: c_int = 0x10000;

fn has(list: &[(c_int, &[c_int])], level: c_int, name: c_int) -> bool {
    list.iter().any(|&(of, names)| of == level && names.contains(&name))
}

/// Returns the purpose of an option that is switched on.
fn purpose(level: c_int, name: c_int) -> Purpose {
    match level {
        SOL_RDMA | base::private::LEVEL => Purpose::Hint,
        SOL_TLS => Purpose::Calls,
        _ if has(HINTS, level, name) => Purpose::Hint,
        _ if has(CALLS, level, name) => Purpose::Calls,
        _ if has(ROUTES, level, name) => Purpose::Route,
        _ => Purpose::Guard,
    }
}

/// Returns the purpose of setting an option to a value: a hint if the value switches the option
/// off.
///
/// # Safety
/// `value` is NULL or readable for `len` bytes.
pub unsafe fn purpose_of((level, name): (c_int, c_int), value: *const c_void, len: socklen_t) -> Purpose {
    let purpose = purpose(level, name);
    let starts_with_zero = |bytes: usize| {
        // SAFETY: `value` is not NULL and has `len` bytes, at least `bytes`: guaranteed by the
        // caller.
        let is_zero =
            || unsafe { core::slice::from_raw_parts(value.cast::<u8>(), bytes) }.iter().all(|&byte| byte == 0);
        !value.is_null() && is_zero()
    };
    let is_off = match (level, name) {
        _ if purpose == Purpose::Hint => true,
        (SOL_SOCKET, libc::SO_BINDTODEVICE) => len == 0 || starts_with_zero(1),
        _ => has(SWITCHES, level, name) && len as usize >= size_of::<c_int>() && starts_with_zero(size_of::<c_int>()),
    };
    if is_off { Purpose::Hint } else { purpose }
}

/// Returns the errno with which setting an option fails, as in a kernel without the option. For
/// TCP_ULP this is the errno of a missing module.
pub fn refusal((level, name): (c_int, c_int)) -> c_int {
    if (level, name) == (IPPROTO_TCP, libc::TCP_ULP) { libc::ENOENT } else { libc::ENOPROTOOPT }
}

/// The sockets with an option that the kernel does not report, each recorded by the lower bits of
/// its identifier. A later socket with equal lower bits stays TCP, too.
static MARKED: Bits<1024> = zero();

fn mark_of(fd: c_int) -> Option<usize> {
    tcp::identity(fd).map(|identity| (identity % (64 * 1024)) as usize)
}

/// Called when the program has set an option that rules out RDMA on a kernel socket: the socket
/// stays TCP.
pub fn remember(fd: c_int) {
    mark_of(fd).into_iter().for_each(|mark| MARKED.set(mark));
}

/// Whether a kernel socket has a filter, or was [remembered](remember) by this process or an
/// ancestor.
pub fn are_set(fd: c_int) -> bool {
    mark_of(fd).is_some_and(|mark| MARKED.has(mark)) || has_filter(fd)
}

/// Whether a socket has a packet filter. SO_GET_FILTER, which has the number of SO_ATTACH_FILTER,
/// returns the length of the filter, and fails with EACCES for a filter of SO_ATTACH_BPF.
fn has_filter(fd: c_int) -> bool {
    errno::keeping(|| match kernel::get::<[c_int; 0]>(fd, (SOL_SOCKET, libc::SO_ATTACH_FILTER)) {
        Some((_, len)) => len > 0,
        None => errno::get() == libc::EACCES,
    })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;

    fn of(level: c_int, name: c_int, value: &[u8]) -> Purpose {
        // SAFETY: a live slice.
        unsafe { purpose_of((level, name), value.as_ptr().cast(), value.len() as socklen_t) }
    }

    #[test]
    fn encryption_and_filters_are_no_hints() {
        let on = 1_i32.to_ne_bytes();
        for (level, name, expected) in [
            (IPPROTO_TCP, libc::TCP_NODELAY, Purpose::Hint),
            (IPPROTO_TCP, libc::TCP_CONGESTION, Purpose::Hint),
            (IPPROTO_TCP, libc::TCP_USER_TIMEOUT, Purpose::Hint),
            (IPPROTO_TCP, libc::TCP_FASTOPEN, Purpose::Hint),
            (SOL_SOCKET, libc::SO_PRIORITY, Purpose::Hint),
            (IPPROTO_IP, libc::IP_TOS, Purpose::Hint),
            (IPPROTO_IPV6, libc::IPV6_TCLASS, Purpose::Hint),
            (SOL_RDMA, 0, Purpose::Hint),
            (IPPROTO_TCP, libc::TCP_ULP, Purpose::Calls),
            (SOL_TLS, 1, Purpose::Calls),
            (SOL_SOCKET, libc::SO_ZEROCOPY, Purpose::Calls),
            (SOL_SOCKET, libc::SO_TIMESTAMPING, Purpose::Calls),
            (SOL_SOCKET, libc::SO_PEEK_OFF, Purpose::Calls),
            (SOL_SOCKET, libc::SO_MARK, Purpose::Route),
            (SOL_SOCKET, libc::SO_BINDTODEVICE, Purpose::Route),
            (IPPROTO_IP, libc::IP_TRANSPARENT, Purpose::Route),
            (IPPROTO_TCP, libc::TCP_MD5SIG, Purpose::Guard),
            (IPPROTO_TCP, libc::TCP_REPAIR, Purpose::Guard),
            (SOL_SOCKET, libc::SO_ATTACH_FILTER, Purpose::Guard),
            (SOL_SOCKET, libc::SO_ATTACH_BPF, Purpose::Guard),
            (SOL_SOCKET, libc::SO_LOCK_FILTER, Purpose::Guard),
            (IPPROTO_IP, libc::IP_MINTTL, Purpose::Guard),
            (IPPROTO_IP, libc::IP_XFRM_POLICY, Purpose::Guard),
            (IPPROTO_IPV6, libc::IPV6_XFRM_POLICY, Purpose::Guard),
            (IPPROTO_TCP, 1000, Purpose::Guard),
            (1000, 1, Purpose::Guard),
        ] {
            assert_eq!(of(level, name, &on), expected, "{level} {name}");
        }
    }

    #[test]
    fn an_option_that_is_off_asks_for_nothing() {
        let off = 0_i32.to_ne_bytes();
        for (level, name) in [
            (SOL_SOCKET, libc::SO_ZEROCOPY),
            (SOL_SOCKET, libc::SO_TIMESTAMPING),
            (SOL_SOCKET, libc::SO_MARK),
            (SOL_SOCKET, libc::SO_BINDTODEVICE),
            (IPPROTO_TCP, libc::TCP_REPAIR),
        ] {
            assert_eq!(of(level, name, &off), Purpose::Hint, "{level} {name}");
        }
        // Here 0 is an offset, a descriptor, or too short.
        assert_eq!(of(SOL_SOCKET, libc::SO_PEEK_OFF, &off), Purpose::Calls);
        assert_eq!(of(SOL_SOCKET, libc::SO_ATTACH_BPF, &off), Purpose::Guard);
        assert_eq!(of(SOL_SOCKET, libc::SO_MARK, &off[..1]), Purpose::Route);
    }

    #[test]
    fn filters_and_marks_are_found() {
        let plain = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(!are_set(plain.as_raw_fd()));
        let mut accepts_all = libc::sock_filter { code: 6, jt: 0, jf: 0, k: u32::MAX };
        let filter = libc::sock_fprog { len: 1, filter: &raw mut accepts_all };
        let (start, len) = ((&raw const filter).cast(), size_of::<libc::sock_fprog>() as socklen_t);
        let filtered = UdpSocket::bind("127.0.0.1:0").unwrap();
        // SAFETY: a live structure of that length.
        let result = unsafe { libc::setsockopt(filtered.as_raw_fd(), SOL_SOCKET, libc::SO_ATTACH_FILTER, start, len) };
        assert_eq!(result, 0);
        assert!(are_set(filtered.as_raw_fd()));
        remember(plain.as_raw_fd());
        assert!(are_set(plain.as_raw_fd()));
    }
}
