//! The receive side: memory that the peer writes to, the receives that its messages take, and the
//! data that the program has not read yet.

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};

use super::post::QueuePair;
use super::receive_rings::Rings;
use super::send::ControlData;
use super::{Batch, Connection, IMM_LEN, Layout, REPOST, RemoteMemory, SGL};
use crate::errno::{Errno, Result};
use crate::rsocket::flow::{Received, Receiver};
use crate::rsocket::stream::options::Options;
use crate::rsocket::wire::{self, ConnData, IOMAP_ENTRY, Mapping, Region, SGL_ENTRY};
use crate::sys::rc::{CompletionQueue, CqEvent, MemoryRegion, Sge};

/// See the module.
#[derive(Debug)]
pub(super) struct ReceiveSide {
    cq: CompletionQueue,
    memory: MemoryRegion,
    layout: Layout,
    /// Receives, posted or idle.
    receives: u32,
    /// Receives to post again.
    idle: Vec<u32>,
    /// Entries of the iomap.
    iomap: u16,
    pub flow: Receiver,
    pub rings: Rings,
}

// SAFETY: libibverbs objects and memory, which any thread may use, one at a time: the stream's lock
// sees to that.
unsafe impl Send for ReceiveSide {}

impl ReceiveSide {
    /// `memory` is as long as `layout` says.
    pub fn new(
        cq: CompletionQueue,
        memory: MemoryRegion,
        layout: Layout,
        receives: u32,
        flow: Receiver,
        options: &Options,
    ) -> Result<ReceiveSide> {
        let mut idle = Vec::new();
        idle.try_reserve_exact(receives as usize).map_err(|_| Errno::ENOMEM)?;
        idle.extend(0..receives);
        // SAFETY: within the memory, by its layout.
        let ring = RemoteMemory { start: unsafe { memory.start().add(layout.ring) }, rkey: memory.rkey() };
        let rings = Rings::new(ring, options.receive_buffer, options.receive_grows);
        Ok(ReceiveSide { cq, memory, layout, receives, idle, iomap: options.iomap, flow, rings })
    }

    pub fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// Counts an event of the channel if it is this CQ's, and returns whether it is.
    pub fn note_event(&mut self, event: &CqEvent) -> bool {
        self.cq.note_event(event)
    }

    /// See [`super::Unconnected::connection_data`].
    pub fn connection_data(&self) -> ConnData {
        let (start, rkey) = (self.memory.start(), self.memory.rkey());
        let half = (self.layout.len - self.layout.ring) as u32 / 2;
        let memory = RemoteMemory { start, rkey };
        ConnData {
            big_endian: cfg!(target_endian = "big"),
            credits: self.flow.credits(),
            iomap_size: Some(self.iomap),
            target_sgl: memory.region(0, SGL as u32),
            data_buf: memory.region(self.layout.ring as u32, half),
        }
    }

    /// Space for the bytes of control messages that do not go inline.
    pub fn control_data(&self) -> ControlData {
        // SAFETY: within the memory, by its layout.
        let start = unsafe { self.memory.start().add(self.layout.control_data) };
        ControlData::new(start, self.memory.lkey())
    }

    /// Posts the idle receives.
    pub fn post_receives(&mut self, qp: &QueuePair) -> Result<()> {
        let (lkey, iwarp) = (self.memory.lkey(), qp.is_iwarp());
        let start = self.memory.start().as_ptr() as usize + self.layout.imms;
        let buffer_of = |slot: u32| {
            iwarp.then(|| Sge { addr: (start + slot as usize * IMM_LEN) as u64, len: IMM_LEN as u32, lkey })
        };
        // SAFETY: by the layout the slots lie in the memory, where nothing else is.
        unsafe { qp.post_recv(&self.idle, buffer_of)? };
        self.idle.clear();
        Ok(())
    }

    /// As [`post_receives`](Self::post_receives), once there are enough of them.
    pub fn repost(&mut self, qp: &QueuePair) -> Result<()> {
        if self.idle.len() >= REPOST { self.post_receives(qp) } else { Ok(()) }
    }

    /// A receive has completed. Returns whether it was the last one posted, which a peer that keeps
    /// to its credits never takes.
    pub fn used(&mut self, slot: u32) -> bool {
        // There is space: each receive is either in the list or posted.
        self.idle.push(slot);
        self.idle.len() == self.receives as usize
    }

    /// The immediate data that a SEND over iWARP brought.
    pub fn imm(&self, slot: u32) -> u32 {
        let start = self.memory.start();
        // SAFETY: by the layout the slot lies in the memory. The device wrote it before the
        // completion.
        unsafe { start.add(self.layout.imms + slot as usize * IMM_LEN).cast::<u32>().as_ptr().read_volatile() }
    }

    /// Entries of the iomap that the peer may write.
    pub fn iomap(&self) -> u16 {
        self.iomap
    }

