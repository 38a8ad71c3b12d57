//! The send buffer: allocated on first use, as large as the first message requires, and grown for a
//! stream that it limits.

use std::ptr::NonNull;

use super::gather::Source;
use super::post::QueuePair;
use super::receive_rings::{self, Grown};
use super::send::SendSide;
use crate::errno::{Errno, Result};
use crate::rsocket::growth_budget::{self, Reservation};
use crate::sys::rc::{MemoryRegion, Sge};
use crate::sys::verbs::ibv_pd;

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
    growth_budget::with_memory(|| allocate_now(qp, size))
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

/// See the module.
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
        receive_rings::next_step(STEPS, self.size).filter(|_| self.may_grow)
    }

    /// Returns whether the buffer is smaller than the first size, which it gets when it is used up for
    /// the first time: a connection that sends more would process completions too often.
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

    /// Frees the buffer if no data is outstanding. The next send that needs it allocates it again, in
    /// the first size.
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
