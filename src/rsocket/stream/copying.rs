//! Copying received data without the stream's lock, so that another thread can send meanwhile.
//!
//! Only one thread reads at a time: other calls that read wait until it has copied its data, as
//! they would wait for the lock.

use std::mem::MaybeUninit;
use std::slice;

use libc::iovec;

use super::connection::parts;
use super::{Guard, State, Stream, channel_leader};

/// Fewer bytes are copied under the lock: giving it back and taking it again would take longer.
pub(super) const LARGE: usize = 1 << 12;

impl State {
    /// Returns whether a thread copies received data without the lock.
    #[inline]
    pub(super) fn is_being_read(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.is_being_read())
    }
}

impl Stream {
    /// Waits until no other thread copies received data.
    #[inline]
    pub(super) fn wait_for_reader<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        while let Some(connection) = state.connection.as_mut().filter(|connection| connection.is_being_read()) {
            connection.await_reader();
            state = channel_leader::wait_for_change(self, state);
        }
        state
    }

    /// Copies received data into the buffers, after their first `skip` bytes, in large pieces, each
    /// without the lock. Returns the number of bytes.
    ///
    /// # Safety
    /// The buffers are writable for their lengths. No other thread reads.
    pub(super) unsafe fn copy_out_unlocked<'a>(
        &'a self,
        mut state: Guard<'a>,
        buffers: &[iovec],
        skip: usize,
    ) -> (Guard<'a>, usize) {
        let mut done = 0;
        while let Some(connection) = &mut state.connection
            && let Some((start, len)) = parts(buffers, skip + done).next()
            && let Some(unread) = connection.begin_reading(len)
        {
            drop(state);
            // SAFETY: `len` bytes at `start` are writable, and may be uninitialised: guaranteed by
            // the caller.
            let into = unsafe { slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), unread.len()) };
            // SAFETY: the connection is dropped only after `end_reading`, and only the thread that
            // reads gives the memory back to the peer.
            unsafe { unread.copy_to(into) };
            state = self.lock();
            let Some(connection) = &mut state.connection else { break };
            done += into.len();
            if connection.end_reading(into.len()) || state.is_closed() {
                self.changed.notify();
            }
        }
        (state, done)
    }
}
