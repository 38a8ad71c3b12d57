//! The data path of a stream: a QP with its CQs and memory, driven by the flow control state
//! machines.
//!
//! A [`Connection`] is created before the handshake, because its receives have to be posted before
//! the peer can send. It sends after the handshake, with the peer's connection data. It has two
//! sides, each with its own CQ: receives complete in one CQ, sends in the other. Send completions
//! only free space, so the send CQ is polled, or waited for, mainly when space is short.
//!
//! The peer writes by RDMA into three parts of the receive side's memory: the target SGL, the
//! iomap, and the receive ring, which a larger one may follow ([`receive`]). The SGL and the iomap
//! are read by volatile copies; data in the ring is copied to the program after the completion that
//! announced the data. The first memory region, which also holds the first send buffer
//! ([`Layout`]), is writable for the peer as a whole. Outside of the receive side's memory, the
//! peer can write only to memory that the program has mapped with riomap(3).

mod completions;
mod post;
mod receive;
mod send;

use std::mem::{self, MaybeUninit};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::channel_leader::Leadership;
use super::options::Options;
use crate::cm::{Domain, Id};
use crate::errno::{Errno, Result};
use crate::os::alloc::try_box;
use crate::rsocket::cm_id::CmId;
use crate::rsocket::flow::{Reasons, Receiver, SendLimits, Sender};
use crate::rsocket::poll_waiter::Spinning;
use crate::rsocket::socket_table::{self, Counters};
use crate::rsocket::wire::{ConnData, IOMAP_ENTRY, Region, SGL_ENTRIES, SGL_ENTRY};
use crate::verbs::rc::{CompletionChannel, CompletionQueue, CqEvent, MemoryRegion, Opcode, Waker, ibv_wc};
use post::{QueuePair, Sizes};
use receive::ReceiveSide;
pub(super) use send::{Gather, MAX_COLLECTED, Source, parts};
use send::{SendBuffer, SendSide};

/// Entries of the target SGL.
const SGL: usize = SGL_ENTRIES as usize;
/// Send queue entries reserved for control messages: 4 messages, or 2 of two entries each on iWARP.
const CONTROL_ENTRIES: u32 = 4;
/// Receives for control messages, which take no credits. A peer sends at most six of them before it
/// has to wait for this side: two credit updates with buffers, two without, and its final messages.
const EXTRA_RECEIVES: u32 = 16;
/// Number of completed receives that are posted again together; the remaining extra receives are
/// enough for control messages meanwhile.
const REPOST: u32 = EXTRA_RECEIVES / 2;
/// Bytes of immediate data, which iWARP carries in a SEND after the write.
const IMM_LEN: usize = 4;
/// Bytes of a new stream's ring: a power of two, so that blocks whose size is a smaller power of
/// two do not cross the ring's end.
const FIRST_RING: usize = 1 << 13;
/// Bytes of the send buffer of a new stream.
const FIRST_BUFFER: usize = 1 << 12;
/// Minimum number of bytes to copy without the stream's lock: unlocking and relocking takes time.
pub(super) const LARGE: usize = 1 << 14;
/// Bytes of a slot for the data of a control message.
const CONTROL_DATA: usize = 32;
/// Number of completions polled at a time.
const BATCH: usize = 16;

/// Space for the completions of one poll.
pub(super) type Batch = [MaybeUninit<ibv_wc>; BATCH];
/// Space that is not initialised.
pub(super) const NEW_BATCH: Batch = [const { MaybeUninit::uninit() }; BATCH];

/// The combined effect of the processed completions: a set of the constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome(u8);

impl Outcome {
    /// Something completed.
    pub const ANY: Outcome = Outcome(1 << 0);
    /// The peer sends no more data.
    pub const EOF: Outcome = Outcome(1 << 1);
    /// The peer neither sends nor receives any more.
    pub const DISCONNECT: Outcome = Outcome(1 << 2);
    /// The peer sends no more data: `EOF` or `DISCONNECT`.
    pub const END: Outcome = Outcome(Outcome::EOF.0 | Outcome::DISCONNECT.0);

    /// Returns whether the set contains any of `others`.
    #[inline]
    pub fn has(self, others: Outcome) -> bool {
        self.0 & others.0 != 0
    }

    #[inline]
    pub fn add(&mut self, others: Outcome) {
        self.0 |= others.0;
    }
}

