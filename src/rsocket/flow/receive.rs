//! The receiving half: credits and buffers for the peer, data received, data read by the program.
//!
//! The receive buffer is a ring of two halves. The peer fills one half at a time, in order; a half
//! that the program has emptied is advertised again. A busy stream gets another, larger ring (see
//! [`Pace`]): from then on the halves of the larger ring are advertised, and the old ring ends when
//! the program has read all of it.
//!
//! A new stream has a small ring, which is advertised as a whole. When half of it is used, a ring
//! of the full size is added. If there is no memory for that, the small ring is advertised again
//! when all of it has been read. The bytes of the small ring count as the beginning of the full
//! ring, so the halves end where they would without a small ring: at multiples of 64 KB by default.
//! Programs that write blocks of a power of two when poll(2) reports space rely on these positions:
//! a block that does not fit into the rest of the half makes a blocking send wait until the peer
//! has read, and two such programs that send to each other would wait forever.
//!
//! The target SGL has two entries, each in use until its half is full, so at most two halves that
//! are not full are advertised.
//!
//! Advertising a half takes a message, for which the peer often has to wait. A stream that fills
//! its buffer many times a second is faster with a larger buffer, and keeps it unless memory
//! becomes short.

use super::Violation;

/// A receive buffer for the peer: what is written into its target SGL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// Entry of the SGL: 0 or 1.
    pub sgl_entry: usize,
    /// Number of the ring: 0 or 1.
    pub ring: usize,
    /// Offset in the ring.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

/// A credit update: what the peer may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditUpdate {
    /// Number of the first message that the peer must not send.
    pub limit: u16,
    /// A free buffer to advertise, if there is one.
    pub buffer: Option<Advertisement>,
}

/// Contiguous received bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Number of the ring: 0 or 1.
    pub ring: usize,
    /// Offset in the ring.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

/// A receive buffer.
#[derive(Debug)]
struct Ring {
    /// Size in bytes, and number of bytes that are advertised at a time: one half, or all of a
    /// small ring.
    size: u32,
    half: u32,
    /// Bytes advertised, received, and read by the program, since the ring was created.
    advertised: u64,
    received: u64,
    taken: u64,
    /// A half is free to be advertised when `taken` has reached this value.
    free_at: u64,
    /// Offset of the next byte to read.
    read_offset: u32,
    /// Bytes that the peer may still write into the half that it is filling.
    left: u32,
}

impl Ring {
    fn new(size: u32) -> Ring {
        let size = size & !1;
        Ring { half: size / 2, ..Ring::small(size) }
    }

    fn small(size: u32) -> Ring {
        Ring { size, half: size, advertised: 0, received: 0, taken: 0, free_at: 0, read_offset: 0, left: 0 }
    }

    /// Returns a ring that begins at offset `phase`, which is less than a half.
    fn starting_at(phase: u32, size: u32) -> Ring {
        let mut ring = Ring::new(size);
        let start = u64::from(phase);
        ring.advertise(start);
        Ring { received: start, taken: start, read_offset: phase, left: 0, ..ring }
    }

    /// Advertises `len` more bytes, up to the end of a half.
    fn advertise(&mut self, len: u64) {
        if self.is_full() {
            self.left = len as u32;
        }
        self.advertised += len;
        self.free_at = self.advertised.saturating_sub(u64::from(self.size - self.half));
    }

    fn is_small(&self) -> bool {
        self.half == self.size
    }

    /// Returns whether nothing of the ring has been advertised, apart from bytes left out by
    /// `starting_at`.
    fn is_new(&self) -> bool {
        self.advertised < u64::from(self.half)
    }

    /// Returns offset and length of the part that is advertised next.
    fn next_part(&self) -> (u32, u32) {
        let offset = (self.advertised % u64::from(self.size)) as u32;
        (offset, self.half - offset % self.half)
    }

    /// Returns the next value of `left` when the peer has filled a half.
    #[cold]
    fn next_left(&self) -> u32 {
        (self.advertised - self.received).min(self.half.into()) as u32
    }

