//! Sockets of the port mapper: UDP with the destination of each datagram, and TCP sockets that only
//! bind a port.

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage,
    bind, getsockname, recvmsg, sendmsg, setsockopt, socket, sockopt,
};
use nix::{Result, cmsg_space};

/// Returns a new socket, which does not block.
pub fn open(family: AddressFamily, kind: SockType, protocol: Option<SockProtocol>) -> Result<OwnedFd> {
    socket(family, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, protocol)
}

/// Returns a socket bound to `address`. `set` sets its options before it is bound.
fn bound(address: SocketAddr, kind: SockType, set: impl FnOnce(&OwnedFd) -> Result<()>) -> Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let socket = open(family, kind, None)?;
    set(&socket)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(socket)
}

fn inet(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|&v4| v4.into());
    v4.or_else(|| address.as_sockaddr_in6().map(|&v6| v6.into()))
}

/// Returns the address that the socket is bound to.
fn local_address(socket: &OwnedFd) -> Result<SocketAddr> {
    inet(&getsockname(socket.as_raw_fd())?).ok_or(Errno::EAFNOSUPPORT)
}

/// Binds a TCP socket to `address`, or to any free port if the port of `address` is 0. The socket
/// never listens. Returns the socket and its port, which no other socket can bind at this address
/// while the socket exists. The IPv6 wildcard address includes the IPv4 wildcard address.
pub fn bind_port(address: SocketAddr) -> Result<(OwnedFd, u16)> {
    let socket = bound(address, SockType::Stream, |_| Ok(()))?;
    let port = local_address(&socket)?.port();
    Ok((socket, port))
}

/// A UDP socket of one family.
#[derive(Debug)]
pub struct Udp {
    socket: OwnedFd,
    v6: bool,
}

/// A datagram that was received.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// Size of the datagram. It exceeds the buffer if the datagram was truncated.
    pub size: usize,
    /// Source address.
    pub from: SocketAddr,
    /// The local address that the datagram was sent to; `None` if the kernel does not report it.
    pub to: Option<IpAddr>,
}

impl Udp {
    /// Returns a socket bound to `address`. An IPv6 socket does not receive IPv4 datagrams.
    pub fn new(address: SocketAddr) -> Result<Udp> {
        let v6 = address.is_ipv6();
        let socket = bound(address, SockType::Datagram, |socket| {
            if !v6 {
                return setsockopt(socket, sockopt::Ipv4PacketInfo, &true);
            }
            setsockopt(socket, sockopt::Ipv6V6Only, &true)?;
            setsockopt(socket, sockopt::Ipv6RecvPacketInfo, &true)
        })?;
        Ok(Udp { socket, v6 })
    }

    /// Returns whether the socket is an IPv6 socket.
    pub fn is_ipv6(&self) -> bool {
        self.v6
    }

    /// Receives a datagram.
    ///
    /// # Errors
    /// Fails with `EAGAIN` if there is no datagram.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Datagram> {
        let (mut parts, mut control) = ([IoSliceMut::new(buffer)], cmsg_space!(in6_pktinfo));
        let message = recvmsg(self.socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::MSG_TRUNC)?;
        let from = message.address.as_ref().and_then(inet).ok_or(Errno::EAFNOSUPPORT)?;
        let to = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::Ipv4PacketInfo(info) => Some(info.ipi_addr.s_addr.to_ne_bytes().into()),
            ControlMessageOwned::Ipv6PacketInfo(info) => Some(info.ipi6_addr.s6_addr.into()),
            _ => None,
        });
        Ok(Datagram { size: message.bytes, from, to })
    }

    /// Sends a datagram, from the local address `from` if it is set.
    pub fn send(&self, bytes: &[u8], to: SocketAddr, from: Option<IpAddr>) -> Result<()> {
        let (v4, v6);
        let control = match from {
            Some(IpAddr::V4(ip)) if !self.v6 => {
                let ip = in_addr { s_addr: u32::from_ne_bytes(ip.octets()) };
                v4 = in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: ip, ipi_addr: in_addr { s_addr: 0 } };
                Some(ControlMessage::Ipv4PacketInfo(&v4))
            }
            Some(IpAddr::V6(ip)) if self.v6 => {
                v6 = in6_pktinfo { ipi6_addr: in6_addr { s6_addr: ip.octets() }, ipi6_ifindex: 0 };
                Some(ControlMessage::Ipv6PacketInfo(&v6))
            }
            _ => None,
        };
        let (parts, address) = ([IoSlice::new(bytes)], SockaddrStorage::from(to));
        sendmsg(self.socket.as_raw_fd(), &parts, control.as_slice(), MsgFlags::MSG_NOSIGNAL, Some(&address)).map(drop)
    }
}

impl AsFd for Udp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_bound_port_is_in_use() {
        let at = |ip: Ipv4Addr, port| bind_port(SocketAddr::new(ip.into(), port));
        let (bound, port) = at(Ipv4Addr::UNSPECIFIED, 0).unwrap();
        assert_eq!(at(Ipv4Addr::UNSPECIFIED, port).err(), Some(Errno::EADDRINUSE));
        assert_eq!(at(Ipv4Addr::LOCALHOST, port).err(), Some(Errno::EADDRINUSE));
        drop(bound);
        assert_eq!(at(Ipv4Addr::UNSPECIFIED, port).unwrap().1, port);
    }

    fn through(ip: &str, room: usize) -> (SocketAddr, Datagram, Vec<u8>) {
        let at = SocketAddr::new(ip.parse().unwrap(), 0);
        let (a, b) = (Udp::new(at).unwrap(), Udp::new(at).unwrap());
        let address = |udp: &Udp| local_address(&udp.socket).unwrap();
        a.send(b"hello", address(&b), Some(at.ip())).unwrap();
        let mut buffer = vec![0; room];
        let got = b.receive(&mut buffer).unwrap();
        assert_eq!(b.receive(&mut buffer).err(), Some(Errno::EAGAIN));
        buffer.truncate(got.size);
        (address(&a), got, buffer)
    }

    #[test]
    fn datagrams_tell_where_they_came_from_and_to() {
        for ip in ["127.0.0.1", "::1"] {
            let (sender, got, bytes) = through(ip, 100);
            assert_eq!((got.from, got.to, &bytes[..]), (sender, Some(ip.parse().unwrap()), &b"hello"[..]));
        }
    }

    #[test]
    fn truncation_is_detected() {
        assert_eq!(through("127.0.0.1", 3).1.size, 5);
    }
}