/// Offsets in a connection's first memory region, which begins with the target SGL.
#[derive(Clone, Copy, Debug)]
struct Layout {
    iomap: usize,
    control_data: usize,
    imms: usize,
    /// The first send buffer.
    send: usize,
    ring: usize,
    len: usize,
}

impl Layout {
    fn new(options: &Options, receives: u32, iwarp: bool) -> Layout {
        let iomap = SGL * SGL_ENTRY;
        let control_data = iomap + usize::from(options.iomap) * IOMAP_ENTRY;
        let imms = control_data + CONTROL_ENTRIES as usize * CONTROL_DATA;
        let send = imms + if iwarp { receives as usize * IMM_LEN } else { 0 };
        let send = send.next_multiple_of(64);
        let ring = send + FIRST_BUFFER.min(options.send_buffer as usize);
        let len = ring + FIRST_RING.min(options.receive_buffer as usize);
        Layout { iomap, control_data, imms, send, ring, len }
    }

    /// Returns the size of the first ring.
    fn first_ring(&self) -> u32 {
        (self.len - self.ring) as u32
    }
}

/// Whether the reactor watches a completion channel until its next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    None,
    /// The reactor begins to watch after a pause.
    Soon,
    Now,
}

/// The completion channel of both CQs, and the thread that waits in it.
#[derive(Debug)]
pub(super) struct Channel {
    pub completions: CompletionChannel,
    pub leadership: Leadership,
    /// The channel's descriptor is O_NONBLOCK.
    pub nonblocking: bool,
    /// The device was removed: the channel reports no more events.
    pub device_gone: bool,
    pub watch: Watch,
}

/// State of the RDMA read that is the last work request of an iWARP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndRead {
    /// The peer accepts no RDMA reads.
    Impossible,
    Possible,
    Posted,
}

/// What has ended of a connection, and what calls have reported of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ends {
    /// The program sends nothing more: the connection has ended, or the program has closed it.
    pub over: bool,
    /// The program has shut down reading.
    pub shut_read: bool,
    /// The program has shut down writing.
    pub shut_write: bool,
    /// The peer sends no more data.
    pub eof: bool,
    /// The connection has ended with an error, which a call may have returned since.
    pub with_error: bool,
    /// The connection manager has reported the end of the connection, or cannot report it any more.
    pub cm_disconnected: bool,
    /// The disconnect message was sent or queued, or is not needed any more.
    pub disconnect_sent: bool,
    /// An attempt to connect has succeeded, and no call has reported the success yet: the next
    /// rconnect(3) reports it.
    pub success_unreported: bool,
    /// A send after the peer's close was reported as successful, as with TCP: its data is lost.
    pub send_lost: bool,
}

impl Ends {
    /// Notes that the connection has ended, because of an error (`cause`) unless the end is orderly.
    /// `error` is the stream's pending error.
    pub fn disconnect(&mut self, cause: Option<Errno>, error: &mut Option<Errno>) {
        if !mem::replace(&mut self.over, true) {
            // After both sides have shut down writing, any failure is orderly: the first side that
            // learns of both shutdowns may close at once. If only the peer has sent its last
            // message, a disconnect is orderly: as with TCP, reading then returns 0.
            let is_orderly = self.eof && (self.shut_write || cause == Some(Errno::ECONNRESET));
            if !is_orderly {
                self.with_error = cause.is_some();
                *error = error.or(cause);
            }
        }
        self.eof = true;
    }

    /// Returns whether nothing has ended.
    #[inline]
    pub fn none(&self) -> bool {
        !(self.over | self.shut_read | self.shut_write | self.eof)
    }

    /// Returns whether the program may still write.
    pub fn can_write(&self) -> bool {
        !self.over && !self.shut_write
    }
}

/// A stream's QP with both halves, from the handshake on.
#[derive(Debug)]
pub(super) struct Connection {
    // Fields are dropped in order: the QP before its CQs and memory, CQs and waker before the
    // channel.
    qp: QueuePair,
    send: SendSide,
    receive: ReceiveSide,
    waker: Option<Waker>,
    /// The peer's connection data: its target SGL, which the iomap follows. All zeros until the
    /// handshake.
    pub peer: ConnData,
    pub channel: Channel,
    pub ends: Ends,
    pub spinning: Spinning,
    /// Number of consecutive receiving calls that had to sleep.
    pub sleeps: u8,
    end_read: EndRead,
    /// The first failure of a work request, or the peer's protocol violation.
    failed: Option<Errno>,
    /// Messages are ignored: a receive has failed, or the peer has violated the protocol.
    receive_ended: bool,
    /// Number of threads that wait until another thread stops using the connection without the
    /// stream's lock. While a thread waits, no other thread begins to use the connection in this
    /// way.
    pub waiting: u32,
    /// The connection's entry in the table for rsstat(8).
    entry: Option<socket_table::Entry>,
}

