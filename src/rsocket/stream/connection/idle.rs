//! Returning the memory of a connection that has become idle: it needs no more than a new one.
//!
//! The send buffer is freed when everything that was sent has arrived. Most sends are not signaled,
//! so a write without bytes may have to follow them. The receive rings are freed when the peer has
//! moved to the first one, which it is asked for (`flow/receive/recall.rs`). The reference ignores
//! this message; it is sent only to peers whose first buffer is as small as that of this library.
//!
//! The reactor examines the connection after a pause whenever it has got memory, until it is idle.
//! If the peer may still have to answer or to ask, the reactor then waits for its next message.

use std::time::Duration;

use super::{Connection, FIRST_RING, Watch};
use crate::rsocket::flow::Violation;
use crate::rsocket::wire::{Control, Message};

/// The pause doubles while the connection is in use, and while it has unread data.
const PAUSES_IN_USE: u32 = 1;
const PAUSES_UNREAD: u32 = 5;

/// What has been sent and received, but for control messages: it does not change while a connection
/// is idle.
type Progress = (u64, u16);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Idle {
    /// The progress when the reactor looked last, and how often the pause was doubled since then.
    seen: Progress,
    pauses: u32,
    /// The number of messages in the peer's RECALL, which was not answered.
    asked: Option<u16>,
    /// The connection is idle, and the reactor waits for the peer's next message.
    awaits_message: bool,
    /// Either of these is the case: the cheap test after each message.
    is_attentive: bool,
    /// DISCONNECT was sent or received: nothing may follow it. On iWARP the QP may not take it.
    is_over: bool,
}

/// What the reactor does next about a connection.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Examines it again after a pause, doubled so many times.
    Later(u32),
    /// Waits for the peer's next message.
    Watch,
    /// The connection needs no more memory than a new one.
    Nothing,
}

impl Idle {
    fn update(&mut self) {
        self.is_attentive = self.awaits_message || self.asked.is_some();
    }

    #[inline]
    pub fn needs_attention(&self) -> bool {
        self.is_attentive
    }
}

impl Connection {
    /// The time of [`check_later`](super::Postponed::check_later) has come.
    /// Returns the pause after which the reactor has to call this again. It sets the timer without the
    /// stream's lock.
    pub fn check(&mut self) -> Option<Duration> {
        let next = self.next_step();
        self.idle.awaits_message = next == Next::Watch;
        self.idle.update();
        self.publish();
        self.postponed.checked(if let Next::Later(doublings) = next { Some(doublings) } else { None })
    }

    /// The reactor does not watch although [`check`](Self::check) requires it.
    pub fn check_again(&mut self) -> Option<Duration> {
        self.postponed.checked(Some(0))
    }

    fn next_step(&mut self) -> Next {
        if self.failed.is_some() || self.idle.is_over {
            return Next::Nothing;
        }
        self.answer_recall();
        if self.leaves_garbage() || self.idle.asked.is_some() {
            return Next::Later(0);
        }
        let awaits_peer = self.may_recall() && (self.receive.rings.has_grown() || self.has_left_first_buffer());
        if self.send.buffer.is_missing() && !awaits_peer && !self.postponed.has_ready() {
            return Next::Nothing;
        }
        let progress = self.progress();
        let is_in_use = std::mem::replace(&mut self.idle.seen, progress) != progress;
        if is_in_use || self.available() > 0 || self.has_held() || self.is_flush_awaited() {
            return self.later(if is_in_use { PAUSES_IN_USE } else { PAUSES_UNREAD });
        }
        // A ring that was read to its end may still be the present one.
        self.take(0);
        let has_asked = self.recall_rings();
        self.postponed.retire();
        let has_returned = self.return_send_buffer();
        self.idle.pauses = 0;
        if !has_returned || !has_asked || self.leaves_garbage() {
            Next::Later(0)
        } else if awaits_peer {
            Next::Watch
        } else {
            Next::Nothing
        }
    }

    fn later(&mut self, most: u32) -> Next {
        let doublings = self.idle.pauses.min(most);
        self.idle.pauses = doublings + 1;
        Next::Later(doublings)
    }

