//! The sending half: credits and target buffers from the peer, send queue entries and buffer space of our own.

use std::collections::VecDeque;

use super::Violation;
use crate::errno::{Errno, Result};
use crate::rsocket::wire::Region;

/// A stream is writable when so much of its send buffer is free, bytes.
const LOW_WATER: u32 = 2048;
/// The longest message, bytes, and the longest one that a transfer begins with on an idle link: the link works while the next
/// one is copied. The largest send buffer holds two of the longest ones.
const MOST: u32 = 1 << 19;
const FIRST: u32 = 1 << 16;
/// A send buffer that was enough so often when the stream had sent all of it is not too small.
const CALM: u32 = 64;

/// What the connection was made with.
#[derive(Clone, Copy, Debug)]
pub struct SendLimits {
    /// Send queue entries for data.
    pub slots: u32,
    /// Entries that a message takes: 2 on iWARP, where a SEND follows each write.
    pub per_message: u32,
    /// Control messages that may be outstanding.
    pub controls: u32,
    /// Bytes of the send buffer.
    pub buffer: u32,
    /// Receive queue entries of the peer: the messages it can take at once.
    pub window: u16,
}

/// The next message of data: what to write where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Bytes.
    pub len: u32,
    /// Where it goes.
    pub addr: u64,
    /// The peer's key for it.
    pub key: u32,
    /// Where it is taken from in the send buffer, unless it goes inline; it goes on at 0 behind the end.
    pub offset: u32,
}

/// Work requests that complete together: those since the last one whose completion was reported.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    /// Number of the last one, whose completion is reported.
    number: u64,
    slots: u32,
    /// Of the send buffer.
    bytes: u32,
    control: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Sender {
    limits: SendLimits,
    slots: u32,
    controls: u32,
    /// Bytes of the send buffer in use, and where the next ones go.
    used: u32,
    next: u32,
    /// What is left of the buffer that the peer announced.
    target: Region,
    /// Messages sent, and the number at which the peer wants us to stop.
    sent: u16,
    granted: u16,
    outstanding: VecDeque<Outstanding>,
    /// Numbers of the last work request, and of the last one that is known to be complete.
    number: u64,
    done: u64,
    /// Since the last one whose completion is reported.
    quiet_slots: u32,
    quiet_bytes: u32,
    /// The most bytes of the buffer in use since it was empty, and how often in a row that was less than `small`.
    peak: u32,
    small: u32,
    calm: u32,
}

impl Sender {
    /// A sender for a peer that announced `target`. `ENOMEM` when there is no memory for its records.
    pub fn new(limits: SendLimits, target: Region) -> Result<Sender> {
        let mut outstanding = VecDeque::new();
        let most = limits.slots as usize + limits.controls as usize;
        outstanding.try_reserve_exact(most).map_err(|_| Errno::ENOMEM)?;
        Ok(Sender {
            limits,
            slots: limits.slots,
            controls: limits.controls,
            used: 0,
            next: 0,
            target,
            sent: 0,
            granted: limits.window,
            outstanding,
            number: 0,
            done: 0,
            quiet_slots: 0,
            quiet_bytes: 0,
            peak: 0,
            small: limits.buffer,
            calm: 0,
        })
    }

    /// Whether a message of data can be sent.
    pub fn is_ready(&self) -> bool {
        self.has_credit() && self.target.length != 0 && self.has_room()
    }

    /// Whether nothing is left to complete.
    pub fn is_idle(&self) -> bool {
        self.outstanding.is_empty() && self.quiet_slots == 0
    }

    /// Whether the buffer that the peer announced last is used up: another one may be taken.
    pub fn wants_target(&self) -> bool {
        self.target.length == 0
    }

    /// Whether that buffer takes some of `wanted` bytes, but not all of them.
    pub fn splits(&self, wanted: usize) -> bool {
        !self.wants_target() && (self.target.length as usize) < wanted
    }

    /// Messages that the peer still has room for.
    pub fn credits(&self) -> u16 {
        self.granted.wrapping_sub(self.sent)
    }

    fn has_credit(&self) -> bool {
        self.sent != self.granted
    }

