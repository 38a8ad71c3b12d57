//! Continuing in the first buffer when the peer recalls the others (`receive/recall.rs`).

use super::Sender;
use crate::rsocket::wire::Region;

impl Sender {
    /// Returns whether the peer has received everything that was sent, if it has received
    /// `messages` messages, and the present buffer is another one than `first`, or is partly used.
    pub fn may_return(&self, messages: u16, first: Region) -> bool {
        // The peer's number is modulo 65536, but no sender is that many messages ahead.
        self.sent == messages && self.held() == 0 && self.has_left(first)
    }

    /// Continues in the peer's first buffer. The caller has discarded the one that the peer has
    /// advertised and that was not begun.
    pub fn return_to(&mut self, first: Region) {
        self.target = first;
    }

    /// Returns whether the present buffer is not the peer's first one, or is partly used.
    pub fn has_left(&self, first: Region) -> bool {
        self.target != first
    }

    /// Returns the number of work requests that were posted, without those of control messages.
    pub fn posted(&self) -> u64 {
        self.last_wr_id - self.control_requests
    }

    /// Returns whether the completion of a later work request has to show that the last ones have
    /// completed.
    pub fn has_unsignaled(&self) -> bool {
        self.unsignaled_entries > 0
    }
}
