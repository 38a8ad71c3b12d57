//! The UDP socket behind a datagram rsocket, and its addresses.
//!
//! Within the library an IPv4 address mapped into IPv6 is an IPv4 one, as which devices know it.

use std::ffi::{c_int, c_void};
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::time::Duration;

use libc::{AF_INET, AF_INET6, POLLOUT, iovec, pollfd, sockaddr_storage, socklen_t};

use crate::errno::{Errno, Result};
use crate::sys::event;
use crate::sys::own::{self, OwnFd};
use crate::sys::sockaddr::{SockAddr, inet, zeroed as no_address};

/// A UDP socket.
#[derive(Debug)]
pub(super) struct Udp {
    socket: OwnFd,
    domain: c_int,
}

fn check(result: c_int) -> Result<()> {
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}

impl Udp {
    /// socket(2), with SOCK_NONBLOCK and SOCK_CLOEXEC as `flags` say.
    pub fn new(domain: c_int, flags: c_int) -> Result<Udp> {
        let fd = own::socket(domain, libc::SOCK_DGRAM | flags, libc::IPPROTO_UDP);
        Ok(Udp { socket: OwnFd::new(fd)?, domain })
    }

    pub fn fd(&self) -> c_int {
        self.socket.as_raw_fd()
    }

    /// bind(2).
    pub fn bind(&self, addr: &SockAddr) -> Result<()> {
        // SAFETY: readable for its length.
        check(unsafe { libc::bind(self.fd(), ptr::from_ref(addr.storage()).cast(), addr.len().into()) })
    }

    /// connect(2).
    pub fn connect(&self, addr: &SockAddr) -> Result<()> {
        // SAFETY: readable for its length.
        check(unsafe { libc::connect(self.fd(), ptr::from_ref(addr.storage()).cast(), addr.len().into()) })
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
        // SAFETY: writable for `len` bytes.
        check(unsafe { call(self.fd(), (&raw mut name).cast(), &raw mut len) })?;
        Ok(name)
    }

    /// The local address; with a port from now on.
    pub fn bound(&self) -> Result<SocketAddr> {
        let name = read(&self.local_name()?)?;
        if name.port() != 0 {
            return Ok(name);
        }
        let mut any = no_address();
        any.ss_family = self.domain as libc::sa_family_t;
        // SAFETY: zeros are an address of either family.
        self.bind(&unsafe { SockAddr::from_c(NonNull::from(&any).cast())? })?;
        read(&self.local_name()?)
    }

    /// The local address that datagrams to `to` come from.
    pub fn source(&self, to: &SocketAddr) -> Result<SocketAddr> {
        let bound = self.bound()?;
        if !bound.ip().is_unspecified() {
            return Ok(bound);
        }
        let domain = if to.is_ipv4() { AF_INET } else { AF_INET6 };
        let probe = Udp::new(domain, libc::SOCK_CLOEXEC)?;
        probe.connect(&write(domain, to))?;
        let mut source = read(&probe.local_name()?)?;
        source.set_port(bound.port());
        Ok(source)
    }

    /// Sends header and payload, without waiting: `EAGAIN` when the kernel's buffer is full.
    pub fn send(&self, header: &[u8], payload: &[u8], to: &SocketAddr) -> Result<()> {
        let name = write(self.domain, to);
        let piece = |bytes: &[u8]| iovec { iov_base: bytes.as_ptr().cast_mut().cast::<c_void>(), iov_len: bytes.len() };
        let mut pieces = [piece(header), piece(payload)];
        // SAFETY: all zeros are a value of it.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_name = ptr::from_ref(name.storage()).cast_mut().cast();
        message.msg_namelen = name.len().into();
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len();
        // SAFETY: name and pieces are readable for their lengths.
        match unsafe { libc::sendmsg(self.fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) } {
            -1 => Err(Errno::last()),
            _ => Ok(()),
        }
    }

    /// Whether there is room for what is sent, as poll(2) sees it.
    pub fn has_room(&self) -> bool {
        let mut fds = [pollfd { fd: self.fd(), events: POLLOUT, revents: 0 }];
        event::poll(&mut fds, Some(Duration::ZERO)) != Ok(0)
    }

