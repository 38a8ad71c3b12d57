//! Listening and accepting: handshakes run in the background, raccept(3) returns finished
//! connections.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::backlog::Listening;
use super::blocking::Wait;
use super::connect::depth;
use super::{Guard, Notice, Phase, State, Stream};
use crate::cm;
use crate::diag::Why;
use crate::errno::{Errno, Result};
use crate::rsocket::cm_id::{CmId, Event, Request};
use crate::rsocket::reactor::{self, Service};
use crate::rsocket::wire::{self, ConnData};
use crate::sys::sockaddr::AF_IB;

/// Largest backlog, like /proc/sys/net/core/somaxconn for sockets.
const MAX_BACKLOG: usize = 4096;
/// How long a peer may take to finish the handshake. The time-out in the peer's own request may be
/// minutes.
const HANDSHAKE: Duration = Duration::from_secs(10);

impl Stream {
    /// rlisten(3); a second call changes the backlog.
    pub fn listen(self: &Arc<Self>, backlog: c_int) -> Result<()> {
        let mut state = self.enter()?;
        // One more than asked for, like listen(2), where a negative number counts as a large one.
        let backlog = usize::try_from(backlog).map_or(MAX_BACKLOG, |backlog| (backlog + 1).min(MAX_BACKLOG));
        if let Phase::Failed { .. } = state.phase {
            self.start_over(&mut state)?;
        }
        match &mut state.phase {
            Phase::Idle => {}
            Phase::Listening(listening) => {
                listening.set_backlog(backlog);
                return Ok(());
            }
            _ => return Err(Errno::EINVAL),
        }
        self.watch(&mut state)?;
        state.id()?.listen(backlog as c_int)?;
        state.phase = Phase::Listening(Listening::new(backlog));
        state.shut_read = false;
        Ok(())
    }

    /// raccept(3): returns the next connection. Fails with `EBADF` if the socket does not listen,
    /// like the reference, and with `EINVAL` after rshutdown(3).
    pub fn accept(&self) -> Result<Arc<Stream>> {
        let mut state = self.enter()?;
        let mut wait = Wait::after(state.options.receive_timeout);
        loop {
            let nonblocking = state.is_nonblocking();
            match &mut state.phase {
                Phase::Listening(listening) => {
                    if let Some(stream) = listening.next() {
                        return Ok(stream);
                    }
                }
                _ => return Err(if state.shut_read { Errno::EINVAL } else { Errno::EBADF }),
            }
            if let Some(error) = state.take_error() {
                return Err(error);
            }
            if state.shut_read {
                return Err(Errno::EINVAL);
            }
            if nonblocking {
                return Err(Errno::EAGAIN);
            }
            let (back, result) = self.sleep(state, &mut wait);
            state = back;
            result.map_err(|error| if error == Errno::ETIMEDOUT { Errno::EAGAIN } else { error })?;
        }
    }

