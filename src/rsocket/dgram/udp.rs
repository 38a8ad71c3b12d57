//! The UDP socket of a datagram rsocket, and socket addresses.
//!
//! The library represents an IPv4-mapped IPv6 address as an IPv4 address, as RDMA devices do.

use std::ffi::{c_int, c_void};
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::Duration;

use libc::{AF_INET6, POLLOUT, iovec, pollfd, sockaddr_storage, socklen_t};

use crate::errno::{Errno, Result};
use crate::os::event;
use crate::os::library_fds::{self, OwnFd};
use crate::os::sockaddr::{SockAddr, canonical_inet, to_sockaddr, zeroed as no_address};

/// A UDP socket.
pub(super) struct Udp {
    socket: OwnFd,
    domain: c_int,
}

fn check(result: c_int) -> Result<()> {
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}

impl Udp {
    /// socket(2) with the SOCK_NONBLOCK and SOCK_CLOEXEC bits of `flags`.
    pub fn new(domain: c_int, flags: c_int) -> Result<Udp> {
        let fd = library_fds::socket(domain, libc::SOCK_DGRAM | flags, libc::IPPROTO_UDP);
        Ok(Udp { socket: OwnFd::new(fd)?, domain })
    }

    pub fn fd(&self) -> c_int {
        self.socket.as_raw_fd()
    }

    /// bind(2).
    pub fn bind(&self, addr: &SockAddr) -> Result<()> {
        // SAFETY: the address is readable for its length.
        check(unsafe { libc::bind(self.fd(), ptr::from_ref(addr.storage()).cast(), addr.len().into()) })
    }

    /// connect(2).
    pub fn connect(&self, addr: &SockAddr) -> Result<()> {
        // SAFETY: the address is readable for its length.
        check(unsafe { libc::connect(self.fd(), ptr::from_ref(addr.storage()).cast(), addr.len().into()) })
    }

    /// connect(2) with AF_UNSPEC: dissolves the association.
    pub fn disconnect(&self) -> Result<()> {
        let none = no_address();
        // SAFETY: the address, whose family is AF_UNSPEC, is readable for the length.
        check(unsafe { libc::connect(self.fd(), (&raw const none).cast(), size_of::<libc::sockaddr>() as socklen_t) })
    }

    /// getsockname(2).
    pub fn local_name(&self) -> Result<sockaddr_storage> {
        self.name(libc::getsockname)
    }

    /// getpeername(2).
    pub fn peer_name(&self) -> Result<sockaddr_storage> {
        self.name(libc::getpeername)
    }

