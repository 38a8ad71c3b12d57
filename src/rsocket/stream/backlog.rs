//! Connections of a listener that the program has not accepted yet, and the limit on their number.
//!
//! Each unaccepted connection takes two descriptors before the program knows of the connection. As
//! with TCP, requests beyond the limit wait. A peer that does not finish the handshake then gets
//! less time for it.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Stream;
use crate::errno::{Errno, Result};
use crate::os::event;
use crate::rsocket::cm_id::Request;
use crate::rsocket::reactor::Key;
use crate::rsocket::socket_table;
use crate::rsocket::wire::ConnData;

/// Divisor of the descriptor limit: a connection uses two descriptors, and the unaccepted
/// connections of a listener may use a quarter of the limit.
const DESCRIPTORS_PER_CONNECTION: usize = 8;
/// Minimum of the limit on unaccepted connections, for a process with few descriptors.
const MIN_LIMIT: usize = 2;
/// Minimum limit of unanswered requests per listener; a larger backlog raises the limit. A request
/// uses a kernel id, but no descriptor.
const MIN_WAITING_LIMIT: usize = 1024;

/// How long requests wait after rlisten(3) unless raccept(3) is called. Programs may set the
/// options of their connections right after rlisten(3), because rdma-core answers requests in
/// raccept(3).
const OPTIONS_TIME: Duration = Duration::from_millis(20);

