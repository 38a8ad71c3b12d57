//! Sockets of the port mapper: UDP with the destination of each datagram, netlink with its sender,
//! and TCP sockets that only bind a port.

mod kernel;

use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::mem::zeroed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::{cmsghdr, msghdr, sockaddr_storage, socklen_t};

pub use self::kernel::{KernelSocket, Received};
use rdmacm_core::sys::sockaddr::{SockAddr, inet};
use rdmacm_core::{Errno, Result};

fn new(family: c_int, kind: c_int, protocol: c_int) -> Result<OwnedFd> {
    // SAFETY: plain system call.
    let fd = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set(socket: &OwnedFd, level: c_int, option: c_int, value: c_int) -> Result<()> {
    let size = size_of::<c_int>() as socklen_t;
    // SAFETY: the value is readable for its size.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), size) };
    if done == 0 { Ok(()) } else { Err(Errno::last()) }
}

fn bind(socket: &OwnedFd, address: SocketAddr) -> Result<()> {
    let address = SockAddr::from_inet(&address);
    // SAFETY: the address is readable for its length.
    let done =
        unsafe { libc::bind(socket.as_raw_fd(), address.bytes().as_ptr().cast(), socklen_t::from(address.len())) };
    if done == 0 { Ok(()) } else { Err(Errno::last()) }
}

/// Returns the address that the socket is bound to.
fn local_address(socket: &OwnedFd) -> Result<sockaddr_storage> {
    // SAFETY: all zeros are a valid value.
    let mut storage: sockaddr_storage = unsafe { zeroed() };
    let mut length = size_of::<sockaddr_storage>() as socklen_t;
    // SAFETY: `storage` is writable for `length` bytes.
    let done = unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut storage).cast(), &raw mut length) };
    if done == 0 { Ok(storage) } else { Err(Errno::last()) }
}

/// A TCP port that no other socket can bind during the lifetime of this value. It never listens.
#[derive(Debug)]
pub struct BoundPort {
    _socket: OwnedFd,
}

impl BoundPort {
    /// Binds `port` of `ip`, or any free one if `port` is 0, and returns the port. The wildcard
    /// address of IPv6 includes that of IPv4.
    pub fn new(ip: IpAddr, scope: u32, port: u16) -> Result<(BoundPort, u16)> {
        let (family, address) = match ip {
            IpAddr::V4(ip) => (libc::AF_INET, SocketAddrV4::new(ip, port).into()),
            IpAddr::V6(ip) => (libc::AF_INET6, SocketAddrV6::new(ip, port, 0, scope).into()),
        };
        let socket = new(family, libc::SOCK_STREAM, 0)?;
        bind(&socket, address)?;
        let port = inet(&local_address(&socket)?).ok_or(Errno::EAFNOSUPPORT)?.port();
        Ok((BoundPort { _socket: socket }, port))
    }
}

/// Buffer for one control message with the largest value in use, aligned for its header.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// A UDP socket of one family.
#[derive(Debug)]
pub struct Udp {
    socket: OwnedFd,
    v6: bool,
}

/// A datagram that was received.
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// Its size, which exceeds the buffer if it was truncated.
    pub size: usize,
    /// Its source.
    pub from: SocketAddr,
    /// The local address that it was sent to.
    pub to: Option<IpAddr>,
}

