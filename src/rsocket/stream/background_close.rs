//! Shutting down in the background: the data of a non-blocking socket, and the message that ends
//! it, arrive after rshutdown(3) or rclose(3) has returned.
//!
//! The reactor checks each such stream at intervals until the peer's adapter has everything, the
//! peer is known to be gone, or the time-out expires. Streams wait side by side: none delays
//! another. A process that calls exit(3) waits for all of them together.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{Guard, Notice, Phase, State, Stream};
use crate::errno::{Errno, Result};
use crate::rsocket::owner::Owner;
use crate::rsocket::reactor;
use crate::rsocket::wire::Control;
use crate::sys::event;
use crate::sys::futex::Changes;

/// How long closing waits for the graceful end of an iWARP connection: the peer may be gone.
pub(super) const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long exit(3) waits for all streams together.
const AT_EXIT: Duration = Duration::from_secs(2);
/// Interval until the first check. It doubles with each check, up to the second value.
const FIRST_CHECK: Duration = Duration::from_millis(1);
const LAST_CHECK: Duration = Duration::from_millis(64);
/// Streams that are closed in the background may use a quarter of the process's descriptors, two
/// each.
const SHARE: usize = 8;
/// Time-out of a closed stream while there are many of them.
const CROWDED: Duration = Duration::from_secs(2);

/// Streams that are shut down in the background, and those of them that the program has closed.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
static CLOSED: AtomicUsize = AtomicUsize::new(0);
/// Counts streams that have ended.
static ENDED: Changes = Changes::new();
/// exit(3) has waited already.
static WAITED: AtomicBool = AtomicBool::new(false);

/// A stream that is shut down in the background.
pub(super) struct BackgroundClose {
    /// The last message, until it is sent.
    message: Option<Control>,
    began: Instant,
    until: Instant,
    /// Interval until the next check.
    pause: Duration,
    /// The connection has to be disconnected gracefully when everything has arrived, and that has
    /// begun.
    graceful: bool,
    disconnecting: bool,
    /// The program has closed the stream.
    closed: bool,
    owner: Owner,
}

impl BackgroundClose {
    fn new(message: Option<Control>, until: Instant, graceful: bool) -> BackgroundClose {
        UNDER_WAY.fetch_add(1, Ordering::Relaxed);
        BackgroundClose {
            message,
            began: Instant::now(),
            until,
            pause: FIRST_CHECK,
            graceful,
            disconnecting: false,
            closed: false,
            owner: Owner::this_process(),
        }
    }

    /// What was not said yet.
    pub fn message(&self) -> Option<Control> {
        self.message
    }

