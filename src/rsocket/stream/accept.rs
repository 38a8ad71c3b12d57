//! Listening and accepting: handshakes run in the background, and raccept(3) returns established
//! connections.

use std::ffi::c_int;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::AF_INET6;

use super::backlog::{Finished, Handshake, Listening, Slot};
use super::blocking::Wait;
use super::connect::initiator_depth;
use super::{Guard, Notice, Phase, State, Stream};
use crate::cm::{self, OwnedChannel};
use crate::diag::Cause;
use crate::errno::{Errno, Result};
use crate::os::event::EventFd;
use crate::os::sockaddr::{AF_IB, SockAddr};
use crate::rsocket::cm_id::{CmId, Event, Request};
use crate::rsocket::reactor::{self, Role};
use crate::rsocket::socket_table;
use crate::rsocket::wire::{self, ConnData};

/// Largest backlog, as /proc/sys/net/core/somaxconn is for sockets.
const MAX_BACKLOG: usize = 4096;
/// Time-out for the peer's part of the handshake. The time-out in the peer's request may be
/// minutes.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after which the reactor tries again to open a channel for a connection when there is no
/// descriptor or memory.
const CHANNEL_DELAY: Duration = Duration::from_millis(10);
/// How long requests wait for descriptors. Then they are rejected: the peer may be in this process,
/// and close something when its call fails.
const STARVED_TIME: Duration = Duration::from_secs(1);
/// Number of requests that the reactor reads before it serves other streams.
pub(super) const REQUESTS_PER_TURN: usize = 32;

/// The two descriptors of a connection: without them a request waits.
struct Descriptors {
    channel: OwnedChannel,
    /// Closed just before the completion channel is opened.
    spare: EventFd,
}

impl Descriptors {
    /// Opens them, and the device of the request if the process has not opened it yet.
    fn open(request: &Request) -> Result<Descriptors> {
        let descriptors = Descriptors { channel: Request::open_channel()?, spare: EventFd::new()? };
        request.open_device()?;
        Ok(descriptors)
    }
}

impl Stream {
    /// rlisten(3); a second call changes the backlog.
    pub fn listen(self: &Arc<Self>, backlog: c_int) -> Result<()> {
        let mut state = self.enter()?;
        let backlog = backlog_of(backlog);
        if let Phase::Failed { .. } = state.phase {
            self.reset(&mut state)?;
        }
        match &mut state.phase {
            Phase::Idle => {}
            Phase::Listening(listening) => {
                listening.set_backlog(backlog);
                answer_waiting(state);
                return Ok(());
            }
            _ => return Err(Errno::EINVAL),
        }
        self.watch(&mut state)?;
        if self.domain == AF_INET6 && state.bound.is_none() {
            // The kernel would listen at the wildcard address of IPv4.
            state.bind(self.domain, &SockAddr::from_inet(&(Ipv6Addr::UNSPECIFIED, 0).into()))?;
        }
        // The kernel silently drops requests beyond its own limit: set the largest backlog.
        state.id()?.listen(MAX_BACKLOG as c_int)?;
        let entry = socket_table::Entry::new(socket_table::LISTENING, self.fd, state.id()?.id(), 0, backlog as u32);
        state.phase = Phase::Listening(Listening::new(backlog, entry));
        state.shut_read = false;
        Ok(())
    }

    /// raccept(3): returns the next connection. Fails with `EBADF` if the socket is not listening,
    /// as with the reference, and with `EINVAL` after rshutdown(3).
    pub fn accept(&self) -> Result<Arc<Stream>> {
        let mut state = self.enter()?;
        if let Phase::Listening(listening) = &mut state.phase
            && listening.accepts()
        {
            answer_waiting(state);
            state = self.enter()?;
        }
        let mut wait = Wait::after(state.options.receive_timeout);
        loop {
            if let Phase::Listening(listening) = &mut state.phase
                && let Some(stream) = listening.next()
            {
                answer_waiting(state);
                return Ok(stream);
            }
            if let Some(error) = state.why_no_accept() {
                return Err(error);
            }
            let (back, result) = self.sleep(state, &mut wait);
            state = back;
            // Like accept(2), returns a connection that is ready instead of the error.
            if let Err(error) = result
                && !matches!(&state.phase, Phase::Listening(listening) if listening.has_ready())
            {
                return Err(if error == Errno::ETIMEDOUT { Errno::EAGAIN } else { error });
            }
        }
    }

