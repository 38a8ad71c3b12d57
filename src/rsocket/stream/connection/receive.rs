//! The receive side: the memory that the peer writes to, the receives for its messages, and the
//! data that the program has not read.
//!
//! [`Rings`] has the memory for data: the small ring of a new stream, which is a part of the
//! receive side's memory, and later memory regions of the full size (SO_RCVBUF), or of a larger
//! size for a stream that the ring limits.

use std::mem::{self, MaybeUninit};
use std::ptr::{self, NonNull};
use std::slice;

use super::post::QueuePair;
use super::send::ControlData;
use super::{CONTROL_DATA, Connection, EXTRA_RECEIVES, IMM_LEN, LARGE, Layout, RemoteMemory};
use crate::errno::{Errno, Result};
use crate::os::event;
use crate::os::pages::{self, Pages};
use crate::rsocket::flow::{Received, Receiver};
use crate::rsocket::pinned_budget::{self, Reservation};
use crate::rsocket::stream::options::Options;
use crate::rsocket::wire::{self, IOMAP_ENTRY, Mapping, Region, SGL_ENTRY};
use crate::verbs::ibv_pd;
use crate::verbs::rc::{CompletionQueue, MemoryRegion, Sge};

/// The half that receives: its CQ, rings and flow control.
#[derive(Debug)]
pub(super) struct ReceiveSide {
    pub cq: CompletionQueue,
    pub memory: MemoryRegion,
    pub layout: Layout,
    /// The receives to post again: `idle` consecutive slots from `first_idle` on, where slot 0
    /// follows the last one. Receives complete in the order in which they were posted. `first_idle`
    /// is not used for receives without memory, which are all alike.
    pub idle: u32,
    first_idle: u32,
    /// Number of entries of the iomap, which the peer writes.
    pub iomap: u16,
    pub flow: Receiver,
    pub rings: Rings,
    /// A thread copies received data without the stream's lock.
    is_being_read: bool,
    _reservation: Reservation,
}

// SAFETY: any thread may use libibverbs objects and the memory, and the stream's lock lets one
// thread do so at a time.
unsafe impl Send for ReceiveSide {}

impl ReceiveSide {
    /// Creates the receive side in `memory`, which has the length of `layout`.
    pub fn new(
        cq: CompletionQueue,
        memory: MemoryRegion,
        layout: Layout,
        flow: Receiver,
        options: &Options,
    ) -> ReceiveSide {
        // SAFETY: by the layout the ring lies in the memory.
        let ring = RemoteMemory { start: unsafe { memory.start().add(layout.ring) }, rkey: memory.rkey() };
        let rings = Rings::new(ring, layout.first_ring(), options.receive_buffer, options.receive_grows);
        let reservation = Reservation::take_idle(layout.len as u32);
        let iomap = options.iomap;
        ReceiveSide {
            cq,
            memory,
            layout,
            idle: u32::from(flow.credits()) + EXTRA_RECEIVES,
            first_idle: 0,
            iomap,
            flow,
            rings,
            is_being_read: false,
            _reservation: reservation,
        }
    }

    /// Returns the first send buffer.
    pub fn first_send_buffer(&self) -> Sge {
        self.memory.sge(self.layout.send, (self.layout.ring - self.layout.send) as u32)
    }

    /// Returns the space for the bytes of control messages.
    pub fn control_data(&self) -> ControlData {
        ControlData::new(self.memory.sge(self.layout.control_data, CONTROL_DATA as u32))
    }

    /// Posts the idle receives.
    #[inline(never)]
    pub fn post_receives(&mut self, qp: &QueuePair) -> Result<()> {
        if !qp.is_iwarp() {
            return qp.post_empty_recv(mem::take(&mut self.idle));
        }
        let receives = u32::from(self.flow.credits()) + EXTRA_RECEIVES;
        let lkey = self.memory.lkey();
        let start = self.memory.start().as_ptr() as usize + self.layout.imms;
        let buffer_of = |slot: u32| Sge { addr: (start + slot as usize * IMM_LEN) as u64, len: IMM_LEN as u32, lkey };
        while self.idle > 0 {
            let first = self.first_idle;
            let count = self.idle.min(receives - first);
            // SAFETY: the layout reserves the slots, and the memory is dropped after the QP.
            unsafe { qp.post_recv(first..first + count, buffer_of)? };
            self.first_idle = (first + count) % receives;
            self.idle -= count;
        }
        Ok(())
    }

