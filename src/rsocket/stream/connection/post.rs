//! The QP and its work requests: one for each message, or two on iWARP, which has no RDMA write
//! with immediate data.
//!
//! [`Sizes`] has the sizes of the QP's queues: those that the program requests, within the device's
//! limits.

use std::mem::zeroed;
use std::ops::Range;
use std::ptr::NonNull;

use super::IMM_LEN;
use crate::cm::{self, Id, Limits};
use crate::diag::Cause;
use crate::errno::{Errno, Result};
use crate::ffi::rdma_cm_id;
use crate::rsocket::cm_id::CmId;
use crate::rsocket::flow::Chunk;
use crate::rsocket::stream::options::Options;
use crate::rsocket::wire::Message;
use crate::verbs::rc::{self, CompletionQueue, InlineWrite, Opcode, SendWr, Sge};
use crate::verbs::{self, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_qp_type};

/// Soft-iWARP copies the data of unsignaled writes that are smaller than this.
const PAGE: u32 = 4096;
/// Soft-iWARP sends wrong bytes for a write of at most this many bytes that is in one piece, does
/// not go inline, and crosses a page (docs/compatibility.md).
const MAX_UNSPLIT: u32 = 32;

/// Returns whether soft-iWARP needs a write to be signaled: it passes the pages of an unsignaled
/// write to TCP, and completes later requests before TCP has sent the pages, so the program could
/// overwrite the data. It copies the data of signaled writes (docs/compatibility.md).
fn must_be_signaled(write: &SendWr) -> bool {
    write.sg_list[0].len + write.sg_list[1].len >= PAGE
}

/// Returns the scatter/gather list of a write, in two pieces if [`MAX_UNSPLIT`] requires that.
fn split_sg_list(write: &SendWr) -> [Sge; 2] {
    let [first, second] = write.sg_list;
    let left = PAGE - first.addr as u32 % PAGE;
    if write.inline || second.len > 0 || first.len > MAX_UNSPLIT || first.len <= left {
        return write.sg_list;
    }
    let rest = Sge { addr: first.addr + u64::from(left), len: first.len - left, ..first };
    [Sge { len: left, ..first }, rest]
}

/// Returns the two work requests of a message for iWARP: the write without immediate data, and a
/// SEND of the immediate data, which is stored in `content`.
fn as_two(write: &SendWr, content: &mut [u8; IMM_LEN]) -> [SendWr; 2] {
    *content = write.opcode.imm().to_ne_bytes();
    let data = SendWr {
        wr_id: write.wr_id - 1,
        opcode: Opcode::Write,
        sg_list: split_sg_list(write),
        signaled: must_be_signaled(write),
        ..*write
    };
    let (opcode, sg_list) = (Opcode::Send, inline_sge(content));
    [data, SendWr { opcode, addr: 0, rkey: 0, sg_list, inline: true, ..*write }]
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
    /// The id that the QP belongs to, which outlives the QP.
    id: NonNull<rdma_cm_id>,
    queue: SendQueue,
}

// SAFETY: libibverbs objects may be used by any thread. One thread at a time posts sends: under the
// stream's lock, or after `begin_unlocked`.
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
    /// Creates the QP of `id`. `cqs` and the numbers of queue entries are for sends and receives,
    /// in this order. The QP takes `inline` bytes inline, or fewer if the device rejects that
    /// number.
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
                    let qp = NonNull::new(id.id().qp()).ok_or(Errno::EIO)?;
                    let id = NonNull::new(id.id().as_c()).ok_or(Errno::EIO)?;
                    let queue = SendQueue { qp, iwarp, can_inline: attr.cap.max_inline_data };
                    let qp = QueuePair { id, queue };
                    return if qp.can_inline() < min_inline { Err(Errno::ENOTSUP) } else { Ok(qp) };
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
        // SAFETY: the QP is live. The buffers outlive the receives: guaranteed by the caller.
        unsafe { rc::post_recv(self.queue.qp, slots, buffer_of) }
    }

    /// Posts `count` receives without memory.
    pub fn post_empty_recv(&self, count: u32) -> Result<()> {
        // SAFETY: the QP is live until `self` is dropped.
        unsafe { rc::post_empty_recv(self.queue.qp, count) }
    }

    /// Moves the QP to the error state: every outstanding work request completes with an error.
    pub fn move_to_error(&self) {
        // Fails for a QP that is in this state already, and after the removal of the device: in
        // either case nothing is left to flush.
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
    /// Posts a work request. After a failure, the caller has to end the connection.
    #[inline]
    pub fn post(&self, request: SendWr) -> Result<()> {
        if self.iwarp {
            return self.post_iwarp(&request);
        }
        // SAFETY: the QP is live; the bytes lie in a memory region that outlives the request, or go
        // inline.
        unsafe { rc::post_send(self.qp, &[request]) }
    }

    /// Returns a prepared work request for [`post_inline`](Self::post_inline).
    pub fn inline_write(&self) -> Result<InlineWrite> {
        // SAFETY: the QP is live.
        unsafe { InlineWrite::new(self.qp) }
    }

    /// Fast path of [`post`](Self::post) for one message of `data` that goes inline.
    #[inline(always)] // see rsocket::calls
    pub fn post_inline(&self, write: &mut InlineWrite, data: &[u8], chunk: &Chunk) -> Result<()> {
        let imm = Message::Data(data.len() as u32).word();
        let &Chunk { addr, rkey, wr_id, signaled, .. } = chunk;
        if self.iwarp {
            let (opcode, sg_list) = (Opcode::WriteImm(imm), inline_sge(data));
            return self.post_iwarp(&SendWr { wr_id, opcode, addr, rkey, sg_list, inline: true, signaled });
        }
        // SAFETY: the QP is live, and `data` goes inline.
        unsafe { write.post(data, imm, (addr, rkey), (wr_id, signaled)) }
    }

    /// [`post`](Self::post) on iWARP: a message with data becomes two work requests.
    #[inline(never)]
    fn post_iwarp(&self, request: &SendWr) -> Result<()> {
        let Opcode::WriteImm(_) = request.opcode else {
            let signaled = request.signaled || must_be_signaled(request);
            let request = SendWr { sg_list: split_sg_list(request), signaled, ..*request };
            // SAFETY: the QP is live; the bytes are registered or go inline, as in `post`.
            return unsafe { rc::post_send(self.qp, &[request]) };
        };
        let mut content = [0; IMM_LEN];
        let [data, send] = as_two(request, &mut content);
        // SAFETY: as in `post`. `content` goes inline, so it must live until the call returns.
        unsafe {
            if request.is_empty() { rc::post_send(self.qp, &[send]) } else { rc::post_send(self.qp, &[data, send]) }
        }
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
/// Largest number of queue entries: it has to fit the 16-bit field of the connection data.
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
    /// Returns the sizes for `options`. The device's limit for CQs applies, too: a CQ is as large
    /// as its queue, because all work requests complete at once when the QP fails.
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
            let write = SendWr { wr_id: 1, opcode: Opcode::Write, addr: 0, rkey: 0, sg_list, inline, signaled: false };
            split_sg_list(&write).map(|sge| (sge.addr, sge.len))
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
        let options = Options { sq, rq, ..Options::default() };
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