    /// Handles an event of a listener: a connection request, or the removal of its device.
    pub(super) fn handle_request<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, event: Event) -> Guard<'a> {
        let Event { request: Some(_), .. } = event else {
            if event.kind == crate::ffi::rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL as u32 {
                // The kernel has destroyed the listening id: no peer can connect any more.
                state.error = Some(Errno::ENETDOWN);
                state.shut_read = true;
                self.notify(Notice::Changed);
            }
            return state;
        };
        match self.parse_request(event) {
            Ok((request, peer)) => {
                if let Phase::Listening(listening) = &mut state.phase {
                    listening.add_waiting((request, peer));
                }
            }
            // The peer was rejected: no call reports it.
            Err(error) => state.log_rejected(error),
        }
        state
    }

    /// Answers the oldest request that its peer still waits for. The requests are read before, so
    /// that the kernel's queue has space: the kernel drops what does not fit, and the peer repeats
    /// its request only after seconds. `is_drained`: all requests were read.
    pub(super) fn answer_next<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, is_drained: bool) {
        let Phase::Listening(listening) = &mut state.phase else { return };
        if !listening.may_answer(is_drained) {
            // The last request of this turn may have been the last one in the channel, which is not
            // readable then.
            return answer_waiting(state);
        }
        if !listening.has_waiting() {
            return;
        }
        self.notify_ready(listening.make_established_ready());
        let now = Instant::now();
        if let Some(time) = listening.answers_later(now).or_else(|| listening.next_eviction(now)) {
            return set_listener_timer(state, time);
        }
        // As with TCP, whose clients ask again until there is space. raccept(3) and rlisten(3) make
        // this thread come again, and so does a new request.
        if listening.awaits_accept() {
            return;
        }
        // Those whose peers have given up cost no connection.
        let Some((oldest, _)) = listening.oldest_pending(REQUESTS_PER_TURN, |(request, _)| request.is_pending()) else {
            return answer_waiting(state);
        };
        // Before another connection is evicted, and the request taken: it waits for descriptors.
        let descriptors = match Descriptors::open(oldest) {
            Ok(descriptors) => descriptors,
            Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) if !listening.lacks_descriptors_for(STARVED_TIME) => {
                // More requests may be in the channel than are read now.
                state.key.into_iter().for_each(|key| reactor::pause(key, CHANNEL_DELAY));
                return set_listener_timer(state, Instant::now() + CHANNEL_DELAY);
            }
            Err(error) => {
                listening.reject_next();
                state.log_rejected(error);
                return answer_waiting(state);
            }
        };
        listening.has_descriptors();
        if let Some((request, peer)) = listening.next_waiting() {
            state = self.answer(state, request, peer, descriptors);
        }
        answer_waiting(state);
    }

    /// Accepts or rejects a request. `descriptors` are for the connection.
    fn answer<'a>(
        self: &'a Arc<Self>,
        mut state: Guard<'a>,
        request: Request,
        peer: ConnData,
        Descriptors { channel, spare }: Descriptors,
    ) -> Guard<'a> {
        let Phase::Listening(listening) = &mut state.phase else { return state };
        let ready = listening.ready_count();
        let admitted = listening.admit();
        self.notify_ready(listening.ready_count() - ready);
        let Some((slot, evicted)) = admitted else {
            if listening.awaits_accept() {
                listening.put_back((request, peer));
            }
            // Otherwise the process has no slot, and dropping the request rejects it.
            return state;
        };
        let (options, flags) = (state.options.clone(), state.flags);
        let takes_reads = request.takes_reads;
        // Still under the listener's lock: closing the listener destroys the request's channel.
        let admitted = request.accept(channel);
        // Drop the listener lock: the next steps take the connection's lock and may block in the
        // driver.
        drop(state);
        if let Some(evicted) = evicted {
            evicted.close_unaccepted();
        }
        let new = admitted.and_then(|id| {
            drop(spare);
            self.accept_request(id, &peer, takes_reads, options, flags)
        });
        match new {
            Ok(new) => self.add_accepted(new, slot),
            Err(error) => {
                state = self.lock();
                if let Phase::Listening(listening) = &mut state.phase {
                    listening.answered();
                }
                // The peer was rejected: no call reports it.
                state.log_rejected(error);
                state
            }
        }
    }

    /// Adds a connection that was accepted. The thread for events may have finished its handshake
    /// in the meantime, when the listener did not know it yet.
    fn add_accepted(&self, new: Arc<Stream>, slot: Slot) -> Guard<'_> {
        let mut state = self.lock();
        let refused = match &mut state.phase {
            Phase::Listening(listening) => {
                listening.answered();
                // A handshake that ends after this finds the connection: `handshake_done` needs the
                // listener's lock.
                let progress = new.lock().handshake_result();
                match progress {
                    None => listening.add_pending(new, slot),
                    Some(Ok(())) => listening.add_ready(new, slot).or_else(|| {
                        self.notify_ready(1);
                        None
                    }),
                    Some(Err(())) => Some(new),
                }
            }
            // Closed meanwhile.
            _ => Some(new),
        };
        if let Some(stream) = refused {
            drop(state);
            stream.close_unaccepted();
            state = self.lock();
        }
        state
    }

    /// Handles the events of the oldest handshake if the next connection request would evict it. A
    /// peer that has finished its part of the handshake is connected from its point of view, and is
    /// kept. Called before a listener answers a request.
    pub(super) fn service_oldest_handshake<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        let mut last = None;
        loop {
            let Phase::Listening(listening) = &state.phase else { return state };
            let Some(oldest) = listening.next_to_evict().cloned() else { return state };
            if last.replace(Arc::as_ptr(&oldest)) == Some(Arc::as_ptr(&oldest)) {
                return state;
            }
            // Lock order: `service` may take the listener's lock.
            drop(state);
            // If its lock is taken, the other thread handles the events.
            oldest.serve();
            state = self.lock();
        }
    }

    /// Returns the connection request of an rsocket. Rejects all other requests.
    fn parse_request(&self, mut event: Event) -> Result<(Request, ConnData)> {
        let peer = connection_data(self.domain, event.data())?;
        Ok((event.request.take().ok_or(Errno::EIO)?, peer))
    }

    /// Accepts a connection request.
    fn accept_request(
        self: &Arc<Self>,
        id: CmId,
        peer: &ConnData,
        takes_reads: bool,
        options: super::Options,
        flags: c_int,
    ) -> Result<Arc<Stream>> {
        // The stream owns the id and the connection: on failure it destroys the QP before the id.
        let stream = Stream::with(self.domain, id, options, Phase::Accepting(Arc::downgrade(self)))?;
        let mut state = stream.lock();
        let unconnected = state.make_unconnected()?;
        let offer = unconnected.connection_data().emit();
        stream.channel_fd.store(unconnected.channel_fd(), Ordering::Relaxed);
        state.flags = flags;
        state.connection = Some(unconnected.connect(peer, takes_reads)?);
        // Before accepting: a later failure would end a connection that the peer has seen
        // established.
        state.id()?.set_nonblocking()?;
        let key = reactor::register_disabled(Role::Events, stream.fd, stream.clone())?;
        state.key = Some(key);
        let accepted = state.id().and_then(|id| id.connect_or_accept(false, initiator_depth(id), &offer));
        drop(state);
        // Without the lock: the thread for events would wait for it, and handle the events of
        // connections that are accepted next first.
        if accepted.is_ok() {
            reactor::enable(key, Instant::now() + HANDSHAKE_TIMEOUT);
        }
        // The reactor holds a reference to the stream until it is closed.
        accepted.inspect_err(|_| stream.close_unaccepted())?;
        Ok(stream)
    }

    /// Notifies of connections that have become available to raccept(3), with the listener's lock
    /// held. Each of them is an edge, and wakes one of the threads in raccept(3), as with
    /// accept(2), and never one that leaves it: the only threads that sleep for a listener's
    /// changes are in raccept(3), and whatever they return from their sleep for, they take a
    /// connection if there is one. A thread that is cancelled wakes another one.
    fn notify_ready(&self, connections: usize) {
        if connections == 0 {
            return;
        }
        self.edges.fetch_add(connections as u64, Ordering::Relaxed);
        (0..connections).for_each(|_| self.changed.notify_one());
        self.watchers.notify(Notice::Changed);
    }

    /// The handshake of an accepted connection has succeeded or failed. Returns `None` if a thread
    /// of the program, which may have the connection now, holds the lock for long.
    pub(super) fn finish_handshake<'a>(&'a self, mut state: Guard<'a>, result: Result<()>) -> Option<Guard<'a>> {
        let Phase::Accepting(listener) = &state.phase else { return Some(state) };
        let listener = listener.upgrade();
        if result.is_ok() {
            state.phase = Phase::Connected;
            self.on_connected(&mut state);
        } else {
            state.phase = Phase::Failed { reported: false };
        }
        // Lock order: the listener's lock comes before the locks of its connections.
        drop(state);
        if let Some(listener) = listener {
            listener.handshake_done(self, result.is_ok());
        }
        self.lock_to_serve()
    }

    /// Makes a connection available to raccept(3), or drops it if its handshake has failed.
    fn handshake_done(&self, connection: &Stream, succeeded: bool) {
        let mut state = self.lock();
        let Phase::Listening(listening) = &mut state.phase else { return };
        match listening.finish(connection, succeeded) {
            Finished::Ready => self.notify_ready(1),
            Finished::Dropped(stream) => {
                answer_waiting(state);
                stream.close_soon();
            }
            // Evicted, not added yet (`add_accepted`), or made ready by `admit`.
            Finished::Unknown => {}
        }
    }
}

