//! The sending half: credits and target buffers of the peer, local send queue entries and buffer
//! space.
//!
//! Small messages are held while earlier ones are on their way, to be sent as one.
//!
//! A message is on its way until its work request has completed. A burst is a series of messages
//! between which the sending thread makes no call that receives. The first messages of a burst are
//! sent at once, so nothing is held for a program that sends a request and waits for the answer.
//! Each later message is signaled, and is only copied to the send buffer while others are on their
//! way. If the device completes each message before the next one is sent, polling the CQ here is in
//! vain, and is done less and less often.

use std::collections::VecDeque;
use std::mem;

use super::Violation;
use crate::errno::{Errno, Result};
use crate::rsocket::wire::Region;

/// A stream is writable while at least this much of its send buffer is free, in bytes.
const LOW_WATER: u32 = 2048;
/// The longest message, in bytes. The largest send buffer has room for two of them. The first
/// message of a transfer on an idle connection is shorter: the device sends it while the next one
/// is copied.
const MAX_MESSAGE: u32 = 1 << 18;
const FIRST_MESSAGE: u32 = 1 << 16;
/// Number of credits that stay unused on iWARP, or fewer if the peer has a small receive queue.
/// Messages without credit use up receives, too, and rdma-core posts receives for its credits only.
/// At most six such messages arrive before the peer processes one: two SGL entries, two credit
/// updates, SHUTDOWN and DISCONNECT. Without a receive for a message, InfiniBand and RoCE retry,
/// but iWARP ends the connection.
const RESERVED_CREDITS: u16 = 8;

/// Number of messages at the beginning of a burst that are sent at once.
const AT_ONCE: u32 = 3;
/// Maximum length of a held message, and of all held messages together, in bytes.
const SHORT: usize = 1 << 12;
const MAX_HELD: u32 = 1 << 14;
/// A message is held while at least this many others are on their way. TCP_NODELAY asks for as
/// little delay as possible, so a message is then held only while the device certainly has enough
/// to do.
const WINDOW: usize = 1;
const NODELAY_WINDOW: usize = 4;
/// Number of polls in vain, in a row, after which the sender pauses polling; and binary logarithm
/// of the longest pause, in messages.
const TRIES: u32 = 4;
const LONGEST_PAUSE: u32 = 12;

/// Limits of a connection's sending side. Only `buffer` changes after the connection is
/// established.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendLimits {
    /// Send queue entries for data.
    pub sq_entries: u32,
    /// Send queue entries of one message: 2 on iWARP, where a SEND follows each write.
    pub entries_per_message: u32,
    /// Maximum number of outstanding control messages.
    pub controls: u32,
    /// Bytes of the send buffer.
    pub buffer: u32,
    /// Receive queue entries of the peer: the maximum number of outstanding messages.
    pub window: u16,
}

/// A data message for which the resources are reserved. The caller posts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Length in bytes.
    pub len: u32,
    /// Remote address.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// Offset in the send buffer, unless the message is sent inline. The buffer wraps.
    pub offset: u32,
    /// The message's last work request, and whether this request is signaled.
    pub wr_id: u64,
    pub signaled: bool,
}

/// A signaled work request, with the unsignaled ones before it.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    wr_id: u64,
    entries: u32,
    /// Bytes of the send buffer.
    bytes: u32,
    control: bool,
}

/// Credits, target buffer, send queue entries and send buffer space.
#[derive(Debug, Default)]
pub struct Sender {
    limits: SendLimits,
    /// Number of send queue entries for data that belong to no [`Outstanding`], and number of
    /// control messages that can be posted.
    unclaimed_entries: u32,
    free_controls: u32,
    /// Bytes of the send buffer in use, and the offset behind them.
    used: u32,
    next: u32,
    /// The unused part of the peer's current buffer.
    target: Region,
    /// Number of the first message for which the peer has no receive, and number of messages that
    /// may be sent before that one.
    credit_limit: u16,
    credits_left: u16,
    /// The upper limit of `reserved_credits`: with a larger reserve, the peer would give no credits
    /// back. Each iomap update reduces it, because rdma-core does not give that credit back.
    spare_credits: u16,
    /// The number of credits that are never used; 0 except on iWARP.
    reserved_credits: u16,
    outstanding: VecDeque<Outstanding>,
    /// The last work request posted, the last signaled one, and the last one known to be complete.
    last_wr_id: u64,
    signaled_wr_id: u64,
    pub completed_wr_id: u64,
    /// The next work request from this `wr_id` on is signaled, so that space is freed before it is
    /// used up.
    signal_due: u64,
    /// Bytes of the unsignaled requests.
    unsignaled_bytes: u32,
    /// The reasons why send completions are needed.
    reasons: Reasons,
    burst: Burst,
}

