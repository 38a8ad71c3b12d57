//! Memory of the receive rings: a part of the receive side's memory, and a larger region for a
//! stream that the first ring limits.

use super::RemoteMemory;
use super::post::QueuePair;
use super::receive::ReceiveSide;
use crate::errno::{Errno, Result};
use crate::rsocket::flow::Resize;
use crate::rsocket::growth_budget::{self, Reservation};
use crate::sys::clock;
use crate::sys::rc::MemoryRegion;

/// Bytes of a ring that has grown once, and twice. The process's budget limits the number of large
/// rings ([`Reservation`]): sixteen streams with rings of the second size are slower, because the
/// rings do not fit into the caches.
const STEPS: [u32; 2] = [1 << 19, 1 << 21];

/// Returns the first step that is larger than `size`.
pub(super) fn next_step(steps: [u32; 2], size: u32) -> Option<u32> {
    steps.into_iter().find(|&step| step > size)
}

/// Memory of a grown buffer or ring.
#[derive(Debug)]
pub(super) struct Grown {
    pub memory: MemoryRegion,
    _reservation: Reservation,
}

impl Grown {
    /// Allocates memory within the process's budget. Fails with `ENOMEM` if the budget is
    /// exhausted.
    pub fn new(qp: &QueuePair, bytes: u32, remote: bool) -> Result<Grown> {
        let reservation = Reservation::take(bytes).ok_or(Errno::ENOMEM)?;
        // SAFETY: the PD is that of the live QP, and outlives the connection.
        let memory = unsafe { MemoryRegion::new(qp.pd()?, bytes as usize, remote)? };
        Ok(Grown { memory, _reservation: reservation })
    }
}

/// The receive rings: the current one, and the next or the previous one.
#[derive(Debug)]
pub(super) struct Rings {
    rings: [RemoteMemory; 2],
    grown: [Option<Grown>; 2],
    /// The ring of the first size, which is never freed.
    first: RemoteMemory,
    first_size: u32,
    /// Bytes of the ring that is being advertised.
    size: u32,
    may_grow: bool,
}

impl Rings {
    pub fn new(first: RemoteMemory, size: u32, may_grow: bool) -> Rings {
        Rings { rings: [first; 2], grown: [None, None], first, first_size: size, size, may_grow }
    }

    /// Returns the size of the ring that is being advertised, in bytes.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the memory of ring 0 or 1.
    #[inline]
    pub fn memory(&self, ring: usize) -> RemoteMemory {
        self.rings[ring & 1]
    }

    /// Frees a ring that is not used any more.
    #[cold]
    pub fn release(&mut self, ring: usize) {
        self.grown[ring & 1] = None;
    }
}

impl ReceiveSide {
    /// Switches to a ring of another size if the flow control requests that. Called before half a
    /// ring is advertised.
    pub fn resize(&mut self, qp: &QueuePair) {
        if !self.rings.may_grow {
            return;
        }
        if self.rings.size > self.rings.first_size && growth_budget::is_needed() && self.flow.can_add_ring() {
            return self.shrink();
        }
        match self.flow.resize_request(clock::monotonic_ms) {
            Resize::Keep => {}
            Resize::Grow => self.grow(qp),
            Resize::Shrink => self.shrink(),
        }
    }

    fn grow(&mut self, qp: &QueuePair) {
        let Some(size) = next_step(STEPS, self.rings.size) else { return self.flow.resize_failed() };
        match Grown::new(qp, size, true) {
            Ok(grown) => {
                let memory = RemoteMemory { start: grown.memory.start(), rkey: grown.memory.rkey() };
                self.add_ring(memory, Some(grown), size);
            }
            Err(_) => self.flow.resize_failed(),
        }
    }

    fn shrink(&mut self) {
        self.add_ring(self.rings.first, None, self.rings.first_size);
    }

    fn add_ring(&mut self, memory: RemoteMemory, grown: Option<Grown>, size: u32) {
        let since = grown.as_ref().map(|_| clock::monotonic_ms());
        let ring = self.flow.add_ring(size, since) & 1;
        self.rings.rings[ring] = memory;
        self.rings.grown[ring] = grown;
        self.rings.size = size;
    }
}
