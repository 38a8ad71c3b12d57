//! The first send buffer of a stream in a thread that may be running a signal handler. The reactor
//! allocates it (`connection/postponed.rs`), which takes no longer than allocating it here unless
//! the reactor needs what the interrupted call holds. Messages go inline, in pieces, only in this
//! case.

use std::time::{Duration, Instant};

use super::{Guard, Stream};
use crate::errno::Errno;
use crate::sys::cancel;

/// How long a call waits for the reactor: once, until the reactor has come.
const MOMENT: Duration = Duration::from_millis(5);

impl Stream {
    /// Waits a moment for the send buffer that the reactor allocates. The lock was released meanwhile.
    #[cold]
    #[inline(never)]
    pub(super) fn await_first_buffer<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        let deadline = Instant::now() + MOMENT;
        loop {
            let count = self.changed.count();
            if !state.connection.as_ref().is_some_and(|connection| connection.awaits_buffer()) {
                return state;
            }
            drop(state);
            // A call that does not block is not cancelled. A signal does not end the wait.
            let waited = cancel::never(|| self.changed.wait(count, Some(deadline)));
            state = self.lock();
            if waited == Err(Errno::ETIMEDOUT) {
                state.connection.iter_mut().for_each(|connection| connection.buffer_is_late());
                return state;
            }
        }
    }
}
