//! What the reactor's threads do for a stream: its connection manager events, its timer, and held
//! data.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::accept::REQUESTS_PER_TURN;
use super::held::HoldsData;
use super::{Guard, Notice, Phase, State, Stream, held, starting};
use crate::errno::Errno;
use crate::rsocket::config::defaults;
use crate::rsocket::reactor::{self, Key, LOCK_TIMEOUT, Service};

/// Delay after which the reactor retries after a lack of memory or descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(1);
/// Number of events of one stream that the reactor handles before it serves others.
const EVENTS_PER_TURN: usize = 4;

impl Service for Stream {
    fn service(self: Arc<Self>, _: Key) -> bool {
        self.serve()
    }

    fn expired(self: Arc<Self>, _: Key) -> bool {
        let Some(mut state) = self.lock_to_serve() else { return false };
        if state.closing.is_some() {
            return self.continue_close(state);
        }
        match state.phase {
            Phase::Connected => return self.keep_alive(&mut state),
            // The peer has not finished the handshake within this side's time-out.
            Phase::Accepting(_) => drop(self.finish_handshake(state, Err(Errno::ETIMEDOUT))),
            // Requests wait for an answer.
            Phase::Listening(_) => {
                drop(state);
                return self.serve();
            }
            // A call of rclose(3) that is in progress releases its stream itself.
            Phase::Closed if state.release_due => {
                let is_kept = self.is_kept(&mut state);
                let mut connection = state.connection.iter();
                if is_kept || connection.any(|connection| connection.channel.leadership.has_leader()) {
                    return false;
                }
                state.release();
                self.channel_fd.store(-1, Ordering::Relaxed);
            }
            _ => {}
        }
        true
    }

    fn check(self: Arc<Self>, key: Key) {
        // A stream whose lock is taken is in use.
        let Some(mut state) = self.try_lock() else {
            return reactor::check_later(key, defaults().idle_time());
        };
        self.process_completions(&mut state);
        let is_connected = matches!(state.phase, Phase::Connected);
        let Some(connection) = state.connection.as_mut().filter(|_| is_connected) else { return };
        let mut pause = connection.check();
        if connection.failure().is_some() {
            self.process_completions(&mut state);
            self.notify(Notice::Changed);
        } else {
            starting::attend(&*self, &mut state);
            pause = pause.or_else(|| Self::check_without_watch(&mut state));
        }
        // Whoever holds the reactor's lock may wait for a thread that waits for the stream's.
        drop(state);
        if let Some(pause) = pause {
            reactor::check_later(key, pause);
        }
    }

    fn second_is_readable(self: Arc<Self>) -> bool {
        held::channel_is_readable(&*self) && !self.lacks_watch()
    }

    fn called(self: Arc<Self>) -> bool {
        let Ok(mut state) = self.state.lock_within(LOCK_TIMEOUT) else { return false };
        let is_done = self.take_prepared(&mut state);
        if state.is_closed() {
            return true;
        }
        let chores = state.connection.as_mut().and_then(|connection| connection.take_chores());
        let Some(chores) = chores else { return is_done };
        drop(state);
        let prepared = chores.run();
        *self.prepared.lock() = Some(prepared);
        // The holder may be interrupted by a signal handler that waits for this thread.
        match self.state.lock_within(LOCK_TIMEOUT) {
            Ok(mut state) => self.take_prepared(&mut state) && is_done,
            Err(_) => {
                // For those that wait until the connection is not used.
                self.changed.notify();
                false
            }
        }
    }
}

impl Stream {
    /// Makes the memory that the reactor has prepared ready to be used, under the lock that the
    /// reactor may have to do without for a while. Returns false if the reactor has to come again.
    pub(super) fn take_prepared(&self, state: &mut State) -> bool {
        let Some(prepared) = self.prepared.lock().take() else { return true };
        let (mut is_done, mut is_awaited) = (true, state.is_closed());
        if let Some(connection) = &mut state.connection {
            is_awaited |= connection.awaits_buffer();
            is_done = connection.finish_chores(prepared);
            if connection.failure().is_some() {
                is_done = Self::ends_polling(state);
                if is_done {
                    self.process_completions(state);
                }
            }
        }
        if is_awaited {
            self.changed.notify();
        }
        is_done
    }

    /// Locks the state for a thread of the reactor. Returns `None` if another thread holds the lock
    /// for long, or is interrupted in the middle of a poll.
    pub(super) fn lock_to_serve(&self) -> Option<Guard<'_>> {
        let mut state = self.state.lock_within(LOCK_TIMEOUT).ok()?;
        Self::ends_polling(&mut state).then_some(state)
    }

    /// Handles events. Returns false if another thread holds the lock, which may be in a command,
    /// or if the stream is closed.
    pub(super) fn serve(self: &Arc<Self>) -> bool {
        let Some(state) = self.lock_to_serve() else { return false };
        // Nobody reads the events of a closed stream. Its channel may stay readable until it is
        // released, for which the closing call waits for other threads.
        if let Phase::Closed = state.phase {
            return false;
        }
        let state = self.service_oldest_handshake(state);
        if let Phase::Listening(listening) = &state.phase {
            let requests = listening.requests_to_read(REQUESTS_PER_TURN);
            if let Some((state, is_drained)) = self.handle_events(state, requests) {
                self.answer_next(state, is_drained);
            }
        } else {
            self.handle_events(state, EVENTS_PER_TURN);
        }
        true
    }

    /// Handles at most `limit` events. Returns whether these were all that can be read now, or
    /// `None` if there is nothing more to do for this thread.
    fn handle_events<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, limit: usize) -> Option<(Guard<'a>, bool)> {
        for _ in 0..limit {
            let id = state.id.as_ref().filter(|_| !matches!(state.phase, Phase::Closed))?;
            match id.event() {
                Ok(event) => state = self.handle_event(state, event)?,
                Err(Errno::EAGAIN | Errno::EINTR) => return Some((state, true)),
                // A lack of memory or descriptors loses nothing: the event, if there is one, stays
                // in the channel. Requests that were read before must not wait for another one.
                Err(Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE) => {
                    state.key.into_iter().for_each(|key| reactor::try_pause(key, RETRY_DELAY));
                    return Some((state, true));
                }
                Err(error) => {
                    self.event_channel_lost(state, error);
                    return None;
                }
            }
        }
        Some((state, false))
    }
}
