//! The send side: writes stream data into the peer's buffers, and riowrite(3) data into memory that
//! the peer has mapped.
//!
//! A [`SendBuffer`] grows if it limits its stream.
//!
//! Small messages are held while earlier ones are on their way, and are then sent as one
//! ([`Sender::may_hold`]). Held bytes lie in the send buffer and are no message yet. They are sent
//! before any other message except credit updates, and before the sending thread receives or waits.
//! Otherwise they are sent when the earlier messages have completed, which the leader or the
//! reactor notices (`stream/channel_leader.rs`).
//!
//! [`Sender::may_hold`]: crate::rsocket::flow::Sender::may_hold

use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};
use std::slice;

use libc::iovec;

use super::post::{QueuePair, SendQueue, inline_sge};
use super::receive::{self, Grown};
use super::{CONTROL_DATA, CONTROL_ENTRIES, Connection, LARGE};
use crate::errno::{Errno, Result};
use crate::os::event;
use crate::rsocket::flow::{Chunk, Sender};
use crate::rsocket::pinned_budget::{self, Reservation};
use crate::rsocket::wire::{Message, Region};
use crate::verbs::rc::{CompletionQueue, InlineWrite, Opcode, SendWr, Sge};

/// Maximum size, in bytes, of a message of several buffers that is collected on the stack to go
/// inline.
pub const MAX_COLLECTED: usize = 256;

/// The bytes that a program sends.
pub trait Source: Copy {
    /// Returns the number of bytes.
    fn size(self) -> usize;
    /// Returns the first `at` bytes and the rest. There are at least `at` bytes.
    fn split(self, at: usize) -> (Self, Self);
    /// Returns the bytes if they lie in one buffer.
    fn in_one_piece(&self) -> Option<&[u8]>;
    /// Copies all bytes to `into`.
    ///
    /// # Safety
    /// `into` is writable for [`size`](Self::size) bytes, and not memory of the program.
    unsafe fn copy_to(self, into: NonNull<u8>);
}

impl Source for &[u8] {
    #[inline]
    fn size(self) -> usize {
        self.len()
    }

    #[inline]
    fn split(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }

    #[inline]
    fn in_one_piece(&self) -> Option<&[u8]> {
        Some(self)
    }

    #[inline]
    unsafe fn copy_to(self, into: NonNull<u8>) {
        // SAFETY: `into` is writable for the length and does not overlap `self`: guaranteed by the
        // caller.
        unsafe { ptr::copy_nonoverlapping(self.as_ptr(), into.as_ptr(), self.len()) };
    }
}

/// The bytes of several buffers, in order.
#[derive(Clone, Copy)]
pub struct Gather<'a> {
    buffers: &'a [iovec],
    /// Number of bytes to skip at the beginning.
    skip: usize,
    /// Number of bytes after the skipped ones.
    len: usize,
}

impl<'a> Gather<'a> {
    /// Creates a source of `len` bytes of `buffers`, after the first `skip` bytes.
    ///
    /// # Safety
    /// The buffers hold `skip` plus `len` bytes, and are readable as long as the result lives.
    pub unsafe fn new(buffers: &'a [iovec], skip: usize, len: usize) -> Gather<'a> {
        Gather { buffers, skip, len }
    }

    /// Returns the source's bytes, buffer by buffer.
    fn pieces(&self) -> impl Iterator<Item = &'a [u8]> {
        let mut left = self.len;
        parts(self.buffers, self.skip).map_while(move |(start, len)| {
            let len = len.min(left);
            left -= len;
            // SAFETY: the buffers are readable as long as `self` lives: guaranteed by the caller of
            // `new`.
            (len > 0).then(|| unsafe { slice::from_raw_parts(start, len) })
        })
    }

    /// Copies the bytes to the beginning of `space`. Returns them, or `None` if they do not fit.
    pub fn collect<const LEN: usize>(self, space: &mut [MaybeUninit<u8>; LEN]) -> Option<&[u8]> {
        if self.len > LEN {
            return None;
        }
        let start = NonNull::from(space).cast();
        // SAFETY: the bytes fit into `space`, and `copy_to` initialises all of them.
        unsafe {
            self.copy_to(start);
            Some(slice::from_raw_parts(start.as_ptr(), self.len))
        }
    }
}