impl Connection {
    /// Creates a QP with its resources for `id`, on the device of `domain`, which outlives the
    /// result, and posts receives.
    pub fn new(id: &CmId, domain: &Domain, options: &Options) -> Result<Box<Connection>> {
        let (context, pd) = (domain.context(), domain.pd());
        let Sizes { sends, credits } = Sizes::new(options, domain.limits());
        let receives = credits + EXTRA_RECEIVES;
        // On failure the variables are dropped in reverse order: the CQs before the channel.
        // SAFETY: the device is open as long as the domain lives, which outlives the connection.
        let completions = unsafe { CompletionChannel::new(context)? };
        // SAFETY: the domain keeps the device open; the channel is dropped after the CQs.
        let (recv_cq, send_cq) = unsafe {
            let recv_cq = CompletionQueue::new(context, receives, &completions)?;
            (recv_cq, CompletionQueue::new(context, sends, &completions)?)
        };
        let iwarp = post::is_iwarp(id);
        let layout = Layout::new(options, receives, iwarp);
        // SAFETY: the PD lives as long as the domain, which outlives the connection.
        let memory = unsafe { MemoryRegion::new(pd, layout.len, true)? };
        let new_receiver = if layout.first_ring() < options.receive_buffer { Receiver::small } else { Receiver::new };
        let flow = new_receiver(layout.first_ring(), credits as u16);
        let mut receive = ReceiveSide::new(recv_cq, memory, layout, flow, options);
        let buffer = SendBuffer::new(receive.first_send_buffer(), options.send_buffer, options.send_grows);
        let qp = QueuePair::new(id, pd, [&send_cq, &receive.cq], [sends, receives], options.inline)?;
        receive.post_receives(&qp)?;
        receive.rings.prepare();
        let entries_per_message = if iwarp { 2 } else { 1 };
        let limits = SendLimits {
            sq_entries: sends - CONTROL_ENTRIES,
            entries_per_message,
            controls: CONTROL_ENTRIES / entries_per_message,
            buffer: buffer.size,
            window: 0,
        };
        let (flow, write) = (Sender::new(limits, Region::default())?, qp.send_queue().inline_write()?);
        try_box(Connection {
            send: SendSide::new(send_cq, flow, buffer, write, receive.control_data()),
            qp,
            receive,
            waker: None,
            peer: ConnData::default(),
            channel: Channel {
                completions,
                leadership: Leadership::default(),
                nonblocking: false,
                device_gone: false,
                watch: Watch::None,
            },
            ends: Ends::default(),
            spinning: Spinning::default(),
            sleeps: 0,
            end_read: EndRead::Impossible,
            failed: None,
            receive_ended: false,
            waiting: 0,
            entry: None,
        })
    }

    /// Returns the connection data of this side, for the peer.
    pub fn connection_data(&self) -> ConnData {
        let ReceiveSide { memory, layout, iomap, flow, .. } = &self.receive;
        let memory = RemoteMemory { start: memory.start(), rkey: memory.rkey() };
        ConnData {
            big_endian: cfg!(target_endian = "big"),
            credits: flow.credits(),
            iomap_size: *iomap,
            target_sgl: memory.region(0, SGL as u32),
            data_buf: memory.region(layout.ring as u32, flow.first_buffer()),
        }
    }

    /// Takes the connection data of the peer. `takes_reads`: the peer takes RDMA reads.
    pub fn set_peer(&mut self, peer: &ConnData, takes_reads: bool) {
        self.send.flow.set_peer(peer.credits, peer.data_buf);
        self.peer = *peer;
        self.end_read = if takes_reads { EndRead::Possible } else { EndRead::Impossible };
    }

    /// Lists the connection, whose descriptor is `fd`, for rsstat(8).
    pub fn list(&mut self, fd: i32, id: &Id) {
        self.entry = socket_table::Entry::new(socket_table::CONNECTED, fd, id, self.qp.number(), 0);
        self.publish();
    }

