//! Allocating and freeing memory that a call leaves to the reactor's thread.
//!
//! A signal handler may call rsend, rrecv and rpoll, and may have interrupted malloc(3), which
//! libibverbs calls for each memory region. In a thread that may be running a handler
//! ([`signals::may_be_in_handler`]), a call therefore does without another buffer for now, and the
//! reactor provides it. What a message cannot do without is allocated at once.

use super::Connection;
use super::hold::HOLD_BUFFER;
use crate::rsocket::flow::Resize;
use crate::rsocket::reactor::{self, Key};
use crate::sys::signals;

/// What the reactor has to do.
#[derive(Debug, Default)]
pub(super) struct Postponed {
    /// The stream's registration with the reactor.
    key: Option<Key>,
    /// Allocate a send buffer for held messages.
    pub hold_buffer: bool,
    /// Give the send buffer another size.
    pub send_buffer: Option<Resize>,
    /// Allocate memory for writes that are posted without the lock.
    pub outbox: bool,
}

impl Postponed {
    /// Returns whether the calling thread must neither allocate nor free memory: the reactor will.
    #[cold]
    #[inline(never)]
    pub fn begin(&mut self) -> bool {
        self.key.is_some_and(|key| signals::may_be_in_handler() && reactor::call_soon(key))
    }
}

impl Connection {
    /// Sets the stream's registration with the reactor.
    pub fn set_key(&mut self, key: Option<Key>) {
        self.postponed.key = key;
    }

    /// Does what calls have postponed, in the reactor's thread.
    pub fn catch_up(&mut self) {
        if self.failed.is_some() {
            return;
        }
        let Postponed { key, hold_buffer, send_buffer, outbox } = std::mem::take(&mut self.postponed);
        self.postponed.key = key;
        if hold_buffer && self.send.buffer.is_missing() {
            self.send.provide_buffer(&self.qp, HOLD_BUFFER);
        }
        match send_buffer {
            Some(Resize::Grow) => self.send.grow_buffer(&self.qp, &mut self.postponed),
            Some(Resize::Shrink) => self.send.shrink_buffer(&self.qp, &mut self.postponed),
            Some(Resize::Keep) | None => {}
        }
        if outbox {
            // Without memory the next call posts with the lock.
            let _ = self.outbox.reserve(self.send.flow.max_outstanding());
        }
        self.send.drop_old_buffer(&mut self.postponed);
        self.receive.rings.free_released();
        self.send_credit_updates();
    }
}