/// Time for the oldest handshake of a listener that cannot take another connection. The peer may
/// consider itself connected while its last message is still on the way.
const MIN_HANDSHAKE_TIME: Duration = Duration::from_millis(250);
/// Each group of this many waiting requests adds 1 to the divisor of [`MIN_HANDSHAKE_TIME`]. A
/// burst of honest peers is usually smaller.
const WAITING_PER_SHARE: u32 = 32;

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
    /// The listening id or its channel is lost: no peer can connect any more.
    pub is_lost: bool,
    /// Number of admitted requests that are being answered, without the listener's lock.
    answering: usize,
    /// Connections in the handshake, each with its registration in the reactor and the time at which
    /// the handshake began, oldest first.
    pending: VecDeque<(Arc<S>, Key, Instant)>,
    /// Established connections, for raccept(3).
    ready: VecDeque<Arc<S>>,
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
            is_lost: false,
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
        if self.waiting_space() == 0 {
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

    /// Returns the number of requests to read in a turn, at most `limit`. Unless the listener is
    /// full, no more requests are read than may wait, so that no request is rejected before it could
    /// be answered.
    pub fn requests_to_read(&self, limit: usize) -> usize {
        if self.is_full() { limit } else { limit.min(self.waiting_space()) }
    }

    /// Reserves memory for the next connection in the handshake. Otherwise its peer, once accepted,
    /// would be disconnected in the middle of the handshake.
    pub fn reserve(&mut self) -> Result<()> {
        self.pending.try_reserve(1).map_err(|_| Errno::ENOMEM)
    }

    /// Takes the oldest request, which the caller answers.
    pub fn take_request(&mut self) -> Option<R> {
        let request = self.waiting.pop_front()?;
        self.answering += 1;
        Some(request)
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

    /// Takes the next connection for raccept(3).
    pub fn next(&mut self) -> Option<Arc<S>> {
        self.ready.pop_front()
    }

    /// Returns whether the listener can take no further connection: the requests wait until
    /// raccept(3) takes one, or a handshake fails.
    pub fn is_full(&self) -> bool {
        let limit = (event::descriptor_limit() / DESCRIPTORS_PER_CONNECTION).max(MIN_LIMIT);
        self.pending.len() + self.ready.len() >= limit.min(self.backlog)
    }

    /// Returns the registration of the connection that has been in the handshake for the longest
    /// time, and its deadline while the listener is full.
    pub fn oldest_handshake(&self) -> Option<(Key, Instant)> {
        let &(_, key, begun) = self.pending.front()?;
        // The more requests wait, the less time there is: most of them may be hostile.
        Some((key, begun + MIN_HANDSHAKE_TIME / (1 + self.waiting.len() as u32 / WAITING_PER_SHARE)))
    }

    /// Notes that a request that was taken is answered: its connection is added next, or has
    /// failed. The counter may be 0 if the listener was shut down and listened again in the
    /// meantime.
    pub fn answered(&mut self) {
        self.answering = self.answering.saturating_sub(1);
    }

    /// Adds a connection whose handshake begins. Returns false if there is no memory: the caller
    /// then has to close the connection.
    pub fn add_pending(&mut self, stream: &Arc<S>, key: Key) -> bool {
        let has_memory = self.reserve().is_ok();
        if has_memory {
            self.pending.push_back((Arc::clone(stream), key, Instant::now()));
        }
        has_memory
    }

    /// Ends the handshake of a connection: makes the connection ready if the handshake has
    /// `succeeded`, or removes it.
    pub fn finish(&mut self, connection: &S, succeeded: bool) -> Finished<S> {
        let is_it = |(pending, ..): &(Arc<S>, Key, Instant)| std::ptr::eq(&raw const **pending, connection);
        let Some((stream, ..)) = self.pending.iter().position(is_it).and_then(|index| self.pending.remove(index))
        else {
            return Finished::Unknown;
        };
        if !succeeded || self.ready.try_reserve(1).is_err() {
            return Finished::Dropped(stream);
        }
        self.ready.push_back(stream);
        Finished::Ready
    }

    /// Takes all connections, which the caller closes. The caller has taken the waiting requests.
    pub fn take_all(&mut self) -> impl Iterator<Item = Arc<S>> + use<S, R> {
        let (pending, ready) = (mem::take(&mut self.pending), mem::take(&mut self.ready));
        pending.into_iter().map(|(stream, ..)| stream).chain(ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listener whose requests are numbers.
    type Fixture = Listening<u8, usize>;

    /// Begins the handshake of a peer.
    fn begin(listening: &mut Fixture) -> Arc<u8> {
        let peer = Arc::new(0);
        assert!(!listening.is_full() && listening.add_pending(&peer, Key::default()));
        peer
    }

    /// Returns a listener whose backlog is used up by the handshakes of two peers, and the peers.
    fn full() -> (Fixture, [Arc<u8>; 2]) {
        let mut listening = Fixture::new(2, None);
        let peers = [(); 2].map(|()| begin(&mut listening));
        assert!(listening.is_full());
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
    fn handshakes_get_less_time_the_more_requests_wait() {
        let before = Instant::now();
        let (mut listening, [first, _second]) = full();
        let after = Instant::now();
        for waiting in 0..10 * WAITING_PER_SHARE {
            let time = MIN_HANDSHAKE_TIME / (1 + waiting / WAITING_PER_SHARE);
            let (_, deadline) = listening.oldest_handshake().unwrap();
            assert!((before + time..=after + time).contains(&deadline));
            listening.add_waiting(waiting as usize);
        }
        let (_, deadline) = listening.oldest_handshake().unwrap();
        assert!(matches!(listening.finish(&first, true), Finished::Ready));
        assert!(listening.oldest_handshake().unwrap().1 >= deadline && listening.is_full());
        assert!(listening.next().is_some() && !listening.is_full());
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
    fn a_failed_handshake_leaves_its_place() {
        let (mut listening, [first, second]) = full();
        assert!(matches!(listening.finish(&first, false), Finished::Dropped(dropped) if Arc::ptr_eq(&dropped, &first)));
        assert!(!listening.is_full() && matches!(listening.finish(&first, true), Finished::Unknown));
        assert!(matches!(listening.finish(&second, true), Finished::Ready) && !listening.is_full());
        begin(&mut listening);
        assert!(listening.is_full());
    }

    /// Reads requests in turns until `burst` were read, as the reactor does, and answers one in each
    /// turn. Returns the requests that were answered.
    fn serve(listening: &mut Fixture, burst: usize) -> Vec<usize> {
        const PER_TURN: usize = 32;
        let (mut answered, mut read) = (Vec::new(), 0);
        while read < burst || listening.has_waiting() {
            let now = listening.requests_to_read(PER_TURN).min(burst - read);
            (read..read + now).for_each(|number| listening.add_waiting(number));
            read += now;
            begin(listening);
            answered.extend(listening.take_request());
            // Accept each connection at once, so that the limit of descriptors does not matter.
            listening.pending.clear();
        }
        answered
    }

    #[test]
    fn a_burst_that_the_backlog_has_space_for_is_answered() {
        for (backlog, burst) in [(1, 2000), (2048, 2048), (4096, 5000)] {
            let answered = serve(&mut Fixture::new(backlog, None), burst);
            assert_eq!(answered, (0..burst).collect::<Vec<_>>());
        }
    }

    #[test]
    fn requests_are_read_beyond_the_limit_while_the_listener_is_full() {
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
    fn descriptors_limit_a_listener_with_a_large_backlog() {
        let mut listening = Fixture::new(usize::MAX, None);
        let limit = (event::descriptor_limit() / DESCRIPTORS_PER_CONNECTION).max(MIN_LIMIT);
        (0..limit).for_each(|_| drop(begin(&mut listening)));
        assert!(listening.is_full());
    }
}