/// The reasons why send completions have to be polled: a set of these constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reasons(u8);

impl Reasons {
    /// Sending has to wait: there is no space for data, or for a control message.
    pub const SHORT: Reasons = Reasons(1 << 0);
    /// Data is held until the messages before it have arrived.
    pub const HELD: Reasons = Reasons(1 << 1);
    /// A call waits until all data has arrived.
    pub const FLUSH: Reasons = Reasons(1 << 2);
    /// Waiters were not notified of completions yet.
    pub const NOTIFY: Reasons = Reasons(1 << 3);
}

impl Sender {
    /// Creates the sender for a peer that advertised `target`. Fails with `ENOMEM`.
    pub fn new(limits: SendLimits, target: Region) -> Result<Sender> {
        let mut outstanding = VecDeque::new();
        let most = limits.sq_entries as usize + limits.controls as usize;
        outstanding.try_reserve_exact(most).map_err(|_| Errno::ENOMEM)?;
        let mut sender = Sender {
            limits,
            unclaimed_entries: limits.sq_entries,
            free_controls: limits.controls,
            outstanding,
            ..Sender::default()
        };
        sender.set_peer(limits.window, target);
        sender.note_space();
        sender.set_signal_due();
        Ok(sender)
    }

    /// Takes the `window` (see [`SendLimits`]) and the first buffer of a peer, before any message.
    pub fn set_peer(&mut self, window: u16, target: Region) {
        (self.limits.window, self.credit_limit, self.credits_left) = (window, window, window);
        self.target = target;
        if self.limits.entries_per_message > 1 {
            // The peer gives credits back when half of them are used.
            self.spare_credits = (window / 2).saturating_sub(1);
            self.reserved_credits = self.spare_credits.min(RESERVED_CREDITS);
        }
    }