    fn available(&self) -> u64 {
        self.received - self.taken
    }

    /// Returns whether the peer has filled everything that was advertised.
    fn is_full(&self) -> bool {
        self.received == self.advertised
    }

    /// Returns whether a half is free to be advertised.
    fn has_free_half(&self) -> bool {
        self.taken >= self.free_at
    }

    /// Returns offset and length of the contiguous bytes that begin `skip` bytes after the next
    /// byte to read. `available` is the number of bytes there.
    fn piece(&self, skip: u64, available: u64) -> (u32, u32) {
        // `skip` is at most the size of the ring.
        let size = u64::from(self.size);
        let start = u64::from(self.read_offset) + skip;
        let start = if start >= size { start - size } else { start };
        (start as u32, available.min(size - start) as u32)
    }

    fn take(&mut self, len: u64) {
        self.taken += len;
        // `len` is at most the size of the ring.
        let offset = u64::from(self.read_offset) + len;
        let size = u64::from(self.size);
        self.read_offset = if offset >= size { offset - size } else { offset } as u32;
    }
}

/// Credits, receive buffer and SGL entries for the peer.
#[derive(Debug)]
pub struct Receiver {
    /// The ring that the program reads.
    ring: Ring,
    /// The ring that the peer fills next.
    next: Option<Ring>,
    /// Number of `ring`: 0 or 1.
    current: usize,
    pace: Pace,
    /// Whether adding a larger ring has failed since the small one was last advertised.
    is_refused: bool,
    /// The SGL entry that is written next.
    sgl_entry: usize,
    /// Receive queue entries for messages that take credits.
    credits: u16,
    /// Number of messages received; the value of this number when the last credit limit was sent;
    /// and that limit.
    messages: u16,
    advertised_at: u16,
    limit: u16,
}

impl Receiver {
    /// Creates a receiver with a ring of `size` bytes. Connection data advertises the first half
    /// and `credits` messages.
    pub fn new(size: u32, credits: u16) -> Receiver {
        Receiver::with_ring(Ring::new(size), credits)
    }

    /// Creates a receiver with a small ring of `size` bytes. Connection data advertises all of it.
    pub fn small(size: u32, credits: u16) -> Receiver {
        Receiver::with_ring(Ring::small(size), credits)
    }

    fn with_ring(mut ring: Ring, credits: u16) -> Receiver {
        ring.advertise(ring.half.into());
        Receiver {
            ring,
            next: None,
            current: 0,
            pace: Pace::default(),
            is_refused: false,
            sgl_entry: 1,
            credits,
            messages: 0,
            advertised_at: 0,
            limit: credits,
        }
    }

    /// Returns the number of messages that may be outstanding.
    pub fn credits(&self) -> u16 {
        self.credits
    }

    /// Returns the number of bytes that connection data advertises.
    pub fn first_buffer(&self) -> u32 {
        self.ring.half
    }

    /// Returns whether the stream is new: it will need a larger ring soon, even if the program
    /// makes no call.
    #[inline]
    pub fn is_starting(&self) -> bool {
        let is_first_fill = self.ring.advertised == u64::from(self.ring.size);
        self.ring.is_small() && self.next.is_none() && is_first_fill && !self.needs_larger_ring()
    }

    /// Handles a data message of `len` bytes. Fails for more data than the buffer holds, and for a
    /// message without credit.
    #[inline]
    pub fn data(&mut self, len: u32) -> Result<(), Violation> {
        self.message()?;
        let ring = match &mut self.next {
            Some(next) if self.ring.is_full() => next,
            _ => &mut self.ring,
        };
        // A message never crosses the end of a half: each half is an SGL entry of its own.
        let left = ring.left.checked_sub(len).ok_or(Violation)?;
        ring.received += u64::from(len);
        ring.left = if left > 0 { left } else { ring.next_left() };
        Ok(())
    }