impl Source for Gather<'_> {
    fn size(self) -> usize {
        self.len
    }

    fn split(self, at: usize) -> (Self, Self) {
        (Gather { len: at, ..self }, Gather { skip: self.skip + at, len: self.len - at, ..self })
    }

    fn in_one_piece(&self) -> Option<&[u8]> {
        self.pieces().next().filter(|piece| piece.len() == self.len)
    }

    unsafe fn copy_to(self, into: NonNull<u8>) {
        let mut done = 0;
        for piece in self.pieces() {
            // SAFETY: the pieces have `size` bytes in total, and `into` is writable for them:
            // guaranteed by the caller.
            unsafe { piece.copy_to(into.add(done)) };
            done += piece.len();
        }
    }
}

/// Returns the address and length of each non-empty part of the buffers after the first `skip`
/// bytes.
pub fn parts(buffers: &[iovec], mut skip: usize) -> impl Iterator<Item = (*mut u8, usize)> {
    buffers.iter().filter_map(move |buffer| {
        let skipped = skip.min(buffer.iov_len);
        skip -= skipped;
        let start = buffer.iov_base.cast::<u8>().wrapping_add(skipped);
        (skipped < buffer.iov_len).then_some((start, buffer.iov_len - skipped))
    })
}

/// Space for the bytes of control messages: a slot for each message.
#[derive(Debug)]
pub(super) struct ControlData {
    first: Sge,
    next: usize,
}

impl ControlData {
    /// Creates the space. `first` is the first slot, of `CONTROL_DATA` bytes.
    pub fn new(first: Sge) -> ControlData {
        ControlData { first, next: 0 }
    }

    /// Copies the bytes of a message to the next slot. Returns their scatter/gather list.
    pub fn fill(&mut self, bytes: &[u8]) -> [Sge; 2] {
        let slot = self.next;
        self.next = (slot + 1) % CONTROL_ENTRIES as usize;
        let addr = self.first.addr + (slot * CONTROL_DATA) as u64;
        let sg_list = [Sge { addr, len: bytes.len() as u32, ..self.first }, Sge::default()];
        // SAFETY: by the layout there are `CONTROL_ENTRIES` slots of `CONTROL_DATA` bytes. No
        // outstanding message uses this one: there are at most as many outstanding messages as
        // slots, and they complete in order.
        unsafe { copy_to(&sg_list, bytes) };
        sg_list
    }
}

/// The half that sends: its CQ, buffer and flow control, and what is known of the peer's memory.
#[derive(Debug)]
pub(super) struct SendSide {
    pub cq: CompletionQueue,
    /// The CQ is armed, and its event has not been read.
    pub cq_armed: bool,
    /// Number of calls that wait until all sent data has arrived.
    pub flushing: u32,
    pub flow: Sender,
    pub buffer: SendBuffer,
    /// Messages up to this size go inline. The fast path checks only this field, which is 0 unless
    /// the stream is connected, may write, and has not failed, and no thread sends without the
    /// stream's lock.
    inline_limit: u32,
    /// Largest value of `inline_limit`; 0 unless the stream is connected and may write.
    max_inline: u32,
    /// A thread copies and posts, without the stream's lock, messages that it has reserved. Nothing
    /// else is posted meanwhile: work requests are posted in the order of their `wr_id`.
    is_unlocked: bool,
    /// When `is_unlocked` becomes false, a keepalive has to be posted: its completion wakes the
    /// leader.
    pub wake_due: bool,
    inline_write: InlineWrite,
    pub control_data: ControlData,
    /// Number of the thread that sent last; 0 if that thread has received afterwards.
    pub thread: u64,
    /// While `thread` was set, the last call that received came from another thread, on a machine
    /// with several CPUs.
    pub is_shared: bool,
    /// The entry of the target SGL that is used next.
    pub target_entry: usize,
    /// Number of entries of the target SGL, from `target_entry` on, that the peer had written when
    /// the last CREDIT_UPDATE was processed, less those used since. Entries written later have to
    /// wait: otherwise a side that only sends would leave CREDIT_UPDATEs unprocessed until they
    /// have used up all receives, which ends an iWARP connection.
    pub targets: usize,
}

// SAFETY: any thread may use libibverbs objects and the memory, and the stream's lock lets one
// thread do so at a time.
unsafe impl Send for SendSide {}

