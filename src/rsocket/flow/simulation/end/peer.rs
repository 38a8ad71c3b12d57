//! With a peer that breaks the rules.

use super::super::random::Random;
use super::{Completion, End};
use crate::rsocket::flow::Received;
use crate::rsocket::wire::{Message, Region};

impl End {
    /// As [`read`](Self::read), of a peer that writes what it likes.
    pub fn look(&mut self, most: u64) {
        let most = most.min(self.receiver.available());
        let Received { ring, offset, len } = self.receiver.piece(0);
        assert!(offset as usize + len as usize <= self.rings[ring].len(), "outside the ring");
        self.take(most.min(u64::from(len)));
    }

    /// A message of a peer that breaks the rules: the link takes what is in the same batch, too.
    pub fn hear(&mut self, message: Message) {
        if self.receives > 0 {
            self.receives -= 1;
            self.completions.push_back(Completion::Received(message));
        }
    }

    /// The peer writes into our SGL.
    pub fn forge(&mut self, random: &mut Random) {
        let length = random.pick(&[0, 1, 2, 100, 1 << 16, u32::MAX]);
        self.sgl[random.below(2) as usize] = Region { addr: random.next(), rkey: random.next() as u32, length };
    }

    /// A work request that nobody looks at is carried out.
    pub fn carry(&mut self) {
        self.carried.extend(self.posted.pop_front());
        self.complete();
    }

    /// What holds whatever the peer does.
    pub fn check(&self) {
        let room: usize = self.rings.iter().map(Vec::len).sum();
        assert!(self.receiver.available() <= room as u64);
        assert!(self.receives + self.idle <= self.setup.receives());
        assert!(self.free_sends <= self.setup.sends);
    }
}