    /// Notes that the connection has ended ([`Ends::disconnect`]).
    pub fn disconnect(&mut self, cause: Option<Errno>, error: &mut Option<Errno>) {
        self.ends.disconnect(cause, error);
        self.end();
    }

    /// Takes no more data of the program, and lists the connection as closing.
    pub fn end(&mut self) {
        self.ends.over = true;
        self.end_sending();
        self.list_as_closing();
    }

    /// Marks the connection as closing, for rsstat(8).
    fn list_as_closing(&self) {
        if let Some(entry) = &self.entry {
            entry.set_state(socket_table::CLOSING);
        }
    }

    /// Returns the counters for rsstat(8), if the connection has an entry there.
    #[inline]
    fn counters(&self) -> Option<&'static Counters> {
        self.entry.as_ref().map(socket_table::Entry::counters)
    }

    /// Returns the number of bytes sent, and of bytes received and read; 0 for both without an
    /// entry for rsstat(8).
    pub fn bytes(&self) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.counters().map_or((0, 0), |counters| (read(&counters.sent_bytes), read(&counters.read_bytes)))
    }

    /// Returns the number of bytes that the program has sent and the peer has not acknowledged; 0
    /// after a failure, because no more acknowledgements arrive.
    pub fn unsent(&mut self) -> u32 {
        self.reap_send_cq();
        if self.failure().is_some() { 0 } else { self.send.flow.used() }
    }

    /// Counts a call that has to wait before it can send.
    pub fn count_send_wait(&self) {
        if let Some(counters) = self.counters() {
            counters.count_send_wait();
        }
    }

    /// Publishes credits and buffers for rsstat(8).
    #[inline]
    fn publish(&self) {
        if let Some(counters) = self.counters() {
            counters.credits.store(self.credits(), Ordering::Relaxed);
            counters.send_queued.store(self.send.flow.used(), Ordering::Relaxed);
            counters.send_buffer.store(self.send.buffer.size, Ordering::Relaxed);
            counters.receive_buffer.store(self.receive.rings.size, Ordering::Relaxed);
        }
    }

    /// Returns whether this is a working iWARP connection whose last messages may not have arrived
    /// yet, even if their work requests have completed.
    pub fn needs_graceful_end(&self) -> bool {
        let works = !self.ends.cm_disconnected && self.failed.is_none();
        self.qp.is_iwarp() && works && !(self.end_read == EndRead::Posted && self.is_flushed())
    }

    /// Posts an RDMA read of no bytes after the last message of an iWARP connection: when the read
    /// has completed, the messages have arrived. Returns false if the peer accepts no reads.
    pub fn post_end_read(&mut self) -> bool {
        if self.end_read == EndRead::Possible {
            self.end_read = EndRead::Posted;
            if let Err(error) = self.post_empty(Opcode::Read) {
                self.fail(error);
            }
        }
        self.end_read == EndRead::Posted
    }

    /// Returns the first failure of a work request, or the peer's protocol violation.
    pub fn failure(&self) -> Option<Errno> {
        self.failed
    }

    /// Records the first failure: nothing is sent any more. `EIO`, with which system calls fail
    /// after the removal of the device, becomes `ENETDOWN`.
    #[cold]
    pub fn fail(&mut self, error: Errno) {
        self.failed.get_or_insert(if error == Errno::EIO { Errno::ENETDOWN } else { error });
        self.end_sending();
    }

    /// Returns whether data can be sent.
    #[inline]
    pub fn can_send(&self) -> bool {
        self.failed.is_none() && self.send.flow.is_ready()
    }

    /// Returns true if no work request is outstanding and no data is held, or after a failure.
    pub fn is_flushed(&self) -> bool {
        self.failed.is_some() || self.send.flow.is_idle()
    }

    /// Makes sure that the completion of a signaled request reports when all data has arrived.
    pub fn signal_end(&mut self) -> Result<()> {
        if self.send.flow.ends_unsignaled() { self.keep_alive() } else { Ok(()) }
    }

    /// Returns whether a call waits until all sent data has arrived.
    pub fn is_flush_awaited(&self) -> bool {
        self.send.flushing > 0
    }

    /// Sends held data, and counts one more call that waits until all sent data has arrived.
    pub fn begin_flush(&mut self) {
        self.send_held();
        self.send.flushing += 1;
        self.send.flow.set_reason(Reasons::FLUSH, true);
    }

    /// Ends the wait of a call that has called [`begin_flush`](Self::begin_flush).
    pub fn end_flush(&mut self) {
        self.send.flushing = self.send.flushing.saturating_sub(1);
        self.send.flow.set_reason(Reasons::FLUSH, self.is_flush_awaited());
    }

    /// Requests an event for the next message of the peer.
    #[inline]
    pub fn arm_recv_cq(&self) -> Result<()> {
        self.receive.cq.arm()
    }

    /// Arms the send CQ if a waiter needs it. Returns true if this call has armed the CQ.
    #[inline]
    pub fn arm_send_cq(&mut self) -> Result<bool> {
        if self.send.cq_armed || !self.needs_send_completions() {
            return Ok(false);
        }
        self.send.arm_cq()?;
        Ok(true)
    }

    /// Returns whether the send CQ is armed and its event has not been read.
    pub fn is_send_cq_armed(&self) -> bool {
        self.send.cq_armed
    }

    /// Wakes the thread that sleeps in the channel.
    pub fn wake_leader(&mut self) {
        if self.raise_event().is_err() && self.force_completion().is_err() {
            self.flush_qp();
        }
    }

    /// Raises an event in the channel, unless the event of an earlier call has not been read.
    fn raise_event(&mut self) -> Result<()> {
        if self.waker.take_if(|waker| waker.is_over()).is_some() || self.waker.is_none() {
            // SAFETY: the PD lives as long as the domain. The waker is dropped before the channel.
            self.waker = Some(unsafe { Waker::new(self.qp.pd()?, &self.channel.completions)? });
        }
        Ok(())
    }

    /// For a device that has no QP for a waker: raises an event with the acknowledgement of a
    /// keepalive.
    fn force_completion(&mut self) -> Result<()> {
        if !self.send.cq_armed {
            self.send.arm_cq()?;
        }
        self.send.wake_due = self.is_sending_unlocked();
        self.keep_alive()
    }

    /// Counts an event that the leader has read, if there was one: its CQ is not armed any more.
    #[inline]
    pub fn note_event(&mut self, event: &CqEvent) {
        self.channel.leadership.leader = 0;
        if self.receive.cq.note_event(event) {
            self.channel.leadership.armed = false;
        } else if self.send.cq.note_event(event) {
            self.send.cq_armed = false;
        } else if let Some(waker) = &mut self.waker {
            waker.note_event(event);
        }
    }

    /// Moves the QP to the error state: every work request completes, which wakes the threads that
    /// wait for a completion.
    pub fn flush_qp(&self) {
        self.qp.move_to_error();
    }

    /// Returns the number of messages that the peer has receives for.
    pub fn credits(&self) -> u32 {
        self.send.flow.credits().into()
    }
}

