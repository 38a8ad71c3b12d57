//! Listening and accepting: handshakes run in the background, and raccept(3) returns established
//! connections.

use std::ffi::c_int;
use std::mem;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::AF_INET6;

use super::backlog::{Finished, Listening};
use super::waiting::Wait;
use super::{Guard, Life, Notice, State, Stream};
use crate::cm::{self, OwnedChannel};
use crate::diag::Cause;
use crate::errno::{Errno, Result};
use crate::os::event::EventFd;
use crate::os::sockaddr::{AF_IB, SockAddr};
use crate::rsocket::cm_id::{Event, Request};
use crate::rsocket::reactor::{self, Key, Role};
use crate::rsocket::socket_table;
use crate::rsocket::wire::{self, ConnData};

/// Largest backlog, like /proc/sys/net/core/somaxconn for kernel sockets.
const MAX_BACKLOG: usize = 4096;
/// Time-out for the peer's part of the handshake. The time-out in the peer's request may be
/// minutes.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay before the reactor tries again to open the descriptors of a connection, after a lack of
/// descriptors or memory.
const CHANNEL_DELAY: Duration = Duration::from_millis(10);
/// Number of requests that the reactor reads in a turn before it answers one and serves other
/// streams: the kernel drops requests that do not fit its queue, and a peer repeats a dropped
/// request only after seconds.
pub(super) const REQUESTS_PER_TURN: usize = 32;

/// The two descriptors that a connection needs. A request waits until they are available.
struct Descriptors {
    channel: OwnedChannel,
    /// Reserves a descriptor: closed just before the completion channel is opened.
    spare: EventFd,
}

impl Descriptors {
    /// Opens both descriptors, and the device of the request if the process has not opened it yet.
    fn open(request: &Request) -> Result<Descriptors> {
        let descriptors = Descriptors { channel: cm::create_another_channel()?, spare: EventFd::new()? };
        request.open_device()?;
        Ok(descriptors)
    }
}

impl Stream {
    /// rlisten(3); a second call changes the backlog.
    pub fn listen(self: &Arc<Self>, backlog: c_int) -> Result<()> {
        let mut state = self.enter()?;
        let backlog = backlog_of(backlog);
        if let Life::Failed { .. } = state.life {
            self.reset(&mut state)?;
        }
        match &mut state.life {
            Life::Idle | Life::Stopped => {}
            Life::Listening(listening) => {
                listening.backlog = backlog;
                answer_waiting(state);
                return Ok(());
            }
            _ => return Err(Errno::EINVAL),
        }
        self.watch(&mut state)?;
        if self.domain == AF_INET6 && state.bound.is_none() {
            // The kernel would bind the id to the wildcard address of IPv4.
            state.bind(self.domain, &SockAddr::from_inet(&(Ipv6Addr::UNSPECIFIED, 0).into()))?;
        }
        // The kernel silently drops requests beyond its own limit: set the largest backlog.
        state.id()?.listen(MAX_BACKLOG as c_int)?;
        let entry = socket_table::Entry::new(socket_table::LISTENING, self.fd, state.id()?.id(), 0, backlog as u32);
        state.life = Life::Listening(Listening::new(backlog, entry));
        Ok(())
    }

    /// raccept(3): returns the next connection. Fails with `EBADF` if the socket is not listening,
    /// as in rdma-core, and with `EINVAL` after rshutdown(3).
    pub fn accept(&self) -> Result<Arc<Stream>> {
        let mut state = self.enter()?;
        if let Life::Listening(listening) = &mut state.life
            && listening.accepts()
        {
            answer_waiting(state);
            state = self.enter()?;
        }
        let mut wait = Wait::after(state.options.receive_timeout);
        loop {
            if let Life::Listening(listening) = &mut state.life
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
            // Like accept(2), returns a connection that is ready in preference to an error.
            if let Err(error) = result
                && !matches!(&state.life, Life::Listening(listening) if listening.has_ready())
            {
                return Err(if error == Errno::ETIMEDOUT { Errno::EAGAIN } else { error });
            }
        }
    }

