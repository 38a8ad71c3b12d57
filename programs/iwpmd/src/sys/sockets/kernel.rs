//! The netlink socket of the port mapper.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use libc::{sockaddr_nl, socklen_t};

use super::{local_address, new, set};
use rdmacm_core::{Errno, Result};

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
        let socket = new(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_RDMA)?;
        // SAFETY: all zeros are a valid value.
        let mut address: sockaddr_nl = unsafe { zeroed() };
        address.nl_family = libc::AF_NETLINK as _;
        address.nl_groups = GROUPS;
        let size = size_of::<sockaddr_nl>() as socklen_t;
        // SAFETY: the address is readable for its size.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) } != 0 {
            return Err(Errno::last());
        }
        KernelSocket::from_fd(socket)
    }

    /// Uses an open descriptor.
    pub fn from_fd(socket: OwnedFd) -> Result<KernelSocket> {
        let storage = local_address(&socket)?;
        let pid = (c_int::from(storage.ss_family) == libc::AF_NETLINK).then(|| {
            // SAFETY: the storage is initialised as a whole and has an address of this family.
            unsafe { (&raw const storage).cast::<sockaddr_nl>().read() }.nl_pid
        });
        Ok(KernelSocket { socket, pid })
    }

    /// Returns the port mapper's netlink port.
    pub fn pid(&self) -> u32 {
        self.pid.unwrap_or_else(std::process::id)
    }

    /// Sets the size of the receive buffer, beyond the system's limit with CAP_NET_ADMIN. Returns
    /// the size that the kernel has set.
    pub fn set_receive_buffer(&self, bytes: u32) -> Result<u32> {
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        set(&self.socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
            .or_else(|_| set(&self.socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))?;
        let (mut room, mut size): (c_int, socklen_t) = (0, size_of::<c_int>() as socklen_t);
        let fd = self.socket.as_raw_fd();
        // SAFETY: the room is writable for its size.
        let got = unsafe {
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, (&raw mut room).cast::<c_void>(), &raw mut size)
        };
        // The kernel reports twice the size, which includes its own overhead.
        if got == 0 { Ok(room as u32 / 2) } else { Err(Errno::last()) }
    }

    /// Receives a datagram. Fails with EAGAIN if there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Received> {
        // SAFETY: all zeros are a valid value.
        let mut from: sockaddr_nl = unsafe { zeroed() };
        let mut length = size_of::<sockaddr_nl>() as socklen_t;
        let (fd, room) = (self.socket.as_raw_fd(), buffer.len());
        let (to, flags) = (buffer.as_mut_ptr().cast(), libc::MSG_TRUNC | libc::MSG_DONTWAIT);
        // SAFETY: buffer and address are writable for their lengths.
        let got = unsafe { libc::recvfrom(fd, to, room, flags, (&raw mut from).cast(), &raw mut length) };
        let got = usize::try_from(got).map_err(|_| Errno::last())?;
        // Any process can send to a netlink socket. The kernel's port is 0.
        if self.pid.is_some() && (from.nl_pid != 0 || (length as usize) < size_of::<sockaddr_nl>()) {
            return Ok(Received::OtherSender);
        }
        Ok(match got {
            0 => Received::Closed,
            _ if got > room => Received::Truncated(got),
            _ => Received::Messages(got),
        })
    }

    /// Sends a message to the kernel.
    pub fn send(&self, bytes: &[u8]) -> Result<()> {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the bytes are readable; what a netlink socket sends goes to the kernel, if it is
        // not connected.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        if sent < 0 { Err(Errno::last()) } else { Ok(()) }
    }
}

impl AsRawFd for KernelSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

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
