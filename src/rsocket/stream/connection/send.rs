//! The send side: writes stream data into the peer's buffers, and riowrite(3) data into memory that
//! the peer has mapped.
//!
//! The [`SendBuffer`] is allocated on first use, as large as the first message requires, and grown
//! for a stream that it limits.
//!
//! Small messages are held while earlier ones are on their way ([`Sender::may_hold`]). Held bytes
//! lie in the send buffer and are no message yet. Everything that is sent after them, and every
//! call of the program that may wait, sends them first. Otherwise the completion of the earlier
//! messages does, which the leader or the reactor notices (`stream/watching.rs`).
//!
//! [`Sender::may_hold`]: crate::rsocket::flow::Sender::may_hold

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use super::gather::{Gather, MAX_COLLECTED, Source};
use super::post::{QueuePair, RdmaWrite, SendQueue, inline_sge};
use super::receive::{self, Grown};
use super::{CONTROL_DATA, CONTROL_ENTRIES, Connection, LARGE, Outcome};
use crate::errno::{Errno, Result};
use crate::os::event;
use crate::rsocket::flow::{Chunk, Sender};
use crate::rsocket::pinned_budget::{self, Reservation};
use crate::rsocket::stream::outbox::Outbox;
use crate::rsocket::wire::{ConnData, Message, Region};
use crate::verbs::ibv_pd;
use crate::verbs::rc::{CompletionQueue, InlineWrite, MemoryRegion, Sge};

/// Memory of the peer, from its connection data.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerMemory {
    /// Whether the peer has the other byte order.
    pub swap: bool,
    /// Address of the peer's target SGL; the iomap follows.
    pub sgl: u64,
    pub rkey: u32,
    /// Number of entries of the peer's iomap.
    pub iomap: u16,
}

/// Space for the bytes of control messages that do not go inline: a slot for each message.
#[derive(Debug)]
pub(super) struct ControlData {
    start: NonNull<u8>,
    lkey: u32,
    next: usize,
}

impl ControlData {
    /// The slots begin at `start`, in the receive side's memory region.
    pub fn new(start: NonNull<u8>, lkey: u32) -> ControlData {
        ControlData { start, lkey, next: 0 }
    }

    /// Returns the next slot and its lkey.
    pub fn next(&mut self) -> (NonNull<u8>, u32) {
        let slot = self.next;
        self.next = (slot + 1) % CONTROL_ENTRIES as usize;
        // SAFETY: by the layout there are `CONTROL_ENTRIES` slots of `CONTROL_DATA` bytes.
        (unsafe { self.start.add(slot * CONTROL_DATA) }, self.lkey)
    }
}

/// The half that sends: its CQ, buffer and flow control, and what is known of the peer's memory.
#[derive(Debug)]
pub(super) struct SendSide {
    pub cq: CompletionQueue,
    /// The CQ is armed, and its event has not been read.
    pub cq_armed: bool,
    /// What the waiters were not notified of yet.
    pub pending: Outcome,
    /// Number of calls that wait until all sent data has arrived.
    pub flushing: u32,
    pub flow: Sender,
    pub buffer: SendBuffer,
    /// Messages up to this size go inline. 0 unless the stream is connected, may write, and has not
    /// failed: the fast path looks at nothing else.
    inline_limit: u32,
    max_inline: u32,
    inline_write: InlineWrite,
    pub control_data: ControlData,
    pub peer: PeerMemory,
    /// Number of the thread that sent last, 0 if it has received since then.
    pub thread: u64,
    /// Another thread has received since then, maybe on another processor.
    pub is_shared: bool,
    /// The entry of the target SGL that is used next.
    pub target_entry: usize,
    /// Number of entries, from that one on, that were there when the last CREDIT_UPDATE was
    /// processed. No others are used: over iWARP, CREDIT_UPDATEs of which none was processed would
    /// use up all receives while this side only sends, which ends the connection.
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
        max_inline: u32,
        inline_write: InlineWrite,
        control_data: ControlData,
        peer: &ConnData,
    ) -> SendSide {
        SendSide {
            cq,
            cq_armed: false,
            pending: Outcome::default(),
            flushing: 0,
            flow,
            buffer,
            inline_limit: 0,
            max_inline,
            inline_write,
            control_data,
            peer: PeerMemory {
                swap: peer.big_endian != cfg!(target_endian = "big"),
                sgl: peer.target_sgl.addr,
                rkey: peer.target_sgl.rkey,
                iomap: peer.iomap_size.unwrap_or(0),
            },
            thread: 0,
            is_shared: false,
            target_entry: 1,
            targets: 0,
        }
    }

    pub fn arm_cq(&mut self) -> Result<()> {
        self.cq.arm()?;
        self.cq_armed = true;
        Ok(())
    }

    /// Returns the offset where a message that begins at `done` must end, at most `len`. `begun`:
    /// the program's call has sent data before.
    fn limit(&self, done: usize, len: usize, begun: bool) -> usize {
        if done == 0 && !begun { self.flow.first_message(len) } else { len }
    }
}