    /// Handles an event of a listener: a connection request, or the removal of its device.
    pub(super) fn handle_request(&self, state: &mut State, mut event: Event) {
        let Some(request) = event.request.take() else {
            if event.kind == crate::ffi::rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL as u32 {
                self.listener_lost(state, Errno::ENETDOWN);
            }
            return;
        };
        // Dropping the request rejects it.
        match connection_data(self.domain, event.data()) {
            Ok(peer) => {
                if let Life::Listening(listening) = &mut state.life {
                    listening.add_waiting((request, peer));
                }
            }
            // No call reports the rejection of a request, so log it.
            Err(error) => state.log_rejected(error),
        }
    }

    /// Handles the loss of the listening id or its channel: no peer can connect any more.
    pub(super) fn listener_lost(&self, state: &mut State, error: Errno) {
        state.error = Some(error);
        if let Life::Listening(listening) = &mut state.life {
            listening.is_lost = true;
        }
        self.notify(Notice::Changed);
    }

    /// Answers the oldest request, if the listener can answer a request now.
    pub(super) fn answer_next(self: &Arc<Self>, mut state: Guard<'_>) {
        let Life::Listening(listening) = &mut state.life else { return };
        if !listening.has_waiting() {
            return;
        }
        if let Some(time) = listening.answers_later(Instant::now()) {
            return set_listener_timer(state, time);
        }
        // As with TCP, requests wait until the backlog has space. raccept(3), rlisten(3), the end of
        // a handshake or a new request makes the reactor continue.
        if listening.is_full() {
            let oldest = listening.oldest_handshake();
            drop(state);
            return oldest.into_iter().for_each(|(key, deadline)| reactor::set_timer_by(key, deadline));
        }
        let reserved = listening.reserve();
        let Some((oldest, _)) = listening.waiting.front() else { return };
        // Without descriptors or memory, the request stays queued.
        let descriptors = match reserved.and_then(|()| Descriptors::open(oldest)) {
            Ok(descriptors) => descriptors,
            Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => {
                // Pause the channel as well: unread requests would bring this thread back at once.
                state.key.into_iter().for_each(|key| reactor::pause(key, CHANNEL_DELAY));
                return set_listener_timer(state, Instant::now() + CHANNEL_DELAY);
            }
            Err(error) => {
                drop(listening.waiting.pop_front());
                state.log_rejected(error);
                return answer_waiting(state);
            }
        };
        self.answer(state, descriptors);
    }

    /// Accepts or rejects the oldest request. The descriptors are for the connection.
    fn answer(self: &Arc<Self>, mut state: Guard<'_>, Descriptors { channel, spare }: Descriptors) {
        let Life::Listening(listening) = &mut state.life else { return };
        let Some((request, peer)) = listening.take_request() else { return };
        let (options, flags) = (state.options.clone(), state.flags);
        let takes_reads = request.takes_reads;
        // Move the id to `channel` under the listener's lock: closing the listener destroys the
        // request's channel.
        let admitted = request.accept(channel);
        // Drop the listener lock: the next steps take the connection's lock and may block in the
        // driver.
        drop(state);
        let new = admitted.and_then(|id| {
            drop(spare);
            let state = State { options, flags, id: Some(id), ..State::default() };
            self.accept_request(state, &peer, takes_reads)
        });
        let mut state = self.lock();
        if let Life::Listening(listening) = &mut state.life {
            listening.answered();
        }
        match new {
            Ok((new, key)) => state = self.add_accepted(state, &new, key),
            // No call reports the rejection of a request, so log it.
            Err(error) => state.log_rejected(error),
        }
        answer_waiting(state);
    }

    /// Adds an accepted connection to the listener. The reactor's event thread may have finished
    /// the handshake before the listener knows of the connection. Returns the listener's lock.
    fn add_accepted<'a>(&'a self, mut state: Guard<'a>, new: &Arc<Stream>, key: Key) -> Guard<'a> {
        let is_listed = match &mut state.life {
            Life::Listening(listening) => listening.add_pending(new, key),
            // The listener was closed meanwhile.
            _ => false,
        };
        // If the handshake ends after this check, `handshake_done` finds the connection in the
        // list, because it waits for the listener's lock.
        let result = new.lock().handshake_result();
        drop(state);
        match result {
            _ if !is_listed => new.close_unaccepted(),
            Some(succeeded) => self.handshake_done(new, succeeded),
            None => {}
        }
        self.lock()
    }

