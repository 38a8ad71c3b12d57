//! Recalling the receive buffers of an idle stream: the peer continues in the first buffer, that of
//! the connection data, so that the others can be freed.
//!
//! The peer may write to what is advertised at any time, so it has to agree: the receiver tells it
//! how many messages have arrived, and the peer moves if it has sent no other. Until it answers it
//! may write where it wrote before. It is never without space.

use super::{Receiver, Ring, Violation};

impl Receiver {
    /// Asks the peer to continue in the first buffer, a small ring. Returns the number of messages
    /// that have arrived, for the RECALL that the caller sends. Returns `None` if the peer is there
    /// already, has not answered yet, or if there is data to read or a buffer to advertise.
    pub fn recall(&mut self) -> Option<u16> {
        let has_others = self.next.is_some() || !self.ring.is_small();
        // Everything is advertised: the peer fills one part, and has one that it has not begun.
        if !has_others || self.recall.is_some() || self.available() > 0 || self.has_buffer() {
            return None;
        }
        self.recall = Some(self.messages);
        self.recall
    }

    /// The peer continues in the first buffer of `size` bytes, which it may fill. Returns the number
    /// of the ring that this is. No other memory is used any more.
    pub fn recalled(&mut self, size: u32) -> Result<usize, Violation> {
        // The answer follows all messages that the peer had sent.
        if self.recall.take() != Some(self.messages) {
            return Err(Violation::BadMessage);
        }
        if !self.ring.is_small() {
            self.current = 1 - self.current;
        }
        self.ring = Ring { advertised: size.into(), ..Ring::small(size) };
        self.next = None;
        self.is_refused = false;
        self.pace.resized(None);
        Ok(self.current)
    }

    /// The peer continues where it is: it has sent more meanwhile.
    pub fn kept(&mut self) -> Result<(), Violation> {
        self.recall.take().map(|_| ()).ok_or(Violation::BadMessage)
    }

    /// Returns the number of messages that have arrived, modulo 65536.
    pub fn messages(&self) -> u16 {
        self.messages
    }
}
