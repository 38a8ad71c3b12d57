//! The QP and its work requests: one for each message, or two on iWARP, which has no RDMA write
//! with immediate data.
//!
//! [`Sizes`] are those of its queues and of inline data: as the program requests, within the limits
//! of the device.

use std::mem::zeroed;
use std::ops::Range;
use std::ptr::{self, NonNull};

use super::IMM_LEN;
use crate::cm::{self, Id, Limits};
use crate::diag::Cause;
use crate::errno::{Errno, Result};
use crate::ffi::rdma_cm_id;
use crate::rsocket::cm_id::CmId;
use crate::rsocket::flow::InlineRequest;
use crate::rsocket::stream::options::Options;
use crate::rsocket::wire::Message;
use crate::verbs::rc::{self, CompletionQueue, InlineWrite, Opcode, SendWr, Sge};
use crate::verbs::{self, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_type};

/// Soft-iWARP copies the data of unsignaled writes that are smaller than this.
const PAGE: u32 = 4096;
/// Soft-iWARP sends wrong bytes for a write in one piece that has no more than this, is not inline,
/// and crosses a page (docs/compatibility.md).
const MAX_UNSPLIT: u32 = 32;

/// An RDMA write into the peer's memory, with or without a message.
#[derive(Clone, Copy, Debug)]
pub struct RdmaWrite {
    pub message: Option<Message>,
    /// The bytes, in memory regions unless they go inline; both entries are empty for a message
    /// without bytes.
    pub sg_list: [Sge; 2],
    /// The program's bytes, which are copied before the write is posted, unless they are in place.
    pub source: Option<NonNull<u8>>,
    pub inline: bool,
    pub addr: u64,
    pub rkey: u32,
    /// The wr_id of the last work request.
    pub wr_id: u64,
    pub signaled: bool,
}

// SAFETY: a write that refers to the program's memory is collected and posted by one call, in its
// thread (`Connection::post_or_collect`). Others refer to registered memory only.
unsafe impl Send for RdmaWrite {}