    /// Takes what the peer wrote into an entry of the target SGL, if it did.
    pub fn take_target(&self, entry: usize) -> Option<Region> {
        // SAFETY: the SGL is at the beginning of the memory. The peer writes it by RDMA; the
        // length, which it writes last, is read first.
        unsafe {
            let entry = self.memory.start().add(entry * SGL_ENTRY).cast::<[u32; SGL_ENTRY / 4]>().as_ptr();
            let length = (&raw const (*entry)[3]).read_volatile();
            if length == 0 {
                return None;
            }
            fence(Ordering::Acquire);
            let words = [
                (&raw const (*entry)[0]).read_volatile(),
                (&raw const (*entry)[1]).read_volatile(),
                (&raw const (*entry)[2]).read_volatile(),
            ];
            // So that the next one in this entry shows.
            (&raw mut (*entry)[3]).write_volatile(0);
            let mut bytes = [0; SGL_ENTRY];
            for (bytes, word) in bytes.chunks_exact_mut(4).zip([words[0], words[1], words[2], length]) {
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
            // Entries are in this machine's byte order: the writer swaps.
            Some(wire::parse_sgl(&bytes))
        }
    }

    /// Returns the region that the peer mapped at `offset`, from there on.
    pub fn mapped(&self, offset: u64) -> Option<Region> {
        (0..self.iomap).map(|index| self.mapping(index)).find_map(|mapping| {
            let skip = offset.checked_sub(mapping.offset).filter(|&skip| skip < u64::from(mapping.region.length))?;
            Some(Region {
                addr: mapping.region.addr.wrapping_add(skip),
                length: mapping.region.length - skip as u32,
                ..mapping.region
            })
        })
    }

    fn mapping(&self, index: u16) -> Mapping {
        let mut bytes = [0; IOMAP_ENTRY];
        let start = self.layout.iomap + usize::from(index) * IOMAP_ENTRY;
        for (at, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: by the layout within the memory. The peer may write at the same time; any
            // bytes are a mapping, of the peer's own memory.
            *byte = unsafe { self.memory.start().add(start + at).as_ptr().read_volatile() };
        }
        wire::parse_iomap(&bytes)
    }

    /// Polls the CQ. Returns the number of completions in `batch`.
    #[inline]
    pub fn poll_cq(&self, batch: &mut Batch) -> Result<usize> {
        self.cq.poll(&mut batch.0).map(<[_]>::len)
    }

    /// Copies received bytes to the beginning of `into`, which is large enough.
    #[inline]
    pub fn copy(&self, received: Received, into: &mut [MaybeUninit<u8>]) {
        let Received { ring, offset, len } = received;
        let into = &mut into[..len as usize];
        // SAFETY: the bytes lie in a ring. The peer may not write there until it is told that they
        // were read; if it does, it only spoils its own data. The program's buffer is other memory.
        unsafe {
            let from: NonNull<u8> = self.rings.memory(ring).start.add(offset as usize);
            ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr().cast(), into.len());
        }
    }

    /// Copies received bytes, from `skip` bytes after the next one on. Returns how many.
    pub fn peek(&self, skip: u64, into: &mut [MaybeUninit<u8>]) -> usize {
        let mut done = 0;
        while done < into.len() {
            let mut received = self.flow.piece(skip + done as u64);
            received.len = received.len.min(u32::try_from(into.len() - done).unwrap_or(u32::MAX));
            if received.len == 0 {
                break;
            }
            self.copy(received, &mut into[done..]);
            done += received.len as usize;
        }
        done
    }
}

impl Connection {
    /// Returns the number of bytes that the program can read.
    pub fn available(&self) -> u64 {
        self.receive.flow.available()
    }

    /// Fast path of [`read`](Self::read): see [`Receiver::take_piece`].
    #[inline]
    pub fn read_piece(&mut self, into: &mut [MaybeUninit<u8>]) -> Option<usize> {
        let received = self.receive.flow.take_piece(into.len())?;
        self.receive.copy(received, into);
        self.send_credit_updates();
        Some(received.len as usize)
    }

    /// Copies received bytes, from `skip` bytes after the next one on. Returns how many.
    pub fn peek(&self, skip: u64, into: &mut [MaybeUninit<u8>]) -> usize {
        self.receive.peek(skip, into)
    }

    /// Copies received bytes and takes them. Returns how many.
    #[inline(never)]
    pub fn read(&mut self, into: &mut [MaybeUninit<u8>]) -> usize {
        let done = self.peek(0, into);
        self.take(done as u64);
        done
    }

    /// The program has read `len` bytes: the peer gets their space back.
    #[inline]
    pub fn take(&mut self, len: u64) {
        if let Some(ended) = self.receive.flow.take(len) {
            self.receive.rings.ended(ended);
        }
        self.send_credit_updates();
    }

    /// Returns the region that the peer mapped at `offset`, from there on.
    pub fn mapped(&self, offset: u64) -> Option<Region> {
        self.receive.mapped(offset)
    }
}
