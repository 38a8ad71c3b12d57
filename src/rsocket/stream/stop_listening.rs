//! Stopping a listener.

use super::{Guard, Notice, Phase, State, Stream, channel_leader};
use crate::errno::Result;

impl Stream {
    /// Shutting down a listener for reading stops it, as with TCP: new connections are refused,
    /// unaccepted connections are dropped, and the socket keeps its address.
    pub(super) fn stop_listening(&self, mut state: Guard<'_>) -> Result<()> {
        let Phase::Listening(listening) = &mut state.phase else { return Ok(()) };
        let waiting = listening.take_waiting();
        let streams = listening.take_all();
        let result = self.reset(&mut state);
        state.shut_read = true;
        // Rejecting a thousand requests takes a while: other calls get the lock meanwhile. The
        // requests need the channel, which rclose(3) of another thread would free.
        state.rejecting += 1;
        drop(state);
        self.notify(Notice::Changed);
        drop(waiting);
        self.lock().rejecting -= 1;
        // A thread may be in `wait_for_rejects`.
        self.changed.notify();
        for stream in streams {
            stream.close_unaccepted();
        }
        result
    }

    /// Waits until no thread rejects requests, which are still on the channel, without the lock.
    pub(super) fn wait_for_rejects<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        // A child of fork() in a signal handler does not have that thread.
        while state.is_rejecting() && self.owner.is_this_process() {
            state = channel_leader::wait_for_change(self, state);
        }
        state
    }
}

impl State {
    /// Returns whether a thread rejects requests without the lock.
    pub(super) fn is_rejecting(&self) -> bool {
        self.rejecting > 0
    }
}