impl Connection {
    /// Reserves a planned message. Returns the write to post.
    #[inline]
    fn claim(&mut self, chunk: &Chunk, bytes: ([Sge; 2], Option<NonNull<u8>>), inline: bool) -> RdmaWrite {
        let request = self.send.flow.take(chunk, inline);
        RdmaWrite { source: bytes.1, ..self.write_of(chunk, bytes.0, inline, request) }
    }

    /// Returns the write of a message that was taken as the work request `(wr_id, signaled)`.
    #[inline]
    pub(super) fn write_of(
        &mut self,
        chunk: &Chunk,
        sg_list: [Sge; 2],
        inline: bool,
        (wr_id, signaled): (u64, bool),
    ) -> RdmaWrite {
        if let Some(counters) = self.counters() {
            counters.count_sent(chunk.len);
        }
        let message = Some(Message::Data(chunk.len));
        RdmaWrite { message, sg_list, source: None, inline, addr: chunk.addr, rkey: chunk.rkey, wr_id, signaled }
    }

    /// The stream is connected: its messages may go inline, unless it has failed meanwhile.
    pub fn begin_sending(&mut self) {
        self.send.inline_limit = if self.failed.is_none() { self.send.max_inline } else { 0 };
    }

    /// The stream sends no more data.
    pub fn end_sending(&mut self) {
        self.send.inline_limit = 0;
    }

    /// Returns whether a message of `len` bytes may refer to the program's memory: not if another
    /// call posts it, nor after [`end_sending`](Self::end_sending).
    #[inline]
    pub fn takes_inline(&self, len: usize) -> bool {
        len <= self.send.inline_limit as usize && !self.outbox.is_posting()
    }

    /// Sends `data`, which goes inline, in one message. Returns whether it was sent; the connection
    /// records a failure.
    #[expect(clippy::inline_always, reason = "see rsocket::calls")]
    #[inline(always)]
    pub fn send_inline(&mut self, data: &[u8]) -> bool {
        let len = data.len() as u32;
        let Some(request) = self.send.flow.take_inline(len) else { return false };
        if let Some(counters) = self.counters() {
            counters.count_sent(len);
        }
        let sent = self.qp.send_queue().post_inline(&mut self.send.inline_write, data, &request);
        if let Err(error) = sent {
            self.fail(error);
            return false;
        }
        self.use_next_target();
        true
    }

    /// Returns whether `len` bytes exceed the rest of the peer's buffer.
    pub fn crosses_target_end(&self, len: usize) -> bool {
        self.send.flow.crosses_target_end(len)
    }

    /// Sends as much of `data` as possible without waiting. Returns the number of bytes. `begun`:
    /// the program's call has sent data before. An error that is not a failure of the connection is
    /// a lack of memory: the send buffer is allocated on first use. Data may be held instead; the
    /// caller then calls `watching::ensure_flush_scheduled`.
    pub fn send<S: Source>(&mut self, data: S, begun: bool) -> Result<usize> {
        if !begun && self.hold(data) {
            return Ok(data.size());
        }
        self.send_held();
        let mut done = 0;
        while done < data.size() {
            let (_, rest) = data.split(done);
            let (rest, _) = rest.split(self.send.limit(done, data.size(), begun) - done);
            let inline = self.goes_inline(rest);
            let Some(chunk) = self.send.flow.plan(rest.size(), inline) else { break };
            let (part, tail) = rest.split(chunk.len as usize);
            let bytes = self.sg_list(&part, inline, chunk.offset)?;
            let write = self.claim(&chunk, bytes, inline);
            done += part.size() + self.send_with_tail(write, tail, inline)?;
        }
        Ok(done)
    }

