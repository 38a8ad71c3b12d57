//! Memory of the receive rings: the small ring of a new stream, which is a part of the receive
//! side's memory, and regions of the full size, and of larger ones for a stream that it limits.

use std::ptr::NonNull;

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
    /// The ring's memory is not used any more, and the reactor has to free it.
    released: [bool; 2],
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

    /// Returns the request that a ring of `size` bytes, which is ready, was ordered for. Returns
    /// `None` if it is of no use any more.
    fn request_of(&self, size: u32) -> Option<Resize> {
        if self.larger() == Some(size) {
            Some(Resize::Grow)
        } else {
            (self.size > self.full_size && size == self.full_size).then_some(Resize::Shrink)
        }
    }

    /// Returns a ring of `size` bytes. Fails with `EAGAIN` if it is ordered or should be asked for
    /// later, and otherwise with `ENOMEM`.
    fn allocate(&self, size: u32, qp: &QueuePair, postponed: &mut Postponed) -> Result<Grown> {
        if let Some(ring) = postponed.take_ring(size) {
            return Ok(ring);
        }
        if postponed.has_ordered_ring(size) {
            return Err(Errno::EAGAIN);
        }
        let take = if size == self.full_size { Reservation::take_full } else { Reservation::take };
        let reservation = take(size).ok_or(Errno::ENOMEM)?;
        if postponed.begin() {
            postponed.order_ring(size, reservation);
            return Err(Errno::EAGAIN);
        }
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

    /// Returns whether there is more memory than that of the first ring.
    #[inline]
    pub fn has_grown(&self) -> bool {
        let mut grown = self.grown.iter().zip(self.released);
        self.first_size < self.full_size && grown.any(|(ring, is_released)| ring.is_some() && !is_released)
    }

    /// Returns the size of the first ring.
    pub fn first_size(&self) -> u32 {
        self.first_size
    }

    /// The first ring is used again, as ring 0 or 1, and no other one is: the reactor has to free
    /// them.
    #[cold]
    pub fn return_to_first(&mut self, ring: usize) {
        self.rings[ring & 1] = self.first;
        self.size = self.first_size;
        self.released = self.grown.each_ref().map(Option::is_some);
    }

    /// Returns whether a call has released a ring and could not free it.
    pub fn has_released(&self) -> bool {
        self.released != [false; 2]
    }

    /// Takes the rings that were released by calls that could not free them.
    pub fn take_released(&mut self) -> [Option<Grown>; 2] {
        let [first, second] = &mut self.grown;
        let released = std::mem::take(&mut self.released);
        [first.take_if(|_| released[0]), second.take_if(|_| released[1])]
    }
}

impl ReceiveSide {
    /// Switches to a ring of another size if the flow control requests that. Called before half a
    /// ring is advertised.
    pub fn resize(&mut self, qp: &QueuePair, postponed: &mut Postponed) {
        if self.rings.is_fixed() || !self.has_free_place(postponed) {
            return;
        }
        if self.rings.size > self.rings.first_size && growth_budget::is_needed() && self.flow.can_add_ring() {
            return self.use_first_ring();
        }
        let ready = postponed.ring_size().filter(|_| !self.flow.is_small() && self.flow.can_add_ring());
        match ready.and_then(|size| self.rings.request_of(size)) {
            Some(request) => self.follow(request, qp, postponed),
            None => {
                let request = self.flow.resize_request(clock::monotonic_ms);
                self.follow(request, qp, postponed);
            }
        }
    }

    /// Returns whether there is a place for another ring: not if a previous ring has to be freed
    /// there, and this call cannot do so.
    fn has_free_place(&mut self, postponed: &mut Postponed) -> bool {
        if self.rings.has_released() && postponed.begin() {
            return false;
        }
        drop(self.rings.take_released());
        true
    }

    fn follow(&mut self, request: Resize, qp: &QueuePair, postponed: &mut Postponed) {
        match request {
            Resize::Keep => {}
            Resize::Grow => match self.rings.larger() {
                Some(size) => self.switch_to(size, qp, postponed),
                None => self.flow.resize_failed(),
            },
            Resize::Shrink => self.shrink(qp, postponed),
        }
    }

    fn switch_to(&mut self, size: u32, qp: &QueuePair, postponed: &mut Postponed) {
        match self.rings.allocate(size, qp, postponed) {
            Ok(ring) => self.add_ring(ring, size),
            // The reactor uses it when it is ready.
            Err(Errno::EAGAIN) => self.flow.resize_postponed(),
            Err(_) => self.flow.resize_failed(),
        }
    }

    /// Returns to the full size. The first ring would be left again with the next data, so it is
    /// used only if it is no small one, or if there is no memory for another one.
    fn shrink(&mut self, qp: &QueuePair, postponed: &mut Postponed) {
        let size = self.rings.full_size;
        if self.rings.first_size == size {
            return self.use_first_ring();
        }
        match self.rings.allocate(size, qp, postponed) {
            Ok(ring) => self.add_ring(ring, size),
            Err(Errno::EAGAIN) => {}
            Err(_) => self.use_first_ring(),
        }
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
