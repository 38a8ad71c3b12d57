//! Completions of both CQs: the peer's messages, and this side's sends. This module also sends the
//! messages without stream data: shutdown, keepalive, credit updates, and entries of the peer's
//! iomap.

use std::mem::MaybeUninit;

use super::{BATCH, Batch, CONTROL_DATA, Connection, IMM_LEN, NEW_BATCH, Outcome, REPOST, SGL, Watch};
use crate::diag::Cause;
use crate::errno::{Errno, Result};
use crate::rsocket::flow::{CreditUpdate, Reasons, Violation};
use crate::rsocket::wire::{self, Control, IOMAP_ENTRY, Mapping, Message, Region, SGL_ENTRY};
use crate::verbs::ibv_wc_status;
use crate::verbs::rc::{Opcode, RECV_WR_ID_FLAG, SendWr, Sge, ibv_wc};

impl Connection {
    /// Polls the receive CQ into `batch`, for [`process`](Self::process). Returns the number of
    /// completions; 0 if polling fails, which ends the connection.
    #[inline]
    pub fn poll_recv_cq(&mut self, batch: &mut Batch) -> usize {
        match self.receive.cq.poll(batch) {
            Ok(polled) => polled.len(),
            Err(error) => {
                self.fail(error);
                0
            }
        }
    }

    /// Fast path of [`process`](Self::process) for a batch of one completion: takes a data message
    /// that requires no other action. In all other cases does nothing, and returns false.
    #[inline(always)] // see rsocket::calls
    pub fn take_plain(&mut self, batch: &Batch) -> bool {
        // SAFETY: the caller has polled one completion, so the provider has initialised the entry.
        let wc = unsafe { batch[0].assume_init_ref() };
        let is_usual = wc.is_valid() && !self.receive_ended && self.failed.is_none();
        let Some(imm) = self.imm_of(wc).filter(|_| is_usual) else { return false };
        // A repost that is due next also excludes the last posted receive, whose use ends the
        // connection on iWARP.
        if self.needs_send_completions() || self.receive.idle + 1 >= REPOST || !self.receive.flow.take_plain(imm) {
            return false;
        }
        self.receive.used();
        if let Some(counters) = self.counters() {
            counters.count_received(imm);
        }
        true
    }

    /// Processes the first `completed` completions of the batch, then all further ones of the
    /// receive CQ, and those of the send CQ if a waiter needs them. Returns their combined effect.
    pub fn process(&mut self, batch: &mut Batch, mut completed: usize) -> Outcome {
        let mut outcome = Outcome::default();
        if self.send.flow.take_reason(Reasons::NOTIFY) || completed > 0 {
            outcome.add(Outcome::ANY);
        }
        loop {
            // Also process receives after a send has failed: messages may have arrived before the
            // failure.
            if self.receive_ended || !self.process_receives(&batch[..completed], &mut outcome) || completed < BATCH {
                break;
            }
            completed = self.poll_recv_cq(batch);
        }
        self.repost();
        if self.needs_send_completions() {
            self.process_send_cq(&mut outcome);
            self.send_held_after_others();
            self.send_credit_updates();
        } else if self.receive.flow.wants_update_after_message() {
            self.send_credit_updates_now();
        }
        self.use_next_target();
        outcome
    }

    /// Posts the completed receives again, if there are enough of them.
    #[inline]
    fn repost(&mut self) {
        if self.receive.idle >= REPOST
            && self.failed.is_none()
            && let Err(error) = self.receive.post_receives(&self.qp)
        {
            self.fail(error);
        }
    }