    /// As [`send`](Self::send), for several buffers. Sends as few messages as for one buffer.
    pub fn send_gathered(&mut self, data: Gather<'_>, begun: bool) -> Result<usize> {
        let mut collected = [const { MaybeUninit::uninit() }; MAX_COLLECTED];
        if data.size() <= self.send.inline_limit as usize
            && !self.outbox.is_open()
            && let Some(bytes) = data.collect(&mut collected)
        {
            return self.send(bytes, begun);
        }
        self.send(data, begun)
    }

    /// Returns the scatter/gather list of a message's bytes: in the program's memory if they go
    /// inline, otherwise in the send buffer. They are copied there, or will be from the address that
    /// is also returned.
    #[inline]
    fn sg_list<S: Source>(&mut self, part: &S, inline: bool, offset: u32) -> Result<([Sge; 2], Option<NonNull<u8>>)> {
        match part.in_one_piece() {
            Some(bytes) if inline => Ok((inline_sge(bytes), None)),
            Some(bytes) if self.outbox.collects() => {
                let sg_list = self.send.buffer.filled(&self.qp, offset, bytes.len() as u32)?;
                Ok((sg_list, Some(NonNull::from(bytes).cast())))
            }
            _ => Ok((self.send.buffer.fill(&self.qp, *part, offset)?, None)),
        }
    }

    /// Posts a reserved message. If it fills the peer's buffer and the next buffer is advertised, a
    /// second message with the beginning of `tail` is posted together with it. Returns the number
    /// of bytes of `tail` that were sent.
    fn send_with_tail<S: Source>(&mut self, write: RdmaWrite, tail: S, inline: bool) -> Result<usize> {
        self.use_next_target();
        let next = match tail.size() {
            0 => None,
            len => self.send.flow.plan(len, inline),
        };
        let Some(next) = next else {
            self.post(write)?;
            return Ok(0);
        };
        let (part, _) = tail.split(next.len as usize);
        // The previous message has allocated the send buffer.
        let bytes = self.sg_list(&part, inline, next.offset)?;
        let last = self.claim(&next, bytes, inline);
        self.post_both([write, last])?;
        self.use_next_target();
        Ok(part.size())
    }

    /// Posts or collects a write. A failure ends the connection.
    #[inline]
    pub(super) fn post(&mut self, write: RdmaWrite) -> Result<()> {
        self.post_or_collect(write).inspect_err(|&error| self.fail(error))
    }

    #[inline]
    pub(super) fn post_or_collect(&mut self, write: RdmaWrite) -> Result<()> {
        // Another call posts the write: it must not refer to the program's memory.
        debug_assert!(!self.outbox.is_posting() || write.source.is_none() && !write.inline);
        if self.outbox.is_open() { self.outbox.add(write) } else { self.qp.send_queue().post(write) }
    }

    fn post_both(&mut self, writes: [RdmaWrite; 2]) -> Result<()> {
        if self.outbox.is_open() {
            return writes.into_iter().try_for_each(|write| self.post(write));
        }
        self.qp.send_queue().post_both(writes).inspect_err(|&error| self.fail(error))
    }

    /// Collects the writes of `len` bytes, which the caller then copies and posts without the lock,
    /// if that is worthwhile: they are many, and another thread receives at the same time.
    #[inline]
    pub fn begin_collecting(&mut self, len: usize) {
        if self.send.is_shared && len >= LARGE && self.provide_outbox() {
            self.outbox.begin();
        }
    }

    /// Gives the outbox memory for all writes that can be outstanding. Returns false if it has to do
    /// without.
    fn provide_outbox(&mut self) -> bool {
        let capacity = self.send.flow.max_outstanding();
        self.outbox.has_capacity(capacity) || self.outbox.reserve(capacity).is_ok()
    }