    /// Returns whether a data message can be sent.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.has_credit() && self.target.length != 0 && self.has_space()
    }

    /// Returns whether every work request has completed, and nothing is held.
    pub fn is_idle(&self) -> bool {
        self.outstanding.is_empty() && self.last_wr_id == self.signaled_wr_id && self.held() == 0
    }

    /// Returns whether all outstanding work requests are unsignaled, so that no completion will
    /// report them.
    pub fn ends_unsignaled(&self) -> bool {
        self.outstanding.is_empty() && self.last_wr_id != self.signaled_wr_id
    }

    /// Returns whether the peer's buffer is full, so that the next one may be used.
    pub fn needs_target(&self) -> bool {
        self.target.length == 0
    }

    /// Returns the number of messages for which the peer still has receives, less one if data is
    /// held.
    pub fn credits(&self) -> u16 {
        self.credits_left - u16::from(self.held() > 0)
    }

    fn has_credit(&self) -> bool {
        self.credits() > self.reserved_credits
    }

    /// Returns whether the completions of sends are needed.
    #[inline]
    pub fn needs_completions(&self) -> bool {
        self.reasons != Reasons(0)
    }

    /// Adds a reason to need completions if `is_one` is set; otherwise removes the reason.
    pub fn set_reason(&mut self, reason: Reasons, is_one: bool) {
        self.reasons = Reasons(self.reasons.0 & !reason.0 | if is_one { reason.0 } else { 0 });
    }

    /// Removes a reason to need completions. Returns whether it was one.
    pub fn take_reason(&mut self, reason: Reasons) -> bool {
        let was_one = self.reasons.0 & reason.0 != 0;
        self.set_reason(reason, false);
        was_one
    }

    #[inline]
    fn is_short(&self) -> bool {
        self.reasons.0 & Reasons::SHORT.0 != 0
    }

    /// Updates [`Reasons::SHORT`] and [`Reasons::HELD`]. Called after each change that may affect
    /// them.
    #[inline]
    fn note_space(&mut self) {
        self.set_reason(Reasons::SHORT, self.free_controls == 0 || !self.has_space());
        self.set_reason(Reasons::HELD, self.held() > 0);
    }

    /// Returns the number of free bytes in the send buffer, according to the completions so far.
    pub fn free(&self) -> u32 {
        self.limits.buffer - self.used - self.held()
    }

    /// Returns whether the send buffer has space for a whole message of `len` bytes, and at least
    /// for `LOW_WATER` bytes, according to the completions so far.
    pub fn has_room(&self, len: usize) -> bool {
        self.free() as usize >= len.max(LOW_WATER as usize)
    }

    /// Returns the number of bytes of the send buffer in use, according to the completions so far.
    pub fn used(&self) -> u32 {
        self.used + self.held()
    }

    /// Returns whether a larger send buffer would let more of `wanted` bytes be sent now.
    pub fn is_buffer_limited(&self, wanted: usize) -> bool {
        let window = if self.has_credit() && self.free_entries() >= self.limits.entries_per_message {
            self.target.length
        } else {
            0
        };
        self.longest(wanted, false) < self.longest(wanted, true).min(window)
    }

    /// Replaces the send buffer by one of `size` bytes. Returns the last work request that uses the
    /// old buffer.
    pub fn replace_buffer(&mut self, size: u32) -> u64 {
        debug_assert!(self.held() == 0);
        for outstanding in &mut self.outstanding {
            outstanding.bytes = 0;
        }
        (self.limits.buffer, self.used, self.next, self.unsignaled_bytes) = (size, 0, 0, 0);
        self.note_space();
        self.last_wr_id
    }

    /// Returns the number of free send queue entries for data, according to the completions so far.
    fn free_entries(&self) -> u32 {
        self.unclaimed_entries - self.unsignaled_entries()
    }

    /// Returns the number of send queue entries of the unsignaled requests.
    fn unsignaled_entries(&self) -> u32 {
        (self.last_wr_id - self.signaled_wr_id) as u32
    }

    /// Returns whether there are send queue entries and buffer space for data.
    fn has_space(&self) -> bool {
        self.free_entries() >= self.limits.entries_per_message && self.free() >= LOW_WATER
    }

    /// Reserves the next message of at most `wanted` bytes if one can be sent. An `inline` message
    /// needs no buffer space.
    #[inline]
    pub fn take(&mut self, wanted: usize, inline: bool) -> Option<Chunk> {
        if wanted == 0 || !self.is_ready() {
            return None;
        }
        debug_assert!(self.held() == 0);
        let len = self.longest(wanted, inline).min(self.target.length);
        Some(self.take_chunk(len, inline))
    }

    #[inline]
    fn take_chunk(&mut self, len: u32, inline: bool) -> Chunk {
        let (Region { addr, rkey, .. }, offset) = (self.target, self.next);
        self.burst.count();
        self.target.addr = addr.wrapping_add(u64::from(len));
        self.target.length -= len;
        self.credits_left -= 1;
        let (wr_id, signaled) = self.push(self.limits.entries_per_message, if inline { 0 } else { len });
        Chunk { len, addr, rkey, offset, wr_id, signaled }
    }

    /// Reserves a message without stream data (an update of the peer's iomap), which takes a credit
    /// and `bytes` of the send buffer. Returns the message's offset in the buffer and its last work
    /// request, as in a [`Chunk`], or `None` if the message cannot be sent now.
    pub fn take_update(&mut self, bytes: u32) -> Option<(u32, (u64, bool))> {
        if !self.has_credit() || !self.has_space() || bytes > LOW_WATER {
            return None;
        }
        self.credits_left -= 1;
        // rdma-core does not count these messages, so their credits do not come back.
        self.spare_credits = self.spare_credits.saturating_sub(1);
        self.reserved_credits = self.spare_credits.min(self.reserved_credits);
        Some((self.next, self.push(self.limits.entries_per_message, bytes)))
    }

    /// Reserves an RDMA write without a message. Returns how many of the `wanted` bytes the write
    /// carries, their offset in the send buffer, and the work request, or `None` if no write can be
    /// posted now.
    pub fn take_write(&mut self, wanted: usize, inline: bool) -> Option<(u32, u32, (u64, bool))> {
        if wanted == 0 || !self.has_space() {
            return None;
        }
        let len = self.longest(wanted, inline);
        Some((len, self.next, self.push(1, if inline { 0 } else { len })))
    }

    /// Returns how many of `wanted` bytes the first message of a transfer should carry: fewer on an
    /// idle connection. Send completions are polled only when space is short, so a connection that
    /// has sent before usually does not count as idle.
    pub fn first_message(&self, wanted: usize) -> usize {
        if self.is_idle() { wanted.min(FIRST_MESSAGE as usize) } else { wanted }
    }

    /// Returns how many of `wanted` bytes one write can carry.
    #[inline]
    fn longest(&self, wanted: usize, inline: bool) -> u32 {
        let max = if inline { MAX_MESSAGE } else { MAX_MESSAGE.min(self.free()) };
        u32::try_from(wanted).unwrap_or(u32::MAX).min(max)
    }

    #[inline]
    fn push(&mut self, entries: u32, bytes: u32) -> (u64, bool) {
        self.last_wr_id += u64::from(entries);
        self.used += bytes;
        self.next += bytes;
        if self.next >= self.limits.buffer {
            self.next -= self.limits.buffer;
        }
        self.unsignaled_bytes += bytes;
        self.note_space();
        let signaled = self.is_signal_due() || self.unsignaled_bytes >= self.limits.buffer / 4 || self.is_short();
        if signaled {
            self.signal(0);
        }
        (self.last_wr_id, signaled)
    }

    /// Returns whether the last work request has to be signaled for a reason other than a lack of
    /// space.
    #[inline]
    fn is_signal_due(&self) -> bool {
        self.last_wr_id >= self.signal_due || self.is_in_burst()
    }

    fn set_signal_due(&mut self) {
        let until_short = (self.unclaimed_entries + 1).saturating_sub(self.limits.entries_per_message);
        self.signal_due = self.last_wr_id + u64::from(until_short.min(self.limits.sq_entries / 4));
    }

    /// Fast path of [`take`](Self::take) while nothing is held: reserves one inline message of
    /// `len` bytes. Returns `None` if space is short or the message cannot be sent as a whole.
    #[inline(always)] // see rsocket::calls
    pub fn take_inline(&mut self, len: u32) -> Option<Chunk> {
        debug_assert!(self.held() == 0);
        let is_too_long = len > self.target.length || len == 0;
        if self.is_short() || is_too_long || self.credits_left <= self.reserved_credits {
            return None;
        }
        let (addr, rkey) = (self.target.addr, self.target.rkey);
        self.burst.count();
        self.target.addr = addr.wrapping_add(u64::from(len));
        self.target.length -= len;
        self.credits_left -= 1;
        self.last_wr_id += u64::from(self.limits.entries_per_message);
        let signaled = self.is_signal_due();
        if signaled {
            self.signal(0);
            // Only a signaled request can use up the space: `signal_due` ensures that.
            self.note_space();
        }
        Some(Chunk { len, addr, rkey, offset: self.next, wr_id: self.last_wr_id, signaled })
    }

    /// Makes the last work request signaled. Its completion also completes the unsignaled ones
    /// before it. If the request belongs to a control message, `control` is the message's number of
    /// entries, otherwise 0.
    #[inline(never)]
    fn signal(&mut self, control: u32) {
        let entries = self.unsignaled_entries() - control;
        let (wr_id, bytes) = (self.last_wr_id, mem::take(&mut self.unsignaled_bytes));
        self.outstanding.push_back(Outstanding { wr_id, entries, bytes, control: control > 0 });
        self.unclaimed_entries -= entries;
        self.signaled_wr_id = wr_id;
        self.set_signal_due();
    }

    /// Returns whether a control message can be sent.
    pub fn has_control(&self) -> bool {
        self.free_controls > 0
    }

    /// Reserves a control message of `entries` work requests. Returns the `wr_id` of the last one,
    /// which is signaled.
    pub fn take_control(&mut self, entries: u32) -> u64 {
        self.last_wr_id += u64::from(entries);
        self.free_controls -= 1;
        self.signal(entries);
        self.note_space();
        self.last_wr_id
    }

    /// Handles the completion of the work requests up to `wr_id`.
    pub fn completed(&mut self, wr_id: u64) {
        while let Some(first) = self.outstanding.front().copied() {
            if first.wr_id > wr_id {
                break;
            }
            self.outstanding.pop_front();
            self.completed_wr_id = first.wr_id;
            self.unclaimed_entries += first.entries;
            self.used -= first.bytes;
            self.free_controls += u32::from(first.control);
        }
        self.note_space();
    }

    /// Handles a credit update: the peer allows messages up to number `limit`. Fails if the limit
    /// takes credits back, or gives more than the peer's receive queue holds.
    pub fn credit_update_received(&mut self, limit: u16) -> std::result::Result<(), Violation> {
        // A limit below the present one wraps to a large increment.
        let more = limit.wrapping_sub(self.credit_limit);
        if u32::from(self.credits_left) + u32::from(more) > u32::from(self.limits.window) {
            return Err(Violation);
        }
        self.credit_limit = limit;
        self.credits_left += more;
        Ok(())
    }

    /// Uses the peer's next buffer, because the present one is full.
    pub fn use_next_target(&mut self, target: Region) {
        debug_assert!(self.needs_target());
        self.target = target;
    }
}

