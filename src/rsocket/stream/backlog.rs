//! Connections of a listener that the program has not accepted yet, and the limit on their number.
//!
//! Each unaccepted connection takes two descriptors before the program knows of the connection. One
//! listener gets at most half of the slots that the other listeners have left, so that a flooded
//! listener leaves slots to the others. All listeners together leave half of the process's
//! descriptors to the program.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::Stream;
use crate::os::event;
use crate::os::fork::Owner;
use crate::rsocket::cm_id::Request;
use crate::rsocket::socket_table;
use crate::rsocket::wire::ConnData;

/// Number of unaccepted connections of all listeners.
static UNACCEPTED: AtomicUsize = AtomicUsize::new(0);
/// Divisor of the descriptor limit: a connection uses two descriptors, and unaccepted connections
/// may use half of the limit.
const DESCRIPTORS_PER_CONNECTION: usize = 4;
/// Minimum of the limit on unaccepted connections, for a process with few descriptors.
const MIN_LIMIT: usize = 4;
/// Minimum limit of unanswered requests per listener; a larger backlog raises the limit. A request
/// uses a kernel id, but no descriptor.
const MIN_WAITING_LIMIT: usize = 1024;

/// How long requests wait after rlisten(3) unless raccept(3) is called. Programs may set the
/// options of their connections right after rlisten(3), because rdma-core answers requests in
/// raccept(3).
const OPTIONS_TIME: Duration = Duration::from_millis(20);

/// Minimum time that a connection in the handshake keeps its slot while requests wait for one. The
/// peer may consider itself connected while its last message is still on the way.
const MIN_HANDSHAKE_TIME: Duration = Duration::from_millis(250);
/// Each group of this many waiting requests adds 1 to the divisor of [`MIN_HANDSHAKE_TIME`]. A
/// burst of honest peers is usually smaller.
const WAITING_PER_SHARE: u32 = 32;

/// A slot for one unaccepted connection; released when dropped.
pub(super) struct Slot {
    owner: Owner,
}

impl Slot {
    /// Takes a slot for a listener that uses `own` slots. Returns `None` if no slot is left for the
    /// listener.
    fn take(own: usize) -> Option<Slot> {
        let limit = limit();
        let take = |all| has_slot(all, own, limit).then_some(all + 1);
        UNACCEPTED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(Slot { owner: Owner::this_process() })
    }
}

/// Returns the number of unaccepted connections that the process may have.
fn limit() -> usize {
    (event::descriptor_limit() / DESCRIPTORS_PER_CONNECTION).max(MIN_LIMIT)
}

/// Returns whether a listener that uses `own` slots may take another slot if `all` of the `limit`
/// slots are used.
fn has_slot(all: usize, own: usize, limit: usize) -> bool {
    own < limit.saturating_sub(all)
}