    /// Counts a completed receive. Returns true if no receive is posted any more: a peer that
    /// respects its credits never uses the last one.
    #[inline]
    pub fn used(&mut self) -> bool {
        self.idle += 1;
        self.idle == u32::from(self.flow.credits()) + EXTRA_RECEIVES
    }

    /// Returns the immediate data that the receive in `slot` got from a SEND over iWARP.
    pub fn imm(&self, slot: u32) -> u32 {
        let start = self.memory.start();
        // SAFETY: by the layout the slot lies in the memory. The device wrote it before the
        // completion.
        unsafe { start.add(self.layout.imms + slot as usize * IMM_LEN).cast::<u32>().as_ptr().read_volatile() }
    }

    /// Returns how many entries of the target SGL, from `next` on, the peer has written.
    pub fn written_targets(&self, next: usize) -> usize {
        [next, 1 - next].iter().take_while(|&&entry| self.target_length(entry) != 0).count()
    }

    fn target_length(&self, entry: usize) -> u32 {
        // SAFETY: the SGL is at the beginning of the memory, and is accessed by volatile copies
        // because the peer writes it by RDMA.
        unsafe { self.memory.start().add(entry * SGL_ENTRY).cast::<u32>().add(3).read_volatile() }
    }

    /// Takes the region in an entry of the target SGL, if the peer has written the entry.
    pub fn take_target(&self, entry: usize) -> Option<Region> {
        // Read the length first: the peer writes it last.
        let length = self.target_length(entry);
        if length == 0 {
            return None;
        }
        // SAFETY: the entry lies in the memory, as in `target_length`.
        unsafe {
            let entry = self.memory.start().add(entry * SGL_ENTRY).cast::<[u32; SGL_ENTRY / 4]>().as_ptr();
            pages::device_read_barrier();
            let words = [
                (&raw const (*entry)[0]).read_volatile(),
                (&raw const (*entry)[1]).read_volatile(),
                (&raw const (*entry)[2]).read_volatile(),
            ];
            // A length of 0 marks the entry as empty until the peer writes it again.
            (&raw mut (*entry)[3]).write_volatile(0);
            let mut bytes = [0; SGL_ENTRY];
            for (bytes, word) in bytes.chunks_exact_mut(4).zip([words[0], words[1], words[2], length]) {
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
            // Entries are in this machine's byte order: the peer swaps the bytes if its order
            // differs.
            Some(wire::parse_sgl(&bytes))
        }
    }

    /// Returns entry `index` of the iomap.
    fn mapping(&self, index: u16) -> Mapping {
        let mut bytes = [0; IOMAP_ENTRY];
        let start = self.layout.iomap + usize::from(index) * IOMAP_ENTRY;
        for (at, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: by the layout the iomap lies in the memory. The peer may write at the same
            // time; any bytes are a valid mapping, which refers to the peer's own memory.
            *byte = unsafe { self.memory.start().add(start + at).as_ptr().read_volatile() };
        }
        wire::parse_iomap(&bytes)
    }

    /// Copies received bytes to the beginning of `into`, which has space for them.
    #[inline]
    pub fn copy(&self, received: Received, into: &mut [MaybeUninit<u8>]) {
        let Received { ring, offset, len } = received;
        let into = &mut into[..len as usize];
        // SAFETY: the bytes lie in a ring, and do not overlap the program's buffer. A peer that
        // violates the protocol and writes there before it has credit only corrupts its own data.
        unsafe {
            let from: NonNull<u8> = self.rings.memory(ring).start.add(offset as usize);
            ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr().cast(), into.len());
        }
    }
}

impl Connection {
    /// Returns true for a new stream that has not failed: the peer will soon need more space than
    /// the first ring has.
    #[inline]
    pub fn is_starting(&self) -> bool {
        self.receive.flow.is_starting() && self.failed.is_none()
    }

    /// Returns the number of bytes that the program can read.
    pub fn available(&self) -> u64 {
        self.receive.flow.available()
    }

    /// Returns whether the ring that the program reads has at least `len` unread bytes.
    #[inline]
    pub fn has_piece(&self, len: usize) -> bool {
        self.receive.flow.buffered() >= len as u64
    }

    /// Fast path of [`read_some`](Self::read_some). Returns `None` if [`Receiver::take_piece`]
    /// does.
    ///
    /// # Safety
    /// `start` is writable for `len` bytes.
    #[inline(always)] // see rsocket::calls
    pub unsafe fn read_piece(&mut self, start: *mut u8, len: usize) -> Option<usize> {
        let Received { ring, offset, len } = self.receive.flow.take_piece(len)?;
        // SAFETY: the bytes lie in the ring, and the ring does not overlap the program's memory.
        // `start` is writable for at least as many bytes: guaranteed by the caller.
        unsafe {
            let from = self.receive.rings.memory(ring).start.add(offset as usize);
            ptr::copy_nonoverlapping(from.as_ptr(), start, len as usize);
        }
        self.count_read(len.into());
        if self.receive.flow.has_buffer() {
            self.send_credit_updates_now();
        }
        Some(len as usize)
    }