    /// Fast path of [`data`](Self::data) for a message with the immediate data `imm`. Takes the
    /// message if it is data that ends before the end of a half, the ring is the only one and not
    /// small, and no credit update is due afterwards. Otherwise does nothing, and returns false.
    #[inline(always)] // see rsocket::calls
    pub fn take_plain(&mut self, imm: u32) -> bool {
        let ring = &mut self.ring;
        // The immediate data of other messages exceeds the length of any half.
        let is_within = imm < ring.left && self.next.is_none() && !ring.is_small();
        let messages = self.messages.wrapping_add(1);
        let is_due = messages.wrapping_sub(self.advertised_at) >= self.credits / 2;
        if !is_within || is_due || self.messages == self.limit {
            return false;
        }
        ring.received += u64::from(imm);
        ring.left -= imm;
        self.messages = messages;
        true
    }

    /// Handles a message without data that takes a credit. Fails without credit.
    #[inline]
    pub fn message(&mut self) -> Result<(), Violation> {
        if self.messages == self.limit {
            return Err(Violation);
        }
        self.messages = self.messages.wrapping_add(1);
        Ok(())
    }

    /// Returns the number of bytes that the program can read in the present ring.
    #[inline]
    pub fn buffered(&self) -> u64 {
        self.ring.available()
    }

    /// Returns the number of bytes that the program can read.
    #[inline]
    pub fn available(&self) -> u64 {
        self.ring.available() + self.next.as_ref().map_or(0, Ring::available)
    }

    /// Returns the contiguous bytes that begin `skip` bytes after the next byte to read.
    #[inline]
    pub fn piece(&self, skip: u64) -> Received {
        let here = self.ring.available();
        if let Some(left) = here.checked_sub(skip)
            && left > 0
        {
            let (offset, len) = self.ring.piece(skip, left);
            return Received { ring: self.current, offset, len };
        }
        let Some(next) = &self.next else { return Received::default() };
        let Some(left) = next.available().checked_sub(skip - here) else { return Received::default() };
        let (offset, len) = next.piece(skip - here, left);
        Received { ring: 1 - self.current, offset, len }
    }

    /// Handles the program's read of `len` bytes. Returns the number of the ring that ended with
    /// these bytes, if one did: this ring is no longer used.
    #[inline]
    #[must_use]
    pub fn take(&mut self, len: u64) -> Option<usize> {
        debug_assert!(len <= self.available());
        let (here, ended) = if self.next.is_some() { self.take_from_old_ring(len) } else { (0, None) };
        self.ring.take(len - here);
        ended
    }

    /// Fast path for a single ring: takes at most `len` bytes, but not the ring's last byte.
    /// Returns `None` in all other cases, and if there is no data.
    #[inline(always)] // see rsocket::calls
    pub fn take_piece(&mut self, len: usize) -> Option<Received> {
        let ring = &mut self.ring;
        let offset = ring.read_offset;
        let len = (len as u64).min(ring.available());
        let end = u64::from(offset) + len;
        if len == 0 || end >= u64::from(ring.size) || self.next.is_some() {
            return None;
        }
        ring.taken += len;
        ring.read_offset = end as u32;
        Some(Received { ring: self.current, offset, len: len as u32 })
    }

    /// Takes up to `len` bytes of the ring that is about to end. Returns the number of bytes taken,
    /// and the number of the ring if it has ended.
    #[cold]
    fn take_from_old_ring(&mut self, len: u64) -> (u64, Option<usize>) {
        let here = self.ring.available().min(len);
        self.ring.take(here);
        let has_ended = self.ring.taken == self.ring.advertised;
        let Some(next) = self.next.take_if(|_| has_ended) else { return (here, None) };
        self.ring = next;
        self.current = 1 - self.current;
        (here, Some(1 - self.current))
    }

    /// Returns whether another half can be advertised. Reading data creates no other reason for a
    /// credit update.
    #[inline]
    pub fn has_buffer(&self) -> bool {
        match &self.next {
            None => self.ring.has_free_half(),
            // Two halves may be advertised, and the old ring's last half is one of them until it is
            // full.
            Some(next) => next.has_free_half() && (next.is_new() || self.ring.is_full()),
        }
    }

