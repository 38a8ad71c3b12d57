//! Recalling the receive buffers of an idle stream: the peer continues in the first buffer, that of
//! the connection data, so that the others can be freed.
//!
//! The peer may write to what is advertised at any time, so it has to agree: the receiver tells it
//! how many messages have arrived, and the peer moves if it has sent no other. Until it answers it
//! may write where it wrote before. It is never without space.

use super::{Receiver, Ring, Violation};

impl Receiver {
    /// Asks the peer to continue in the first buffer, a small ring. Returns the number of messages
    /// that have arrived, for the RECALL that the caller sends. Returns `None` if only a small ring
    /// is used, if the peer has been asked, or if there is data to read or a buffer to advertise.
    /// Called after [`take`](Self::take), so that a ring that has been read to its end is not used
    /// any more.
    pub fn recall(&mut self) -> Option<u16> {
        // Everything is advertised: the peer fills one part, and has one that it has not begun.
        if !self.uses_others() || self.was_asked() || self.available() > 0 || self.has_buffer() {
            return None;
        }
        self.recall = Some(self.messages);
        self.recall
    }

    /// The peer continues in the first buffer of `size` bytes, which it may fill. Returns the number
    /// of the ring that this is. No other memory is used any more.
    pub fn recalled(&mut self, size: u32) -> Result<usize, Violation> {
        // The answer follows all messages that the peer had sent. A peer that has sent 65536 since
        // then must not free what the program reads.
        if self.recall.take() != Some(self.messages) || self.available() > 0 {
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

    /// The peer continues where it is: usually because it has sent more meanwhile.
    pub fn kept(&mut self) -> Result<(), Violation> {
        self.refused = Some(self.recall.take().ok_or(Violation::BadMessage)?);
        Ok(())
    }

    /// Returns whether the peer has not answered, or has refused and not sent anything since then.
    pub fn was_asked(&self) -> bool {
        self.recall.is_some() || self.refused == Some(self.messages)
    }

    /// Returns whether the peer has other buffers than a small ring.
    pub fn uses_others(&self) -> bool {
        self.next.is_some() || !self.ring.is_small()
    }

    /// Returns the number of messages that have arrived, modulo 65536.
    pub fn messages(&self) -> u16 {
        self.messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receiver whose peer has filled half of the first buffer of 64 bytes, and knows a larger one.
    fn receiver() -> Receiver {
        let mut receiver = Receiver::small(64, 16);
        receiver.data(40).unwrap();
        receiver.add_ring(256, None);
        let update = receiver.next_credit_update().unwrap();
        receiver.credit_update_sent(&update);
        receiver
    }

    #[test]
    fn only_without_unread_data() {
        let mut receiver = receiver();
        assert_eq!(receiver.recall(), None);
        assert_eq!(receiver.take(40), None);
        assert_eq!(receiver.recall(), Some(1));
        assert_eq!(receiver.recall(), None);
        assert_eq!(receiver.recalled(64), Ok(0));
        assert!(receiver.is_starting() && receiver.recall().is_none());
        receiver.data(64).unwrap();
    }

    /// The number is the same after 65536 messages, of which the last ones have not been read.
    #[test]
    fn unread_data_is_not_given_up() {
        let mut receiver = receiver();
        assert_eq!(receiver.take(40), None);
        assert_eq!(receiver.recall(), Some(1));
        receiver.data(10).unwrap();
        receiver.messages = 1;
        assert_eq!(receiver.recalled(64), Err(Violation::BadMessage));
        assert_eq!(receiver.available(), 10);
    }

    #[test]
    fn a_peer_that_has_refused_is_asked_after_further_messages() {
        let mut receiver = receiver();
        assert_eq!(receiver.take(40), None);
        assert_eq!(receiver.kept(), Err(Violation::BadMessage));
        assert_eq!(receiver.recall(), Some(1));
        assert_eq!(receiver.kept(), Ok(()));
        assert_eq!(receiver.recall(), None);
        receiver.message().unwrap();
        assert_eq!(receiver.recall(), Some(2));
    }
}
