//! Memory of the receive buffers: a part of the main memory, and a larger one of its own for a stream that is held up by it.

use std::ptr::NonNull;

use super::Link;
use crate::errno::{Errno, Result};
use crate::rsocket::flow::Wish;
use crate::rsocket::spare::{self, Share};
use crate::sys::clock;
use crate::sys::rc::Registered;

/// Bytes of a receive buffer that has grown once, and of one that has grown twice, for which there is not always memory
/// ([`Share`]): sixteen streams that all have it are slower, for the caches don't hold them.
const STEPS: [u32; 2] = [1 << 19, 1 << 21];

/// The first of `steps` that is more than `size`.
pub(super) fn larger(steps: [u32; 2], size: u32) -> Option<u32> {
    steps.into_iter().find(|&step| step > size)
}

/// Where a receive buffer is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub start: NonNull<u8>,
    /// For the peer.
    pub key: u32,
}

/// Memory that was made for a stream that needed it.
#[derive(Debug)]
pub(super) struct Grown {
    pub memory: Registered,
    _share: Share,
}

impl Grown {
    /// `ENOMEM`, too, when the process has its share.
    ///
    /// # Safety
    /// A live QP, whose PD outlives the result.
    pub unsafe fn new(qp: NonNull<super::ibv_qp>, bytes: u32, remote: bool) -> Result<Grown> {
        let share = Share::take(bytes).ok_or(Errno::ENOMEM)?;
        // SAFETY: the caller's word.
        let memory = unsafe {
            let pd = NonNull::new((*qp.as_ptr()).pd).ok_or(Errno::EIO)?;
            Registered::new(pd, bytes as usize, remote)?
        };
        Ok(Grown { memory, _share: share })
    }
}

/// The receive buffers: the one in use, and one that follows it or has been there before it.
#[derive(Debug)]
pub(super) struct Rings {
    places: [Place; 2],
    grown: [Option<Grown>; 2],
    /// The one in the main memory.
    first: Place,
    /// Bytes of it, and of the one announced now.
    least: u32,
    size: u32,
    may_grow: bool,
}

impl Rings {
    pub fn new(first: Place, size: u32, may_grow: bool) -> Rings {
        Rings { places: [first; 2], grown: [None, None], first, least: size, size, may_grow }
    }

    #[inline]
    pub fn place(&self, ring: usize) -> Place {
        self.places[ring & 1]
    }

    /// Nobody uses it any more.
    #[cold]
    pub fn ended(&mut self, ring: usize) {
        self.grown[ring & 1] = None;
    }

    /// Bytes of the next larger one.
    fn larger(&self) -> Option<u32> {
        larger(STEPS, self.size).filter(|_| self.may_grow)
    }
}

impl Link {
    /// Has another receive buffer follow, if the stream would do better with it. Asked before a half is announced.
    pub(super) fn resize(&mut self) {
        if !self.rings.may_grow {
            return;
        }
        if self.rings.size > self.rings.least && spare::is_needed() && self.receiver.may_follow() {
            let (place, size) = (self.rings.first, self.rings.least);
            return self.follow(place, None, size);
        }
        match self.receiver.wish(clock::monotonic_ms) {
            Wish::Stay => {}
            Wish::Grow => self.grow(),
            Wish::Shrink => {
                let (place, size) = (self.rings.first, self.rings.least);
                self.follow(place, None, size);
            }
        }
    }

    fn grow(&mut self) {
        let Some(size) = self.rings.larger() else { return self.receiver.refused() };
        // SAFETY: the QP is live; its PD lives as long as the id, and so longer than the link.
        match unsafe { Grown::new(self.qp, size, true) } {
            Ok(grown) => {
                let place = Place { start: grown.memory.start(), key: grown.memory.rkey() };
                self.follow(place, Some(grown), size);
            }
            Err(_) => self.receiver.refused(),
        }
    }

    fn follow(&mut self, place: Place, grown: Option<Grown>, size: u32) {
        let since = grown.as_ref().map(|_| clock::monotonic_ms());
        let ring = self.receiver.follow(size, since) & 1;
        self.rings.places[ring] = place;
        self.rings.grown[ring] = grown;
        self.rings.size = size;
    }
}