    fn name(
        &self,
        call: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut socklen_t) -> c_int,
    ) -> Result<sockaddr_storage> {
        let (mut name, mut len) = (no_address(), size_of::<sockaddr_storage>() as socklen_t);
        // SAFETY: `name` is writable for `len` bytes.
        check(unsafe { call(self.fd(), (&raw mut name).cast(), &raw mut len) })?;
        Ok(name)
    }

    /// Returns the local address. Binds the socket to a free port first if the socket is unbound.
    pub fn bound_addr(&self) -> Result<SocketAddr> {
        let name = canonical_inet(&self.local_name()?)?;
        if name.port() != 0 {
            return Ok(name);
        }
        let mut any = no_address();
        any.ss_family = self.domain as libc::sa_family_t;
        self.bind(&SockAddr::from_storage(&any)?)?;
        canonical_inet(&self.local_name()?)
    }

    /// Sends a header and a payload without blocking. Fails with `EAGAIN` if the send buffer is
    /// full.
    pub fn send(&self, header: &[u8], payload: &[u8], to: &SocketAddr) -> Result<()> {
        let name = to_sockaddr(self.domain, to);
        let iovec_of =
            |bytes: &[u8]| iovec { iov_base: bytes.as_ptr().cast_mut().cast::<c_void>(), iov_len: bytes.len() };
        let mut iovecs = [iovec_of(header), iovec_of(payload)];
        // SAFETY: all zeros are a valid value of this structure.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_name = ptr::from_ref(name.storage()).cast_mut().cast();
        message.msg_namelen = name.len().into();
        message.msg_iov = iovecs.as_mut_ptr();
        message.msg_iovlen = iovecs.len();
        // SAFETY: the name and the iovecs are readable for their lengths.
        let sent = unsafe { libc::sendmsg(self.fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        check(sent as c_int)
    }

    /// Returns true if the socket is writable, and also if poll(2) fails or reports an error.
    pub fn is_writable(&self) -> bool {
        let mut fds = [pollfd { fd: self.fd(), events: POLLOUT, revents: 0 }];
        event::poll(&mut fds, Some(Duration::ZERO)) != Ok(0)
    }

    /// Receives a packet without blocking. Returns the length of the packet, which may exceed the
    /// length of `into`, and the sender. Fails with `EAGAIN` if there is no packet.
    pub fn receive(&self, into: &mut [u8]) -> Result<(usize, SocketAddr)> {
        let (mut name, mut len) = (no_address(), size_of::<sockaddr_storage>() as socklen_t);
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: the buffer and the name are writable for their lengths.
        let result = unsafe {
            libc::recvfrom(self.fd(), into.as_mut_ptr().cast(), into.len(), flags, (&raw mut name).cast(), &raw mut len)
        };
        let count = usize::try_from(result).map_err(|_| Errno::last())?;
        Ok((count, canonical_inet(&name)?))
    }

    /// setsockopt(2).
    pub fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
        // SAFETY: the value is readable for its length.
        check(unsafe { libc::setsockopt(self.fd(), level, name, value.as_ptr().cast(), value.len() as socklen_t) })
    }

    /// getsockopt(2). Returns the length of the value.
    pub fn option(&self, level: c_int, name: c_int, into: &mut [u8]) -> Result<usize> {
        let mut len = into.len() as socklen_t;
        // SAFETY: the buffer is writable for its length.
        check(unsafe { libc::getsockopt(self.fd(), level, name, into.as_mut_ptr().cast(), &raw mut len) })?;
        Ok(into.len().min(len as usize))
    }

    /// getsockopt(2) for an int.
    pub fn int_option(&self, level: c_int, name: c_int) -> Result<c_int> {
        let mut value = [0; size_of::<c_int>()];
        self.option(level, name, &mut value)?;
        Ok(c_int::from_ne_bytes(value))
    }

    /// Returns the type of service of datagrams to an address, 0 unless the program has set it.
    pub fn type_of_service(&self, to: &IpAddr) -> Result<u8> {
        let (level, name) = service_option(to.is_ipv4());
        Ok(self.int_option(level, name)? as u8)
    }
}

/// Returns the level and the name of the option for the type of service.
pub(super) fn service_option(is_ipv4: bool) -> (c_int, c_int) {
    if is_ipv4 { (libc::IPPROTO_IP, libc::IP_TOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) }
}

/// A UDP socket that finds the local address for a destination. It is kept open, so that no later
/// call fails for lack of a descriptor.
pub(super) struct Probe(Udp);

impl Probe {
    /// Creates the probe of a socket of `domain`.
    pub fn new(domain: c_int) -> Result<Probe> {
        let udp = Udp::new(domain, libc::SOCK_CLOEXEC)?;
        // Allow all destinations here: the program's socket checks SO_BROADCAST when it sends.
        udp.set_option(libc::SOL_SOCKET, libc::SO_BROADCAST, &1_i32.to_ne_bytes())?;
        if domain == AF_INET6 {
            udp.set_option(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &0_i32.to_ne_bytes())?;
        }
        Ok(Probe(udp))
    }

    /// setsockopt(2).
    pub fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
        self.0.set_option(level, name, value)
    }

    /// Returns the local IP address for datagrams from `socket` to `to`. The port number in the
    /// result is meaningless.
    pub fn source_addr(&self, socket: &Udp, to: &SocketAddr) -> Result<SocketAddr> {
        // Copy SO_BINDTODEVICE each time: the last disconnect() has unbound the probe from its
        // network device.
        let mut device = [0; libc::IFNAMSIZ];
        let len = socket.option(libc::SOL_SOCKET, libc::SO_BINDTODEVICE, &mut device)?;
        if len > 0 {
            match self.set_option(libc::SOL_SOCKET, libc::SO_BINDTODEVICE, device.get(..len).unwrap_or_default()) {
                // Linux before 5.7 requires a privilege, which the program may have dropped.
                Ok(()) | Err(Errno::EPERM) => {}
                Err(error) => return Err(error),
            }
        }
        let source = self.0.connect(&to_sockaddr(self.0.domain, to)).and_then(|()| self.0.local_name());
        // Disconnect: otherwise the next connect(2) would keep the local address or, after a
        // failure, the network device of this destination.
        self.0.disconnect()?;
        canonical_inet(&source?)
    }
}

