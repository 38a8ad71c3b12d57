//! Messages without stream data: shutdown, keepalive, credit updates, and entries of the peer's
//! iomap.

use std::ptr;

use super::post::{RdmaWrite, inline_sge};
use super::{CONTROL_DATA, Connection, SGL};
use crate::errno::{Errno, Result};
use crate::rsocket::flow::CreditUpdate;
use crate::rsocket::wire::{self, Control, IOMAP_ENTRY, Mapping, Message, SGL_ENTRY};
use crate::sys::rc::Sge;

impl Connection {
    /// Sends a control message. Fails with `EAGAIN` while all reserved ones are outstanding.
    pub fn control(&mut self, control: Control) -> Result<()> {
        self.send_held();
        if !self.has_control() {
            return Err(Errno::EAGAIN);
        }
        self.send_control(Message::Control(control), &[], 0)
    }

    /// Returns whether a control message can be sent.
    pub(super) fn has_control(&mut self) -> bool {
        if !self.send.flow.has_control() {
            self.reap_send_cq();
        }
        self.send.flow.has_control()
    }

    /// Sends a message with at most `CONTROL_DATA` bytes for the peer's memory at `addr`.
    pub(super) fn send_control(&mut self, message: Message, bytes: &[u8], addr: u64) -> Result<()> {
        debug_assert!(bytes.len() <= CONTROL_DATA);
        let requests = if self.qp.is_iwarp() && !bytes.is_empty() { 2 } else { 1 };
        let wr_id = self.send.flow.take_control(requests);
        let (sg_list, inline) = self.stage(bytes);
        let rkey = self.send.peer.rkey;
        self.post_or_collect(RdmaWrite {
            message: Some(message),
            sg_list,
            source: None,
            inline,
            addr,
            rkey,
            wr_id,
            signaled: true,
        })
    }

    /// Returns the scatter/gather list of `bytes` and whether they go inline; otherwise copies them
    /// into registered memory.
    fn stage(&mut self, bytes: &[u8]) -> ([Sge; 2], bool) {
        if bytes.len() as u32 <= self.qp.can_inline() && !self.outbox.is_open() {
            return (inline_sge(bytes), true);
        }
        let (start, lkey) = self.send.control_data.next();
        // SAFETY: the slot has `CONTROL_DATA` bytes. No outstanding message uses it: there are at
        // most as many outstanding messages as slots, and they complete in order.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start.as_ptr(), bytes.len()) };
        ([Sge { addr: start.as_ptr() as usize as u64, len: bytes.len() as u32, lkey }, Sge::default()], false)
    }

    /// Posts a write without bytes. Its completion shows whether the peer still answers.
    pub fn keep_alive(&mut self) -> Result<()> {
        if !self.has_control() {
            // The completions of the outstanding messages show that, too.
            return Ok(());
        }
        let wr_id = self.send.flow.take_control(1);
        let sg_list = [Sge::default(); 2];
        let write =
            RdmaWrite { message: None, sg_list, source: None, inline: false, addr: 0, rkey: 0, wr_id, signaled: true };
        self.post_or_collect(write)
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
    fn send_credit_updates_now(&mut self) {
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
        let bytes = wire::emit_sgl(region, self.send.peer.swap);
        self.send_control(message, &bytes, self.send.peer.sgl + (buffer.sgl_entry * SGL_ENTRY) as u64)
    }

    /// Returns the number of entries of the peer's iomap.
    pub fn peer_iomap(&self) -> u16 {
        self.send.peer.iomap
    }

    /// Writes `mapping` into entry `index` of the peer's iomap. Returns false if the caller has to
    /// wait for credits or space.
    pub fn advertise_mapping(&mut self, index: u16, mapping: Mapping) -> Result<bool> {
        if index >= self.send.peer.iomap {
            // Other memory of the peer follows its iomap.
            return Err(Errno::ENOMEM);
        }
        // Mappings and data share the last credits, so the data must not be late.
        self.send_held();
        self.send.flow.hold_nothing();
        let inline = IOMAP_ENTRY as u32 <= self.qp.can_inline() && !self.outbox.is_open();
        let space = if inline { 0 } else { IOMAP_ENTRY as u32 };
        let Some(offset) = self.send.flow.plan_update(space) else { return Ok(false) };
        let bytes = wire::emit_iomap(mapping, self.send.peer.swap);
        let sg_list = if inline { inline_sge(&bytes) } else { self.send.buffer.fill(&self.qp, &bytes[..], offset)? };
        let (wr_id, signaled) = self.send.flow.take_update(space);
        let addr = self.send.peer.sgl + (SGL * SGL_ENTRY + usize::from(index) * IOMAP_ENTRY) as u64;
        let rkey = self.send.peer.rkey;
        let message = Some(Message::Iomap(index));
        self.post(RdmaWrite { message, sg_list, source: None, inline, addr, rkey, wr_id, signaled })?;
        Ok(true)
    }
}