    /// Processes receive completions. Returns false if reception has ended: the remaining
    /// completions are ignored.
    #[inline]
    fn process_receives(&mut self, completed: &[MaybeUninit<ibv_wc>], outcome: &mut Outcome) -> bool {
        let iwarp = self.qp.is_iwarp();
        for wc in completed {
            // SAFETY: `CompletionQueue::poll` has filled these entries.
            let wc = unsafe { wc.assume_init_ref() };
            if !wc.is_valid() {
                self.receive_ended = true;
                // The cause may be in a completion of the send CQ.
                self.process_send_cq(outcome);
                self.note_failure(wc);
                return false;
            }
            let Some(imm) = self.imm_of(wc) else { return self.violated() };
            let was_last = self.receive.used();
            // A peer that uses the last receive exceeds its credits. On iWARP its next message
            // would find no receive and end the connection, and soft-iWARP does not complete
            // receives that are posted after that: this CQ would raise no event.
            if self.process_message(imm, outcome).is_err() || iwarp && was_last {
                return self.violated();
            }
        }
        true
    }

    /// Returns the immediate data of a received message; `None` if the message is not part of the
    /// protocol.
    #[inline]
    fn imm_of(&self, wc: &ibv_wc) -> Option<u32> {
        let content = || self.receive.imm((wc.wr_id() & !RECV_WR_ID_FLAG) as u32);
        message_of(wc.imm_data(), self.qp.is_iwarp(), wc.len(), content)
    }

    #[inline]
    fn process_message(&mut self, imm: u32, outcome: &mut Outcome) -> std::result::Result<(), Violation> {
        match Message::parse(imm).ok_or(Violation)? {
            Message::Data(len) => {
                self.receive.flow.data(len)?;
                if let Some(counters) = self.counters() {
                    counters.count_received(len);
                }
            }
            Message::CreditUpdate(limit) => {
                self.send.flow.credit_update_received(limit)?;
                self.send.targets = self.receive.written_targets(self.send.target_entry);
                self.publish();
            }
            Message::Iomap(index) => {
                self.receive.flow.message()?;
                if index >= self.receive.iomap {
                    return Err(Violation);
                }
            }
            Message::Control(Control::Disconnect) => outcome.add(Outcome::DISCONNECT),
            Message::Control(Control::Shutdown) => outcome.add(Outcome::EOF),
            Message::Control(Control::Keepalive) => {}
        }
        Ok(())
    }

    /// Fails the connection after a protocol violation by the peer. Returns false.
    #[cold]
    fn violated(&mut self) -> bool {
        self.log_first(Errno::ECONNABORTED, Cause::BadMessage);
        self.fail(Errno::ECONNABORTED);
        self.receive_ended = true;
        false
    }

    /// Logs a failure if it is the first one of the connection.
    #[cold]
    fn log_first(&self, error: Errno, cause: Cause) {
        if self.failed.is_none() {
            self.qp.log(error, cause);
        }
    }

    #[cold]
    fn note_failure(&mut self, wc: &ibv_wc) {
        if let Some((status, _)) = wc.error() {
            // If the first failure is a flushed work request, the connection was disconnected: log
            // nothing.
            if status != ibv_wc_status::IBV_WC_WR_FLUSH_ERR {
                self.log_first(errno_of(status), Cause::Completion(status));
            }
            self.fail(errno_of(status));
        }
    }

    /// Returns whether completions have to be processed even if the receive CQ is empty.
    #[inline(always)] // rpoll comes here for each descriptor
    pub fn needs_attention(&self) -> bool {
        // Whether the peer's next message is noticed even if the program makes no call.
        let is_watched = || self.channel.leadership.armed && self.channel.watch != Watch::None;
        self.needs_send_completions() || !is_watched() && self.is_starting()
    }

    /// Returns whether a waiter needs the completions of the send CQ.
    #[inline]
    pub fn needs_send_completions(&self) -> bool {
        self.send.flow.needs_completions()
    }

    /// Processes the completions of the send CQ.
    fn process_send_cq(&mut self, outcome: &mut Outcome) {
        let mut batch = NEW_BATCH;
        loop {
            let completed = match self.send.cq.poll(&mut batch) {
                Ok([]) => break,
                Ok(completed) => completed,
                Err(error) => return self.fail(error),
            };
            outcome.add(Outcome::ANY);
            for wc in completed {
                if wc.is_valid() {
                    self.send.flow.completed(wc.wr_id());
                } else {
                    self.note_failure(wc);
                }
            }
            if completed.len() < BATCH {
                break;
            }
        }
        self.send.drop_old_buffer();
        self.publish();
    }

