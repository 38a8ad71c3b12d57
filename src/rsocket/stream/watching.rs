//! How a stream has its channel watched while the program makes no call: for held data
//! ([`super::held`]), and for the first messages ([`super::starting`]).
//!
//! The reactor is woken beside a thread of the program that waits, so it watches a new stream only
//! after a pause: a peer that needs more space and whose receiver makes no call waits that long,
//! once. A program that only sends stays new, and each credit update is an event, so the pauses
//! become longer.

use std::time::Duration;

use super::connection::Watch;
use super::held::HoldsData;
use super::starting::Starts;
use super::{Guard, Phase, State, Stream};
use crate::rsocket::reactor;

impl Stream {
    /// A call receives, or waits for data. Sends what the calling thread has sent and is held.
    #[expect(clippy::inline_always, reason = "mostly there is nothing to send, which a call would double")]
    #[inline(always)]
    pub(super) fn flush_before_read(&self, state: &mut Guard<'_>) {
        let thread = state.holder();
        let Some(connection) = &mut state.connection else { return };
        if connection.flush_before_read(thread) && connection.failure().is_some() {
            self.flush_has_failed(state);
        }
    }

    #[cold]
    fn flush_has_failed(&self, state: &mut State) {
        self.process_completions(state);
    }
}

impl HoldsData for Stream {
    fn try_lock(&self) -> Option<Guard<'_>> {
        self.state.try_lock().ok()
    }

    #[inline]
    fn has_held(state: &State) -> bool {
        state.connection.as_ref().is_some_and(|connection| connection.has_held())
    }

    fn send_held(&self, state: &mut State) {
        let Some(connection) = state.connection.as_mut().filter(|connection| connection.has_held()) else { return };
        connection.send_held();
        if connection.failure().is_some() {
            self.process_completions(state);
        }
    }

    fn must_hold(&self, state: &mut State) -> bool {
        state.connection.as_mut().is_some_and(|connection| connection.must_hold())
    }

    fn watch(&self, state: &mut State) -> bool {
        let (Some(connection), Some(key)) = (&mut state.connection, state.key) else { return false };
        let channel = &mut connection.channel;
        if channel.watch != Watch::Now && reactor::watch_channel(key, channel.completions.fd()).is_ok() {
            channel.watch = Watch::Now;
        }
        channel.watch == Watch::Now
    }

    fn watched(state: &mut State) {
        if let Some(connection) = &mut state.connection {
            connection.channel.watch = Watch::None;
        }
        Self::watch_start_again(state);
    }
}

/// Time until the reactor watches. It doubles after each [`PAUSES_TO_DOUBLE`] pauses, up to
/// [`PAUSE_DOUBLINGS`] times.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSES_TO_DOUBLE: u32 = 4;
const PAUSE_DOUBLINGS: u32 = 4;

impl Stream {
    /// The reactor has found the channel readable: it watches the channel of a new connection
    /// again.
    pub(super) fn watch_start_again(state: &mut State) {
        if <Self as Starts>::is_starting(state) {
            Self::watch_start(state);
        }
    }

    fn watch_start(state: &mut State) {
        let (Some(connection), Some(key)) = (&mut state.connection, state.key) else { return };
        let channel = &mut connection.channel;
        let pause = PAUSE * (1 << (channel.start_pauses / PAUSES_TO_DOUBLE).min(PAUSE_DOUBLINGS));
        if reactor::watch_channel_later(key, channel.completions.fd(), pause).is_ok() {
            channel.watch = Watch::Soon;
            channel.start_pauses = channel.start_pauses.saturating_add(1);
        }
    }
}

impl Starts for Stream {
    fn watch_soon(&self, state: &mut State) {
        Stream::watch_start(state);
    }

    #[inline]
    fn is_starting(state: &State) -> bool {
        let Some(connection) = &state.connection else { return false };
        connection.is_starting() && !state.eof && matches!(state.phase, Phase::Connected)
    }

    #[inline]
    fn is_watched(state: &State) -> bool {
        state.connection.as_ref().is_some_and(|connection| connection.channel.watch != Watch::None)
    }
}
