//! Completions of both CQs: the peer's messages, and the ends of our own work requests.

use std::mem;

use super::{BATCH, Batch, Connection, IMM_LEN, News};
use crate::diag::Why;
use crate::errno::Errno;
use crate::rsocket::flow::Violation;
use crate::rsocket::wire::{Control, Message};
use crate::sys::rc::{RECV_WR_ID_FLAG, ibv_wc};
use crate::sys::verbs::ibv_wc_status;

impl Connection {
    /// Polls the receive CQ, for [`process`](Self::process). Returns the number of completions.
    #[inline]
    pub fn poll_recv_cq(&mut self, batch: &mut Batch) -> usize {
        match self.receive.poll_cq(batch) {
            Ok(completed) => completed,
            Err(error) => {
                self.fail(error);
                0
            }
        }
    }

    /// Processes the first `completed` completions of the batch and all that follow them, and those
    /// of the send CQ if a waiter needs them.
    pub fn process(&mut self, batch: &mut Batch, mut completed: usize) -> News {
        let mut news = News {
            any: completed > 0 || mem::take(&mut self.send.pending_notify),
            edge: mem::take(&mut self.send.pending_edge),
            ..News::default()
        };
        loop {
            for wc in &batch.0[..completed] {
                // SAFETY: the provider has initialised the first `completed` entries
                // (`CompletionQueue::poll`).
                self.process_receive(unsafe { wc.assume_init_ref() }, &mut news);
            }
            // After a failure the remaining completions are flushes and are left where they are.
            if completed < BATCH || self.failed.is_some() {
                break;
            }
            completed = self.poll_recv_cq(batch);
        }
        if self.needs_send_completions() {
            self.process_send_cq(&mut news);
        }
        if self.failed.is_none()
            && let Err(error) = self.receive.repost(&self.qp)
        {
            self.fail(error);
        }
        self.use_next_target();
        self.send_credit_updates();
        news.edge |= news.could_send == Some(false) && self.can_send();
        news
    }

    #[inline]
    fn process_receive(&mut self, wc: &ibv_wc, news: &mut News) {
        if !wc.is_valid() {
            self.receive_failed(wc, news);
            return;
        }
        if self.failed.is_some() {
            // A peer that broke the protocol is not trusted any more.
            return;
        }
        let iwarp = self.qp.is_iwarp();
        let slot = (wc.wr_id() & !RECV_WR_ID_FLAG) as u32;
        let imm = match wc.imm_data() {
            Some(imm) => u32::from_be(imm),
            None if iwarp => self.receive.imm(slot),
            // A SEND, which is not part of the protocol.
            None => return self.violated(news),
        };
        if iwarp && wc.len() != IMM_LEN {
            return self.violated(news);
        }
        // On iWARP a message without a receive ends the connection, and soft-iWARP completes
        // nothing that is posted after that: this CQ would stay silent.
        let was_last = self.receive.used(slot) && iwarp;
        if self.process_message(imm, news).is_err() || was_last {
            self.violated(news);
        }
    }

    #[inline]
    fn process_message(&mut self, imm: u32, news: &mut News) -> std::result::Result<(), Violation> {
        match Message::parse(imm).map_err(|_| Violation::BadMessage)? {
            Message::Data(len) => {
                self.receive.flow.data(len)?;
                news.edge = true;
            }
            Message::CreditUpdate(limit) => {
                news.could_send.get_or_insert(self.can_send());
                self.send.credit_update_received(limit)?;
            }
            Message::Iomap(index) => {
                self.receive.flow.message()?;
                if index >= self.receive.iomap() {
                    return Err(Violation::BadIndex);
                }
            }
            Message::Control(Control::Disconnect) => {
                (news.disconnect, news.edge) = (true, true);
            }
            Message::Control(Control::Shutdown) => {
                (news.end, news.edge) = (true, true);
            }
            Message::Control(Control::Keepalive) => {}
        }
        Ok(())
    }

    /// The peer broke the protocol.
    #[cold]
    fn violated(&mut self, news: &mut News) {
        self.log_first(Errno::ECONNABORTED, Why::BadMessage);
        self.fail(Errno::ECONNABORTED);
        news.edge = true;
    }

    #[cold]
    fn log_first(&self, error: Errno, why: Why) {
        if self.failed.is_none() {
            self.qp.log(error, why);
        }
    }

    #[cold]
    fn receive_failed(&mut self, wc: &ibv_wc, news: &mut News) {
        // The send CQ may hold the reason.
        self.process_send_cq(news);
        self.note_failure(wc, news);
    }

    fn note_failure(&mut self, wc: &ibv_wc, news: &mut News) {
        if let Some((status, _)) = wc.error() {
            // A flushed work request is the first failure only where the connection has simply
            // ended.
            if status != ibv_wc_status::IBV_WC_WR_FLUSH_ERR {
                self.log_first(errno_of(status), Why::Completion(status));
            }
            self.fail(errno_of(status));
            news.edge = true;
        }
    }

    /// Returns whether a waiter needs the completions of the send CQ.
    #[inline]
    pub fn needs_send_completions(&self) -> bool {
        self.send.needs_completions()
    }

    /// Polls the send CQ.
    fn process_send_cq(&mut self, news: &mut News) {
        let mut batch = Batch::new();
        loop {
            let completed = match self.send.cq.poll(&mut batch.0) {
                Ok([]) => break,
                Ok(completed) => completed,
                Err(error) => return self.fail(error),
            };
            news.any = true;
            news.could_send.get_or_insert(self.can_send());
            for wc in completed {
                if wc.is_valid() {
                    self.send.flow.completed(wc.wr_id());
                } else {
                    self.note_failure(wc, news);
                }
            }
            if completed.len() < BATCH {
                break;
            }
        }
        self.send.drop_old_buffer();
    }

    /// Polls the send CQ in the middle of a call; the next [`process`](Self::process) notifies the
    /// waiters.
    pub(super) fn reap_send_cq(&mut self) {
        let mut news = News::default();
        self.process_send_cq(&mut news);
        self.send.pending_notify |= news.any;
        self.send.pending_edge |= news.edge || (news.could_send == Some(false) && self.can_send());
    }

    /// Fills the peer's next buffer when the present one is full.
    #[inline]
    pub(super) fn use_next_target(&mut self) {
        if self.send.target_pending {
            self.take_target();
        }
    }

    #[inline(never)]
    fn take_target(&mut self) {
        if !self.send.flow.needs_target() {
            return;
        }
        self.send.target_pending = false;
        if let Some(target) = self.receive.take_target(self.send.target_entry) {
            self.send.flow.use_next_target(target);
            self.send.target_entry = 1 - self.send.target_entry;
            // The same batch may have filled the other entry.
            self.send.target_pending = true;
        }
    }
}

/// The errno that a failed work request means to a program.
fn errno_of(status: ibv_wc_status::Type) -> Errno {
    match status {
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR | ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => Errno::ETIMEDOUT,
        // The connection ended, by either side.
        _ => Errno::ECONNRESET,
    }
}