/// The present burst, and its messages that are held.
#[derive(Debug)]
struct Burst {
    /// Number of messages that are still sent at once before others may be held: the first ones of
    /// a burst, or those of a pause.
    at_once: u32,
    /// Bytes held, which follow those in use in the send buffer. Bytes are added only while
    /// `at_once` is 0.
    held: u32,
    /// Number of polls in vain, in a row: no message was on its way.
    in_vain: u32,
    window: usize,
}

impl Default for Burst {
    fn default() -> Burst {
        Burst { at_once: AT_ONCE, held: 0, in_vain: 0, window: WINDOW }
    }
}

impl Burst {
    /// Counts a message that is sent.
    #[inline]
    fn count(&mut self) {
        self.at_once = self.at_once.saturating_sub(1);
    }
}

impl Sender {
    /// Sets TCP_NODELAY.
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.burst.window = if nodelay { NODELAY_WINDOW } else { WINDOW };
    }

    /// Never holds messages again.
    pub fn hold_nothing(&mut self) {
        self.burst.at_once = u32::MAX;
    }

    /// Ends the burst, because the thread that sends has received: its next message is an answer,
    /// or a new request.
    #[inline]
    pub fn end_burst(&mut self) {
        self.burst.at_once = self.burst.at_once.max(AT_ONCE);
    }

    /// Returns the number of bytes held.
    #[inline]
    pub fn held(&self) -> u32 {
        self.burst.held
    }

    /// Returns whether messages may be held, or are held already.
    #[inline]
    pub fn is_in_burst(&self) -> bool {
        self.burst.at_once == 0
    }

    /// Returns whether a message of `len` bytes is held if others are on their way.
    #[inline]
    pub fn may_hold(&self, len: usize) -> bool {
        self.is_in_burst() && len <= SHORT
    }

    /// Returns whether enough messages are on their way for others to be held, according to the
    /// completions so far.
    pub fn is_busy(&self) -> bool {
        self.outstanding.len() >= self.burst.window
    }

    /// Counts a poll in vain: the messages that were on their way had completed.
    pub fn note_idle_cq(&mut self) {
        self.burst.in_vain = self.burst.in_vain.saturating_add(1);
        if self.burst.in_vain >= TRIES {
            self.burst.at_once = 1 << self.burst.in_vain.min(LONGEST_PAUSE);
        }
    }

    /// Returns the offset in the send buffer for `len` bytes to be held, if one message can carry
    /// them together with the bytes held already. Bytes that would fill the peer's buffer are not
    /// held: the stream would be reported as writable although nothing more can be sent.
    pub fn plan_hold(&self, len: usize) -> Option<u32> {
        let len = u32::try_from(len).ok()?;
        let total = self.burst.held + len;
        let fits = total <= MAX_HELD && total < self.target.length && len <= self.free() && len > 0;
        let has_credit = self.burst.held > 0 || self.has_credit();
        if !fits || !has_credit || self.free_entries() < self.limits.entries_per_message {
            return None;
        }
        let offset = self.next + self.burst.held;
        Some(if offset >= self.limits.buffer { offset - self.limits.buffer } else { offset })
    }

    /// Holds `len` bytes, for which [`plan_hold`](Self::plan_hold) has found space.
    pub fn hold(&mut self, len: u32) {
        self.burst.held += len;
        self.burst.in_vain = 0;
        self.note_space();
    }

    /// Reserves a message with the held bytes, if there are any. The message can always be sent,
    /// because no other data was sent since the bytes were held.
    pub fn take_held(&mut self) -> Option<Chunk> {
        let len = mem::take(&mut self.burst.held);
        (len > 0).then(|| self.take_chunk(len, false))
    }

    /// Discards the bytes held, because nothing is sent any more.
    pub fn drop_held(&mut self) {
        self.burst.held = 0;
        self.note_space();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(window: u16) -> Sender {
        let limits = SendLimits { sq_entries: 8, entries_per_message: 1, controls: 2, buffer: 4096, window };
        Sender::new(limits, Region { addr: 0, rkey: 0, length: 64 }).unwrap()
    }

    /// The last free entry of the send queue is a signaled one: its completion frees all.
    #[test]
    fn inline_messages_use_all_entries_and_no_more() {
        // In a burst, each message would be signaled.
        let take = |sender: &mut Sender| {
            sender.end_burst();
            sender.take_inline(1)
        };
        for used in 0..8 {
            let mut sender = sender(100);
            let before: Vec<_> = (0..used).filter_map(|_| take(&mut sender)).collect();
            // Signals them, too.
            let control = sender.take_control(1);
            let taken: Vec<_> = std::iter::from_fn(|| take(&mut sender)).collect();
            assert!(before.len() + taken.len() == 8 && taken.last().is_some_and(|last| last.signaled));
            sender.completed(control);
            assert_eq!(take(&mut sender).is_some(), used > 0);
        }
    }

    /// Even with the largest window, a lower limit is rejected, unless it is a valid increment
    /// modulo 2^16.
    #[test]
    fn the_limit_does_not_go_back() {
        let mut sender = sender(u16::MAX);
        (sender.credit_limit, sender.credits_left) = (65535, 1);
        assert!(sender.credit_update_received(65534).is_err());
        assert!(sender.credit_update_received(65535).is_ok());
        sender.credits_left = 0;
        assert!(sender.credit_update_received(65534).is_ok());
        assert_eq!(sender.credits(), u16::MAX);
    }

    fn burst() -> Sender {
        let limits = SendLimits { sq_entries: 64, entries_per_message: 1, controls: 4, buffer: 1 << 17, window: 64 };
        Sender::new(limits, Region { addr: 0, rkey: 1, length: 1 << 16 }).unwrap()
    }

    /// Sends a message at once. Returns its work request, and whether it is signaled.
    fn send(sender: &mut Sender) -> (u64, bool) {
        sender.take(100, true).map(|chunk| (chunk.wr_id, chunk.signaled)).unwrap()
    }

    #[test]
    fn the_first_messages_of_a_row_are_sent_at_once() {
        let mut sender = burst();
        for _ in 0..AT_ONCE {
            assert!(!sender.may_hold(100));
            send(&mut sender);
        }
        assert!(sender.may_hold(SHORT) && !sender.may_hold(SHORT + 1));
        sender.end_burst();
        assert!(!sender.may_hold(100));
    }

    #[test]
    fn messages_are_held_until_the_earlier_ones_have_arrived() {
        let mut sender = burst();
        let last = (0..AT_ONCE).map(|_| send(&mut sender)).last().unwrap();
        assert!(last.1 && sender.is_busy());
        for count in 0..3 {
            assert_eq!(sender.plan_hold(100), Some(count * 100));
            sender.hold(100);
        }
        assert!(!sender.is_idle() && sender.used() == 300);
        sender.completed(last.0);
        assert!(!sender.is_busy());
        let chunk = sender.take_held().unwrap();
        assert_eq!((chunk.len, chunk.offset), (300, 0));
        assert!(chunk.signaled && sender.held() == 0);
        sender.completed(chunk.wr_id);
        assert!(sender.is_idle() && sender.used() == 0);
    }

    #[test]
    fn with_nodelay_more_messages_are_on_their_way() {
        let mut sender = burst();
        sender.set_nodelay(true);
        for _ in 0..AT_ONCE + NODELAY_WINDOW as u32 - 1 {
            assert!(!sender.is_busy());
            send(&mut sender);
        }
        assert!(sender.is_busy());
    }

    #[test]
    fn one_message_carries_all_that_is_held() {
        let mut sender = burst();
        (0..AT_ONCE).for_each(|_| assert!(send(&mut sender).0 > 0));
        while sender.plan_hold(SHORT).is_some() {
            sender.hold(SHORT as u32);
        }
        assert_eq!(sender.held(), MAX_HELD);
        // The rest of the peer's buffer is shorter.
        sender.drop_held();
        sender.take((1 << 16) - 300 - 150, false).unwrap();
        assert!(sender.plan_hold(149).is_some() && sender.plan_hold(150).is_none());
    }

    #[test]
    fn looking_in_vain_becomes_rare() {
        let (mut sender, mut looks) = (burst(), 0);
        for _ in 0..10_000 {
            if sender.may_hold(100) {
                assert!(!sender.is_busy());
                sender.note_idle_cq();
                looks += 1;
            }
            let (wr_id, _) = send(&mut sender);
            sender.signal(0);
            sender.completed(wr_id);
            sender.credits_left = 64;
            sender.target.length = 1 << 16;
        }
        assert!((TRIES..20).contains(&looks), "{looks} looks");
    }
}
