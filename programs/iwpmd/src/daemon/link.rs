//! The connection to the kernel, with a queue for messages that the kernel cannot take yet.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use nix::Result;
use nix::errno::Errno;

use crate::sys::sockets::{KernelSocket, Received};

/// The kernel's messages are at most two pages of 4096 bytes. The kernel allocates each answer as
/// large as the largest receive buffer that it has seen, and charges the whole size to the socket,
/// so a larger buffer would leave space for fewer messages.
const BUFFER_SIZE: usize = 1 << 13;
/// The buffer grows up to this size after a message was truncated.
const MAX_BUFFER_SIZE: usize = 1 << 20;

/// The netlink socket with its buffers.
pub struct Link {
    socket: KernelSocket,
    /// Messages that the socket had no space for.
    unsent: VecDeque<Vec<u8>>,
    /// Messages that the kernel refused with EBUSY.
    retries: Vec<Vec<u8>>,
    buffer: Vec<u8>,
}

/// What was received.
pub enum Input {
    /// Messages from the kernel.
    Messages(Vec<u8>),
    /// Nothing to handle: a datagram from another sender, or EINTR.
    Ignored,
    /// Messages were lost.
    Overrun,
    /// Everything that the kernel has sent was received.
    Drained,
}

impl Link {
    /// Returns a link over `socket`.
    pub fn new(socket: KernelSocket) -> Link {
        Link { socket, unsent: VecDeque::new(), retries: Vec::new(), buffer: vec![0; BUFFER_SIZE] }
    }

    /// Receives the next messages. The caller returns their buffer with
    /// [`return_buffer`](Self::return_buffer).
    pub fn receive(&mut self) -> Result<Input> {
        match self.socket.receive(&mut self.buffer) {
            Ok(Received::Messages(length)) => {
                let mut bytes = std::mem::take(&mut self.buffer);
                bytes.truncate(length);
                Ok(Input::Messages(bytes))
            }
            Ok(Received::Truncated(length)) => {
                self.buffer.resize(length.min(MAX_BUFFER_SIZE), 0);
                Ok(Input::Overrun)
            }
            Ok(Received::OtherSender) | Err(Errno::EINTR) => Ok(Input::Ignored),
            Ok(Received::Closed) => Err(Errno::ECONNRESET),
            Err(Errno::EAGAIN) => Ok(Input::Drained),
            Err(Errno::ENOBUFS) => Ok(Input::Overrun),
            Err(error) => Err(error),
        }
    }

    /// Gives back the buffer of [`receive`](Self::receive).
    pub fn return_buffer(&mut self, mut bytes: Vec<u8>) {
        bytes.resize(bytes.capacity(), 0);
        self.buffer = bytes;
    }

    /// Queues a message to be sent after those that wait already.
    pub fn send(&mut self, bytes: Vec<u8>) {
        self.unsent.push_back(bytes);
    }

    /// Queues a message until the socket is drained. The kernel handles one request of a socket at
    /// a time, and finishes it only when there is space for its answer; until then the kernel would
    /// refuse the message with EBUSY again.
    pub fn send_when_drained(&mut self, bytes: Vec<u8>) {
        self.retries.push(bytes);
    }

    /// Queues the messages of `send_when_drained` for sending, because the socket is drained.
    pub fn drained(&mut self) {
        self.unsent.extend(self.retries.drain(..));
    }

    /// Sends queued messages until the socket is full. Fails with the first error that has lost a
    /// message, after it has sent the other ones.
    pub fn flush(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        while let Some(bytes) = self.unsent.front() {
            match self.socket.send(bytes) {
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => continue,
                Err(error) => outcome = outcome.and(Err(error)),
                Ok(()) => {}
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
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    fn link() -> (Link, UnixDatagram) {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Link::new(KernelSocket::from_fd(OwnedFd::from(ours)).unwrap()), theirs)
    }

    #[test]
    fn the_buffer_grows_after_an_overrun() {
        let (mut link, kernel) = link();
        kernel.send(&[1; BUFFER_SIZE + 1]).unwrap();
        kernel.send(&[2; BUFFER_SIZE + 1]).unwrap();
        kernel.send(&[3; 1]).unwrap();
        assert!(matches!(link.receive(), Ok(Input::Overrun)));
        for expected in [vec![2; BUFFER_SIZE + 1], vec![3]] {
            let Ok(Input::Messages(bytes)) = link.receive() else { panic!("no message") };
            assert_eq!(bytes, expected);
            link.return_buffer(bytes);
        }
        assert!(matches!(link.receive(), Ok(Input::Drained)));
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
        link.drained();
        link.flush().unwrap();
        assert!(kernel.recv(&mut byte).is_ok() && byte == [1] && !link.has_unsent());
    }
}