    /// Copies unread data after its first `skip` bytes, and leaves the data unread. Returns the
    /// number of bytes copied.
    #[inline]
    pub fn peek(&self, skip: u64, into: &mut [MaybeUninit<u8>]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let mut received = self.receive.flow.piece(skip + done as u64);
            received.len = received.len.min(u32::try_from(into.len() - done).unwrap_or(u32::MAX));
            if received.len == 0 {
                break;
            }
            self.receive.copy(received, &mut into[done..]);
            done += received.len as usize;
        }
        done
    }

    /// Reads at most `len` bytes. Returns the number of bytes, or `None` if there is no data.
    ///
    /// # Safety
    /// `start` is writable for `len` bytes.
    #[inline(never)]
    pub unsafe fn read_some(&mut self, start: *mut u8, len: usize) -> Option<usize> {
        // SAFETY: `start` is writable for `len` bytes, and may be uninitialised: guaranteed by the
        // caller.
        let into = unsafe { slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), len.min(isize::MAX as usize)) };
        let done = self.peek(0, into);
        if done > 0 {
            self.take(done as u64);
        }
        (done > 0).then_some(done)
    }

    /// Gives the space of `len` bytes, which the program has read, back to the peer.
    #[inline]
    pub fn take(&mut self, len: u64) {
        if let Some(ring) = self.receive.flow.take(len) {
            self.receive.rings.release(ring);
        }
        self.count_read(len);
        self.send_credit_updates();
    }

    /// Returns whether a thread copies received data without the stream's lock.
    #[inline]
    pub fn is_being_read(&self) -> bool {
        self.receive.is_being_read
    }

    /// Returns whether a call that reads up to `len` bytes copies them without the lock: at least
    /// [`LARGE`] bytes are requested and available, and another thread sends at the same time.
    #[inline]
    pub fn reads_unlocked(&self, len: usize) -> bool {
        self.send.is_shared && len >= LARGE && self.available() >= LARGE as u64
    }

    /// Begins to read up to `len` bytes. Returns them for the caller to copy without the lock, or
    /// `None` if fewer than [`LARGE`] bytes are contiguous or another thread waits for the
    /// connection.
    pub fn begin_reading(&mut self, len: usize) -> Option<NonNull<[u8]>> {
        let Received { ring, offset, len: available } = self.receive.flow.piece(0);
        let len = len.min(available as usize);
        if len < LARGE || self.waiting > 0 {
            return None;
        }
        self.receive.is_being_read = true;
        // SAFETY: the data lies in the ring.
        let start = unsafe { self.receive.rings.memory(ring).start.add(offset as usize) };
        Some(NonNull::slice_from_raw_parts(start, len))
    }

    /// Ends [`begin_reading`](Self::begin_reading): the first `len` bytes were copied.
    pub fn end_reading(&mut self, len: usize) {
        self.receive.is_being_read = false;
        self.take(len as u64);
    }

    #[inline]
    fn count_read(&self, len: u64) {
        if let Some(counters) = self.counters() {
            counters.count_read(len);
        }
    }

    /// Returns the region that the peer has mapped at `offset`, from `offset` to the region's end,
    /// or `None` if no region is mapped there.
    pub fn mapped(&self, offset: u64) -> Option<Region> {
        (0..self.receive.iomap).map(|index| self.receive.mapping(index)).find_map(|mapping| {
            let skip = offset.checked_sub(mapping.offset).filter(|&skip| skip < u64::from(mapping.region.length))?;
            Some(Region {
                addr: mapping.region.addr.wrapping_add(skip),
                length: mapping.region.length - skip as u32,
                ..mapping.region
            })
        })
    }
}

/// Size of a send buffer or ring that has grown beyond the full size, in bytes. Sixteen streams with
/// larger ones are slower, because they do not fit into the caches.
const GROWN: u32 = 1 << 19;

/// Returns the size of a send buffer or ring after `size`, if there is one: the full size or, if
/// `may_grow` is set, the grown size.
pub(super) fn next_size(size: u32, full_size: u32, may_grow: bool) -> Option<u32> {
    if size < full_size { Some(full_size) } else { Some(GROWN).filter(|&grown| may_grow && size < grown) }
}