impl SendSide {
    pub fn new(
        cq: CompletionQueue,
        flow: Sender,
        buffer: SendBuffer,
        inline_write: InlineWrite,
        control_data: ControlData,
    ) -> SendSide {
        SendSide {
            cq,
            cq_armed: false,
            flushing: 0,
            flow,
            buffer,
            inline_limit: 0,
            max_inline: 0,
            is_unlocked: false,
            wake_due: false,
            inline_write,
            control_data,
            thread: 0,
            is_shared: false,
            target_entry: 1,
            targets: 0,
        }
    }

    #[inline]
    pub fn arm_cq(&mut self) -> Result<()> {
        self.cq.arm()?;
        self.cq_armed = true;
        Ok(())
    }
}

/// A message for which credits, space and work requests are reserved.
pub struct Planned<S> {
    request: SendWr,
    bytes: S,
}

impl<S: Source> Planned<S> {
    /// Returns the number of bytes.
    pub fn size(&self) -> usize {
        self.bytes.size()
    }

    /// Copies the bytes to the send buffer, unless they are sent inline, and posts the request.
    ///
    /// # Safety
    /// The QP and the send buffer are live.
    pub unsafe fn post(&self, queue: SendQueue) -> Result<()> {
        if !self.request.inline {
            // SAFETY: the request describes space of the send buffer, which is live: guaranteed by
            // the caller. The flow control has reserved it, so no outstanding request reads it.
            unsafe { copy_to(&self.request.sg_list, self.bytes) };
        }
        queue.post(self.request)
    }
}

/// Copies `bytes` to the memory of a scatter/gather list.
///
/// # Safety
/// The list describes writable memory of this library, with space for `bytes`.
unsafe fn copy_to(sg_list: &[Sge; 2], bytes: impl Source) {
    let (first, wrapped) = bytes.split(sg_list[0].len as usize);
    for (part, sge) in [(first, sg_list[0]), (wrapped, sg_list[1])] {
        let into = ptr::with_exposed_provenance_mut(sge.addr as usize);
        if let Some(into) = NonNull::new(into).filter(|_| sge.len > 0) {
            // SAFETY: the element's memory has space for `part`: guaranteed by the caller.
            unsafe { part.copy_to(into) };
        }
    }
}

impl Connection {
    /// Allows sending on a connected stream. Messages of up to `inline` bytes go inline if the QP
    /// takes them.
    pub fn begin_sending(&mut self, inline: u16) {
        self.send.max_inline = u32::from(inline).min(self.qp.can_inline());
        self.update_inline_limit();
    }

    /// Ends sending: the stream sends no more data.
    pub fn end_sending(&mut self) {
        self.send.max_inline = 0;
        self.update_inline_limit();
    }

    fn update_inline_limit(&mut self) {
        let goes_inline = !self.send.is_unlocked && self.failed.is_none();
        self.send.inline_limit = if goes_inline { self.send.max_inline } else { 0 };
    }

    /// Returns whether a message of `len` bytes goes inline.
    #[inline]
    pub fn takes_inline(&self, len: usize) -> bool {
        len <= self.send.inline_limit as usize
    }

    /// Sends `data`, which goes inline, in one message. Returns true if the message was sent; the
    /// connection records a failure.
    #[inline(always)] // see rsocket::calls
    pub fn send_inline(&mut self, data: &[u8]) -> bool {
        let len = data.len() as u32;
        let Some(chunk) = self.send.flow.take_inline(len) else { return false };
        if let Some(counters) = self.counters() {
            counters.count_sent(len);
        }
        let sent = self.qp.send_queue().post_inline(&mut self.send.inline_write, data, &chunk);
        if let Err(error) = sent {
            self.fail(error);
            return false;
        }
        self.use_next_target();
        true
    }

    /// Reserves a message for the beginning of `data`. Returns `None` if nothing can be sent now.
    /// `begun`: the program's call has already sent data.
    #[inline]
    pub fn plan<S: Source>(&mut self, data: S, begun: bool) -> Option<Planned<S>> {
        let wanted = if begun { data.size() } else { self.send.flow.first_message(data.size()) };
        let (data, _) = data.split(wanted);
        let inline = self.goes_inline(data);
        let chunk = self.send.flow.take(data.size(), inline)?;
        let (bytes, _) = data.split(chunk.len as usize);
        let sg_list = match bytes.in_one_piece() {
            Some(bytes) if inline => inline_sge(bytes),
            _ => self.send.buffer.space(chunk.offset, chunk.len),
        };
        self.use_next_target();
        Some(Planned { request: self.request_of(&chunk, sg_list, inline), bytes })
    }