    /// Accepts a request, whose id now has its own channel. Returns the stream with this `state`,
    /// and its registration in the reactor; its handshake continues in the background.
    fn accept_request(self: &Arc<Self>, state: State, peer: &ConnData, takes_reads: bool) -> Result<(Arc<Self>, Key)> {
        // The stream owns the id and the connection: on failure it destroys the QP before the id.
        let stream = Stream::with(self.domain, state)?;
        let mut state = stream.lock();
        let mut connection = state.make_connection()?;
        let offer = connection.connection_data().emit();
        stream.channel_fd.store(connection.channel.completions.fd(), Ordering::Relaxed);
        connection.set_peer(peer, takes_reads);
        state.life = Life::Accepting(connection, Arc::downgrade(self));
        // Register before accepting: a later failure to register would end a connection that the
        // peer has seen established.
        let key = reactor::register(Role::Events, stream.fd, false, stream.clone())?;
        state.key = Some(key);
        let accepted = state.id().and_then(|id| id.connect_or_accept(false, &offer));
        drop(state);
        // Enable the descriptor without the lock: otherwise the event thread could find the stream
        // locked, and serve connections first that are accepted later.
        if accepted.is_ok() {
            reactor::enable(key, Instant::now() + HANDSHAKE_TIMEOUT);
        }
        // On failure, close the stream: until it is closed, the reactor holds a reference to it.
        accepted.inspect_err(|_| stream.close_unaccepted())?;
        Ok((stream, key))
    }

    /// Notifies the waiters of a connection that has become available to raccept(3). The caller
    /// holds the listener's lock. As with accept(2), each connection is an edge and wakes one of
    /// the threads in raccept(3). No wake-up is wasted on a thread that is about to return without
    /// a connection: only threads in raccept(3) sleep for a listener's changes, and such a thread
    /// takes a ready connection whatever ended its sleep. A cancelled thread wakes another thread.
    fn notify_ready(&self) {
        self.watchers.edges.fetch_add(1, Ordering::Relaxed);
        self.changed.notify_one();
        self.watchers.notify(Notice::Changed);
    }

    /// Ends the handshake of an accepted connection, and releases the lock meanwhile. Returns
    /// `None` if another thread then holds the lock: raccept(3) may have returned the stream.
    pub(super) fn finish_handshake<'a>(&'a self, mut state: Guard<'a>, succeeded: bool) -> Option<Guard<'a>> {
        let (connection, listener) = match mem::take(&mut state.life) {
            Life::Accepting(connection, listener) => (connection, listener.upgrade()),
            life => {
                state.life = life;
                return Some(state);
            }
        };
        state.life = Life::Open(connection);
        if succeeded {
            self.on_connected(&mut state);
        } else {
            state.life.close(false);
        }
        // Lock order: the listener's lock comes before the locks of its connections.
        drop(state);
        if let Some(listener) = listener {
            listener.handshake_done(self, succeeded);
        }
        self.state.try_lock()
    }

    /// Makes a connection available to raccept(3), or drops it if its handshake has failed.
    fn handshake_done(&self, connection: &Stream, succeeded: bool) {
        let mut state = self.lock();
        let Life::Listening(listening) = &mut state.life else { return };
        match listening.finish(connection, succeeded) {
            Finished::Ready => {
                self.notify_ready();
                answer_waiting(state);
            }
            Finished::Dropped(stream) => {
                answer_waiting(state);
                stream.release_soon(stream.lock());
            }
            // The connection is not added yet.
            Finished::Unknown => {}
        }
    }
}

/// Returns the backlog for the argument of rlisten(3). As with listen(2), the backlog is one more
/// than the argument, and a negative argument requests the largest backlog.
fn backlog_of(number: c_int) -> usize {
    usize::try_from(number).map_or(MAX_BACKLOG, |number| (number + 1).min(MAX_BACKLOG))
}

