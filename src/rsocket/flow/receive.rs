//! The receiving half: what was granted to the peer, what it sent, what the program took.
//!
//! The receive buffer is a ring of two halves. The peer fills a half at a time, in order; a half that the program has emptied is
//! announced to it again.

use super::Violation;

/// A receive buffer to announce: what goes into the peer's copy of the target SGL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Which entry of the SGL: 0 or 1.
    pub slot: usize,
    /// Place in the receive buffer.
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

/// See the module.
#[derive(Debug)]
pub struct Receiver {
    /// Bytes of the ring: an even number.
    size: u32,
    /// Bytes announced, received and taken by the program, since the beginning.
    announced: u64,
    received: u64,
    taken: u64,
    /// Place in the ring of the next byte to take.
    place: u32,
    /// Bytes missing in the half that the peer fills.
    left: u32,
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
        let size = size & !1;
        Receiver {
            size,
            announced: u64::from(size / 2),
            received: 0,
            taken: 0,
            place: 0,
            left: size / 2,
            slot: 1,
            queue,
            messages: 0,
            granted: queue,
        }
    }

    fn half(&self) -> u32 {
        self.size / 2
    }

    /// A message of `len` bytes of data came.
    pub fn data(&mut self, len: u32) -> Result<(), Violation> {
        // A message never goes from one half into the other: the peer's end of a half is the end of a write.
        if len > self.left || u64::from(len) > self.announced - self.received {
            return Err(Violation::TooMuchData);
        }
        self.message()?;
        self.received += u64::from(len);
        self.left -= len;
        if self.left == 0 {
            self.left = self.half();
        }
        Ok(())
    }

    /// A message came that takes a credit.
    pub fn message(&mut self) -> Result<(), Violation> {
        if self.messages == self.granted {
            return Err(Violation::NoCredit);
        }
        self.messages = self.messages.wrapping_add(1);
        Ok(())
    }

    /// Bytes that the program can take.
    pub fn available(&self) -> u64 {
        self.received - self.taken
    }

    /// Where the bytes are that begin `skip` bytes after the next one, as far as they are in one piece.
    pub fn piece(&self, skip: u64) -> (u32, u32) {
        let Some(left) = self.available().checked_sub(skip) else { return (0, 0) };
        // No more than the ring holds is skipped.
        let size = u64::from(self.size);
        let start = u64::from(self.place) + skip;
        let start = if start >= size { start - size } else { start };
        (start as u32, left.min(size - start) as u32)
    }

    /// The program took `len` bytes.
    pub fn take(&mut self, len: u64) {
        debug_assert!(len <= self.available());
        self.taken += len;
        // No more than the ring holds.
        let place = u64::from(self.place) + len;
        let size = u64::from(self.size);
        self.place = if place >= size { place - size } else { place } as u32;
    }

    /// Whether [`due`](Self::due) has something to say: the short question for after every message.
    #[inline]
    pub fn is_due(&self) -> bool {
        let half = self.half();
        self.taken + u64::from(half) >= self.announced || self.unannounced() >= self.queue / 2
    }

    /// Credits that the peer could be given.
    fn unannounced(&self) -> u16 {
        self.messages.wrapping_add(self.queue).wrapping_sub(self.granted)
    }

    /// What the peer should be told, when it is worth a message: a half of the buffer is free, or half of its credits are used.
    pub fn due(&self) -> Option<Grant> {
        let number = self.messages.wrapping_add(self.queue);
        let free = u64::from(self.size) - (self.announced - self.taken);
        if free >= u64::from(self.half()) {
            let offset = (self.announced % u64::from(self.size)) as u32;
            let buffer = Announcement { slot: self.slot, offset, len: self.half() };
            return Some(Grant { number, buffer: Some(buffer) });
        }
        (self.unannounced() >= self.queue / 2).then_some(Grant { number, buffer: None })
    }

    /// `grant` was sent.
    pub fn told(&mut self, grant: &Grant) {
        self.granted = grant.number;
        if let Some(buffer) = grant.buffer {
            self.announced += u64::from(buffer.len);
            self.slot = 1 - self.slot;
        }
    }
}