    /// An event of a listener: a connection request.
    pub(super) fn request<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, event: Event) -> Guard<'a> {
        let Event { request: Some(_), .. } = event else {
            if event.kind == crate::ffi::rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL as u32 {
                // The kernel has destroyed its id: no peer can connect any more.
                state.error = Some(Errno::ENETDOWN);
                state.shut_read = true;
                self.notify(Notice::Changed);
            }
            return state;
        };
        let Phase::Listening(listening) = &mut state.phase else { return state };
        // If the backlog has no space, dropping the request rejects it.
        let Some((place, oldest)) = listening.admit() else { return state };
        let (options, flags) = (state.options.clone(), state.flags);
        // Under the listener's lock: closing the listener destroys the channel that the request is
        // on.
        let admitted = self.admit(event);
        // Drop the listener lock: the next steps take the connection's lock and may block in the
        // driver.
        drop(state);
        if let Some(oldest) = oldest {
            oldest.close_unseen();
        }
        let new = admitted.and_then(|(id, peer)| self.accept_request(id, &peer, options, flags));
        state = self.lock();
        match (&mut state.phase, new) {
            (Phase::Listening(listening), Ok(new)) => {
                // Without memory for it the peer is rejected.
                listening.wait_for(new, place);
            }
            (_, Ok(new)) => {
                drop(state);
                new.close_unseen();
                state = self.lock();
            }
            // The peer was rejected; no call waits for the result.
            (_, Err(error)) => state.tell_rejected(error),
        }
        state
    }

    /// Before a listener reads a request: if the oldest handshake has to give way, reads its events
    /// first. A peer that has finished its part is connected as far as it knows, and is kept.
    pub(super) fn make_room<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        let mut last = None;
        loop {
            let Phase::Listening(listening) = &state.phase else { return state };
            let Some(oldest) = listening.gives_way().cloned() else { return state };
            if last.replace(Arc::as_ptr(&oldest)) == Some(Arc::as_ptr(&oldest)) {
                return state;
            }
            // Lock order: not under the listener's lock.
            drop(state);
            let key = oldest.lock().key;
            if let Some(key) = key {
                oldest.service(key);
            }
            state = self.lock();
        }
    }

    /// Moves a connection request of an rsocket to a channel of its own. Rejects any other.
    fn admit(&self, mut event: Event) -> Result<(CmId, ConnData)> {
        let skip = if self.domain == AF_IB { wire::IP_HEADER } else { 0 };
        let peer = event.data().get(skip..).ok_or(Errno::EPROTO).and_then(|data| {
            // Another protocol, or an unknown version.
            ConnData::parse(data).map_err(|_| Errno::EPROTO)
        })?;
        let request: Request = event.request.take().ok_or(Errno::EIO)?;
        Ok((request.accept()?, peer))
    }

    /// Answers a connection request.
    fn accept_request(
        self: &Arc<Self>,
        id: CmId,
        peer: &ConnData,
        options: super::Options,
        flags: c_int,
    ) -> Result<Arc<Stream>> {
        // The stream has the id before it gets the connection: if anything fails they are dropped
        // in reverse order.
        let stream = Stream::with(self.domain, id, options, Phase::Accepting(Arc::downgrade(self)))?;
        let mut state = stream.lock();
        let unconnected = state.make_unconnected()?;
        let offer = unconnected.connection_data().emit();
        stream.channel_fd.store(unconnected.channel_fd(), Ordering::Relaxed);
        state.flags = flags;
        state.connection = Some(unconnected.connect(peer)?);
        // Before the answer: a failure after it would end a connection that the peer has seen
        // established.
        stream.watch(&mut state)?;
        let answered = state.id().and_then(|id| id.shake_hands(false, depth(id), &offer));
        if let Some(key) = state.key.filter(|_| answered.is_ok()) {
            reactor::expire(key, Some(Instant::now() + HANDSHAKE));
        }
        drop(state);
        // The reactor keeps a reference to the stream until it is closed.
        answered.inspect_err(|_| stream.close_unseen())?;
        Ok(stream)
    }

    /// A handshake in the background has ended.
    pub(super) fn accepted<'a>(&'a self, mut state: Guard<'a>, result: Result<()>) -> Guard<'a> {
        let Phase::Accepting(listener) = &state.phase else { return state };
        let listener = listener.upgrade();
        if result.is_ok() {
            state.phase = Phase::Connected;
            self.opened(&mut state);
        } else {
            state.phase = Phase::Failed { told: false };
        }
        // Lock order: the listener's lock comes before those of its connections.
        drop(state);
        if let Some(listener) = listener {
            listener.handshake_done(self, result.is_ok());
        }
        self.lock()
    }

    /// Moves a connection to those that can be accepted, or drops it.
    fn handshake_done(&self, connection: &Stream, good: bool) {
        let mut state = self.lock();
        let Phase::Listening(listening) = &mut state.phase else { return };
        let dropped = listening.finish(connection, good);
        if good && dropped.is_none() {
            self.notify(Notice::Changed);
        }
        drop(state);
        if let Some(stream) = dropped {
            stream.close_unseen();
        }
    }
}

impl State {
    /// Logs that a peer was rejected.
    #[cold]
    fn tell_rejected(&self, error: Errno) {
        let why = if error == Errno::EPROTO { Why::NoRsockets } else { Why::Answering };
        if let Ok(id) = self.id() {
            cm::log::background(id.id(), error, why);
        }
    }
}
