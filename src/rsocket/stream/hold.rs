//! What a stream does with held data; see [`super::held`].

use super::connection::Watch;
use super::held::HoldsData;
use super::{Guard, State, Stream};
use crate::rsocket::reactor;

impl Stream {
    /// A call receives, or waits for data. Sends what the calling thread has sent and is held.
    #[inline]
    pub(super) fn turn_to_receive(&self, state: &mut Guard<'_>) {
        let thread = state.holder();
        let Some(connection) = &mut state.connection else { return };
        if connection.turn_to_receive(thread) && connection.failure().is_some() {
            self.process_completions(state);
        }
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
        if channel.watch != Watch::Now && reactor::watch_once(key, channel.completions.fd()).is_ok() {
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
