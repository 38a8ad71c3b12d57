//! The connection to the kernel, with a queue for messages that the kernel cannot take yet.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::Result;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockProtocol, SockType, SockaddrStorage, bind, getsockname, getsockopt,
    recvmsg, send, setsockopt, sockopt,
};

use crate::sys::sockets;

/// Multicast groups of RDMA netlink for port mappers: the current group, and the group of older
/// kernels.
const GROUPS: u32 = 3;
/// Initial size of the receive buffer: the kernel's messages are at most two pages of 4096 bytes.
/// The kernel allocates each answer as large as the largest receive buffer that it has seen, and
/// charges the whole size to the socket, so a larger buffer would leave space for fewer messages.
const BUFFER_SIZE: usize = 1 << 13;
/// The buffer grows up to this size after a message was truncated.
const MAX_BUFFER_SIZE: usize = 1 << 20;

/// The connection between the kernel and the port mapper: a NETLINK_RDMA socket or, in tests, a
/// socket that preserves message boundaries and whose other end plays the kernel.
pub struct Link {
    socket: OwnedFd,
    /// The socket's netlink port; `None` if it is not a netlink socket.
    pid: Option<u32>,
    /// Messages to send, the oldest first. After [`flush`](Self::flush), those for which the socket
    /// has no space.
    unsent: VecDeque<Vec<u8>>,
    /// Messages that the kernel refused with EBUSY.
    retries: Vec<Vec<u8>>,
    buffer_size: usize,
}

/// What was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Messages from the kernel, with their length in bytes.
    Messages(usize),
    /// Nothing to handle: a datagram from another sender, or EINTR.
    Ignored,
    /// Messages were lost.
    Overrun,
    /// Everything that the kernel has sent was received.
    Drained,
}

impl Link {
    /// Opens a NETLINK_RDMA socket that receives messages for port mappers. Needs CAP_NET_ADMIN.
    pub fn netlink() -> Result<Link> {
        let socket = sockets::open(AddressFamily::Netlink, SockType::Raw, Some(SockProtocol::NetlinkRDMA))?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
        Link::from_fd(socket)
    }

    /// Returns a link over an open descriptor.
    pub fn from_fd(socket: OwnedFd) -> Result<Link> {
        let address: SockaddrStorage = getsockname(socket.as_raw_fd())?;
        let pid = address.as_netlink_addr().map(NetlinkAddr::pid);
        Ok(Link { socket, pid, unsent: VecDeque::new(), retries: Vec::new(), buffer_size: BUFFER_SIZE })
    }

    /// Returns the socket's netlink port; in tests the process ID.
    pub fn pid(&self) -> u32 {
        self.pid.unwrap_or_else(std::process::id)
    }

    /// Sets the size of the receive buffer; CAP_NET_ADMIN allows sizes beyond the system's limit.
    /// Returns the size that the kernel has set.
    pub fn set_receive_buffer(&self, bytes: usize) -> Result<usize> {
        setsockopt(&self.socket, sockopt::RcvBufForce, &bytes)
            .or_else(|_| setsockopt(&self.socket, sockopt::RcvBuf, &bytes))?;
        // The kernel reports twice the size, which includes its own overhead.
        Ok(getsockopt(&self.socket, sockopt::RcvBuf)? / 2)
    }

    /// Resizes `buffer`, and receives the next messages into it. If no more messages have arrived,
    /// queues the messages of [`send_when_drained`](Self::send_when_drained) for sending.
    pub fn receive(&mut self, buffer: &mut Vec<u8>) -> Result<Input> {
        buffer.resize(self.buffer_size, 0);
        let (mut parts, flags) = ([IoSliceMut::new(buffer)], MsgFlags::MSG_TRUNC | MsgFlags::MSG_DONTWAIT);
        let (size, from) = match recvmsg::<NetlinkAddr>(self.socket.as_raw_fd(), &mut parts, None, flags) {
            Ok(message) => (message.bytes, message.address),
            Err(Errno::EINTR) => return Ok(Input::Ignored),
            Err(Errno::EAGAIN) => {
                self.unsent.extend(self.retries.drain(..));
                return Ok(Input::Drained);
            }
            Err(Errno::ENOBUFS) => return Ok(Input::Overrun),
            Err(error) => return Err(error),
        };
        // Any process can send to a netlink socket. The kernel's port is 0.
        if self.pid.is_some() && from.is_none_or(|from| from.pid() != 0) {
            return Ok(Input::Ignored);
        }
        if size > self.buffer_size {
            self.buffer_size = size.min(MAX_BUFFER_SIZE);
            return Ok(Input::Overrun);
        }
        Ok(Input::Messages(size))
    }

    /// Queues a message to be sent after the messages that already wait.
    pub fn send(&mut self, bytes: Vec<u8>) {
        self.unsent.push_back(bytes);
    }

    /// Queues a message until the socket is drained. The kernel handles one request of a socket at
    /// a time, and finishes a request only when the socket has space for the answer; until then the
    /// kernel would refuse the message with EBUSY again.
    pub fn send_when_drained(&mut self, bytes: Vec<u8>) {
        self.retries.push(bytes);
    }

    /// Sends queued messages until the socket is full.
    ///
    /// # Errors
    /// Fails with the first error that caused a message to be dropped; later messages are still
    /// sent.
    pub fn flush(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        while let Some(bytes) = self.unsent.front() {
            // A netlink socket that is not connected sends to the kernel.
            match send(self.socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => continue,
                Err(error) => outcome = outcome.and(Err(error)),
                Ok(_) => {}
            }
            self.unsent.pop_front();
        }
        outcome
    }

    /// Returns whether messages wait for space in the socket.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    fn link() -> (Link, UnixDatagram) {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Link::from_fd(ours.into()).unwrap(), theirs)
    }

    #[test]
    fn the_buffer_grows_after_an_overrun() {
        let (mut link, kernel) = link();
        kernel.send(&[1; BUFFER_SIZE + 1]).unwrap();
        kernel.send(&[2; BUFFER_SIZE + 1]).unwrap();
        kernel.send(&[3; 1]).unwrap();
        let mut buffer = Vec::new();
        assert_eq!(link.receive(&mut buffer), Ok(Input::Overrun));
        for expected in [vec![2; BUFFER_SIZE + 1], vec![3]] {
            assert_eq!(link.receive(&mut buffer), Ok(Input::Messages(expected.len())));
            assert_eq!(buffer[..expected.len()], expected);
        }
        assert_eq!(link.receive(&mut buffer), Ok(Input::Drained));
    }

    #[test]
    fn a_retry_waits_until_the_socket_is_drained() {
        let (mut link, kernel) = link();
        link.send_when_drained(vec![1]);
        link.send(vec![2]);
        link.flush().unwrap();
        let mut byte = [0];
        assert!(kernel.recv(&mut byte).is_ok() && byte == [2]);
        assert!(kernel.recv(&mut byte).is_err());
        assert_eq!(link.receive(&mut Vec::new()), Ok(Input::Drained));
        link.flush().unwrap();
        assert!(kernel.recv(&mut byte).is_ok() && byte == [1] && !link.has_unsent());
    }
}
