//! Small messages that are held while earlier ones are on their way, to be sent as one.
//!
//! A message is on its way until its work request has completed. A burst is a series of messages
//! between which the sending thread makes no call that receives. The first messages of a burst are
//! sent at once, so nothing is held for a program that sends a request and waits for the answer.
//! Each later message is signaled, and is only copied to the send buffer while others are on their
//! way. If the device completes each message before the next one is sent, polling the CQ here is in
//! vain, and is done less and less often.

use std::mem;

use super::{Chunk, Sender};

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

/// The present burst, and its messages that are held.
#[derive(Debug)]
pub(super) struct Burst {
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

impl Burst {
    pub fn new() -> Burst {
        Burst { at_once: AT_ONCE, held: 0, in_vain: 0, window: WINDOW }
    }

    /// Counts a message that is sent.
    #[inline]
    pub fn count(&mut self) {
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
    use super::super::SendLimits;
    use super::*;
    use crate::rsocket::wire::Region;

    fn sender() -> Sender {
        let limits = SendLimits { sq_entries: 64, entries_per_message: 1, controls: 4, buffer: 1 << 17, window: 64 };
        Sender::new(limits, Region { addr: 0, rkey: 1, length: 1 << 16 }).unwrap()
    }

    /// Sends a message at once. Returns its work request, and whether it is signaled.
    fn send(sender: &mut Sender) -> (u64, bool) {
        sender.take(100, true).map(|chunk| (chunk.wr_id, chunk.signaled)).unwrap()
    }

    #[test]
    fn the_first_messages_of_a_row_are_sent_at_once() {
        let mut sender = sender();
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
        let mut sender = sender();
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
        let mut sender = sender();
        sender.set_nodelay(true);
        for _ in 0..AT_ONCE + NODELAY_WINDOW as u32 - 1 {
            assert!(!sender.is_busy());
            send(&mut sender);
        }
        assert!(sender.is_busy());
    }

    #[test]
    fn one_message_carries_all_that_is_held() {
        let mut sender = sender();
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
        let (mut sender, mut looks) = (sender(), 0);
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
