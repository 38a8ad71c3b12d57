//! A peer that violates the protocol.

use super::super::random::Random;
use super::{Completion, End};
use crate::rsocket::flow::Received;
use crate::rsocket::wire::{Message, Region};

impl End {
    /// Like [`read`](Self::read), for a peer that writes arbitrary data.
    pub fn read_without_checks(&mut self, max: u64) {
        let max = max.min(self.receiver.available());
        let Received { ring, offset, len } = self.receiver.piece(0);
        assert!(offset as usize + len as usize <= self.memory[self.place(ring)].len(), "outside the ring");
        self.take(max.min(u64::from(len)));
    }

    /// Receives a message of a peer that violates the protocol. Messages after a violation are
    /// processed, too, as in a batch of completions.
    pub fn receive_now(&mut self, message: Message) {
        if self.receives > 0 {
            self.receives -= 1;
            self.completions.push_back(Completion::Received(message));
        }
    }

    /// The peer writes to the SGL.
    pub fn write_sgl(&mut self, random: &mut Random) {
        let length = random.pick(&[0, 1, 2, 100, 1 << 16, u32::MAX]);
        self.sgl[random.below(2) as usize] = Region { addr: random.next(), rkey: random.next() as u32, length };
    }

    /// Executes a work request without effect on the peer.
    pub fn execute(&mut self) {
        self.executed.extend(self.posted.pop_front());
        self.complete();
    }

    /// Checks the conditions that hold for any peer.
    pub fn check(&self) {
        let room: usize = self.memory.iter().map(Vec::len).sum();
        assert!(self.receiver.available() <= room as u64);
        assert!(self.receives + self.used_receives <= self.setup.receives());
        assert!(self.free_sends <= self.setup.sends);
    }
}