impl Drop for Slot {
    fn drop(&mut self) {
        // A child of fork() counts only its own connections.
        if self.owner.is_this_process() {
            UNACCEPTED.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Resets the counter in a child of fork(), which has none of its parent's connections.
pub fn in_child() {
    UNACCEPTED.store(0, Ordering::Relaxed);
}

/// What [`Listening::finish`] has done with a connection.
pub(super) enum Finished<S = Stream> {
    /// The connection is ready for raccept(3).
    Ready,
    /// The connection was removed, and the caller has to close it.
    Dropped(Arc<S>),
    /// The connection is not in the pending list.
    Unknown,
}

/// A listener's unaccepted connections.
pub(super) struct Listening<S = Stream, R = (Request, ConnData)> {
    pub backlog: usize,
    /// The time from which on requests are answered. `None` after this time, or after raccept(3).
    answers_from: Option<Instant>,
    /// Requests that were not answered yet, oldest first. Dropping a request rejects it.
    pub waiting: VecDeque<R>,
    /// The listener is about to be closed, and answers no more requests.
    is_ending: bool,
    /// Time since which the waiting requests have lacked descriptors, if they do.
    starved: Option<Instant>,
    /// Number of admitted requests that are being answered, without the listener's lock.
    answering: usize,
    /// Connections in the handshake, each with the time at which the handshake began, oldest first.
    pending: VecDeque<(Arc<S>, Slot, Instant)>,
    /// Established connections, for raccept(3).
    ready: VecDeque<(Arc<S>, Slot)>,
    /// The listener's entry in the table for rsstat(8).
    _entry: Option<socket_table::Entry>,
}

impl<S, R> Listening<S, R> {
    pub fn new(backlog: usize, entry: Option<socket_table::Entry>) -> Listening<S, R> {
        Listening {
            backlog,
            answers_from: Some(Instant::now() + OPTIONS_TIME),
            waiting: VecDeque::new(),
            is_ending: false,
            starved: None,
            answering: 0,
            pending: VecDeque::new(),
            ready: VecDeque::new(),
            _entry: entry,
        }
    }

    /// Notes that raccept(3) was called. Returns whether requests were waiting for the call.
    pub fn accepts(&mut self) -> bool {
        self.answers_from.take().is_some() && self.has_waiting()
    }

    /// Returns the time from which on requests may be answered, if this time is later than `now`.
    pub fn answers_later(&mut self, now: Instant) -> Option<Instant> {
        self.answers_from = self.answers_from.filter(|&time| time > now);
        self.answers_from
    }

    /// Queues a request for an answer. If too many requests wait, rejects the oldest request;
    /// without memory, rejects the new request.
    pub fn add_waiting(&mut self, request: R) {
        if self.waiting.is_empty() {
            self.starved = None;
        } else if self.waiting_space() == 0 {
            self.waiting.pop_front();
        }
        if self.waiting.try_reserve(1).is_ok() {
            self.waiting.push_back(request);
        }
    }

    /// Returns the number of further requests that may wait.
    fn waiting_space(&self) -> usize {
        MIN_WAITING_LIMIT.max(self.backlog).saturating_sub(self.waiting.len())
    }

    /// Returns the number of requests to read in a turn, at most `limit`. While there is a slot, no
    /// more requests are read than may wait, so that no request is rejected before it could be
    /// answered.
    pub fn requests_to_read(&self, limit: usize) -> usize {
        if self.is_full() { limit } else { limit.min(self.waiting_space()) }
    }

    /// Drops the oldest requests, at most `limit`, up to the first request that is still pending.
    /// Returns the pending request, or `None` if all requests or `limit` of them were dropped.
    pub fn oldest_pending(&mut self, limit: usize, is_pending: impl Fn(&R) -> bool) -> Option<&R> {
        let examined = self.waiting.iter().take(limit);
        let gone = examined.take_while(|request| !is_pending(request)).count();
        drop(self.waiting.drain(..gone));
        self.waiting.front().filter(|_| gone < limit)
    }

    /// Notes that there are no descriptors for the next connection. Returns whether descriptors
    /// have been lacking for `time`.
    pub fn lacks_descriptors_for(&mut self, time: Duration) -> bool {
        self.starved.get_or_insert_with(Instant::now).elapsed() >= time
    }

    /// Takes the oldest request, which the caller answers.
    pub fn take_request(&mut self) -> Option<R> {
        let request = self.waiting.pop_front()?;
        self.answering += 1;
        Some(request)
    }

    /// Returns whether requests wait until raccept(3) takes a connection: the backlog is used up,
    /// and no connection is in the handshake.
    pub fn awaits_accept(&self) -> bool {
        self.pending.is_empty() && self.ready.len() >= self.backlog
    }

    /// Returns whether requests wait for an answer.
    pub fn has_waiting(&self) -> bool {
        !self.is_ending && !self.waiting.is_empty()
    }

    /// Stops answering requests; closing the listener rejects the waiting requests. Returns the
    /// number of connections that raccept(3) may still return, including those in the handshake.
    pub fn answer_no_more(&mut self) -> usize {
        self.is_ending = true;
        self.answering + self.pending.len() + self.ready.len()
    }

    /// Returns whether raccept(3) would return a connection.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the number of connections that raccept(3) would return.
    pub fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// Takes the next connection for raccept(3).
    pub fn next(&mut self) -> Option<Arc<S>> {
        self.ready.pop_front().map(|(stream, _)| stream)
    }

    /// Returns whether there is no slot for a new connection.
    fn is_full(&self) -> bool {
        let own = self.pending.len() + self.ready.len();
        own >= self.backlog || !has_slot(UNACCEPTED.load(Ordering::Relaxed), own, limit())
    }

    /// Returns the oldest pending connection if there is no slot for a new connection.
    pub fn next_to_evict(&self) -> Option<&(Arc<S>, Slot, Instant)> {
        self.pending.front().filter(|_| self.is_full())
    }

    /// Returns the time at which the oldest pending connection may be evicted. Returns `None` if
    /// the time has come, or no connection has to be evicted.
    pub fn next_eviction(&self, now: Instant) -> Option<Instant> {
        let (_, _, begun) = self.next_to_evict()?;
        // The more requests wait, the less time there is: most of them may be hostile.
        let time = MIN_HANDSHAKE_TIME / (1 + self.waiting.len() as u32 / WAITING_PER_SHARE);
        Some(*begun + time).filter(|&time| time > now)
    }

    /// Takes a slot for a new connection, whose descriptors the caller has. Without a free slot,
    /// evicts the oldest pending connection and returns it with its slot; the caller closes the
    /// connection. Returns `None` without memory, if no connection is pending, or if `evict`
    /// returns false: the oldest connection is established, and becomes available to raccept(3).
    pub fn admit(&mut self, evict: impl FnOnce(&S) -> bool) -> Option<(Slot, Option<Arc<S>>)> {
        self.starved = None;
        // Without memory for the list, reject the request now: its peer, once accepted, would be
        // disconnected in the middle of the handshake.
        self.pending.try_reserve(1).ok()?;
        let own = self.pending.len() + self.ready.len();
        if own < self.backlog
            && let Some(slot) = Slot::take(own)
        {
            return Some((slot, None));
        }
        let (oldest, slot, _) = self.pending.pop_front()?;
        if evict(&oldest) || self.ready.try_reserve(1).is_err() {
            return Some((slot, Some(oldest)));
        }
        self.ready.push_back((oldest, slot));
        None
    }

    /// Notes that a request that was taken is answered: its connection is added next, or has
    /// failed. The counter may be 0 if the listener was shut down and listened again in the
    /// meantime.
    pub fn answered(&mut self) {
        self.answering = self.answering.saturating_sub(1);
    }

    /// Adds a connection whose handshake begins. Returns false if there is no memory: the caller
    /// then has to close the connection.
    pub fn add_pending(&mut self, stream: &Arc<S>, slot: Slot) -> bool {
        let has_memory = self.pending.try_reserve(1).is_ok();
        if has_memory {
            self.pending.push_back((Arc::clone(stream), slot, Instant::now()));
        }
        has_memory
    }

    /// Ends the handshake of a connection: makes the connection ready if the handshake has
    /// `succeeded`, or removes it.
    pub fn finish(&mut self, connection: &S, succeeded: bool) -> Finished<S> {
        let is_it = |(pending, ..): &(Arc<S>, Slot, Instant)| std::ptr::eq(&raw const **pending, connection);
        let Some((stream, slot, _)) = self.pending.iter().position(is_it).and_then(|index| self.pending.remove(index))
        else {
            return Finished::Unknown;
        };
        if !succeeded || self.ready.try_reserve(1).is_err() {
            return Finished::Dropped(stream);
        }
        self.ready.push_back((stream, slot));
        Finished::Ready
    }

    /// Takes all connections, which the caller closes. The caller has taken the waiting requests.
    pub fn take_all(&mut self) -> impl Iterator<Item = Arc<S>> + use<S, R> {
        let (pending, ready) = (mem::take(&mut self.pending), mem::take(&mut self.ready));
        pending.into_iter().map(|(stream, ..)| stream).chain(ready.into_iter().map(|(stream, _)| stream))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// A connection whose handshake succeeds when the test says so.
    #[derive(Debug, Default)]
    struct Peer {
        is_established: AtomicBool,
        is_evicted: AtomicBool,
    }

    impl Peer {
        fn establish(&self) {
            self.is_established.store(true, Ordering::Relaxed);
        }

        fn evict(&self) -> bool {
            let is_evicted = !self.is_established.load(Ordering::Relaxed);
            self.is_evicted.store(is_evicted, Ordering::Relaxed);
            is_evicted
        }
    }

    /// A listener whose requests are numbers.
    type Fixture = Listening<Peer, usize>;

    /// Returns a listener whose backlog is used up by the handshakes of two peers, and the peers.
    fn full() -> (Fixture, [Arc<Peer>; 2]) {
        let mut listening = Fixture::new(2, None);
        let peers = [Arc::default(), Arc::default()];
        for peer in &peers {
            let (slot, evicted) = listening.admit(Peer::evict).unwrap();
            assert!(evicted.is_none() && listening.add_pending(peer, slot));
        }
        (listening, peers)
    }

    #[test]
    fn requests_wait_for_options_until_raccept() {
        let begun = Instant::now();
        let mut listening = Fixture::new(2, None);
        let until = listening.answers_later(begun).unwrap();
        assert!(until >= begun + OPTIONS_TIME && listening.answers_later(until).is_none());
        let mut listening = Fixture::new(2, None);
        listening.add_waiting(1);
        assert!(listening.accepts() && listening.answers_later(begun).is_none() && !listening.accepts());
        assert!(!Fixture::new(2, None).accepts());
    }

    #[test]
    fn an_established_connection_is_not_evicted() {
        let (mut listening, [first, second]) = full();
        assert!(listening.next_eviction(Instant::now()).is_some());
        first.establish();
        assert!(listening.admit(Peer::evict).is_none());
        assert_eq!(listening.ready_count(), 1);
        // The event thread informs the listener afterwards.
        assert!(matches!(listening.finish(&first, true), Finished::Unknown));
        // The next connection has its own time.
        assert!(listening.next_eviction(Instant::now()).is_some());
        let (slot, evicted) = listening.admit(Peer::evict).unwrap();
        assert!(Arc::ptr_eq(&evicted.unwrap(), &second) && second.is_evicted.load(Ordering::Relaxed));
        assert!(listening.add_pending(&second, slot));
        second.establish();
        assert!(listening.admit(Peer::evict).is_none() && listening.ready_count() == 2);
        // No pending connection is left to evict.
        assert!(listening.next_eviction(Instant::now()).is_none() && listening.admit(Peer::evict).is_none());
        assert!(Arc::ptr_eq(&listening.next().unwrap(), &first) && listening.admit(Peer::evict).is_some());
    }

    #[test]
    fn requests_whose_peers_have_given_up_are_dropped() {
        let mut listening = Fixture::new(2, None);
        (0..10).for_each(|request| listening.add_waiting(request));
        let from_six = |request: &usize| *request >= 6;
        assert_eq!(listening.oldest_pending(4, from_six), None);
        assert_eq!(listening.oldest_pending(4, from_six), Some(&6));
        assert_eq!(listening.oldest_pending(4, from_six), Some(&6));
        assert_eq!(listening.waiting.pop_front(), Some(6));
        // The time that the dropped requests lacked descriptors does not count for the next one.
        assert!(listening.lacks_descriptors_for(Duration::ZERO));
        assert_eq!(listening.oldest_pending(4, |_| false), None);
        assert!(!listening.has_waiting());
        listening.add_waiting(10);
        assert!(listening.starved.is_none());
    }

    #[test]
    fn a_listener_that_is_ending_keeps_those_that_are_answered() {
        let (mut listening, [first, _second]) = full();
        listening.add_waiting(1);
        let ready = listening.finish(&first, true);
        assert!(matches!(ready, Finished::Ready) && listening.answer_no_more() == 2 && !listening.has_waiting());
        listening.add_waiting(2);
        assert!(!listening.has_waiting() && listening.next().is_some());
        // Another request was taken before, and is still being answered.
        assert_eq!((listening.take_request(), listening.answer_no_more()), (Some(1), 2));
        listening.answered();
        assert_eq!(listening.answer_no_more(), 1);
        let mut another = Fixture::new(2, None);
        another.answered();
        assert_eq!(another.answer_no_more(), 0);
    }

    #[test]
    fn a_failed_handshake_leaves_its_slot() {
        let (mut listening, [first, second]) = full();
        assert!(matches!(listening.finish(&first, false), Finished::Dropped(dropped) if Arc::ptr_eq(&dropped, &first)));
        assert!(listening.next_to_evict().is_none());
        assert!(matches!(listening.finish(&second, true), Finished::Ready));
        assert!(listening.admit(Peer::evict).is_some_and(|(_, evicted)| evicted.is_none()));
    }

    /// Reads requests in turns until `unread` is 0, as the reactor does, and answers one in each
    /// turn. Returns the requests that were answered.
    fn serve(
        listening: &mut Fixture,
        unread: usize,
        mut answer: impl FnMut(&mut Fixture) -> Option<usize>,
    ) -> Vec<usize> {
        const PER_TURN: usize = 32;
        let (mut answered, mut read) = (Vec::new(), 0);
        while read < unread || listening.has_waiting() {
            let now = listening.requests_to_read(PER_TURN).min(unread - read);
            (read..read + now).for_each(|number| listening.add_waiting(number));
            read += now;
            answered.extend(answer(listening));
        }
        answered
    }

    /// Answers the oldest request; its handshake goes on.
    fn admit_next(listening: &mut Fixture) -> Option<usize> {
        let (slot, evicted) = listening.admit(Peer::evict)?;
        assert!(evicted.is_none() && listening.add_pending(&Arc::default(), slot));
        listening.take_request()
    }

    #[test]
    fn a_burst_that_the_backlog_has_space_for_is_answered() {
        // Accept each connection at once, so that the process's number of slots does not matter.
        let answer_and_accept = |listening: &mut Fixture| {
            let answered = admit_next(listening);
            listening.pending.clear();
            answered
        };
        for (backlog, burst) in [(1, 2000), (2048, 2048), (4096, 5000)] {
            let answered = serve(&mut Fixture::new(backlog, None), burst, answer_and_accept);
            assert_eq!(answered, (0..burst).collect::<Vec<_>>());
        }
    }

    #[test]
    fn requests_are_read_beyond_the_limit_while_there_is_no_slot() {
        const MORE: usize = 10;
        let (mut listening, _peers) = full();
        for number in 0..MIN_WAITING_LIMIT + MORE {
            assert_eq!(listening.requests_to_read(MORE), MORE);
            listening.add_waiting(number);
        }
        assert_eq!(listening.waiting.pop_front(), Some(MORE));
        // A larger backlog is not used up.
        listening.backlog = 3;
        assert_eq!(listening.requests_to_read(MORE), 1);
        listening.add_waiting(0);
        assert_eq!(listening.requests_to_read(MORE), 0);
        listening.backlog = MIN_WAITING_LIMIT + MORE;
        assert_eq!(listening.requests_to_read(2 * MORE), MORE);
    }

    #[test]
    fn requests_wait_while_the_backlog_is_full_of_established_connections() {
        let (mut listening, [first, second]) = full();
        listening.add_waiting(1);
        listening.add_waiting(2);
        assert!(!listening.awaits_accept());
        assert!(matches!(listening.finish(&first, true), Finished::Ready) && !listening.awaits_accept());
        // The second connection turns out to be established when a request is about to evict it.
        second.establish();
        assert!(listening.admit(Peer::evict).is_none() && listening.awaits_accept());
        assert!(listening.next().is_some() && !listening.awaits_accept());
        assert!(admit_next(&mut listening) == Some(1) && listening.has_waiting());
    }

    /// Returns the number of slots that one listener gets while other listeners use `others`.
    fn max_slots(others: usize, limit: usize) -> usize {
        (0..).find(|&own| !has_slot(others + own, own, limit)).unwrap()
    }

    #[test]
    fn a_flooded_listener_leaves_slots_to_others() {
        assert_eq!(max_slots(0, 256), 128);
        assert_eq!(max_slots(128, 256), 64);
        assert_eq!(max_slots(256, 256), 0);
        assert_eq!(max_slots(0, MIN_LIMIT), 2);
        assert!(max_slots(300, 256) == 0);
    }
}