    fn progress(&self) -> Progress {
        (self.send.flow.posted(), self.receive.flow.messages())
    }

    /// Calls the reactor if there is memory to free. Returns whether it cannot be called now.
    fn leaves_garbage(&self) -> bool {
        let has_garbage =
            self.receive.rings.has_released() || self.send.buffer.has_old() || self.postponed.is_retired();
        has_garbage && !self.postponed.call_now()
    }

    /// Returns whether the peer's first buffer looks like that of this library.
    fn may_recall(&self) -> bool {
        self.send.peer.first.length as usize == FIRST_RING
    }

    fn has_left_first_buffer(&self) -> bool {
        self.send.flow.has_left(self.send.peer.first)
    }

    /// Asks the peer to continue in the first ring, if this side uses others. Returns false if that
    /// has to wait.
    fn recall_rings(&mut self) -> bool {
        if !self.may_recall() || !self.receive.rings.has_grown() || self.receive.flow.was_asked() {
            return true;
        }
        if !self.has_control() {
            return false;
        }
        let Some(messages) = self.receive.flow.recall() else { return false };
        self.send_or_fail(Control::Recall(messages));
        true
    }

    /// Frees the send buffer. Returns false if that has to wait for what was sent.
    fn return_send_buffer(&mut self) -> bool {
        if self.send.buffer.is_missing() {
            return true;
        }
        self.reap_send_cq();
        if self.send.retire_buffer() {
            return true;
        }
        if self.send.flow.has_unsignaled()
            && let Err(error) = self.keep_alive()
        {
            self.fail(error);
        }
        false
    }

    fn send_or_fail(&mut self, control: Control) {
        if let Err(error) = self.send_control(Message::Control(control), &[], 0) {
            self.fail(error);
        }
    }

    /// DISCONNECT was sent or received.
    pub(super) fn is_over(&mut self) {
        self.idle.is_over = true;
    }

    /// The peer asks this side to continue in the peer's first buffer if it has sent exactly
    /// `messages` messages.
    pub(super) fn recall_received(&mut self, messages: u16) {
        // A peer that does not wait for the answer gets one only.
        self.idle.asked = Some(messages);
        self.idle.update();
    }

    /// After completions were processed, if there were `any`.
    #[cold]
    #[inline(never)]
    pub(super) fn attend_idle(&mut self, any: bool) {
        if any {
            self.message_noticed();
        }
        self.answer_recall();
    }

    /// Answers the peer's RECALL, as soon as a message can be sent.
    fn answer_recall(&mut self) {
        let Some(messages) = self.idle.asked else { return };
        if self.failed.is_some() || self.idle.is_over {
            return;
        }
        if !self.has_control() {
            return self.postponed.check_later();
        }
        self.idle.asked = None;
        self.idle.update();
        self.use_next_target();
        // The peer has advertised one more buffer, which is discarded.
        let moves = self.send.flow.may_return(messages, self.send.peer.first) && self.take_target().is_some();
        self.send_or_fail(if moves { Control::Recalled } else { Control::Kept });
        if moves {
            self.send.flow.return_to(self.send.peer.first);
        }
    }

    /// The peer continues in the first ring.
    pub(super) fn recalled(&mut self) -> Result<(), Violation> {
        let ring = self.receive.flow.recalled(self.receive.rings.first_size())?;
        self.receive.rings.return_to_first(ring);
        if !self.postponed.call_now() {
            // The reactor is not called by each thread at any time, but comes.
            self.postponed.check_later();
        }
        Ok(())
    }

    /// Returns whether the connection is idle and the reactor waits for the peer's next message.
    #[inline]
    pub fn awaits_message(&self) -> bool {
        self.idle.awaits_message && self.failed.is_none()
    }

    /// Returns whether the connection is idle, and the reactor does not wait for the peer's next
    /// message.
    pub fn lacks_watch(&self) -> bool {
        self.awaits_message() && self.channel.watch == Watch::None
    }

    /// A message has arrived: the connection may be in use again.
    pub fn message_noticed(&mut self) {
        if self.idle.awaits_message {
            self.idle.awaits_message = !self.postponed.check_later_now();
            self.idle.update();
        }
    }
}