    /// Returns the work request of a message.
    fn request_of(&self, chunk: &Chunk, sg_list: [Sge; 2], inline: bool) -> SendWr {
        if let Some(counters) = self.counters() {
            counters.count_sent(chunk.len);
        }
        let opcode = Opcode::WriteImm(Message::Data(chunk.len).word());
        let &Chunk { addr, rkey, wr_id, signaled, .. } = chunk;
        SendWr { wr_id, opcode, addr, rkey, sg_list, inline, signaled }
    }

    /// Posts a planned message. A failure ends the connection.
    pub fn post_planned<S: Source>(&mut self, planned: &Planned<S>) -> Result<()> {
        // SAFETY: the QP and the send buffer are live.
        unsafe { planned.post(self.qp.send_queue()) }.inspect_err(|&error| self.fail(error))
    }

    /// Posts a work request. A failure ends the connection.
    #[inline]
    pub(super) fn post(&mut self, request: SendWr) -> Result<()> {
        debug_assert!(!self.send.is_unlocked);
        self.qp.send_queue().post(request).inspect_err(|&error| self.fail(error))
    }

    /// Lets the caller copy and post a planned message of `len` bytes without the stream's lock.
    /// Returns the send queue, or `None` if the message is shorter than [`LARGE`], no other
    /// thread receives, or a thread waits to use the connection. Until
    /// [`end_unlocked`](Self::end_unlocked) nothing else is posted.
    pub fn begin_unlocked(&mut self, len: usize) -> Option<SendQueue> {
        if !self.send.is_shared || len < LARGE || self.waiting > 0 {
            return None;
        }
        self.send.is_unlocked = true;
        self.update_inline_limit();
        Some(self.qp.send_queue())
    }

    /// Ends what [`begin_unlocked`](Self::begin_unlocked) began. `posted` is the result
    /// of posting the message.
    pub fn end_unlocked(&mut self, posted: Result<()>) {
        self.send.is_unlocked = false;
        if let Err(error) = posted {
            self.fail(error);
        }
        self.update_inline_limit();
        self.send_credit_updates();
        if mem::take(&mut self.send.wake_due) && self.keep_alive().is_err() {
            self.flush_qp();
        }
    }

    /// Returns whether a thread sends without the stream's lock.
    #[inline]
    pub fn is_sending_unlocked(&self) -> bool {
        self.send.is_unlocked
    }

    /// Returns whether a thread posts, or copies received data, without the lock.
    pub fn is_in_use(&self) -> bool {
        self.send.is_unlocked || self.is_being_read()
    }

    /// Polls the send CQ if `len` bytes do not fit into the free part of the send buffer, and grows
    /// the buffer if it limits the stream.
    #[inline]
    fn make_space(&mut self, len: usize) {
        if !self.send.flow.has_room(len) {
            if !self.send.flow.is_idle() {
                self.reap_send_cq();
            }
            if self.send.buffer.is_first() || self.send.flow.is_buffer_limited(len) {
                self.send.grow_buffer(&self.qp);
            }
        }
    }

    /// Returns whether `data` goes inline. Makes space for it otherwise.
    #[inline]
    fn goes_inline<S: Source>(&mut self, data: S) -> bool {
        let inline = self.takes_inline(data.size()) && data.in_one_piece().is_some();
        if !inline {
            self.make_space(data.size());
        }
        inline
    }

    /// Writes as much of `data` as possible into the peer's `region`, without waiting. Returns the
    /// number of bytes written. `begun`: see [`plan`](Self::plan). The connection records a
    /// failure.
    pub fn write(&mut self, data: &[u8], region: Region, begun: bool) -> usize {
        self.send_held();
        let mut done = 0;
        let len = data.len().min(region.length as usize);
        while done < len {
            let rest = &data[done..len];
            let rest = if begun || done > 0 { rest } else { &rest[..self.send.flow.first_message(rest.len())] };
            let inline = self.goes_inline(rest);
            let Some((len, offset, (wr_id, signaled))) = self.send.flow.take_write(rest.len(), inline) else { break };
            let part = &rest[..len as usize];
            let sg_list = if inline { inline_sge(part) } else { self.send.buffer.fill(part, offset) };
            let (addr, rkey) = (region.addr.wrapping_add(done as u64), region.rkey);
            let request = SendWr { wr_id, opcode: Opcode::Write, addr, rkey, sg_list, inline, signaled };
            if self.post(request).is_err() {
                break;
            }
            done += part.len();
        }
        done
    }