/// Returns the address in the form in which the kernel reports the sender of a datagram: only
/// link-local addresses have a scope. A link-local `addr` without a scope gets the scope of the
/// address that `bound` returns.
pub(super) fn with_scope(addr: SocketAddr, bound: impl FnOnce() -> Result<SocketAddr>) -> Result<SocketAddr> {
    let SocketAddr::V6(mut v6) = addr else { return Ok(addr) };
    match (v6.ip().is_unicast_link_local(), v6.ip().is_multicast()) {
        (true, _) if v6.scope_id() == 0 => v6.set_scope_id(scope(&bound()?)),
        // A multicast address keeps its scope: sending needs it, and no peer has a multicast
        // address.
        (true, _) | (_, true) => {}
        _ => v6.set_scope_id(0),
    }
    Ok(SocketAddr::V6(v6))
}

/// Returns the scope of an address; 0 if it has none.
fn scope(addr: &SocketAddr) -> u32 {
    if let SocketAddr::V6(v6) = addr { v6.scope_id() } else { 0 }
}

/// Returns whether two addresses are equal apart from the port number.
pub(super) fn is_same_host(a: &SocketAddr, b: &SocketAddr) -> bool {
    (a.ip(), scope(a)) == (b.ip(), scope(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::AF_INET;

    #[test]
    fn scopes_are_those_of_received_datagrams() {
        let addr = |text: &str| text.parse::<SocketAddr>().unwrap();
        let full = |text: &str| with_scope(addr(text), || Ok(addr("[fe80::1%3]:5"))).unwrap();
        assert_eq!(full("[fe80::2]:7"), addr("[fe80::2%3]:7"));
        assert_eq!(full("[fe80::2%4]:7"), addr("[fe80::2%4]:7"));
        assert_eq!(full("[fd00::2%3]:7"), addr("[fd00::2]:7"));
        assert_eq!(full("[ff02::1%3]:7"), addr("[ff02::1%3]:7"));
        assert_eq!(full("10.0.0.1:7"), addr("10.0.0.1:7"));
        assert!(is_same_host(&addr("[fe80::2%4]:7"), &addr("[fe80::2%4]:8")));
        assert!(!is_same_host(&addr("[fe80::2%4]:7"), &addr("[fe80::2%3]:7")));
    }

    #[test]
    fn bound_addr_binds_the_socket_once() {
        let udp = Udp::new(AF_INET, libc::SOCK_CLOEXEC).unwrap();
        let bound_addr = udp.bound_addr().unwrap();
        assert!(bound_addr.port() != 0 && bound_addr.ip().is_unspecified());
        assert_eq!(udp.bound_addr(), Ok(bound_addr));
    }

    #[test]
    fn a_probe_serves_many_destinations() {
        let probe = Probe::new(AF_INET6).unwrap();
        let socket = Udp::new(AF_INET6, libc::SOCK_CLOEXEC).unwrap();
        let source = |to: &str| probe.source_addr(&socket, &to.parse().unwrap()).map(|source| source.ip().to_string());
        for _ in 0..2 {
            assert_eq!(source("127.0.0.1:9"), Ok("127.0.0.1".into()));
            assert_eq!(source("[::1]:9"), Ok("::1".into()));
            assert_eq!(source("127.255.255.255:9"), Ok("127.0.0.1".into()));
            // A network device that does not exist.
            assert!(source("[fe80::1%9999]:9").is_err());
        }
    }

    #[test]
    fn truncated_packets_have_their_full_length() {
        let (a, b) = (Udp::new(AF_INET, 0).unwrap(), Udp::new(AF_INET6, 0).unwrap());
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        a.bind(&to_sockaddr(AF_INET, &loopback(0))).unwrap();
        b.bound_addr().unwrap();
        let to = canonical_inet(&a.local_name().unwrap()).unwrap();
        b.send(b"head", b"payload", &to).unwrap();
        let mut buffer = [0; 6];
        let (len, from) = a.receive(&mut buffer).unwrap();
        assert_eq!((len, &buffer), (11, b"headpa"));
        assert_eq!(from, loopback(b.bound_addr().unwrap().port()));
        assert_eq!(a.receive(&mut buffer), Err(Errno::EAGAIN));
    }
}