    /// Polls the send CQ in the middle of a call. The next [`process`](Self::process) notifies the
    /// waiters.
    pub(super) fn reap_send_cq(&mut self) {
        let mut outcome = Outcome::default();
        self.process_send_cq(&mut outcome);
        if outcome.has(Outcome::ANY) {
            self.send.flow.set_reason(Reasons::NOTIFY, true);
        }
    }

    /// Switches to the peer's next buffer if the current one is full and the peer has advertised
    /// another.
    #[inline]
    pub(super) fn use_next_target(&mut self) {
        if self.send.flow.needs_target() && self.send.targets > 0 {
            self.use_next_target_now();
        }
    }

    #[inline(never)]
    fn use_next_target_now(&mut self) {
        if let Some(target) = self.take_target() {
            self.send.flow.use_next_target(target);
        }
    }

    /// Takes the next buffer that the peer has advertised, if there is one.
    pub(super) fn take_target(&mut self) -> Option<Region> {
        self.send.targets = self.send.targets.checked_sub(1)?;
        let target = self.receive.take_target(self.send.target_entry)?;
        self.send.target_entry = 1 - self.send.target_entry;
        Some(target)
    }
}

/// Returns the immediate data of a received message: `imm` if the completion has it, otherwise, on
/// iWARP, the content of the message. Returns `None` for a message that is not part of the
/// protocol.
#[inline]
fn message_of(imm: Option<u32>, iwarp: bool, len: usize, content: impl FnOnce() -> u32) -> Option<u32> {
    if !iwarp {
        return imm.map(u32::from_be);
    }
    (len == IMM_LEN).then(|| imm.map_or_else(content, u32::from_be))
}

/// Returns the errno that a program gets for a failed work request.
fn errno_of(status: ibv_wc_status::Type) -> Errno {
    match status {
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR | ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => Errno::ETIMEDOUT,
        // Any other failure means that the connection has ended.
        _ => Errno::ECONNRESET,
    }
}

impl Connection {
    /// Sends a control message after held data. Fails with `EAGAIN` if no control message can be
    /// sent now.
    pub fn control(&mut self, control: Control) -> Result<()> {
        self.send_held();
        if !self.has_control() {
            return Err(Errno::EAGAIN);
        }
        self.send_control(Message::Control(control), &[], 0)
    }

    /// Returns whether a control message can be sent. Returns false while a thread sends unlocked.
    pub(super) fn has_control(&mut self) -> bool {
        if !self.send.flow.has_control() {
            self.reap_send_cq();
        }
        self.send.flow.has_control() && !self.is_sending_unlocked()
    }

    /// Writes `bytes`, at most `CONTROL_DATA`, to the peer's memory at `addr`, and sends a control
    /// message.
    pub(super) fn send_control(&mut self, message: Message, bytes: &[u8], addr: u64) -> Result<()> {
        debug_assert!(bytes.len() <= CONTROL_DATA);
        let requests = if self.qp.is_iwarp() && !bytes.is_empty() { 2 } else { 1 };
        let wr_id = self.send.flow.take_control(requests);
        let sg_list = self.send.control_data.fill(bytes);
        let rkey = if bytes.is_empty() { 0 } else { self.peer.target_sgl.rkey };
        let opcode = Opcode::WriteImm(message.word());
        self.qp.send_queue().post(SendWr { wr_id, opcode, addr, rkey, sg_list, inline: false, signaled: true })
    }

    /// Posts a write without bytes. Its completion shows whether the peer still answers.
    pub fn keep_alive(&mut self) -> Result<()> {
        if !self.has_control() {
            // Messages that are outstanding or being sent unlocked show whether the peer answers,
            // too.
            return Ok(());
        }
        self.post_empty(Opcode::Write)
    }

