//! The receiving half: what was granted to the peer, what it sent, what the program took.
//!
//! The receive buffer is a ring of two halves. The peer fills a half at a time, in order; a half that the program has emptied is
//! announced to it again. A busy stream gets another, larger ring (see [`Pace`]): that is announced from then on, and the old
//! one ends with its last byte.
//!
//! The peer's SGL has two entries, each in use until its half is full: no more than two halves that are not full are announced.

use super::Violation;
use super::pace::{Pace, Wish};

/// A receive buffer to announce: what goes into the peer's copy of the target SGL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Which entry of the SGL: 0 or 1.
    pub slot: usize,
    /// In which ring: 0 or 1.
    pub ring: usize,
    /// Place in it.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// What to tell the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Number of the message at which it has to stop.
    pub number: u16,
    /// A buffer, when there is one.
    pub buffer: Option<Announcement>,
}

/// Received bytes in one piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// In which ring: 0 or 1.
    pub ring: usize,
    /// Place in it.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// A receive buffer.
#[derive(Debug)]
struct Ring {
    /// Bytes: an even number.
    size: u32,
    /// Bytes announced, received and taken by the program, since the beginning.
    announced: u64,
    received: u64,
    taken: u64,
    /// Place of the next byte to take.
    place: u32,
    /// Bytes missing in the half that the peer fills.
    left: u32,
}

impl Ring {
    fn new(size: u32) -> Ring {
        let size = size & !1;
        Ring { size, announced: 0, received: 0, taken: 0, place: 0, left: size / 2 }
    }

    fn half(&self) -> u32 {
        self.size / 2
    }

    fn available(&self) -> u64 {
        self.received - self.taken
    }

    /// Whether the peer has filled all that was announced.
    fn is_full(&self) -> bool {
        self.received == self.announced
    }

    /// Whether a half is free that can be announced.
    fn has_free_half(&self) -> bool {
        self.taken + u64::from(self.half()) >= self.announced
    }

    /// Where the bytes are that begin `skip` bytes after the next one, and how many.
    fn piece(&self, skip: u64, available: u64) -> (u32, u32) {
        // No more than the ring holds is skipped.
        let size = u64::from(self.size);
        let start = u64::from(self.place) + skip;
        let start = if start >= size { start - size } else { start };
        (start as u32, available.min(size - start) as u32)
    }

    fn take(&mut self, len: u64) {
        self.taken += len;
        // No more than the ring holds.
        let place = u64::from(self.place) + len;
        let size = u64::from(self.size);
        self.place = if place >= size { place - size } else { place } as u32;
    }
}

/// See the module.
#[derive(Debug)]
pub struct Receiver {
    /// Where the program reads.
    ring: Ring,
    /// Where the peer goes on when that one is full.
    next: Option<Ring>,
    /// Number of `ring`: 0 or 1.
    turn: usize,
    pace: Pace,
    /// Which SGL entry is next.
    slot: usize,
    /// Receive queue entries.
    queue: u16,
    /// Messages received, and the number at which the peer stops.
    messages: u16,
    granted: u16,
}

impl Receiver {
    /// A receiver with a ring of `size` bytes, of which the first half is announced at connection together with `queue` credits.
    pub fn new(size: u32, queue: u16) -> Receiver {
        let mut ring = Ring::new(size);
        ring.announced = u64::from(ring.half());
        Receiver { ring, next: None, turn: 0, pace: Pace::default(), slot: 1, queue, messages: 0, granted: queue }
    }

    /// A message of `len` bytes of data came.
    #[inline]
    pub fn data(&mut self, len: u32) -> Result<(), Violation> {
        let ring = match &mut self.next {
            Some(next) if self.ring.is_full() => next,
            _ => &mut self.ring,
        };
        // A message never goes from one half into the other: the peer's end of a half is the end of a write.
        if len > ring.left || u64::from(len) > ring.announced - ring.received {
            return Err(Violation::TooMuchData);
        }
        count(&mut self.messages, self.granted)?;
        ring.received += u64::from(len);
        ring.left -= len;
        if ring.left == 0 {
            ring.left = ring.half();
        }
        Ok(())
    }

    /// A message came that takes a credit.
    pub fn message(&mut self) -> Result<(), Violation> {
        count(&mut self.messages, self.granted)
    }

    /// Bytes that the program can take.
    #[inline]
    pub fn available(&self) -> u64 {
        self.ring.available() + self.next.as_ref().map_or(0, Ring::available)
    }

