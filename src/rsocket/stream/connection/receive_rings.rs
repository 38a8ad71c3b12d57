//! Memory of the receive rings: the small ring of a new stream, which is a part of the receive
//! side's memory, and regions of the full size, and of larger ones for a stream that it limits.

use std::ptr::NonNull;

use super::RemoteMemory;
use super::post::QueuePair;
use super::receive::ReceiveSide;
use crate::errno::{Errno, Result};
use crate::rsocket::flow::Resize;
use crate::rsocket::growth_budget::{self, Reservation};
use crate::sys::clock;
use crate::sys::pages::Pages;
use crate::sys::rc::MemoryRegion;
use crate::sys::verbs::ibv_pd;

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
    /// Allocates memory within the process's budget. Fails with `ENOMEM` without a reservation.
    ///
    /// # Safety
    /// A live PD that outlives the result.
    pub unsafe fn with(
        reservation: Option<Reservation>,
        pd: NonNull<ibv_pd>,
        bytes: u32,
        remote: bool,
    ) -> Result<Grown> {
        let reservation = reservation.ok_or(Errno::ENOMEM)?;
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { MemoryRegion::new(pd, bytes as usize, remote)? };
        Ok(Grown { memory, _reservation: reservation })
    }
}

/// The receive rings: the current one, and the next or the previous one.
#[derive(Debug)]
pub(super) struct Rings {
    rings: [RemoteMemory; 2],
    grown: [Option<Grown>; 2],
    /// The first ring, which is never freed. It is a small one if it has not the full size.
    first: RemoteMemory,
    first_size: u32,
    full_size: u32,
    /// Bytes of the ring that is being advertised.
    size: u32,
    /// The ring may exceed the full size.
    may_grow: bool,
}

impl Rings {
    pub fn new(first: RemoteMemory, first_size: u32, full_size: u32, may_grow: bool) -> Rings {
        let rings = [first; 2];
        Rings { rings, grown: [None, None], first, first_size, full_size, size: first_size, may_grow }
    }

    /// Prepares memory for the ring that replaces a small one.
    pub fn prepare(&self) {
        if self.first_size < self.full_size {
            Pages::prepare_ring(self.full_size as usize);
        }
    }

    /// Returns whether the ring may have another size than the present one.
    fn is_fixed(&self) -> bool {
        !self.may_grow && self.first_size == self.full_size
    }

    /// Returns the size of the next larger ring.
    fn larger(&self) -> Option<u32> {
        if self.size < self.full_size {
            Some(self.full_size)
        } else {
            next_step(STEPS, self.size).filter(|_| self.may_grow)
        }
    }

    /// Returns a ring of `size` bytes. Fails with `ENOMEM`.
    fn allocate(&self, size: u32, qp: &QueuePair) -> Result<Grown> {
        let take = if size == self.full_size { Reservation::take_full } else { Reservation::take };
        let reservation = take(size).ok_or(Errno::ENOMEM)?;
        // SAFETY: the PD is that of the live QP, and outlives the connection.
        unsafe { Grown::with(Some(reservation), qp.pd()?, size, true) }.map_err(|_| Errno::ENOMEM)
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
    /// Switches to a ring of another size if the flow control requests that. Called before half a
    /// ring is advertised.
    pub fn resize(&mut self, qp: &QueuePair) {
        if self.rings.is_fixed() {
            return;
        }
        if self.rings.size > self.rings.first_size && growth_budget::is_needed() && self.flow.can_add_ring() {
            return self.use_first_ring();
        }
        if self.flow.resize_request(clock::monotonic_ms) == Resize::Keep {
            return;
        }
        let larger = self.rings.larger().ok_or(Errno::ENOMEM);
        match larger.and_then(|size| Ok((self.rings.allocate(size, qp)?, size))) {
            Ok((ring, size)) => self.add_ring(ring, size),
            Err(_) => self.flow.resize_failed(),
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