    /// Returns whether the small ring is to be followed by a larger one.
    fn needs_larger_ring(&self) -> bool {
        let is_last = self.next.is_none() && !self.is_refused;
        let Ring { size, received, advertised, .. } = self.ring;
        // The bytes received since the ring was last advertised.
        let used = received + u64::from(size) - advertised;
        self.ring.is_small() && is_last && used >= u64::from(size.div_ceil(2))
    }

    /// Returns whether [`should_grow`](Self::should_grow) or
    /// [`next_credit_update`](Self::next_credit_update) has something to do. This is the cheap test
    /// after every message.
    #[inline]
    pub fn wants_credit_update(&self) -> bool {
        self.has_buffer() || self.wants_update_after_message()
    }

    /// Cheaper form of [`wants_credit_update`](Self::wants_credit_update) for a caller that has
    /// only handled messages since `wants_credit_update` returned false, or since no control
    /// message could be sent.
    #[inline]
    pub fn wants_update_after_message(&self) -> bool {
        // Handling the last message of a ring can make buffer space in the next ring available to
        // advertise.
        let has_buffer = self.next.is_some() && self.has_buffer();
        has_buffer || self.needs_larger_ring() || self.unadvertised_credits() >= self.credits / 2
    }

    /// Returns the number of credits that the peer has used and was not given again.
    fn unadvertised_credits(&self) -> u16 {
        self.messages.wrapping_sub(self.advertised_at)
    }

    /// Returns whether the ring should grow. Called before
    /// [`next_credit_update`](Self::next_credit_update). `now` returns the time in milliseconds.
    pub fn should_grow(&mut self, now: impl Fn() -> u64) -> bool {
        self.needs_larger_ring() || !self.ring.is_small() && self.can_add_ring() && self.pace.should_grow(now)
    }

    /// Returns whether another ring can be added now.
    pub fn can_add_ring(&self) -> bool {
        self.needs_larger_ring() || self.next.is_none() && self.ring.has_free_half()
    }

    /// Adds another ring of `size` bytes, at least 2, which follows the present one. Returns its
    /// number.
    pub fn add_ring(&mut self, size: u32) -> usize {
        // The new ring begins at the offset within a half at which the present ring ends. This is 0
        // for a ring with two halves.
        let phase = if self.ring.is_small() { self.ring.advertised % u64::from(size / 2) } else { 0 };
        self.add(Ring::starting_at(phase as u32, size))
    }

    /// Adds a small ring of `size` bytes, which follows the present one. Returns its number.
    pub fn add_small_ring(&mut self, size: u32) -> usize {
        self.add(Ring::small(size))
    }

    fn add(&mut self, ring: Ring) -> usize {
        debug_assert!(self.can_add_ring());
        self.pace = Pace::default();
        self.is_refused = false;
        self.next = Some(ring);
        1 - self.current
    }

    /// Notes that there was no memory for a ring that replaces the small one.
    pub fn could_not_grow(&mut self) {
        self.is_refused = self.ring.is_small();
    }

    /// Returns the next credit update if it is worth a message: a half of the ring is free, or half
    /// of the credits are used.
    pub fn next_credit_update(&self) -> Option<CreditUpdate> {
        let limit = self.messages.wrapping_add(self.credits);
        if self.has_buffer() {
            let (ring, number) = self.next.as_ref().map_or((&self.ring, self.current), |next| (next, 1 - self.current));
            let (offset, len) = ring.next_part();
            let buffer = Advertisement { sgl_entry: self.sgl_entry, ring: number, offset, len };
            return Some(CreditUpdate { limit, buffer: Some(buffer) });
        }
        (self.unadvertised_credits() >= self.credits / 2).then_some(CreditUpdate { limit, buffer: None })
    }