/// Memory of a send buffer or ring other than the first one, and its part of the process's budget.
#[derive(Debug)]
pub(super) struct Grown {
    pub memory: MemoryRegion,
    _reservation: Option<Reservation>,
}

impl Grown {
    /// Allocates `bytes` of registered memory, to which the peer may write if `remote`.
    ///
    /// # Safety
    /// `pd` is live, and outlives the result.
    pub unsafe fn new(
        reservation: Option<Reservation>,
        pd: NonNull<ibv_pd>,
        bytes: u32,
        remote: bool,
    ) -> Result<Grown> {
        // SAFETY: the PD is live, and outlives the memory region: guaranteed by the caller.
        let memory = unsafe { MemoryRegion::new(pd, bytes as usize, remote)? };
        Ok(Grown { memory, _reservation: reservation })
    }
}

/// The receive rings: the current one, and the next or the previous one.
#[derive(Debug)]
pub(super) struct Rings {
    rings: [RemoteMemory; 2],
    grown: [Option<Grown>; 2],
    /// The first ring, which is never freed. It may be smaller than `full_size`.
    first: RemoteMemory,
    first_size: u32,
    full_size: u32,
    /// Bytes of the ring that is being advertised.
    pub size: u32,
    /// The ring may exceed the full size.
    may_grow: bool,
}

impl Rings {
    pub fn new(first: RemoteMemory, first_size: u32, full_size: u32, may_grow: bool) -> Rings {
        let rings = [first; 2];
        Rings { rings, grown: [None, None], first, first_size, full_size, size: first_size, may_grow }
    }

    /// Maps memory in advance for the ring that replaces a small one.
    pub fn prepare(&self) {
        if self.first_size < self.full_size {
            Pages::prepare_ring(self.full_size as usize);
        }
    }

    /// Returns the size of the next larger ring, if there is one.
    fn larger(&self) -> Option<u32> {
        next_size(self.size, self.full_size, self.may_grow)
    }

    /// Allocates a ring of `size` bytes. Fails with `ENOMEM` if memory or the budget is short.
    fn allocate(&self, size: u32, qp: &QueuePair) -> Result<Grown> {
        let take = if size == self.full_size { Reservation::take_full } else { Reservation::take_growth };
        let reservation = take(size).ok_or(Errno::ENOMEM)?;
        // SAFETY: the PD of the QP is live, and outlives the connection.
        unsafe { Grown::new(Some(reservation), qp.pd()?, size, true) }.map_err(|_| Errno::ENOMEM)
    }

    /// Returns the memory of ring 0 or 1.
    #[inline]
    pub fn memory(&self, ring: usize) -> RemoteMemory {
        self.rings[ring & 1]
    }

    fn add(&mut self, ring: usize, memory: RemoteMemory, grown: Option<Grown>, size: u32) {
        self.rings[ring & 1] = memory;
        self.grown[ring & 1] = grown;
        self.size = size;
    }

    /// Frees a ring that is not used any more.
    #[cold]
    pub fn release(&mut self, ring: usize) {
        self.grown[ring & 1] = None;
    }
}

impl ReceiveSide {
    /// Switches to a larger ring if the flow control requests that, or back to the first ring if
    /// memory is short. Called before half a ring is advertised.
    pub fn resize(&mut self, qp: &QueuePair) {
        if self.rings.size > self.rings.first_size && pinned_budget::is_needed() && self.flow.can_add_ring() {
            return self.use_first_ring();
        }
        let larger = self.rings.larger();
        let Some(size) = larger.filter(|_| self.flow.should_grow(event::monotonic_ms)) else { return };
        match self.rings.allocate(size, qp) {
            Ok(ring) => self.add_ring(ring, size),
            Err(_) if self.rings.size < self.rings.full_size => self.flow.could_not_grow(),
            Err(_) => self.rings.may_grow = false,
        }
    }

    /// Returns to the first ring.
    fn use_first_ring(&mut self) {
        let (memory, size) = (self.rings.first, self.rings.first_size);
        let ring = if size < self.rings.full_size { self.flow.add_small_ring(size) } else { self.flow.add_ring(size) };
        self.rings.add(ring, memory, None, size);
    }

    fn add_ring(&mut self, grown: Grown, size: u32) {
        let memory = RemoteMemory { start: grown.memory.start(), rkey: grown.memory.rkey() };
        let ring = self.flow.add_ring(size);
        self.rings.add(ring, memory, Some(grown), size);
    }
}
