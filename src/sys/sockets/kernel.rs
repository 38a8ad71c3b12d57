//! The netlink socket of a port mapper.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use libc::{sockaddr_nl, socklen_t};

use super::{name, new, set};
use crate::errno::{Errno, Result};

/// The groups of RDMA netlink that a port mapper listens to: its own, and the one that had its number before.
const GROUPS: u32 = 3;

/// What was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes of messages from the kernel.
    Messages(usize),
    /// Something from another process.
    Stranger,
    /// Messages that the buffer has no room for. They are lost; so many bytes it would have taken.
    TooLong(usize),
    /// The other end is gone, which is not the kernel then.
    End,
}

/// The descriptor over which the kernel speaks with the port mapper: of NETLINK_RDMA, or any other that keeps the bounds of
/// messages and whose other end plays the kernel.
#[derive(Debug)]
pub struct KernelSocket {
    socket: OwnedFd,
    /// Our address, if it is netlink.
    pid: Option<u32>,
}

impl KernelSocket {
    /// A socket of NETLINK_RDMA that hears what the kernel says to port mappers. Needs CAP_NET_ADMIN.
    pub fn netlink() -> Result<KernelSocket> {
        let socket = new(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_RDMA)?;
        // SAFETY: all zeros are a value of it.
        let mut address: sockaddr_nl = unsafe { zeroed() };
        address.nl_family = libc::AF_NETLINK as _;
        address.nl_groups = GROUPS;
        let size = size_of::<sockaddr_nl>() as socklen_t;
        // SAFETY: the address is readable for its size.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) } != 0 {
            return Err(Errno::last());
        }
        KernelSocket::with(socket)
    }

    /// Any descriptor.
    pub fn with(socket: OwnedFd) -> Result<KernelSocket> {
        let storage = name(&socket)?;
        let pid = (c_int::from(storage.ss_family) == libc::AF_NETLINK).then(|| {
            // SAFETY: the family says so, and the storage is initialised as a whole.
            unsafe { (&raw const storage).cast::<sockaddr_nl>().read() }.nl_pid
        });
        Ok(KernelSocket { socket, pid })
    }

    /// What the kernel knows us by.
    pub fn pid(&self) -> u32 {
        self.pid.unwrap_or_else(std::process::id)
    }

    /// Sets the room for messages that were not received yet: beyond the system's limit with CAP_NET_ADMIN. How much it is.
    pub fn set_room(&self, bytes: u32) -> Result<u32> {
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        set(&self.socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
            .or_else(|_| set(&self.socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))?;
        let (mut room, mut size): (c_int, socklen_t) = (0, size_of::<c_int>() as socklen_t);
        let fd = self.socket.as_raw_fd();
        // SAFETY: the room is writable for its size.
        let got = unsafe {
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, (&raw mut room).cast::<c_void>(), &raw mut size)
        };
        // The kernel counts what it needs itself, too, and says twice as much.
        if got == 0 { Ok(room as u32 / 2) } else { Err(Errno::last()) }
    }

    /// The next datagram; `EAGAIN` if there is none.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Received> {
        // SAFETY: all zeros are a value of it.
        let mut from: sockaddr_nl = unsafe { zeroed() };
        let mut length = size_of::<sockaddr_nl>() as socklen_t;
        let (fd, room) = (self.socket.as_raw_fd(), buffer.len());
        let (to, flags) = (buffer.as_mut_ptr().cast(), libc::MSG_TRUNC | libc::MSG_DONTWAIT);
        // SAFETY: buffer and address are writable for their lengths.
        let got = unsafe { libc::recvfrom(fd, to, room, flags, (&raw mut from).cast(), &raw mut length) };
        let got = usize::try_from(got).map_err(|_| Errno::last())?;
        // Any process may send to a netlink socket; the kernel's address is 0.
        if self.pid.is_some() && (from.nl_pid != 0 || (length as usize) < size_of::<sockaddr_nl>()) {
            return Ok(Received::Stranger);
        }
        Ok(match got {
            0 => Received::End,
            _ if got > room => Received::TooLong(got),
            _ => Received::Messages(got),
        })
    }

    /// Sends a message to the kernel.
    pub fn send(&self, bytes: &[u8]) -> Result<()> {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the bytes are readable; what a netlink socket sends goes to the kernel, if it is not connected.
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
    fn what_is_cut_tells_its_size() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let socket = KernelSocket::with(OwnedFd::from(ours)).unwrap();
        theirs.send(&[7; 100]).unwrap();
        theirs.send(&[8; 100]).unwrap();
        let mut buffer = [0; 100];
        assert_eq!(socket.receive(&mut buffer[..60]), Ok(Received::TooLong(100)));
        assert_eq!((socket.receive(&mut buffer), buffer), (Ok(Received::Messages(100)), [8; 100]));
        assert_eq!(socket.receive(&mut buffer), Err(Errno::EAGAIN));
    }
}