/// Memory of this side that the peer may write to.
#[derive(Clone, Copy, Debug)]
struct RemoteMemory {
    start: NonNull<u8>,
    rkey: u32,
}

impl RemoteMemory {
    /// Returns the region of `length` bytes at `offset`, as it is advertised to the peer.
    fn region(self, offset: u32, length: u32) -> Region {
        let addr = self.start.as_ptr() as usize as u64 + u64::from(offset);
        Region { addr, rkey: self.rkey, length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of a connection that both sides have shut down is no error, as with TCP.
    #[test]
    fn an_orderly_end_is_no_error() {
        let reset = Some(Errno::ECONNRESET);
        for (eof, shut_write, cause, error) in [
            (false, false, None, None),
            (false, false, reset, reset),
            (false, true, reset, reset),
            (true, false, reset, None),
            (true, true, reset, None),
            (true, false, Some(Errno::ETIMEDOUT), Some(Errno::ETIMEDOUT)),
            (true, true, Some(Errno::ETIMEDOUT), None),
        ] {
            let (mut ends, mut pending) = (Ends { eof, shut_write, ..Ends::default() }, None);
            assert_eq!(ends.can_write(), !shut_write);
            ends.disconnect(cause, &mut pending);
            assert!(ends.over && ends.eof && !ends.can_write());
            assert_eq!((pending, ends.with_error), (error, error.is_some()));
            ends.disconnect(Some(Errno::ENETDOWN), &mut pending);
            assert_eq!(pending, error, "the first cause is reported");
        }
    }
}