    /// Returns whether a thread posts or copies received data without the lock.
    pub fn is_in_use(&self) -> bool {
        self.outbox.is_posting() || self.is_being_read()
    }

    /// Returns the writes to post without the lock, and the send queue.
    pub fn outbox(&mut self) -> (&mut Outbox<RdmaWrite>, SendQueue) {
        (&mut self.outbox, self.qp.send_queue())
    }

    /// Polls the send CQ if `len` bytes do not fit into the free part of the send buffer. Allocates
    /// or grows the buffer.
    fn make_space(&mut self, len: usize) {
        if self.send.buffer.is_missing() {
            self.send.provide_buffer(&self.qp, len);
        }
        if len > self.send.flow.free() as usize {
            if !self.send.flow.is_idle() {
                self.reap_send_cq();
            }
            if self.send.buffer.is_small() || self.send.flow.is_buffer_limited(len) {
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

    /// Writes as much of `data` as possible without waiting into the peer's `region`. Returns the
    /// number of bytes. Fails as [`send`](Self::send).
    pub fn write(&mut self, data: &[u8], region: Region, begun: bool) -> Result<usize> {
        self.send_held();
        let mut done = 0;
        let len = data.len().min(region.length as usize);
        while done < len {
            let rest = &data[done..self.send.limit(done, len, begun)];
            let inline = self.goes_inline(rest);
            let Some((len, offset)) = self.send.flow.plan_write(rest.len(), inline) else { break };
            let part = &rest[..len as usize];
            let sg_list = if inline { inline_sge(part) } else { self.send.buffer.fill(&self.qp, part, offset)? };
            let (wr_id, signaled) = self.send.flow.take_write(len, inline);
            let addr = region.addr.wrapping_add(done as u64);
            self.post(RdmaWrite {
                message: None,
                sg_list,
                source: None,
                inline,
                addr,
                rkey: region.rkey,
                wr_id,
                signaled,
            })?;
            done += part.len();
        }
        Ok(done)
    }

    /// Frees the send buffer if no data is outstanding.
    pub fn give_memory_back(&mut self) {
        self.reap_send_cq();
        self.send.give_buffer_back();
    }
}

/// Bytes of a buffer that has grown once, and twice.
const STEPS: [u32; 2] = [1 << 18, 1 << 20];
/// Number of times that the buffer must have limited the stream before it grows.
const GROW_AFTER: u32 = 2;
/// Bytes of a buffer to try if there is no memory for a larger one.
const SMALL: [u32; 3] = [1 << 16, 1 << 14, 1 << 12];

#[derive(Debug)]
pub(super) enum Memory {
    First(MemoryRegion),
    Grown(Grown),
}

impl Memory {
    fn region(&self) -> &MemoryRegion {
        match self {
            Memory::First(memory) => memory,
            Memory::Grown(grown) => &grown.memory,
        }
    }

    /// Allocates memory of a first size.
    ///
    /// # Safety
    /// A live PD that outlives the result.
    pub unsafe fn first(pd: NonNull<ibv_pd>, size: u32) -> Result<Memory> {
        // SAFETY: guaranteed by the caller.
        unsafe { MemoryRegion::new(pd, size as usize, false).map(Memory::First) }
    }

    /// As [`first`](Self::first), but smaller if there is no memory for `size` bytes. Returns its
    /// size, too.
    ///
    /// # Safety
    /// See [`first`](Self::first).
    pub unsafe fn first_or_smaller(pd: NonNull<ibv_pd>, size: u32) -> Result<(Memory, u32)> {
        // SAFETY: guaranteed by the caller.
        let allocate = |size| unsafe { Memory::first(pd, size).map(|memory| (memory, size)) };
        let mut smaller = SMALL.into_iter().filter(|&small| small < size);
        allocate(size).or_else(|error| smaller.find_map(|size| allocate(size).ok()).ok_or(error))
    }
}

/// Allocates a buffer of the first size; idle streams may have to free memory for it.
fn allocate(qp: &QueuePair, size: u32) -> Result<Memory> {
    pinned_budget::with_memory(|| allocate_now(qp, size))
}

fn allocate_now(qp: &QueuePair, size: u32) -> Result<Memory> {
    // SAFETY: the PD is that of the live QP, and outlives the connection.
    unsafe { Memory::first(qp.pd()?, size) }
}

/// Returns the size of the buffer for a first message of `len` bytes.
fn first_size_for(len: usize, first_size: u32) -> u32 {
    match len {
        ..=0x1000 => first_size.min(1 << 14),
        0x1001..=0x10000 => first_size.min(1 << 16),
        _ => first_size,
    }
}

/// The memory from which messages go that are not inline.
#[derive(Debug)]
pub(super) struct SendBuffer {
    memory: Option<Memory>,
    size: u32,
    first_size: u32,
    may_grow: bool,
    /// Number of times that the buffer has limited the stream.
    limited: u32,
    /// Number of times that the buffer could not grow.
    refused: u32,
    /// The previous buffer, until this work request completes.
    old: Option<(Memory, u64)>,
}

impl SendBuffer {
    pub fn new(size: u32, may_grow: bool) -> SendBuffer {
        SendBuffer { memory: None, size, first_size: size, may_grow, limited: 0, refused: 0, old: None }
    }

    /// Returns the first size, in bytes.
    pub fn first_size(&self) -> u32 {
        self.first_size
    }

    /// Returns the next larger size.
    fn larger(&self) -> Option<u32> {
        if self.is_small() {
            return Some(self.first_size);
        }
        receive::next_step(STEPS, self.size).filter(|_| self.may_grow)
    }

    /// Returns whether the buffer is smaller than the first size, which it gets when it is used up
    /// for the first time: a connection that sends more would process completions too often.
    pub fn is_small(&self) -> bool {
        self.size < self.first_size
    }

    /// Returns whether the buffer is to be allocated by the next message that needs it.
    #[inline]
    pub fn is_missing(&self) -> bool {
        self.memory.is_none()
    }

    fn region(&mut self, qp: &QueuePair) -> Result<&MemoryRegion> {
        let memory = match &mut self.memory {
            Some(memory) => memory,
            none => none.insert(allocate(qp, self.size)?),
        };
        Ok(memory.region())
    }

    /// Copies `bytes` into the buffer, from `offset` on. Returns their scatter/gather list.
    #[inline]
    pub fn fill(&mut self, qp: &QueuePair, bytes: impl Source, offset: u32) -> Result<[Sge; 2]> {
        let (size, offset) = (self.size as usize, offset as usize);
        let region = self.region(qp)?;
        let first = bytes.size().min(size - offset);
        let (contiguous, wrapped) = bytes.split(first);
        let start = region.start();
        // SAFETY: both parts lie in the buffer, in space that the flow control has found free: no
        // outstanding work request reads it.
        unsafe {
            contiguous.copy_to(start.add(offset));
            wrapped.copy_to(start);
        }
        Ok(sg_list(region, offset, [first, wrapped.size()]))
    }

    /// Returns the scatter/gather list of `len` bytes that were copied from `offset` on, or will
    /// be.
    pub fn filled(&mut self, qp: &QueuePair, offset: u32, len: u32) -> Result<[Sge; 2]> {
        let first = len.min(self.size - offset);
        Ok(sg_list(self.region(qp)?, offset as usize, [first as usize, (len - first) as usize]))
    }
}

/// Returns the scatter/gather list of bytes at `offset`, and of those that follow at the beginning
/// of the buffer.
#[inline]
fn sg_list(region: &MemoryRegion, offset: usize, [first, wrapped]: [usize; 2]) -> [Sge; 2] {
    let (start, lkey) = (region.start().as_ptr() as usize as u64, region.lkey());
    [Sge { addr: start + offset as u64, len: first as u32, lkey }, Sge { addr: start, len: wrapped as u32, lkey }]
}

impl SendSide {
    /// Provides the buffer for a first message of `len` bytes. If that fails, so does the message.
    #[cold]
    #[inline(never)]
    pub fn provide_buffer(&mut self, qp: &QueuePair, len: usize) {
        let size = first_size_for(len, self.buffer.first_size);
        // SAFETY: the PD is that of the live QP, and outlives the connection.
        let smaller = |pd| unsafe { Memory::first_or_smaller(pd, size) };
        let allocated = allocate(qp, size).map(|memory| (memory, size));
        if let Ok((memory, size)) = allocated.or_else(|_| qp.pd().and_then(smaller)) {
            self.flow.replace_buffer(size);
            self.buffer.size = size;
            self.buffer.memory = Some(memory);
        }
    }

    /// Counts that the buffer has limited the stream, and grows the buffer if it did so repeatedly.
    pub fn grow_buffer(&mut self, qp: &QueuePair) {
        let buffer = &mut self.buffer;
        let Some(size) = buffer.larger() else { return };
        buffer.limited += 1;
        let limit = if buffer.is_small() { 1 } else { GROW_AFTER };
        if buffer.limited < limit << buffer.refused.min(16) {
            return;
        }
        buffer.limited = 0;
        match self.larger_buffer(qp, size) {
            Ok(memory) => {
                self.buffer.refused = 0;
                self.replace_buffer(memory, size);
            }
            // Tried less often from now on.
            Err(_) => self.buffer.refused = self.buffer.refused.saturating_add(1),
        }
    }

    /// Returns memory of `size` bytes. Fails with `ENOMEM`.
    fn larger_buffer(&mut self, qp: &QueuePair, size: u32) -> Result<Memory> {
        if self.buffer.old.is_some() {
            return Err(Errno::ENOMEM);
        }
        if size == self.buffer.first_size {
            return allocate_now(qp, size).map_err(|_| Errno::ENOMEM);
        }
        let reservation = Reservation::take(size);
        // SAFETY: the PD is that of the live QP, and outlives the connection.
        unsafe { Grown::with(reservation, qp.pd()?, size, false).map(Memory::Grown) }
    }

    /// Frees the buffer if no data is outstanding. The next send that needs it allocates it again,
    /// in the first size.
    pub fn give_buffer_back(&mut self) {
        let buffer = &mut self.buffer;
        if self.flow.is_idle() && buffer.old.is_none() {
            self.flow.replace_buffer(buffer.first_size);
            buffer.size = buffer.first_size;
            buffer.memory = None;
        }
    }

    fn replace_buffer(&mut self, memory: Memory, size: u32) {
        let last_wr_id = self.flow.replace_buffer(size);
        let old = self.buffer.memory.replace(memory);
        self.buffer.size = size;
        self.buffer.old = old.map(|old| (old, last_wr_id));
        self.drop_old_buffer();
    }

    /// Frees the previous buffer if no outstanding work request uses it.
    #[inline]
    pub fn drop_old_buffer(&mut self) {
        if let Some((_, wr_id)) = self.buffer.old
            && self.flow.is_complete(wr_id)
        {
            self.buffer.old = None;
        }
    }
}

/// Bytes of the message for which the send buffer is allocated if small messages need it first.
const HOLD_BUFFER: usize = 1 << 16;

impl Connection {
    /// Sets TCP_NODELAY.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.send.flow.set_nodelay(nodelay);
    }

    /// A call of `thread` sends data.
    #[inline]
    pub fn set_sender_thread(&mut self, thread: u64) {
        self.send.thread = thread;
    }

    /// A call of `thread` receives, or waits for data: if the same thread has sent, what is held is
    /// sent now, and what it sends next begins a new burst. Returns whether this has sent something,
    /// or failed to.
    #[expect(clippy::inline_always, reason = "see rsocket::calls")]
    #[inline(always)]
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

    /// The thread that receives is not the one that has sent.
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
                self.send.flow.note_idle_cq();
            }
            return false;
        }
        if self.send.buffer.is_missing() {
            self.send.provide_buffer(&self.qp, HOLD_BUFFER);
            if self.send.buffer.is_missing() {
                self.send.flow.note_idle_cq();
                return false;
            }
        }
        let Some(offset) = self.send.flow.plan_hold(data.size()) else { return false };
        // Without memory for the buffer the message is sent inline, or the call fails.
        if self.send.buffer.fill(&self.qp, data, offset).is_err() {
            self.send.flow.note_idle_cq();
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