impl RdmaWrite {
    /// Copies the bytes that are not in place yet.
    ///
    /// # Safety
    /// The source is readable, and no outstanding work request reads the destination.
    pub unsafe fn copy(&self) {
        let Some(mut from) = self.source else { return };
        for sge in &self.sg_list {
            let (into, len) = (ptr::with_exposed_provenance_mut(sge.addr as usize), sge.len as usize);
            // SAFETY: the list describes space of the send buffer. Both are valid for the length:
            // guaranteed by the caller.
            unsafe {
                ptr::copy_nonoverlapping(from.as_ptr(), into, len);
                from = from.add(len);
            }
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.sg_list[0].len == 0
    }

    #[inline]
    fn request(&self, opcode: Opcode, wr_id: u64, signaled: bool) -> SendWr {
        let (addr, rkey) = if self.is_empty() { (0, 0) } else { (self.addr, self.rkey) };
        SendWr { wr_id, opcode, addr, rkey, sg_list: self.sg_list, inline: self.inline, signaled }
    }

    /// Returns whether this is a message with bytes, as [`SendQueue::post_both`] posts them.
    pub fn has_message_with_bytes(&self) -> bool {
        self.message.is_some() && !self.is_empty()
    }

    /// Returns whether soft-iWARP needs the write to be signaled: it passes the pages of an
    /// unsignaled write to TCP, and completes the requests that follow before TCP has sent the
    /// pages, so the program could overwrite them. It copies signaled writes
    /// (docs/compatibility.md).
    fn must_be_signaled(&self) -> bool {
        self.sg_list[0].len + self.sg_list[1].len >= PAGE
    }

    /// Returns the bytes as two pieces if soft-iWARP needs that.
    fn split_sg_list(&self) -> [Sge; 2] {
        let [first, second] = self.sg_list;
        let left = PAGE - first.addr as u32 % PAGE;
        if self.inline || second.len > 0 || first.len > MAX_UNSPLIT || first.len <= left {
            return self.sg_list;
        }
        let rest = Sge { addr: first.addr + u64::from(left), len: first.len - left, ..first };
        [Sge { len: left, ..first }, rest]
    }

    /// Returns the write, without a message, as a work request for iWARP.
    fn iwarp_write(&self, wr_id: u64, signaled: bool) -> SendWr {
        let request = self.request(Opcode::Write, wr_id, signaled || self.must_be_signaled());
        SendWr { sg_list: self.split_sg_list(), ..request }
    }

    /// Returns the write as one work request, with the message, if any, as immediate data.
    #[inline]
    fn as_one(&self, iwarp: bool) -> SendWr {
        match self.message {
            Some(message) => self.request(Opcode::WriteImm(message.word().to_be()), self.wr_id, self.signaled),
            None if iwarp => self.iwarp_write(self.wr_id, self.signaled),
            None => self.request(Opcode::Write, self.wr_id, self.signaled),
        }
    }

    /// Returns the message as iWARP sends it, in a SEND.
    fn imm(&self) -> [u8; IMM_LEN] {
        self.message.map_or([0; IMM_LEN], |message| message.word().to_ne_bytes())
    }

    /// Returns the work requests for iWARP: the write, and a SEND of `imm`.
    fn as_two(&self, imm: &[u8; IMM_LEN]) -> [SendWr; 2] {
        let write = self.iwarp_write(self.wr_id - 1, false);
        let send = SendWr {
            wr_id: self.wr_id,
            opcode: Opcode::Send,
            addr: 0,
            rkey: 0,
            sg_list: inline_sge(imm),
            inline: true,
            signaled: self.signaled,
        };
        [write, send]
    }
}

/// Returns the scatter/gather list of bytes that go inline.
#[inline]
pub(super) fn inline_sge(bytes: &[u8]) -> [Sge; 2] {
    [Sge { addr: bytes.as_ptr() as usize as u64, len: bytes.len() as u32, lkey: 0 }, Sge::default()]
}

/// Returns whether the id's device is an iWARP adapter.
pub(super) fn is_iwarp(id: &CmId) -> bool {
    id.id().transport() == Some(verbs::IBV_TRANSPORT_IWARP)
}

/// The QP of an id.
#[derive(Debug)]
pub(super) struct QueuePair {
    /// The id outlives the QP.
    id: NonNull<rdma_cm_id>,
    queue: SendQueue,
}

// SAFETY: any thread may use an id and its QP, and the stream's lock lets one thread do so at a
// time.
unsafe impl Send for QueuePair {}

/// The send queue of a live QP.
#[derive(Clone, Copy, Debug)]
pub struct SendQueue {
    qp: NonNull<ibv_qp>,
    iwarp: bool,
    /// Number of bytes that the QP takes inline.
    can_inline: u32,
}

impl QueuePair {
    /// Creates the QP of `id` with a send and a receive CQ, and with the sizes of both queues. The
    /// QP takes `inline` bytes inline, or fewer if the device rejects that number.
    pub fn new(
        id: &CmId,
        pd: NonNull<ibv_pd>,
        cqs: [&CompletionQueue; 2],
        [sends, receives]: [u32; 2],
        inline: u16,
    ) -> Result<QueuePair> {
        let iwarp = is_iwarp(id);
        let min_inline = if iwarp { IMM_LEN as u32 } else { 0 };
        let mut inline = u32::from(inline).max(min_inline);
        loop {
            // SAFETY: all zeros are a valid value of this structure.
            let mut attr: ibv_qp_init_attr = unsafe { zeroed() };
            [attr.send_cq, attr.recv_cq] = cqs.map(CompletionQueue::cq);
            attr.qp_type = ibv_qp_type::IBV_QPT_RC;
            (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (sends, receives);
            (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (2, 1);
            attr.cap.max_inline_data = inline;
            // SAFETY: the owner of the result drops it before the CQs and the PD.
            match unsafe { id.create_qp(pd, &mut attr) } {
                Ok(()) => {
                    let qp = NonNull::new(id.qp()).ok_or(Errno::EIO)?;
                    let id = NonNull::new(id.id().as_c()).ok_or(Errno::EIO)?;
                    let queue = SendQueue { qp, iwarp, can_inline: attr.cap.max_inline_data };
                    return Ok(QueuePair { id, queue });
                }
                Err(error) => inline = less_inline(error, inline, min_inline).ok_or(error)?,
            }
        }
    }

    #[inline]
    pub fn is_iwarp(&self) -> bool {
        self.queue.iwarp
    }

    /// Returns the send queue, which is live until `self` is dropped.
    #[inline]
    pub fn send_queue(&self) -> SendQueue {
        self.queue
    }

    /// Returns the QP's number.
    pub fn number(&self) -> u32 {
        // SAFETY: the QP is live until `self` is dropped.
        unsafe { (*self.queue.qp.as_ptr()).qp_num }
    }

    /// Returns the number of bytes that the QP takes inline.
    pub fn can_inline(&self) -> u32 {
        self.queue.can_inline
    }

    /// Returns the PD of the QP.
    pub fn pd(&self) -> Result<NonNull<ibv_pd>> {
        // SAFETY: the QP is live until `self` is dropped.
        NonNull::new(unsafe { (*self.queue.qp.as_ptr()).pd }).ok_or(Errno::EIO)
    }

    /// Posts a receive for each of `slots`.
    ///
    /// # Safety
    /// The buffers that `buffer_of` returns lie in a memory region that outlives the receives, and
    /// only the device writes there.
    pub unsafe fn post_recv(&self, slots: Range<u32>, buffer_of: impl Fn(u32) -> Sge) -> Result<()> {
        // SAFETY: the QP is live; the caller guarantees the lifetime of the buffers.
        unsafe { rc::post_recv(self.queue.qp, slots, buffer_of) }
    }

    /// Posts `count` receives without memory.
    pub fn post_empty_recv(&self, count: u32) -> Result<()> {
        // SAFETY: the QP is live until `self` is dropped.
        unsafe { rc::post_empty_recv(self.queue.qp, count) }
    }

    /// Moves the QP to the error state: every work request completes with an error.
    pub fn move_to_error(&self) {
        // Fails for a QP that is in this state already, and after the removal of the device: no work
        // request is outstanding then.
        // SAFETY: the QP is live until `self` is dropped.
        let _ = unsafe { verbs::move_to_error(self.queue.qp) };
    }

    /// Logs a failure that no call reports at once.
    #[cold]
    pub fn log(&self, error: Errno, cause: Cause) {
        // SAFETY: the id outlives the QP.
        if let Ok(id) = unsafe { Id::from_c(self.id.as_ptr()) } {
            cm::log::background(id, error, cause);
        }
    }
}

impl SendQueue {
    /// Posts a write. A failure ends the connection.
    #[inline]
    pub fn post(&self, write: RdmaWrite) -> Result<()> {
        if self.iwarp && write.message.is_some() {
            return self.post_as_two(write);
        }
        // SAFETY: the QP is live; the bytes lie in a memory region that outlives the request, or go
        // inline.
        unsafe { rc::post_send(self.qp, &[write.as_one(self.iwarp)]) }
    }

    /// Returns the work request for [`post_inline`](Self::post_inline).
    pub fn inline_write(&self) -> Result<InlineWrite> {
        // SAFETY: the QP is live.
        unsafe { InlineWrite::new(self.qp) }
    }

    /// Fast path of [`post`](Self::post) for `data` inline.
    #[expect(clippy::inline_always, reason = "see rsocket::calls")]
    #[inline(always)]
    pub fn post_inline(&self, write: &mut InlineWrite, data: &[u8], request: &InlineRequest) -> Result<()> {
        let message = Message::Data(data.len() as u32);
        let &InlineRequest { addr, rkey, wr_id, signaled } = request;
        if self.iwarp {
            let (message, sg_list) = (Some(message), inline_sge(data));
            let write = RdmaWrite { message, sg_list, source: None, inline: true, addr, rkey, wr_id, signaled };
            return self.post_as_two(write);
        }
        // SAFETY: the QP is live.
        unsafe { write.post(data, message.word().to_be(), (addr, rkey), (wr_id, signaled)) }
    }

    /// Posts an RDMA read of no bytes. A failure ends the connection.
    pub fn post_read(&self, wr_id: u64) -> Result<()> {
        let sg_list = [Sge::default(); 2];
        let read = SendWr { wr_id, opcode: Opcode::Read, addr: 0, rkey: 0, sg_list, inline: false, signaled: true };
        // SAFETY: the QP is live; the request has no bytes.
        unsafe { rc::post_send(self.qp, &[read]) }
    }

    #[inline(never)]
    fn post_as_two(&self, write: RdmaWrite) -> Result<()> {
        self.check_inline_imm()?;
        let imm = write.imm();
        let [data, send] = write.as_two(&imm);
        // SAFETY: as above; `imm` lives until the call returns.
        unsafe {
            if write.is_empty() { rc::post_send(self.qp, &[send]) } else { rc::post_send(self.qp, &[data, send]) }
        }
    }

    /// Posts two messages with bytes as one chain.
    pub fn post_both(&self, writes: [RdmaWrite; 2]) -> Result<()> {
        if !self.iwarp {
            // SAFETY: as above.
            return unsafe { rc::post_send(self.qp, &writes.map(|write| write.as_one(false))) };
        }
        self.check_inline_imm()?;
        let imms = writes.map(|write| write.imm());
        let ([data, send], [next_data, next_send]) = (writes[0].as_two(&imms[0]), writes[1].as_two(&imms[1]));
        // SAFETY: as above; the immediates live until the call returns.
        unsafe { rc::post_send(self.qp, &[data, send, next_data, next_send]) }
    }

    /// Fails with `ENOTSUP` if the QP does not take immediate data inline, as iWARP needs.
    fn check_inline_imm(&self) -> Result<()> {
        if self.can_inline >= IMM_LEN as u32 { Ok(()) } else { Err(Errno::ENOTSUP) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the id outlives the QP, and the owner drops the CQs and the memory later.
        if let Ok(id) = unsafe { Id::from_c(self.id.as_ptr()) } {
            cm::destroy_qp(id);
        }
    }
}

/// Smallest number of queue entries.
const MIN_ENTRIES: u32 = 16;
/// Largest number of queue entries: it has to fit the connection data.
const MAX_ENTRIES: u32 = 0xfffe;
/// Number of inline bytes to try if the device rejects more: enough for control messages.
const SMALL_INLINE: u32 = 32;

/// Number of send queue entries, and of receives for messages that take credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub sends: u32,
    pub credits: u32,
}

impl Sizes {
    /// Each queue has a CQ of the same size: when the QP fails, all work requests complete at once.
    pub fn new(options: &Options, limits: &Limits) -> Sizes {
        let max = limits.work_requests.min(limits.completions).clamp(MIN_ENTRIES, MAX_ENTRIES);
        Sizes {
            sends: u32::from(options.sq).clamp(MIN_ENTRIES, max),
            credits: u32::from(options.rq)
                .clamp(MIN_ENTRIES, max.saturating_sub(super::EXTRA_RECEIVES).max(MIN_ENTRIES)),
        }
    }
}

/// Returns the next smaller number of inline bytes to try, at least `min`, after creating a QP with
/// `inline` bytes failed with `error`. Returns `None` if the error has another cause, or no smaller
/// number is left.
pub(super) fn less_inline(error: Errno, inline: u32, min: u32) -> Option<u32> {
    let rejected = matches!(error, Errno::EINVAL | Errno::ENOMEM);
    [SMALL_INLINE, min].into_iter().find(|&next| rejected && next < inline && next >= min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_writes_do_not_cross_a_page() {
        let pieces = |addr, lens: [u32; 2], inline| {
            let sg_list = lens.map(|len| Sge { addr, len, lkey: 7 });
            let write =
                RdmaWrite { message: None, sg_list, source: None, inline, addr: 0, rkey: 0, wr_id: 1, signaled: false };
            write.split_sg_list().map(|sge| (sge.addr, sge.len))
        };
        assert_eq!(pieces(0x2ff0, [17, 0], false), [(0x2ff0, 16), (0x3000, 1)]);
        assert_eq!(pieces(0x2fff, [32, 0], false), [(0x2fff, 1), (0x3000, 31)]);
        for (addr, lens, inline) in [
            (0x2ff0, [16, 0], false),
            (0x3000, [32, 0], false),
            (0x2ff0, [33, 0], false),
            (0x2ff0, [17, 1], false),
            (0x2ff0, [17, 0], true),
        ] {
            assert_eq!(pieces(addr, lens, inline), lens.map(|len| (addr, len)));
        }
    }

    fn sizes(sq: u16, rq: u16, work_requests: u32, completions: u32) -> (u32, u32) {
        let options = Options { sq, rq, ..Options::new() };
        let limits = Limits { initiator_depth: 1, responder_resources: 1, work_requests, completions };
        let Sizes { sends, credits } = Sizes::new(&options, &limits);
        (sends, credits)
    }

    #[test]
    fn sizes_as_the_program_requests() {
        assert_eq!(sizes(384, 400, 16384, 1 << 20), (384, 400));
        assert_eq!(sizes(0, 1, 16384, 1 << 20), (16, 16));
    }

    #[test]
    fn sizes_within_the_limits_of_the_device() {
        assert_eq!(sizes(384, 384, 100, 1000), (100, 84));
        assert_eq!(sizes(384, 384, 1000, 100), (100, 84));
        assert_eq!(sizes(0xfffe, 0xfffe, u32::MAX, u32::MAX), (0xfffe, 0xffee));
        assert_eq!(sizes(384, 384, 0, 0), (16, 16), "the kernel rejects these");
    }

    #[test]
    fn inline_bytes_decrease_step_by_step() {
        let less = |inline, min| less_inline(Errno::EINVAL, inline, min);
        assert_eq!((less(64, 0), less(32, 0), less(0, 0)), (Some(32), Some(0), None));
        assert_eq!((less(64, 4), less(32, 4), less(16, 4), less(4, 4)), (Some(32), Some(4), Some(4), None));
        assert_eq!(less(20, 0), Some(0));
        assert_eq!(less_inline(Errno::ENOMEM, 64, 0), Some(32));
        assert_eq!(less_inline(Errno::EIO, 64, 0), None);
    }
}