    /// The next packet and its sender, without waiting. Its length may be more than there was room for.
    pub fn receive(&self, into: &mut [u8]) -> Result<(usize, SocketAddr)> {
        let (mut name, mut len) = (no_address(), size_of::<sockaddr_storage>() as socklen_t);
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: buffer and name are writable for their lengths.
        let result = unsafe {
            libc::recvfrom(self.fd(), into.as_mut_ptr().cast(), into.len(), flags, (&raw mut name).cast(), &raw mut len)
        };
        let count = usize::try_from(result).map_err(|_| Errno::last())?;
        Ok((count, read(&name)?))
    }

    /// setsockopt(2).
    pub fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
        // SAFETY: readable for its length.
        check(unsafe { libc::setsockopt(self.fd(), level, name, value.as_ptr().cast(), value.len() as socklen_t) })
    }

    /// getsockopt(2); how many bytes the value has.
    pub fn option(&self, level: c_int, name: c_int, into: &mut [u8]) -> Result<usize> {
        let mut len = into.len() as socklen_t;
        // SAFETY: writable for its length.
        check(unsafe { libc::getsockopt(self.fd(), level, name, into.as_mut_ptr().cast(), &raw mut len) })?;
        Ok(into.len().min(len as usize))
    }
}

/// The address in a C structure.
pub(super) fn read(name: &sockaddr_storage) -> Result<SocketAddr> {
    let full = inet(name).ok_or(Errno::EAFNOSUPPORT)?;
    Ok(match full.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, full.port()),
        IpAddr::V6(_) => full,
    })
}

/// The C structure of an address, for a socket of `domain`.
pub(super) fn write(domain: c_int, addr: &SocketAddr) -> SockAddr {
    match (addr, domain) {
        (SocketAddr::V4(v4), AF_INET6) => SockAddr::from_inet(&(v4.ip().to_ipv6_mapped(), v4.port()).into()),
        _ => SockAddr::from_inet(addr),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::sockaddr::with_port;

    #[test]
    fn mapped_addresses_are_ipv4_inside() {
        let v4 = SocketAddr::from(([10, 77, 1, 1], 7471));
        let mapped = write(AF_INET6, &v4);
        assert_eq!(mapped.family(), AF_INET6);
        assert_eq!(read(mapped.storage()), Ok(v4));
        assert_eq!(write(AF_INET, &v4).family(), AF_INET);
    }

    #[test]
    fn a_link_local_address_keeps_its_scope() {
        let here: SocketAddr = "[fe80::1%3]:5".parse().unwrap();
        let there = with_port("fe80::2".parse().unwrap(), 7, &here);
        assert_eq!(there, "[fe80::2%3]:7".parse().unwrap());
        assert_eq!(read(write(AF_INET6, &there).storage()), Ok(there));
        assert_eq!(with_port("fd00::2".parse().unwrap(), 7, &here), "[fd00::2]:7".parse().unwrap());
    }

    #[test]
    fn a_socket_that_is_used_has_a_port() {
        let udp = Udp::new(AF_INET, libc::SOCK_CLOEXEC).unwrap();
        let bound = udp.bound().unwrap();
        assert!(bound.port() != 0 && bound.ip().is_unspecified());
        assert_eq!(udp.bound(), Ok(bound));
        let source = udp.source(&SocketAddr::from(([127, 0, 0, 1], 9))).unwrap();
        assert_eq!(source, SocketAddr::from(([127, 0, 0, 1], bound.port())));
    }

    #[test]
    fn packets_and_their_true_length() {
        let (a, b) = (Udp::new(AF_INET, 0).unwrap(), Udp::new(AF_INET6, 0).unwrap());
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        a.bind(&write(AF_INET, &loopback(0))).unwrap();
        b.bound().unwrap();
        let to = read(&a.local_name().unwrap()).unwrap();
        b.send(b"head", b"payload", &to).unwrap();
        let mut room = [0; 6];
        let (len, from) = a.receive(&mut room).unwrap();
        assert_eq!((len, &room), (11, b"headpa"));
        assert_eq!(from, loopback(b.bound().unwrap().port()));
        assert_eq!(a.receive(&mut room), Err(Errno::EAGAIN));
    }
}
