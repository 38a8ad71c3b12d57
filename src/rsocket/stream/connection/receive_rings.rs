//! Memory of the receive rings: a part of the receive side's memory, and a larger region for a
//! stream that it limits.

use super::RemoteMemory;
use super::post::QueuePair;
use super::receive::ReceiveSide;
use crate::errno::{Errno, Result};
use crate::rsocket::flow::Wish;
use crate::rsocket::growth_budget::{self, Reservation};
use crate::sys::clock;
use crate::sys::rc::MemoryRegion;

/// Bytes of a ring that has grown once, and twice. The second step is not always to be had
/// ([`Reservation`]): sixteen streams that all have it are slower, because the rings do not fit into the
/// caches.
const STEPS: [u32; 2] = [1 << 19, 1 << 21];

/// Returns the first of `steps` above `size`.
pub(super) fn next_step(steps: [u32; 2], size: u32) -> Option<u32> {
    steps.into_iter().find(|&step| step > size)
}

/// Memory that a stream has grown by.
#[derive(Debug)]
pub(super) struct Grown {
    pub memory: MemoryRegion,
    _reservation: Reservation,
}

impl Grown {
    /// Allocates memory within the process's budget. Fails with `ENOMEM`.
    pub fn new(qp: &QueuePair, bytes: u32, remote: bool) -> Result<Grown> {
        let reservation = Reservation::take(bytes).ok_or(Errno::ENOMEM)?;
        // SAFETY: the PD is that of the live QP, and outlives the connection.
        let memory = unsafe { MemoryRegion::new(qp.pd()?, bytes as usize, remote)? };
        Ok(Grown { memory, _reservation: reservation })
    }
}

/// The receive rings: the present one, and the next or the previous one.
#[derive(Debug)]
pub(super) struct Rings {
    rings: [RemoteMemory; 2],
    grown: [Option<Grown>; 2],
    /// The ring of the first size, which stays.
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

    /// Memory of ring 0 or 1.
    #[inline]
    pub fn memory(&self, ring: usize) -> RemoteMemory {
        self.rings[ring & 1]
    }

    /// The ring is no longer used.
    #[cold]
    pub fn ended(&mut self, ring: usize) {
        self.grown[ring & 1] = None;
    }
}

impl ReceiveSide {
    /// Has a ring of another size follow if that serves the stream better. Called before a half is
    /// advertised.
    pub fn resize(&mut self, qp: &QueuePair) {
        if !self.rings.may_grow {
            return;
        }
        if self.rings.size > self.rings.first_size && growth_budget::is_needed() && self.flow.may_follow() {
            return self.shrink();
        }
        match self.flow.wish(clock::monotonic_ms) {
            Wish::Stay => {}
            Wish::Grow => self.grow(qp),
            Wish::Shrink => self.shrink(),
        }
    }

    fn grow(&mut self, qp: &QueuePair) {
        let Some(size) = next_step(STEPS, self.rings.size) else { return self.flow.refused() };
        match Grown::new(qp, size, true) {
            Ok(grown) => {
                let memory = RemoteMemory { start: grown.memory.start(), rkey: grown.memory.rkey() };
                self.follow(memory, Some(grown), size);
            }
            Err(_) => self.flow.refused(),
        }
    }

    fn shrink(&mut self) {
        self.follow(self.rings.first, None, self.rings.first_size);
    }

    fn follow(&mut self, memory: RemoteMemory, grown: Option<Grown>, size: u32) {
        let since = grown.as_ref().map(|_| clock::monotonic_ms());
        let ring = self.flow.follow(size, since) & 1;
        self.rings.rings[ring] = memory;
        self.rings.grown[ring] = grown;
        self.rings.size = size;
    }
}