    /// The bytes that begin `skip` bytes after the next one, as far as they are in one piece.
    #[inline]
    pub fn piece(&self, skip: u64) -> Received {
        let here = self.ring.available();
        if let Some(left) = here.checked_sub(skip)
            && left > 0
        {
            let (offset, len) = self.ring.piece(skip, left);
            return Received { ring: self.turn, offset, len };
        }
        let Some(next) = &self.next else { return Received::default() };
        let Some(left) = next.available().checked_sub(skip - here) else { return Received::default() };
        let (offset, len) = next.piece(skip - here, left);
        Received { ring: 1 - self.turn, offset, len }
    }

    /// The program took `len` bytes. The number of a ring that has ended with them, which nobody uses any more.
    #[inline]
    #[must_use]
    pub fn take(&mut self, len: u64) -> Option<usize> {
        debug_assert!(len <= self.available());
        let mut ended = None;
        let mut rest = len;
        if self.next.is_some() {
            rest -= self.take_of_old(len, &mut ended);
        }
        self.ring.take(rest);
        ended
    }

    /// Takes the next bytes, at most `len`, in the usual case: no other ring follows, and they are in one piece. `None` otherwise,
    /// and when there are none.
    #[inline]
    pub fn take_piece(&mut self, len: usize) -> Option<Received> {
        let offset = self.ring.place;
        let ring = &mut self.ring;
        let len = u64::try_from(len).unwrap_or(u64::MAX).min(ring.available());
        if len == 0 || len > u64::from(ring.size - offset) || self.next.is_some() {
            return None;
        }
        ring.take(len);
        Some(Received { ring: self.turn, offset, len: len as u32 })
    }

    /// How many of `len` bytes come from a ring that is to end; whether it does.
    #[cold]
    fn take_of_old(&mut self, len: u64, ended: &mut Option<usize>) -> u64 {
        let here = self.ring.available().min(len);
        self.ring.take(here);
        if self.ring.taken == self.ring.announced
            && let Some(next) = self.next.take()
        {
            self.ring = next;
            *ended = Some(self.turn);
            self.turn = 1 - self.turn;
        }
        here
    }

    /// Whether another half can be announced.
    #[inline]
    fn has_buffer(&self) -> bool {
        match &self.next {
            None => self.ring.has_free_half(),
            // The last half of the old ring may be filled still, but not while there are two others.
            Some(next) => next.has_free_half() && (next.announced == 0 || self.ring.is_full()),
        }
    }

    /// Whether [`due`](Self::due) has something to say: the short question for after every message.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.has_buffer() || self.unannounced() >= self.queue / 2
    }

    /// Credits that the peer could be given.
    fn unannounced(&self) -> u16 {
        self.messages.wrapping_add(self.queue).wrapping_sub(self.granted)
    }

    /// Whether the ring should have another size, asked before [`due`](Self::due); `now` in milliseconds.
    pub fn wish(&mut self, now: impl Fn() -> u64) -> Wish {
        if self.may_follow() { self.pace.wish(now) } else { Wish::Stay }
    }

    /// Whether another ring may be made now.
    pub fn may_follow(&self) -> bool {
        self.next.is_none() && self.ring.has_free_half()
    }

    /// Grants a wish: another ring of `size` bytes, at least 2, follows the one in use; its number. `since`: the time, if it is
    /// one that should shrink again.
    pub fn follow(&mut self, size: u32, since: Option<u64>) -> usize {
        debug_assert!(self.may_follow());
        self.pace.granted(since);
        self.next = Some(Ring::new(size));
        1 - self.turn
    }

    /// A wish can't be granted.
    pub fn refused(&mut self) {
        self.pace.refused();
    }

    /// What the peer should be told, when it is worth a message: a half of the buffer is free, or half of its credits are used.
    pub fn due(&self) -> Option<Grant> {
        let number = self.messages.wrapping_add(self.queue);
        if self.has_buffer() {
            let (ring, turn) = self.next.as_ref().map_or((&self.ring, self.turn), |next| (next, 1 - self.turn));
            let offset = (ring.announced % u64::from(ring.size)) as u32;
            let buffer = Announcement { slot: self.slot, ring: turn, offset, len: ring.half() };
            return Some(Grant { number, buffer: Some(buffer) });
        }
        (self.unannounced() >= self.queue / 2).then_some(Grant { number, buffer: None })
    }

    /// `grant` was sent.
    pub fn told(&mut self, grant: &Grant) {
        self.granted = grant.number;
        if let Some(buffer) = grant.buffer {
            self.next.as_mut().unwrap_or(&mut self.ring).announced += u64::from(buffer.len);
            self.slot = 1 - self.slot;
        }
    }
}

fn count(messages: &mut u16, granted: u16) -> Result<(), Violation> {
    if *messages == granted {
        return Err(Violation::NoCredit);
    }
    *messages = messages.wrapping_add(1);
    Ok(())
}