/// Returns the backlog for the number that a program gives to rlisten(3). As with listen(2): one
/// more than requested, and a negative number is the largest backlog.
fn backlog_of(number: c_int) -> usize {
    usize::try_from(number).map_or(MAX_BACKLOG, |number| (number + 1).min(MAX_BACKLOG))
}

/// Parses the private data of a connection request. Fails with `EPROTO` if the peer uses another
/// protocol, or an unknown version.
fn connection_data(domain: c_int, private_data: &[u8]) -> Result<ConnData> {
    let skip = if domain == AF_IB { wire::IP_HEADER } else { 0 };
    private_data.get(skip..).and_then(|data| ConnData::parse(data).ok()).ok_or(Errno::EPROTO)
}

/// A listener may have a slot for the next request: the reactor answers it.
fn answer_waiting(state: Guard<'_>) {
    if matches!(&state.phase, Phase::Listening(listening) if listening.has_waiting()) {
        set_listener_timer(state, Instant::now());
    }
}

/// Sets a listener's timer without its lock: another thread may keep the reactor's lock, and other
/// calls on the listener do not wait for it. A timer that is set meanwhile stays if it is earlier.
fn set_listener_timer(state: Guard<'_>, time: Instant) {
    let key = state.key;
    drop(state);
    key.into_iter().for_each(|key| reactor::set_timer_by(key, time));
}