/// Parses the private data of a connection request. Fails with `EPROTO` if the peer uses another
/// protocol, or an unknown version.
fn connection_data(domain: c_int, private_data: &[u8]) -> Result<ConnData> {
    let skip = if domain == AF_IB { wire::IP_HEADER } else { 0 };
    private_data.get(skip..).and_then(ConnData::parse).ok_or(Errno::EPROTO)
}

/// Makes the reactor answer the next waiting request, if there is one. Releases the lock.
fn answer_waiting(state: Guard<'_>) {
    if matches!(&state.life, Life::Listening(listening) if listening.has_waiting()) {
        set_listener_timer(state, Instant::now());
    }
}

/// Releases the lock, then sets the listener's timer unless an earlier time is set. Another thread
/// may hold the reactor's lock, for which other calls on the listener must not wait.
fn set_listener_timer(state: Guard<'_>, time: Instant) {
    let key = state.key;
    drop(state);
    key.into_iter().for_each(|key| reactor::set_timer_by(key, time));
}

impl State {
    /// Returns the error of raccept(3) if there is no connection to return, or `None` if the call
    /// waits for a connection.
    fn why_no_accept(&mut self) -> Option<Errno> {
        match &self.life {
            Life::Listening(_) if self.error.is_some() => self.error.take(),
            Life::Listening(listening) if !listening.is_lost => self.is_nonblocking().then_some(Errno::EAGAIN),
            Life::Listening(_) | Life::Stopped => Some(Errno::EINVAL),
            _ => Some(Errno::EBADF),
        }
    }

    /// Returns whether the handshake of an accepted connection has succeeded, or `None` while it
    /// continues.
    fn handshake_result(&self) -> Option<bool> {
        match self.life {
            Life::Accepting(..) => None,
            _ => Some(matches!(self.life, Life::Open(_))),
        }
    }

    /// Logs that a peer was rejected.
    #[cold]
    fn log_rejected(&self, error: Errno) {
        self.log(error, if error == Errno::EPROTO { Cause::BadConnData } else { Cause::Accepting });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{connecting, failed, listening, state};
    use super::*;
    use crate::rsocket::wire::Region;

    #[test]
    fn backlogs_as_with_tcp() {
        let backlogs = [-1, 0, 1, 4094, 4095, 4096, c_int::MAX].map(backlog_of);
        assert_eq!(backlogs, [4096, 1, 2, 4095, 4096, 4096, 4096]);
    }

    #[test]
    fn errors_without_a_connection_to_accept() {
        let (none, down) = (None, Some(Errno::ENETDOWN));
        let lost = || {
            let Life::Listening(mut listening) = listening() else { unreachable!() };
            listening.is_lost = true;
            Life::Listening(listening)
        };
        for (life, error, nonblocking, result) in [
            (listening(), none, false, None),
            (listening(), none, true, Some(Errno::EAGAIN)),
            (lost(), none, true, Some(Errno::EINVAL)),
            (lost(), down, false, down),
            (Life::Stopped, none, true, Some(Errno::EINVAL)),
            (Life::Idle, none, true, Some(Errno::EBADF)),
            (failed(false), down, false, Some(Errno::EBADF)),
        ] {
            let flags = if nonblocking { libc::O_NONBLOCK } else { 0 };
            let mut state = State { error, flags, ..state(life) };
            assert_eq!(state.why_no_accept(), result);
            // An error is reported once; the next call finds the listener stopped.
            let is_listening = matches!(state.life, Life::Listening(_));
            assert_eq!(state.error, error.filter(|_| !is_listening));
        }
    }

    #[test]
    fn results_of_handshakes() {
        for life in [Life::Idle, failed(false), connecting(), Life::Closed] {
            assert_eq!(state(life).handshake_result(), Some(false));
        }
    }

    #[test]
    fn requests_of_other_protocols_are_rejected() {
        let region = Region { addr: 4096, rkey: 1, length: 2 };
        let data = ConnData { big_endian: false, credits: 5, iomap_size: 0, target_sgl: region, data_buf: region };
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