    /// Posts a work request without bytes.
    pub(super) fn post_empty(&mut self, opcode: Opcode) -> Result<()> {
        let wr_id = self.send.flow.take_control(1);
        let sg_list = [Sge::default(); 2];
        self.qp.send_queue().post(SendWr { wr_id, opcode, addr: 0, rkey: 0, sg_list, inline: false, signaled: true })
    }

    /// Sends the credit updates that are due.
    #[inline]
    pub(super) fn send_credit_updates(&mut self) {
        if self.receive.flow.wants_credit_update() {
            self.send_credit_updates_now();
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn send_credit_updates_now(&mut self) {
        while self.failed.is_none() && self.receive.flow.wants_credit_update() && self.has_control() {
            self.receive.resize(&self.qp);
            let Some(update) = self.receive.flow.next_credit_update() else { break };
            // Post the receives before granting credits for them.
            let posted = self.receive.post_receives(&self.qp);
            match posted.and_then(|()| self.send_credit_update(&update)) {
                Ok(()) => self.receive.flow.credit_update_sent(&update),
                Err(error) => self.fail(error),
            }
        }
        self.publish();
    }

    fn send_credit_update(&mut self, update: &CreditUpdate) -> Result<()> {
        let message = Message::CreditUpdate(update.limit);
        let Some(buffer) = update.buffer else { return self.send_control(message, &[], 0) };
        let region = self.receive.rings.memory(buffer.ring).region(buffer.offset, buffer.len);
        let bytes = wire::emit_sgl(region, self.peer.is_swapped());
        self.send_control(message, &bytes, self.peer.target_sgl.addr + (buffer.sgl_entry * SGL_ENTRY) as u64)
    }

    /// Writes `mapping` into entry `index` of the peer's iomap. Returns false if the caller has to
    /// wait for credits or space. `index` is less than the number of its entries. A failure
    /// ends the connection.
    pub fn advertise_mapping(&mut self, index: u16, mapping: Mapping) -> Result<bool> {
        debug_assert!(index < self.peer.iomap_size, "the write would hit other memory of the peer");
        // Mappings and data share the last credits: send held data now, and never hold data again.
        self.send_held();
        self.send.flow.hold_nothing();
        let Some((offset, (wr_id, signaled))) = self.send.flow.take_update(IOMAP_ENTRY as u32) else {
            return Ok(false);
        };
        let sg_list = self.send.buffer.fill(&wire::emit_iomap(mapping, self.peer.is_swapped())[..], offset);
        let addr = self.peer.target_sgl.addr + (SGL * SGL_ENTRY + usize::from(index) * IOMAP_ENTRY) as u64;
        let (rkey, opcode) = (self.peer.target_sgl.rkey, Opcode::WriteImm(Message::Iomap(index).word()));
        self.post(SendWr { wr_id, opcode, addr, rkey, sg_list, inline: false, signaled })?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_immediate_data() {
        let imm = Some(0x0102_0304_u32.to_be());
        for (imm, iwarp, len, message) in [
            (imm, false, 0, Some(0x0102_0304)),
            (imm, false, 1000, Some(0x0102_0304)),
            // A SEND.
            (None, false, IMM_LEN, None),
            (None, true, IMM_LEN, Some(0x77)),
            (None, true, IMM_LEN - 1, None),
            (None, true, IMM_LEN + 1, None),
            (imm, true, IMM_LEN, Some(0x0102_0304)),
            (imm, true, 0, None),
        ] {
            assert_eq!(message_of(imm, iwarp, len, || 0x77), message, "iWARP: {iwarp}, length {len}");
        }
    }

    #[test]
    fn errors_of_completions() {
        use ibv_wc_status::*;
        for status in [IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR] {
            assert_eq!(errno_of(status), Errno::ETIMEDOUT);
        }
        for status in [IBV_WC_WR_FLUSH_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_LEN_ERR, IBV_WC_GENERAL_ERR] {
            assert_eq!(errno_of(status), Errno::ECONNRESET);
        }
    }
}
