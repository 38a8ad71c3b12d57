//! Recalling the rings of an idle stream.

use std::collections::VecDeque;

use super::{Effect, End, FIRST, KEY, Part};
use crate::rsocket::flow::Violation;
use crate::rsocket::wire::{Control, Message};

/// Returns the rkey of a ring's memory.
pub(super) fn key(memory: usize) -> u32 {
    KEY + (memory + 1) as u32 % 3
}

impl End {
    /// Returns the number of a ring's memory.
    pub(super) fn place(&self, ring: usize) -> usize {
        if self.first_ring == Some(ring) { FIRST } else { ring }
    }

    /// Returns what the peer may fill after its answer.
    pub(super) fn first_parts(&self) -> VecDeque<Part> {
        VecDeque::from([Part { memory: FIRST, offset: 0, len: self.setup.ring }])
    }

    /// Asks the peer to continue in the first buffer. Only a small ring may be returned to.
    pub fn recall(&mut self) {
        if !self.setup.small || self.shutdown {
            return;
        }
        // A CREDIT_UPDATE may take the last control message.
        self.take(0);
        if !self.sender.has_control() {
            return;
        }
        if let Some(messages) = self.receiver.recall() {
            self.control(Some(Message::Control(Control::Recall(messages))), Effect::Nothing, 1);
        }
    }

    /// Returns whether the peer has other memory than the first ring's, and could be asked.
    pub fn keeps_memory(&self) -> bool {
        self.setup.small && !self.shutdown && !self.ended && self.receiver.uses_others()
    }

    /// Answers the peer, if a control message can be sent.
    pub(super) fn answer_recall(&mut self) {
        if !self.sender.has_control() || self.shutdown {
            return;
        }
        let Some(messages) = self.recall.take() else { return };
        self.use_next_target();
        let moves = self.sender.may_return(messages, self.first_target) && self.announced > 0;
        if !moves {
            self.kept += 1;
            return self.control(Some(Message::Control(Control::Kept)), Effect::Nothing, 1);
        }
        self.control(Some(Message::Control(Control::Recalled)), Effect::Nothing, 1);
        self.take_entry();
        self.sender.return_to(self.first_target);
        self.moved += 1;
    }

    /// The peer continues in the first buffer. The other memory is freed.
    pub(super) fn recalled(&mut self) -> Result<(), Violation> {
        let ring = self.receiver.recalled(self.setup.ring)?;
        self.first_ring = Some(ring);
        (self.unannounced, self.unread) = (self.first_parts(), self.first_parts());
        self.memory[..FIRST].iter_mut().for_each(Vec::clear);
        self.changes += 1;
        Ok(())
    }
}
