//! Small messages that are held while earlier ones are on their way: see [`Sender::may_hold`].
//!
//! Held bytes lie in the send buffer and are no message yet. Everything that is sent after them,
//! and every call of the program that may wait, sends them first. Otherwise the completion of the
//! earlier messages does, which the leader or the reactor notices (`stream/held.rs`).
//!
//! [`Sender::may_hold`]: crate::rsocket::flow::Sender::may_hold

use super::Connection;
use super::gather::Source;
use crate::sys::event;

/// Bytes of the message for which the send buffer is allocated if small messages need it first.
const HOLD_BUFFER: usize = 1 << 16;

impl Connection {
    /// Sets TCP_NODELAY.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.send.flow.set_nodelay(nodelay);
    }

    /// A call of `thread` sends data.
    #[inline]
    pub fn sends_from(&mut self, thread: u64) {
        self.send.thread = thread;
    }

    /// A call of `thread` receives, or waits for data: if the same thread has sent, what is held is
    /// sent now, and what it sends next begins a new row. Returns whether this has sent something,
    /// or failed to.
    #[inline]
    pub fn turn_to_receive(&mut self, thread: u64) -> bool {
        if self.send.thread != thread {
            self.note_reader();
            return false;
        }
        self.send.is_shared = false;
        let had_held = self.has_held();
        if had_held {
            self.send_held_now();
        }
        self.send.flow.end_row();
        had_held
    }

    /// The thread that receives is not the one that has sent, if one has.
    #[inline(never)]
    fn note_reader(&mut self) {
        self.send.is_shared |= self.send.thread != 0 && event::cpus() > 1;
    }

    /// Returns whether data is held.
    #[inline]
    pub fn has_held(&self) -> bool {
        self.send.flow.held() > 0
    }

    /// Returns whether a message may have to be held, or sent after held ones.
    #[inline]
    pub fn is_in_row(&self) -> bool {
        self.send.flow.is_in_row()
    }

    /// Holds a message. Returns false if it has to be sent at once, after what is held.
    #[inline]
    pub fn hold<S: Source>(&mut self, data: S) -> bool {
        self.send.flow.may_hold(data.size()) && self.hold_now(data)
    }

    #[inline(never)]
    fn hold_now<S: Source>(&mut self, data: S) -> bool {
        if !self.send.flow.is_busy() {
            return false;
        }
        self.reap_send_cq();
        if !self.send.flow.is_busy() {
            if !self.has_held() {
                self.send.flow.looked_in_vain();
            }
            return false;
        }
        if self.send.buffer.is_missing() {
            self.send.provide_buffer(&self.qp, HOLD_BUFFER);
            if self.send.buffer.is_missing() {
                self.send.flow.looked_in_vain();
                return false;
            }
        }
        let Some(offset) = self.send.flow.plan_hold(data.size()) else { return false };
        // Without memory for the buffer the message is sent inline, or the call fails.
        if self.send.buffer.fill(&self.qp, data, offset).is_err() {
            self.send.flow.looked_in_vain();
            return false;
        }
        self.send.flow.hold(data.size() as u32);
        true
    }

    /// Sends what is held. The connection records a failure.
    #[inline]
    pub fn send_held(&mut self) {
        if self.has_held() {
            self.send_held_now();
        }
    }

    #[inline(never)]
    fn send_held_now(&mut self) {
        if self.failed.is_some() {
            return self.send.flow.drop_held();
        }
        let Some(chunk) = self.send.flow.plan_held() else { return };
        // The buffer exists, and has the same size as when the bytes were copied.
        let Ok(sg_list) = self.send.buffer.filled(&self.qp, chunk.offset, chunk.len) else { return };
        let request = self.send.flow.take_held(&chunk);
        let write = self.write_of(&chunk, sg_list, false, request);
        let _ = self.post(write);
        self.use_next_target();
    }

    /// Sends what is held if the messages before it have arrived.
    pub(super) fn send_held_after_others(&mut self) {
        if self.has_held() && (!self.send.flow.is_busy() || self.failed.is_some()) {
            self.send_held_now();
        }
    }

    /// Polls the send CQ. Returns whether what is held has to wait.
    pub fn must_hold(&mut self) -> bool {
        self.reap_send_cq();
        self.send.flow.is_busy() && self.failed.is_none()
    }
}
