//! Work of the reactor's threads for a stream: connection manager events, the timer, and held data.
//!
//! Also here: the stream's own protection domain (PD). Without its own PD, the peers of other
//! streams could access the connection's memory.
//!
//! While the program makes no call, the reactor watches the completion channel of a stream that is
//! new or holds data ([`super::channel_leader`]). Each event wakes the reactor in addition to a
//! waiting thread of the program, so the reactor watches a new stream only after a pause: a peer
//! that needs more space while the program makes no call waits for that pause, once. If the program
//! only sends, the stream stays new, and a credit update is an event after each pause.

use std::sync::Arc;
use std::time::Duration;

use super::accept::REQUESTS_PER_TURN;
use super::connection::Connection;
use super::{Guard, Life, State, Stream, channel_leader};
use crate::cm::Domain;
use crate::errno::{Errno, Result};
use crate::rsocket::pinned_budget;
use crate::rsocket::reactor::{self, Key, Service};

/// Delay after which the reactor retries after a lack of memory or descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(1);
/// Number of events of one stream that the reactor handles before it serves other streams.
const EVENTS_PER_TURN: usize = 4;

impl Service for Stream {
    fn service(self: Arc<Self>, _: Key) -> bool {
        self.serve()
    }

    fn expired(self: Arc<Self>, _: Key) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        if state.background.is_some() {
            self.continue_in_background(state);
            return true;
        }
        match &state.life {
            life if life.is_connected() => self.keep_alive(&mut state),
            // The peer has not finished the handshake in time, unless this is the next event.
            Life::Accepting(..) => {
                if let Some(state) = self.handle_events(state, EVENTS_PER_TURN) {
                    self.finish_handshake(state, false);
                }
            }
            // Requests wait for an answer.
            Life::Listening(_) => {
                drop(state);
                return self.serve();
            }
            Life::Leaving { connection, release_due: true } => {
                if connection.is_in_use() || connection.channel.leadership.has_leader() {
                    return false;
                }
                state.release();
            }
            _ => {}
        }
        true
    }

    fn on_channel_readable(self: Arc<Self>) -> bool {
        channel_leader::channel_is_readable(&*self)
    }
}

impl Stream {
    /// Handles events. Returns false if the stream is closed, or another thread (perhaps in a
    /// command that blocks) holds the lock.
    pub(super) fn serve(self: &Arc<Self>) -> bool {
        let Some(state) = self.state.try_lock() else { return false };
        // Nobody reads the events of a closed stream. Its channel may stay readable until the
        // closing call, which waits for other threads, releases the stream.
        if state.life.is_over() {
            return false;
        }
        if let Life::Listening(listening) = &state.life {
            let requests = listening.requests_to_read(REQUESTS_PER_TURN);
            if let Some(state) = self.handle_events(state, requests) {
                self.answer_next(state);
            }
        } else {
            self.handle_events(state, EVENTS_PER_TURN);
        }
        true
    }

    /// Handles at most `limit` events. Returns the lock, or `None` if the stream is closed, its
    /// channel is lost, or another thread holds the lock.
    fn handle_events<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, limit: usize) -> Option<Guard<'a>> {
        for _ in 0..limit {
            let id = state.id.as_ref().filter(|_| !state.life.is_over())?;
            match id.event() {
                Ok(event) => state = self.handle_event(state, event)?,
                Err(Errno::EAGAIN | Errno::EINTR) => return Some(state),
                // A lack of memory or descriptors loses nothing: the event, if there is one, stays
                // in the channel. Requests that were read before do not wait for that event.
                Err(Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE) => {
                    state.key.into_iter().for_each(|key| reactor::pause(key, RETRY_DELAY));
                    return Some(state);
                }
                Err(error) => {
                    self.event_channel_lost(state, error);
                    return None;
                }
            }
        }
        Some(state)
    }

    /// Sends the held data of the calling thread before this thread receives, or waits for data.
    #[inline(always)] // mostly there is nothing to send, which a call would double
    pub(super) fn flush_before_read(&self, state: &mut Guard<'_>) {
        let thread = state.holder();
        let Life::Open(connection) = &mut state.life else { return };
        if connection.flush_before_read(thread) && connection.failure().is_some() {
            self.process_completions(state);
        }
    }

    /// Frees the memory by which the send buffer has grown, unless data is outstanding or the lock
    /// is held. Never waits: the caller may hold the lock of another stream.
    pub fn give_memory_back(&self) {
        if self.owner.is_this_process()
            && let Some(mut state) = self.state.try_lock()
            && let Some(connection) = state.life.connection_mut()
        {
            connection.give_memory_back();
        }
    }
}

impl State {
    /// Returns the stream's PD, which is allocated on first use. Fails with `ENODEV` before the id
    /// has a device, or if the device has changed while memory is registered.
    pub(super) fn domain(&mut self) -> Result<&Domain> {
        let id = self.id.as_ref().ok_or(Errno::EBADF)?.id();
        if self.domain.as_ref().is_some_and(|domain| !domain.is_of(id)) {
            // The id was replaced: memory regions of the previous id's device cannot be used.
            if !self.mappings.list.is_empty() {
                return Err(Errno::ENODEV);
            }
            self.domain = None;
        }
        match &mut self.domain {
            Some(domain) => Ok(domain),
            none => Ok(none.insert(Domain::new(id)?)),
        }
    }

    /// Creates a QP with its resources for the stream's id, which has a device.
    pub(super) fn make_connection(&mut self) -> Result<Box<Connection>> {
        self.domain()?;
        let (id, domain) = self.id.as_ref().zip(self.domain.as_ref()).ok_or(Errno::EBADF)?;
        pinned_budget::with_memory(|| Connection::new(id, domain, &self.options))
    }
}