    /// Frees a send buffer that has grown, if no data is outstanding.
    pub fn give_memory_back(&mut self) {
        self.reap_send_cq();
        self.send.give_buffer_back();
    }
}

/// The memory for messages that do not go inline. The first buffer is a part of the receive side's
/// memory. When a message does not fit, a buffer of the full size (SO_SNDBUF) replaces the first
/// one: with a small buffer, a connection would process completions too often.
#[derive(Debug)]
pub(super) struct SendBuffer {
    /// The first buffer.
    first: Sge,
    grown: Option<Grown>,
    /// Size in bytes.
    pub size: u32,
    full_size: u32,
    /// The buffer may exceed the full size.
    may_grow: bool,
    /// The previous buffer, and the work request whose completion frees it.
    old: Option<(Grown, u64)>,
}

impl SendBuffer {
    pub fn new(first: Sge, full_size: u32, may_grow: bool) -> SendBuffer {
        SendBuffer { first, grown: None, size: first.len, full_size, may_grow, old: None }
    }

    /// Returns the next larger size, if there is one.
    fn larger(&self) -> Option<u32> {
        receive::next_size(self.size, self.full_size, self.may_grow)
    }

    /// Returns whether the buffer is smaller than the full size.
    pub fn is_first(&self) -> bool {
        self.size < self.full_size
    }

    /// Allocates a buffer of a larger `size`. A buffer of the full size does not count as growth:
    /// it needs no reservation, and idle streams free memory for it if necessary.
    fn allocate(&self, qp: &QueuePair, size: u32) -> Result<Grown> {
        let pd = qp.pd()?;
        // SAFETY: the PD of the QP is live, and outlives the connection.
        let new = |reservation| unsafe { Grown::new(reservation, pd, size, false) };
        if self.is_first() {
            return pinned_budget::with_memory(|| new(None));
        }
        new(Some(Reservation::take_growth(size).ok_or(Errno::ENOMEM)?))
    }

    /// Copies `bytes` into the buffer, from `offset` on. Returns their scatter/gather list.
    #[inline]
    pub fn fill(&self, bytes: impl Source, offset: u32) -> [Sge; 2] {
        let sg_list = self.space(offset, bytes.size() as u32);
        // SAFETY: both parts lie in the buffer, in space that the flow control has found free: no
        // outstanding work request reads it.
        unsafe { copy_to(&sg_list, bytes) };
        sg_list
    }

    /// Returns the scatter/gather list of `len` bytes from `offset` on. Bytes beyond the end of the
    /// buffer are at its beginning.
    pub fn space(&self, offset: u32, len: u32) -> [Sge; 2] {
        let Sge { addr, lkey, .. } = self.grown.as_ref().map_or(self.first, |grown| grown.memory.sge(0, self.size));
        let left = len.min(self.size - offset);
        [Sge { addr: addr + u64::from(offset), len: left, lkey }, Sge { addr, len: len - left, lkey }]
    }
}

impl SendSide {
    /// Grows the buffer, which limits the stream, unless memory is short.
    pub fn grow_buffer(&mut self, qp: &QueuePair) {
        let Some(size) = self.buffer.larger().filter(|_| self.buffer.old.is_none()) else { return };
        if pinned_budget::is_needed() {
            return;
        }
        match self.buffer.allocate(qp, size) {
            Ok(memory) => self.replace_buffer(Some(memory), size),
            Err(_) => self.buffer.may_grow = false,
        }
    }

    /// Returns to the first buffer, and frees the grown one, if no data is outstanding.
    pub fn give_buffer_back(&mut self) {
        if self.flow.is_idle() {
            self.replace_buffer(None, self.buffer.first.len);
            self.drop_old_buffer();
        }
    }

    fn replace_buffer(&mut self, memory: Option<Grown>, size: u32) {
        let last_wr_id = self.flow.replace_buffer(size);
        let buffer = &mut self.buffer;
        buffer.size = size;
        buffer.old = mem::replace(&mut buffer.grown, memory).map(|old| (old, last_wr_id));
    }

    /// Frees the previous buffer if no outstanding work request uses it.
    #[inline]
    pub fn drop_old_buffer(&mut self) {
        if let Some((_, wr_id)) = self.buffer.old
            && self.flow.completed_wr_id >= wr_id
        {
            self.buffer.old = None;
        }
    }
}