impl Handshake for Stream {
    fn is_established(&self) -> bool {
        self.lock().handshake_result() == Some(Ok(()))
    }

    fn evict(&self) -> bool {
        let mut state = self.lock();
        let is_established = state.handshake_result() == Some(Ok(()));
        if !is_established {
            state.phase = Phase::Failed { reported: false };
        }
        !is_established
    }
}

impl State {
    /// Returns the error of raccept(3) if there is no connection to return, or `None` if it waits
    /// for one.
    fn why_no_accept(&mut self) -> Option<Errno> {
        let is_listening = matches!(self.phase, Phase::Listening(_));
        let error = if is_listening { self.take_error() } else { None };
        match error {
            Some(error) => Some(error),
            None if self.shut_read => Some(Errno::EINVAL),
            None if !is_listening => Some(Errno::EBADF),
            None => self.is_nonblocking().then_some(Errno::EAGAIN),
        }
    }

    /// Returns the result of the handshake of an accepted connection, once it is known.
    fn handshake_result(&self) -> Option<std::result::Result<(), ()>> {
        match self.phase {
            Phase::Accepting(_) => None,
            Phase::Connected | Phase::Disconnected => Some(Ok(())),
            _ => Some(Err(())),
        }
    }

    /// Logs that a peer was rejected.
    #[cold]
    fn log_rejected(&self, error: Errno) {
        let cause = if error == Errno::EPROTO { Cause::BadConnData } else { Cause::Accepting };
        if let Ok(id) = self.id() {
            cm::log::background(id.id(), error, cause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{connecting, failed, listening, state};
    use super::*;
    use crate::rsocket::wire::Region;
    use std::sync::Weak;

    #[test]
    fn backlogs_as_with_tcp() {
        let backlogs = [-1, 0, 1, 4094, 4095, 4096, c_int::MAX].map(backlog_of);
        assert_eq!(backlogs, [4096, 1, 2, 4095, 4096, 4096, 4096]);
    }

    #[test]
    fn errors_without_a_connection_to_accept() {
        let (none, reset) = (None, Some(Errno::ENETDOWN));
        for (phase, shut_read, error, nonblocking, result) in [
            (listening(), false, none, false, None),
            (listening(), false, none, true, Some(Errno::EAGAIN)),
            (listening(), true, none, true, Some(Errno::EINVAL)),
            (listening(), true, reset, false, reset),
            (Phase::Idle, false, none, true, Some(Errno::EBADF)),
            (Phase::Idle, true, none, true, Some(Errno::EINVAL)),
            (Phase::Connected, false, reset, false, Some(Errno::EBADF)),
        ] {
            let mut state = state(phase);
            (state.shut_read, state.error) = (shut_read, error);
            state.flags = if nonblocking { libc::O_NONBLOCK } else { 0 };
            assert_eq!(state.why_no_accept(), result);
            // An error is reported once; the next call finds the listener stopped.
            let is_listening = matches!(state.phase, Phase::Listening(_));
            assert_eq!(state.error, error.filter(|_| !is_listening));
        }
    }

    #[test]
    fn results_of_handshakes() {
        let phases = [Phase::Accepting(Weak::new()), Phase::Connected, Phase::Disconnected, failed(false)];
        let results = phases.map(|phase| state(phase).handshake_result());
        assert_eq!(results, [None, Some(Ok(())), Some(Ok(())), Some(Err(()))]);
        for phase in [Phase::Idle, connecting(), Phase::Closing, Phase::Closed] {
            assert_eq!(state(phase).handshake_result(), Some(Err(())));
        }
    }

    #[test]
    fn requests_of_other_protocols_are_rejected() {
        let region = Region { addr: 4096, rkey: 1, length: 2 };
        let data =
            ConnData { big_endian: false, credits: 5, iomap_size: Some(0), target_sgl: region, data_buf: region };
        let sent = data.emit();
        let with_header = [&[0; wire::IP_HEADER][..], &sent].concat();
        assert_eq!(connection_data(libc::AF_INET, &sent), Ok(data));
        assert_eq!(connection_data(libc::AF_INET6, &sent), Ok(data));
        assert_eq!(connection_data(AF_IB, &with_header), Ok(data));
        for (domain, bad) in [
            (libc::AF_INET, &with_header[..]),
            (AF_IB, &sent),
            (AF_IB, &sent[..wire::IP_HEADER - 1]),
            (libc::AF_INET, &sent[..ConnData::LEN - 1]),
            (libc::AF_INET, &[]),
        ] {
            assert_eq!(connection_data(domain, bad), Err(Errno::EPROTO));
        }
    }
}
