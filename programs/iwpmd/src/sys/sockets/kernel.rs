//! The netlink socket of the port mapper.

use std::ffi::c_int;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::Result;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockProtocol, SockType, SockaddrStorage, bind, getsockname, getsockopt,
    recvmsg, send, setsockopt, sockopt,
};

use super::open;

/// Multicast groups of RDMA netlink for port mappers: the current one, and that of older kernels.
const GROUPS: u32 = 3;

/// What was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Messages of the kernel, with their length in bytes.
    Messages(usize),
    /// A datagram of another process.
    OtherSender,
    /// Messages larger than the buffer, with their size. They are lost.
    Truncated(usize),
    /// The other end, which is not the kernel then, was closed.
    Closed,
}

/// The descriptor that connects the kernel and the port mapper: a NETLINK_RDMA socket or, in tests,
/// a socket that preserves message boundaries and whose other end plays the kernel.
#[derive(Debug)]
pub struct KernelSocket {
    socket: OwnedFd,
    /// The socket's netlink port; `None` if it is not a netlink socket.
    pid: Option<u32>,
}

impl KernelSocket {
    /// A NETLINK_RDMA socket that receives the messages for port mappers. Needs CAP_NET_ADMIN.
    pub fn netlink() -> Result<KernelSocket> {
        let socket = open(AddressFamily::Netlink, SockType::Raw, Some(SockProtocol::NetlinkRDMA))?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
        KernelSocket::from_fd(socket)
    }

    /// Uses an open descriptor.
    pub fn from_fd(socket: OwnedFd) -> Result<KernelSocket> {
        let address: SockaddrStorage = getsockname(socket.as_raw_fd())?;
        Ok(KernelSocket { pid: address.as_netlink_addr().map(NetlinkAddr::pid), socket })
    }

    /// Returns the port mapper's netlink port.
    pub fn pid(&self) -> u32 {
        self.pid.unwrap_or_else(std::process::id)
    }

    /// Sets the size of the receive buffer, beyond the system's limit with CAP_NET_ADMIN. Returns
    /// the size that the kernel has set.
    pub fn set_receive_buffer(&self, bytes: u32) -> Result<u32> {
        let bytes = bytes.min(c_int::MAX as u32) as usize;
        setsockopt(&self.socket, sockopt::RcvBufForce, &bytes)
            .or_else(|_| setsockopt(&self.socket, sockopt::RcvBuf, &bytes))?;
        // The kernel reports twice the size, which includes its own overhead.
        Ok(getsockopt(&self.socket, sockopt::RcvBuf)? as u32 / 2)
    }

    /// Receives a datagram. Fails with EAGAIN if there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Received> {
        let (room, mut parts) = (buffer.len(), [IoSliceMut::new(buffer)]);
        let flags = MsgFlags::MSG_TRUNC | MsgFlags::MSG_DONTWAIT;
        let message = recvmsg::<NetlinkAddr>(self.socket.as_raw_fd(), &mut parts, None, flags)?;
        // Any process can send to a netlink socket. The kernel's port is 0.
        if self.pid.is_some() && message.address.is_none_or(|from| from.pid() != 0) {
            return Ok(Received::OtherSender);
        }
        let got = message.bytes;
        Ok(match got {
            0 => Received::Closed,
            _ if got > room => Received::Truncated(got),
            _ => Received::Messages(got),
        })
    }

    /// Sends a message to the kernel.
    pub fn send(&self, bytes: &[u8]) -> Result<()> {
        // What a netlink socket sends goes to the kernel, if it is not connected.
        send(self.socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT).map(drop)
    }
}

impl AsFd for KernelSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use nix::errno::Errno;

    use super::*;

    #[test]
    fn truncated_messages_tell_their_size() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let socket = KernelSocket::from_fd(OwnedFd::from(ours)).unwrap();
        theirs.send(&[7; 100]).unwrap();
        theirs.send(&[8; 100]).unwrap();
        let mut buffer = [0; 100];
        assert_eq!(socket.receive(&mut buffer[..60]), Ok(Received::Truncated(100)));
        assert_eq!((socket.receive(&mut buffer), buffer), (Ok(Received::Messages(100)), [8; 100]));
        assert_eq!(socket.receive(&mut buffer), Err(Errno::EAGAIN));
    }
}