impl Connection {
    /// Sets TCP_NODELAY.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.send.flow.set_nodelay(nodelay);
    }

    /// Notes that a call of `thread` sends data.
    #[inline]
    pub fn set_sender_thread(&mut self, thread: u64) {
        self.send.thread = thread;
    }

    /// Notes that a call of `thread` receives, or waits for data. If the same thread has sent,
    /// sends held data; the next message begins a new burst. Returns true if data was held, even if
    /// sending it has failed.
    #[inline(always)] // see rsocket::calls
    pub fn flush_before_read(&mut self, thread: u64) -> bool {
        if self.send.thread == 0 {
            return false;
        }
        if self.send.thread != thread {
            self.note_reader();
            return false;
        }
        self.send.is_shared = false;
        let had_held = self.has_held();
        if had_held {
            self.send_held_now();
        }
        self.send.flow.end_burst();
        self.send.thread = 0;
        had_held
    }

    /// Notes that the receiving thread is not the one that has sent.
    #[inline(never)]
    fn note_reader(&mut self) {
        self.send.is_shared |= event::cpus() > 1;
    }

    /// Returns whether data is held.
    #[inline]
    pub fn has_held(&self) -> bool {
        self.send.flow.held() > 0
    }

    /// Returns whether a message may have to be held, or sent after held ones.
    #[inline]
    pub fn is_in_burst(&self) -> bool {
        self.send.flow.is_in_burst()
    }

    /// Holds a message if possible. Returns false if the message has to be sent at once, after held
    /// data.
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
                self.send.flow.note_idle_cq();
            }
            return false;
        }
        if !self.has_held() {
            self.make_space(data.size());
        }
        let Some(offset) = self.send.flow.plan_hold(data.size()) else { return false };
        let _ = self.send.buffer.fill(data, offset);
        self.send.flow.hold(data.size() as u32);
        true
    }

    /// Sends held data. The connection records a failure.
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
        let Some(chunk) = self.send.flow.take_held() else { return };
        // The buffer is the same as when the bytes were copied.
        let sg_list = self.send.buffer.space(chunk.offset, chunk.len);
        let _ = self.post(self.request_of(&chunk, sg_list, false));
        self.use_next_target();
    }

    /// Sends held data unless enough earlier messages are on their way ([`Sender::is_busy`]).
    /// Discards held data after a failure.
    pub(super) fn send_held_after_others(&mut self) {
        if self.has_held() && (!self.send.flow.is_busy() || self.failed.is_some()) {
            self.send_held_now();
        }
    }

    /// Polls the send CQ. Returns whether held data has to wait for earlier messages.
    pub fn must_hold(&mut self) -> bool {
        self.reap_send_cq();
        self.send.flow.is_busy() && self.failed.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers(texts: &[&'static [u8]]) -> Vec<iovec> {
        texts
            .iter()
            .map(|text| iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() })
            .chain([iovec { iov_base: ptr::null_mut(), iov_len: 0 }])
            .collect()
    }

    fn text(source: Gather<'_>) -> Vec<u8> {
        let mut space = [const { MaybeUninit::uninit() }; 16];
        source.collect(&mut space).unwrap().to_vec()
    }

    #[test]
    fn bytes_of_several_buffers() {
        let buffers = buffers(&[b"ab", b"", b"cde", b"f"]);
        for skip in 0..=6 {
            for len in 0..=6 - skip {
                // SAFETY: the buffers hold six static bytes.
                let all = unsafe { Gather::new(&buffers, skip, len) };
                assert_eq!(text(all), &b"abcdef"[skip..skip + len]);
                for at in 0..=len {
                    let (first, rest) = all.split(at);
                    assert_eq!((first.size(), rest.size()), (at, len - at));
                    assert_eq!([text(first), text(rest)].concat(), text(all));
                }
            }
        }
    }

    #[test]
    fn one_piece_or_several() {
        let buffers = buffers(&[b"ab", b"", b"cde"]);
        // SAFETY: the buffers hold five static bytes.
        let of = |skip, len| unsafe { Gather::new(&buffers, skip, len) };
        assert_eq!(of(0, 2).in_one_piece(), Some(&b"ab"[..]));
        assert_eq!(of(2, 3).in_one_piece(), Some(&b"cde"[..]));
        assert_eq!(of(3, 1).in_one_piece(), Some(&b"d"[..]));
        assert_eq!(of(1, 2).in_one_piece(), None);
        assert_eq!(of(0, 5).collect(&mut [const { MaybeUninit::uninit() }; 4]), None);
    }
}
