//! The CQs of a connection while threads poll them without the stream's lock
//! ([`polling`](super::super::polling)).

use super::{Batch, Connection, Outcome};
use crate::errno::Result;
use crate::sys::rc::{Completion, CqHandle};

/// The receive CQ, and the send CQ if somebody needs its completions.
#[derive(Clone, Copy, Debug)]
pub struct Cqs {
    receive: CqHandle,
    send: Option<CqHandle>,
}

/// A completion that a thread has polled without the lock.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    Received(Completion),
    Sent(Completion),
}

impl Cqs {
    /// Polls until there is a completion.
    ///
    /// # Safety
    /// The CQs are live until this returns.
    #[inline]
    pub unsafe fn poll_one(&self) -> Result<Option<Found>> {
        // SAFETY: guaranteed by the caller.
        if let Some(found) = unsafe { self.receive.poll_one()? } {
            return Ok(Some(Found::Received(found)));
        }
        let Some(send) = self.send else { return Ok(None) };
        // SAFETY: as above.
        Ok(unsafe { send.poll_one()? }.map(Found::Sent))
    }
}

impl Connection {
    /// Returns the CQs as a thread polls them without the lock. Returns `None` if polling makes no
    /// sense any more.
    pub fn cqs_to_lend(&self) -> Option<Cqs> {
        if self.failed.is_some() || self.channel.device_gone {
            return None;
        }
        let send = self.needs_send_completions().then(|| self.send.cq.handle());
        Some(Cqs { receive: self.receive.cq().handle(), send })
    }

    /// As [`poll_recv_cq`](Self::poll_recv_cq), after a completion that a thread has polled without
    /// the lock.
    #[cold]
    pub fn poll_after(&mut self, found: Found, batch: &mut Batch) -> usize {
        match found {
            Found::Received(found) => self.poll_recv_cq_after(found, batch),
            Found::Sent(found) => {
                self.process_found(&found);
                self.poll_recv_cq(batch)
            }
        }
    }

    /// Ends a lease in the middle of a call. Returns false if the send CQ must not be polled: a
    /// thread polls it, and takes the lock when it has found something.
    #[cold]
    #[inline(never)]
    pub(super) fn end_lease(&mut self) -> bool {
        if !self.channel.lending.end() {
            return false;
        }
        // It comes before those that are in the CQ. A message waits for the next `process`.
        if let Some(Found::Sent(found)) = self.channel.lending.take_if(|found| matches!(found, Found::Sent(_))) {
            self.process_found(&found);
        }
        true
    }

    /// Processes a completion of the send CQ; the next [`process`](Self::process) notifies the waiters.
    fn process_found(&mut self, found: &Completion) {
        let mut outcome = Outcome { could_send: Some(self.can_send()), any: true, ..Outcome::default() };
        self.send_completed(found.wc(), &mut outcome);
        self.send.drop_old_buffer(&mut self.postponed);
        self.notify_later(outcome);
    }
}