impl Udp {
    /// A socket bound to `address`, for its family only.
    pub fn new(address: SocketAddr) -> Result<Udp> {
        let v6 = address.is_ipv6();
        let socket = new(if v6 { libc::AF_INET6 } else { libc::AF_INET }, libc::SOCK_DGRAM, 0)?;
        if v6 {
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        } else {
            set(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
        }
        bind(&socket, address)?;
        Ok(Udp { socket, v6 })
    }

    /// Returns whether it is an IPv6 socket.
    pub fn is_ipv6(&self) -> bool {
        self.v6
    }

    /// Receives a datagram. Fails with EAGAIN if there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Datagram> {
        let mut control = Control([0; 64]);
        // SAFETY: all zeros are valid values of both.
        let (mut from, mut message) = unsafe { (zeroed::<sockaddr_storage>(), zeroed::<msghdr>()) };
        let mut part = IoSliceMut::new(buffer);
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = size_of::<sockaddr_storage>() as socklen_t;
        message.msg_iov = (&raw mut part).cast();
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len() as _;
        // SAFETY: all buffers of the message are writable for their lengths.
        let got = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, libc::MSG_TRUNC) };
        let size = usize::try_from(got).map_err(|_| Errno::last())?;
        let from = inet(&from).ok_or(Errno::EAFNOSUPPORT)?;
        Ok(Datagram { size, from, to: self.destination(&message) })
    }

    fn destination(&self, message: &msghdr) -> Option<IpAddr> {
        // SAFETY: the kernel has written the control messages; their buffer is live, and each value
        // is read within its length.
        unsafe {
            let mut control: *const cmsghdr = libc::CMSG_FIRSTHDR(message);
            while !control.is_null() {
                let data = libc::CMSG_DATA(control);
                match ((*control).cmsg_level, (*control).cmsg_type) {
                    (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                        let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                        return Some(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into());
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                        let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                        return Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                    }
                    _ => control = libc::CMSG_NXTHDR(message, control),
                }
            }
        }
        None
    }

    /// Sends a datagram, from the local address `from` if there is one.
    pub fn send(&self, bytes: &[u8], to: SocketAddr, from: Option<IpAddr>) -> Result<()> {
        let address = SockAddr::from_inet(&to);
        let mut control = Control([0; 64]);
        // SAFETY: all zeros are a valid value.
        let mut message: msghdr = unsafe { zeroed() };
        let mut part = IoSlice::new(bytes);
        message.msg_name = address.bytes().as_ptr().cast_mut().cast();
        message.msg_namelen = socklen_t::from(address.len());
        message.msg_iov = (&raw mut part).cast();
        message.msg_iovlen = 1;
        match from {
            Some(IpAddr::V4(ip)) if !self.v6 => {
                let ip = libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) };
                let none = libc::in_addr { s_addr: 0 };
                let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: ip, ipi_addr: none };
                add_control(&mut message, &mut control, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
            }
            Some(IpAddr::V6(ip)) if self.v6 => {
                let info = libc::in6_pktinfo { ipi6_addr: libc::in6_addr { s6_addr: ip.octets() }, ipi6_ifindex: 0 };
                add_control(&mut message, &mut control, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
            }
            _ => {}
        }
        // SAFETY: all buffers of the message are readable for their lengths.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(Errno::last()) } else { Ok(()) }
    }
}

impl AsRawFd for Udp {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

fn add_control<T>(message: &mut msghdr, control: &mut Control, level: c_int, kind: c_int, value: T) {
    const { assert!(size_of::<cmsghdr>() + size_of::<T>().next_multiple_of(8) <= size_of::<Control>()) };
    let size = size_of::<T>() as u32;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: the control message fits, as asserted, and is aligned for its header.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size) as _;
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_port_is_in_use() {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let (bound, port) = BoundPort::new(any, 0, 0).unwrap();
        assert_eq!(BoundPort::new(any, 0, port).err().map(Errno::get), Some(libc::EADDRINUSE));
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(BoundPort::new(local, 0, port).err().map(Errno::get), Some(libc::EADDRINUSE));
        drop(bound);
        assert_eq!(BoundPort::new(any, 0, port).unwrap().1, port);
    }

    fn through(ip: &str, room: usize) -> (SocketAddr, Datagram, Vec<u8>) {
        let at = SocketAddr::new(ip.parse().unwrap(), 0);
        let (a, b) = (Udp::new(at).unwrap(), Udp::new(at).unwrap());
        let address = |udp: &Udp| inet(&local_address(&udp.socket).unwrap()).unwrap();
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
