//! The way to the kernel. What it cannot take at once waits here.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};

use crate::errno::{Errno, Result};
use crate::sys::sockets::{KernelSocket, Received};

/// The kernel fills its messages up to two pages of 4096 bytes. It makes its answers as large as the largest buffer that it
/// has ever been given, and counts all of that as room taken: a larger buffer would leave less for messages.
const ROOM: usize = 1 << 13;
/// The buffer grows up to this when a message was too long.
const MOST_ROOM: usize = 1 << 20;

/// The kernel's end of the daemon.
pub struct Link {
    socket: KernelSocket,
    /// What there was no room for yet.
    unsent: VecDeque<Vec<u8>>,
    /// What the kernel was too busy for.
    again: Vec<Vec<u8>>,
    buffer: Vec<u8>,
}

/// What was heard.
pub enum Heard {
    /// These messages.
    Messages(Vec<u8>),
    /// Nothing that counts.
    Nothing,
    /// Messages were lost.
    Loss,
    /// There is no more, for now.
    Silence,
}

impl Link {
    /// A link by this socket.
    pub fn new(socket: KernelSocket) -> Link {
        Link { socket, unsent: VecDeque::new(), again: Vec::new(), buffer: vec![0; ROOM] }
    }

    /// The kernel's next messages. Their bytes are to be given [back](Self::give_back).
    pub fn hear(&mut self) -> Result<Heard> {
        match self.socket.receive(&mut self.buffer) {
            Ok(Received::Messages(length)) => {
                let mut bytes = std::mem::take(&mut self.buffer);
                bytes.truncate(length);
                Ok(Heard::Messages(bytes))
            }
            Ok(Received::TooLong(length)) => {
                self.buffer.resize(length.min(MOST_ROOM), 0);
                Ok(Heard::Loss)
            }
            Ok(Received::Stranger) | Err(Errno::EINTR) => Ok(Heard::Nothing),
            Ok(Received::End) => Err(Errno::ECONNRESET),
            Err(Errno::EAGAIN) => Ok(Heard::Silence),
            Err(error) if error.get() == libc::ENOBUFS => Ok(Heard::Loss),
            Err(error) => Err(error),
        }
    }

    /// See [`hear`](Self::hear).
    pub fn give_back(&mut self, mut bytes: Vec<u8>) {
        bytes.resize(bytes.capacity(), 0);
        self.buffer = bytes;
    }

    /// Sends this, after all that waits.
    pub fn say(&mut self, bytes: Vec<u8>) {
        self.unsent.push_back(bytes);
    }

    /// Sends this when everything that the kernel has sent was heard: it does one thing at a time for each socket, and is
    /// done with it only when there is room for its answer. Before that it would be too busy again.
    pub fn say_again(&mut self, bytes: Vec<u8>) {
        self.again.push(bytes);
    }

    /// Everything was heard.
    pub fn silence(&mut self) {
        self.unsent.extend(self.again.drain(..));
    }

    /// Sends what the kernel takes; the first error that lost a message.
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

    /// Whether something waits for room.
    pub fn is_full(&self) -> bool {
        !self.unsent.is_empty()
    }
}

impl AsRawFd for Link {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
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
        (Link::new(KernelSocket::with(OwnedFd::from(ours)).unwrap()), theirs)
    }

    #[test]
    fn the_buffer_grows_after_a_loss() {
        let (mut link, kernel) = link();
        kernel.send(&[1; ROOM + 1]).unwrap();
        kernel.send(&[2; ROOM + 1]).unwrap();
        kernel.send(&[3; 1]).unwrap();
        assert!(matches!(link.hear(), Ok(Heard::Loss)));
        for expected in [vec![2; ROOM + 1], vec![3]] {
            let Ok(Heard::Messages(bytes)) = link.hear() else { panic!("no message") };
            assert_eq!(bytes, expected);
            link.give_back(bytes);
        }
        assert!(matches!(link.hear(), Ok(Heard::Silence)));
    }

    #[test]
    fn what_is_said_again_waits_for_silence() {
        let (mut link, kernel) = link();
        link.say_again(vec![1]);
        link.say(vec![2]);
        link.flush().unwrap();
        let mut byte = [0];
        assert!(kernel.recv(&mut byte).is_ok() && byte == [2]);
        assert!(kernel.recv(&mut byte).is_err());
        link.silence();
        link.flush().unwrap();
        assert!(kernel.recv(&mut byte).is_ok() && byte == [1] && !link.is_full());
    }
}
