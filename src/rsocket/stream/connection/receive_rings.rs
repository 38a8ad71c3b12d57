//! Memory of the receive rings: the small ring of a new stream, which is a part of the receive
//! side's memory, and regions of the full size, and of larger ones for a stream that it limits.

use super::RemoteMemory;
use super::post::QueuePair;
use super::postponed::Postponed;
use super::receive::ReceiveSide;
use crate::errno::{Errno, Result};
use crate::rsocket::flow::Resize;
use crate::rsocket::growth_budget::{self, Reservation};
use crate::sys::clock;
use crate::sys::pages::Pages;
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
        Grown::with(Reservation::take(bytes), qp, bytes, remote)
    }

    fn with(reservation: Option<Reservation>, qp: &QueuePair, bytes: u32, remote: bool) -> Result<Grown> {
        let reservation = reservation.ok_or(Errno::ENOMEM)?;
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
    /// The ring's memory is not used any more, and the reactor has to free it.
    released: [bool; 2],
    /// The next size, which the reactor has to provide.
    postponed: Option<Resize>,
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
        Rings {
            rings,
            grown: [None, None],
            released: [false; 2],
            postponed: None,
            first,
            first_size,
            full_size,
            size: first_size,
            may_grow,
        }
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
        self.released[ring & 1] = false;
        self.size = size;
    }

    /// Frees a ring that is not used any more.
    #[cold]
    pub fn release(&mut self, ring: usize, postponed: &mut Postponed) {
        let ring = ring & 1;
        if self.grown[ring].is_some() && postponed.begin() {
            self.released[ring] = true;
        } else {
            self.grown[ring] = None;
        }
    }

    /// Frees the rings that were released by a call that could not free them.
    pub fn free_released(&mut self) {
        for (grown, released) in self.grown.iter_mut().zip(&mut self.released) {
            if std::mem::take(released) {
                *grown = None;
            }
        }
    }
}

impl ReceiveSide {
    /// Switches to a ring of another size if the flow control requests that. Called before half a
    /// ring is advertised. Returns false if the reactor has to do it.
    pub fn resize(&mut self, qp: &QueuePair, postponed: &mut Postponed) -> bool {
        if self.rings.is_fixed() {
            return true;
        }
        if self.rings.size > self.rings.first_size && growth_budget::is_needed() && self.flow.can_add_ring() {
            let is_now = !postponed.begin();
            if is_now {
                self.use_first_ring();
            }
            return is_now;
        }
        let earlier = self.rings.postponed.take().filter(|_| self.flow.can_add_ring());
        let request = earlier.unwrap_or_else(|| self.flow.resize_request(clock::monotonic_ms));
        if request != Resize::Keep && postponed.begin() {
            self.rings.postponed = Some(request);
            return false;
        }
        match request {
            Resize::Keep => {}
            Resize::Grow => self.grow(qp),
            Resize::Shrink => self.shrink(qp),
        }
        true
    }

    fn grow(&mut self, qp: &QueuePair) {
        let grown = match self.rings.larger() {
            Some(size) if size == self.rings.full_size => self.full_ring(qp),
            Some(size) => Grown::new(qp, size, true).map(|grown| (grown, size)),
            None => Err(Errno::ENOMEM),
        };
        match grown {
            Ok((grown, size)) => self.add_ring(grown, size),
            Err(_) => self.flow.resize_failed(),
        }
    }

    fn full_ring(&self, qp: &QueuePair) -> Result<(Grown, u32)> {
        let size = self.rings.full_size;
        Ok((Grown::with(Reservation::take_full(size), qp, size, true)?, size))
    }

    /// Returns to the full size. The first ring would be left again with the next data, so it is
    /// used only if it is no small one, or if there is no memory for another one.
    fn shrink(&mut self, qp: &QueuePair) {
        if self.rings.first_size < self.rings.full_size
            && let Ok((grown, size)) = self.full_ring(qp)
        {
            return self.add_ring(grown, size);
        }
        self.use_first_ring();
    }

    fn use_first_ring(&mut self) {
        let (memory, size) = (self.rings.first, self.rings.first_size);
        let ring =
            if size < self.rings.full_size { self.flow.add_small_ring(size) } else { self.flow.add_ring(size, None) };
        self.rings.add(ring, memory, None, size);
    }

    fn add_ring(&mut self, grown: Grown, size: u32) {
        let memory = RemoteMemory { start: grown.memory.start(), rkey: grown.memory.rkey() };
        // Only a ring that exceeds the full size shrinks again.
        let since = (size > self.rings.full_size).then(clock::monotonic_ms);
        let ring = self.flow.add_ring(size, since);
        self.rings.add(ring, memory, Some(grown), size);
    }
}
