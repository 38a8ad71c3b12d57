//! How a stream posts without its lock; see [`super::outbox`].

use super::connection::{RdmaWrite, SendQueue};
use super::outbox::{Outbox, Posts};
use super::{State, Stream};
use crate::errno::{Errno, Result};

impl Stream {
    /// Returns whether the connection must not be dropped: a thread uses it without the lock.
    pub(super) fn is_kept(&self, state: &State) -> bool {
        state.connection.as_ref().is_some_and(|connection| connection.is_in_use())
    }
}

impl Posts for Stream {
    type Write = RdmaWrite;
    type Queue = SendQueue;

    fn outbox(state: &mut State) -> Option<(&mut Outbox<RdmaWrite>, SendQueue)> {
        state.connection.as_mut().map(|connection| connection.outbox())
    }

    fn post(queue: &SendQueue, writes: &[Option<RdmaWrite>]) -> Result<()> {
        for pair in writes.chunks(2) {
            for write in pair.iter().flatten() {
                // SAFETY: only writes of the calling thread's own call have bytes to copy, so they
                // are readable; the flow control has reserved their space in the send buffer.
                unsafe { write.copy() };
            }
            match *pair {
                [Some(first), Some(second)] if first.has_message_with_bytes() && second.has_message_with_bytes() => {
                    queue.post_both([first, second])?;
                }
                _ => pair.iter().flatten().try_for_each(|&write| queue.post(write))?,
            }
        }
        Ok(())
    }

    fn post_failed(&self, state: &mut State, error: Errno) {
        if let Some(connection) = &mut state.connection {
            connection.fail(error);
            // Writes of other calls were discarded, too: all work requests complete, which wakes a
            // leader in every phase.
            connection.flush_qp();
        }
        self.process_completions(state);
    }

    fn is_in_use(&self, state: &mut State) -> bool {
        self.is_kept(state)
    }

    fn is_closing(state: &State) -> bool {
        state.is_closed()
    }
}