    /// Records that `update` was sent.
    pub fn credit_update_sent(&mut self, update: &CreditUpdate) {
        self.limit = update.limit;
        self.advertised_at = update.limit.wrapping_sub(self.credits);
        if let Some(buffer) = update.buffer {
            self.is_refused = false;
            self.next.as_mut().unwrap_or(&mut self.ring).advertise(buffer.len.into());
            self.sgl_entry = 1 - self.sgl_entry;
        }
    }
}

/// A stream is busy if it fills this number of halves within [`BUSY_TIME`] milliseconds.
const BUSY_HALVES: u32 = 16;
const BUSY_TIME: u64 = 250;

/// Measures how often halves were advertised since the buffer got its present size.
#[derive(Debug, Default)]
struct Pace {
    /// Number of halves since `start`.
    halves: u32,
    start: u64,
}

impl Pace {
    /// Called before another half is advertised. Returns whether the buffer should grow.
    fn should_grow(&mut self, now: impl Fn() -> u64) -> bool {
        if self.halves == 0 {
            self.start = now();
        }
        self.halves += 1;
        if self.halves < BUSY_HALVES {
            return false;
        }
        self.halves = 0;
        now().saturating_sub(self.start) <= BUSY_TIME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fast path has the effects of the usual path, and takes only messages that end no half
    /// and make no credit update due.
    #[test]
    fn a_plain_message_is_taken_as_any_other() {
        let (mut fast, mut usual) = (Receiver::new(256, 16), Receiver::new(256, 16));
        let (mut taken, mut left) = (0, 0);
        for message in 0..2_000_u32 {
            let len = message * 7 % 23;
            let is_plain = fast.take_plain(len);
            (taken, left) = (taken + u32::from(is_plain), left + u32::from(!is_plain));
            if !is_plain && fast.data(len).is_err() {
                // The message does not fit into the half: a peer would send a part of it.
                assert_eq!(usual.data(len), Err(Violation));
                let rest = fast.ring.left;
                assert!(fast.data(rest).is_ok() && usual.data(rest).is_ok());
            } else {
                assert_eq!(usual.data(len), Ok(()));
                assert!(!is_plain || !usual.wants_credit_update() || usual.has_buffer());
            }
            for receiver in [&mut fast, &mut usual] {
                let _ = receiver.take(receiver.available());
                while let Some(update) = receiver.next_credit_update() {
                    receiver.credit_update_sent(&update);
                }
            }
            assert_eq!(format!("{fast:?}"), format!("{usual:?}"));
        }
        assert!(taken > 1_000 && left > 100, "{taken} taken, {left} left");
    }

    #[test]
    fn other_messages_are_not_plain() {
        let mut receiver = Receiver::new(256, 16);
        // Data that fills a half, a message of a reserved operation, and a control message.
        for imm in [128, 1 << 29, u32::MAX] {
            assert!(!receiver.take_plain(imm), "{imm:#x}");
        }
        let mut small = Receiver::small(256, 16);
        assert!(!small.take_plain(1) && small.available() == 0);
        receiver.messages = receiver.limit;
        assert!(!receiver.take_plain(1) && receiver.available() == 0, "without credit");
    }

    /// Returns whether the buffer should grow after `halves` halves at intervals of `step`
    /// milliseconds, and asserts that it should not before.
    fn grows_after(pace: &mut Pace, halves: u32, now: &mut u64, step: u64) -> bool {
        (0..halves).fold(false, |should_grow, _| {
            assert!(!should_grow);
            *now += step;
            pace.should_grow(|| *now)
        })
    }

    #[test]
    fn busy_streams_grow() {
        let (mut pace, mut now) = (Pace::default(), 1);
        assert!(!grows_after(&mut pace, 15, &mut now, 1));
        assert!(grows_after(&mut pace, 1, &mut now, 1));
        pace = Pace::default();
        assert!(grows_after(&mut pace, 16, &mut now, 10));
    }

    #[test]
    fn slow_streams_do_not_grow() {
        let (mut pace, mut now) = (Pace::default(), 1);
        assert!(!grows_after(&mut pace, 160, &mut now, 20));
    }
}
