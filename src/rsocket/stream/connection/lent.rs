//! The CQs of a connection while threads poll them without the stream's lock
//! ([`polling`](super::super::polling)).

use super::super::polling::Found;
use super::{Batch, Connection, Outcome};
use crate::sys::rc::{Completion, CqHandles};

impl Connection {
    /// Returns the CQs as a thread polls them without the lock. Returns `None` if polling makes no
    /// sense any more.
    pub fn cqs_to_lend(&self) -> Option<CqHandles> {
        if self.failed.is_some() || self.channel.device_gone {
            return None;
        }
        let send = self.needs_send_completions().then(|| self.send.cq.handle());
        Some(CqHandles { receive: self.receive.cq().handle(), send })
    }

    /// As [`poll_recv_cq`](Self::poll_recv_cq), after completions that threads have polled without
    /// the lock.
    #[cold]
    #[inline(never)]
    pub fn poll_after(&mut self, found: &Found<Completion>, batch: &mut Batch) -> usize {
        if let Some(sent) = &found.sent {
            self.process_found(sent);
        }
        match found.received {
            Some(received) => self.poll_recv_cq_after(received, batch),
            None => self.poll_recv_cq(batch),
        }
    }

    /// Ends the lease of the send CQ in the middle of a call. Returns false if it must not be
    /// polled: a thread polls it, and takes the lock when it has found something.
    #[cold]
    #[inline(never)]
    pub(super) fn end_send_lease(&mut self) -> bool {
        let ended = self.channel.lending.end_send();
        // It comes before those that are in the CQ.
        if let Some(Some(found)) = ended {
            self.process_found(&found);
        }
        ended.is_some()
    }

    /// Processes a completion of the send CQ; the next [`process`](Self::process) notifies the waiters.
    fn process_found(&mut self, found: &Completion) {
        let mut outcome = Outcome { could_send: Some(self.can_send()), any: true, ..Outcome::default() };
        self.send_completed(found.wc(), &mut outcome);
        self.send.drop_old_buffer();
        self.notify_later(outcome);
    }
}