    fn close(&mut self) {
        if !self.closed {
            self.closed = true;
            CLOSED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether it has taken as long as it may.
    fn is_late(&self, now: Instant) -> bool {
        now >= self.until || (self.closed && now >= self.began + CROWDED && has_many_closed(2))
    }
}

impl Drop for BackgroundClose {
    fn drop(&mut self) {
        // A child of fork() counts its own only.
        if self.owner.is_this_process() {
            if self.closed {
                CLOSED.fetch_sub(1, Ordering::Relaxed);
            }
            UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
            ENDED.notify();
        }
    }
}

/// Whether closed streams hold this part of what they may hold.
fn has_many_closed(part: usize) -> bool {
    CLOSED.load(Ordering::Relaxed) >= event::descriptor_limit() / SHARE / part
}

/// For a process that ends: waits until all streams have come to their end, once and not for long.
pub fn wait_for_all() {
    if UNDER_WAY.load(Ordering::Relaxed) == 0 || WAITED.swap(true, Ordering::Relaxed) {
        return;
    }
    let deadline = Instant::now() + AT_EXIT;
    loop {
        let count = ENDED.count();
        if UNDER_WAY.load(Ordering::Relaxed) == 0 || ENDED.wait(count, Some(deadline)) == Err(Errno::ETIMEDOUT) {
            return;
        }
    }
}

/// A child has no reactor yet, and nothing of its parent's to wait for.
pub fn in_child() {
    UNDER_WAY.store(0, Ordering::Relaxed);
    CLOSED.store(0, Ordering::Relaxed);
    WAITED.store(false, Ordering::Relaxed);
}

impl Stream {
    /// Has the reactor say `message`, if there is one, and see that everything arrives. `graceful`:
    /// then the connection is ended.
    pub(super) fn begin_background_close(
        &self,
        state: &mut State,
        message: Option<Control>,
        until: Instant,
        graceful: bool,
    ) {
        state.closing = Some(BackgroundClose::new(message, until, graceful));
        if let Some(connection) = &mut state.connection {
            connection.begin_flush();
        }
        // Most of the time it could be sent, and often it has arrived, too.
        if state.key.is_none() || self.is_over(state) {
            state.take_background_close();
        } else {
            state.check_later();
        }
    }

    /// rclose(3) of a stream whose end is under way: it goes on without its number. On failure
    /// there is no number for it.
    pub(super) fn leave_number<'a>(&'a self, mut state: Guard<'a>) -> std::result::Result<(), Guard<'a>> {
        let moved = if has_many_closed(1) { Err(Errno::EMFILE) } else { state.relocate() };
        if moved.is_err() {
            return Err(state);
        }
        if let Some(closing) = &mut state.closing {
            closing.close();
        }
        drop(state);
        self.notify(Notice::Closed);
        Ok(())
    }

    /// The time for the next look has come.
    pub(super) fn continue_close(&self, mut state: Guard<'_>) {
        if !self.is_over(&mut state) {
            return state.check_later();
        }
        if !matches!(state.phase, Phase::Closing) {
            state.take_background_close();
            return self.set_keep_alive(&mut state);
        }
        if let Some(connection) =
            state.connection.as_mut().filter(|connection| connection.channel.leadership.has_leader())
        {
            // A thread still sleeps in the channel, which has to stay until it is back.
            connection.flush_qp();
            return state.check_later();
        }
        state.phase = Phase::Closed;
        state.release();
        self.channel_fd.store(-1, Ordering::Relaxed);
        state.take_background_close();
    }

    /// Whether everything has arrived, or nothing more will. Sends what could not be sent before.
    fn is_over(&self, state: &mut State) -> bool {
        self.process_completions(state);
        let (Some(closing), Some(connection)) = (&mut state.closing, &mut state.connection) else { return true };
        if connection.failure().is_some() || state.lost || closing.is_late(Instant::now()) {
            return true;
        }
        if closing.disconnecting {
            return false;
        }
        if let Some(message) = closing.message {
            match connection.control(message) {
                Ok(()) => closing.message = None,
                Err(Errno::EAGAIN) => return false,
                Err(_) => return true,
            }
            self.process_completions(state);
        }
        state.has_arrived() && !state.begin_graceful_disconnect()
    }
}

impl State {
    fn has_arrived(&self) -> bool {
        self.connection.as_ref().is_none_or(|connection| connection.is_flushed())
    }

    /// Ends an iWARP connection in order; whether there is something to wait for.
    fn begin_graceful_disconnect(&mut self) -> bool {
        let graceful = self.closing.as_ref().is_some_and(|closing| closing.graceful) && self.needs_graceful_end();
        let disconnecting = graceful && self.id().is_ok_and(|id| id.disconnect().is_ok());
        if let Some(closing) = self.closing.as_mut().filter(|_| disconnecting) {
            closing.disconnecting = true;
            closing.until = Instant::now() + DISCONNECT_TIMEOUT;
        }
        disconnecting
    }

    /// Whether this is a working iWARP connection, which has to be ended in order for the last
    /// messages to arrive.
    pub(super) fn needs_graceful_end(&self) -> bool {
        !self.lost && self.connection.as_ref().is_some_and(|connection| connection.needs_graceful_end())
    }

    /// Ends what goes on in the background, for whoever goes on with it.
    pub(super) fn take_background_close(&mut self) -> Option<BackgroundClose> {
        let closing = self.closing.take()?;
        if let Some(connection) = &mut self.connection {
            connection.end_flush();
        }
        Some(closing)
    }

    fn check_later(&mut self) {
        if let (Some(closing), Some(key)) = (&mut self.closing, self.key) {
            reactor::expire(key, Some(Instant::now() + closing.pause));
            closing.pause = (closing.pause * 2).min(LAST_CHECK);
        }
    }

    /// Moves the channel to another number: the one that the program knows is free then.
    fn relocate(&mut self) -> Result<()> {
        let key = self.key.ok_or(Errno::EBADF)?;
        self.id.as_mut().ok_or(Errno::EBADF)?.relocate(key)
    }
}