    /// Whether completions of our own have to bring something back: room for data, or for a control message.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.controls == 0 || !self.has_room()
    }

    /// Free bytes of the send buffer, as far as completions have shown.
    pub fn free(&self) -> u32 {
        self.limits.buffer - self.used
    }

    /// Whether more of `wanted` bytes could be sent now if the send buffer were larger.
    pub fn is_cramped(&self, wanted: usize) -> bool {
        let window = if self.has_credit() && self.slots >= self.limits.per_message { self.target.length } else { 0 };
        self.longest(wanted, false) < self.longest(wanted, true).min(window)
    }

    /// Whether a smaller send buffer has been enough for long.
    pub fn is_calm(&self) -> bool {
        self.calm >= CALM
    }

    /// Bytes are sent from another buffer, of `size` bytes, from now on. The number of the last work request that needs the one
    /// before.
    pub fn rebuffer(&mut self, size: u32) -> u64 {
        for outstanding in &mut self.outstanding {
            outstanding.bytes = 0;
        }
        (self.limits.buffer, self.used, self.next, self.quiet_bytes) = (size, 0, 0, 0);
        (self.peak, self.calm) = (0, 0);
        self.number
    }

    /// Whether all work requests up to `number` are complete.
    pub fn is_complete(&self, number: u64) -> bool {
        self.done >= number
    }

    /// Entries and buffer: what only completions of our own bring back.
    fn has_room(&self) -> bool {
        self.slots >= self.limits.per_message && self.free() >= LOW_WATER
    }

    /// The next message of at most `wanted` bytes, when one can be sent; `inline` says that it needs no buffer.
    #[inline]
    pub fn plan(&self, wanted: usize, inline: bool) -> Option<Chunk> {
        if wanted == 0 || !self.is_ready() {
            return None;
        }
        let len = self.longest(wanted, inline).min(self.target.length);
        Some(Chunk { len, addr: self.target.addr, key: self.target.key, offset: self.next })
    }

    /// Takes what `chunk` needs, before it is posted. Returns the number of its last work request, and whether that one's
    /// completion has to be reported.
    #[inline]
    pub fn take(&mut self, chunk: &Chunk, inline: bool) -> (u64, bool) {
        self.target.addr = self.target.addr.wrapping_add(u64::from(chunk.len));
        self.target.length -= chunk.len;
        self.sent = self.sent.wrapping_add(1);
        self.push(self.limits.per_message, if inline { 0 } else { chunk.len })
    }

    /// Room for a message without data of the stream (an update of the peer's mapping table), which needs a credit and `bytes`
    /// of the send buffer; where they are.
    pub fn plan_update(&self, bytes: u32) -> Option<u32> {
        (self.has_credit() && self.has_room() && bytes <= LOW_WATER).then_some(self.next)
    }

    /// As [`take`](Self::take), for [`plan_update`](Self::plan_update).
    pub fn take_update(&mut self, bytes: u32) -> (u64, bool) {
        self.sent = self.sent.wrapping_add(1);
        self.push(self.limits.per_message, bytes)
    }

    /// Room for a plain write, which the peer is not told of: at most how many bytes, from where in the send buffer.
    pub fn plan_write(&self, wanted: usize, inline: bool) -> Option<(u32, u32)> {
        if wanted == 0 || !self.has_room() {
            return None;
        }
        Some((self.longest(wanted, inline), self.next))
    }

    /// How many of `wanted` bytes a transfer should begin with.
    pub fn first(&self, wanted: usize) -> usize {
        if self.is_idle() { wanted.min(FIRST as usize) } else { wanted }
    }

    /// How many of `wanted` bytes one write takes.
    #[inline]
    fn longest(&self, wanted: usize, inline: bool) -> u32 {
        let room = if inline { MOST } else { MOST.min(self.free()) };
        u32::try_from(wanted).unwrap_or(u32::MAX).min(room)
    }

    /// As [`take`](Self::take), for [`plan_write`](Self::plan_write).
    pub fn take_write(&mut self, len: u32, inline: bool) -> (u64, bool) {
        self.push(1, if inline { 0 } else { len })
    }

    #[inline]
    fn push(&mut self, slots: u32, bytes: u32) -> (u64, bool) {
        self.number += u64::from(slots);
        self.slots -= slots;
        self.used += bytes;
        self.next += bytes;
        if self.next >= self.limits.buffer {
            self.next -= self.limits.buffer;
        }
        self.quiet_slots += slots;
        self.quiet_bytes += bytes;
        self.peak = self.peak.max(self.used);
        // Reported often enough that room comes back while there is some left, and always when there is none.
        let report =
            self.quiet_slots >= self.limits.slots / 4 || self.quiet_bytes >= self.limits.buffer / 4 || !self.has_room();
        if report {
            self.report(false);
        }
        (self.number, report)
    }

    /// The work request just numbered is reported, and stands for the quiet ones before it.
    fn report(&mut self, control: bool) {
        let (number, slots, bytes) = (self.number, self.quiet_slots, self.quiet_bytes);
        self.outstanding.push_back(Outstanding { number, slots, bytes, control });
        (self.quiet_slots, self.quiet_bytes) = (0, 0);
    }

    /// Whether a control message can be sent.
    pub fn has_control(&self) -> bool {
        self.controls > 0
    }

    /// Takes a control message of `slots` work requests, whose completion is reported: the number of the last one.
    pub fn take_control(&mut self, slots: u32) -> u64 {
        self.number += u64::from(slots);
        self.controls -= 1;
        self.report(true);
        self.number
    }

    /// Work requests up to `number` are complete.
    pub fn completed(&mut self, number: u64) {
        while let Some(first) = self.outstanding.front().copied() {
            if first.number > number {
                break;
            }
            self.outstanding.pop_front();
            self.done = first.number;
            self.slots += first.slots;
            self.used -= first.bytes;
            self.controls += u32::from(first.control);
        }
        if self.used == 0 && self.peak > 0 {
            self.calm = if self.peak <= self.small { self.calm + 1 } else { 0 };
            self.peak = 0;
        }
    }

    /// The peer wants messages up to `number`.
    pub fn granted(&mut self, number: u16) -> std::result::Result<(), Violation> {
        let more = number.wrapping_sub(self.granted);
        let outstanding = number.wrapping_sub(self.sent);
        // A number that lies behind shows as a huge step ahead.
        if more > self.limits.window || outstanding > self.limits.window {
            return Err(Violation::BadGrant);
        }
        self.granted = number;
        Ok(())
    }

    /// Takes the buffer that the peer announced, in place of the one that is used up.
    pub fn retarget(&mut self, target: Region) {
        debug_assert!(self.wants_target());
        self.target = target;
    }
}
