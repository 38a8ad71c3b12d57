//! The end of a connection in the background: what a non-blocking socket has sent, and that it
//! sends no more, arrives after rshutdown(3) or rclose(3) has returned.
//!
//! The reactor looks at each such stream every now and then until the peer's adapter has
//! everything, the peer is known to be gone, or the time is over. Streams wait side by side: none
//! delays another one's end. A process that ends in order waits for all of them together.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{Guard, Notice, Phase, State, Stream};
use crate::errno::{Errno, Result};
use crate::rsocket::owner::Owner;
use crate::rsocket::reactor;
use crate::rsocket::wire::Control;
use crate::sys::event;
use crate::sys::futex::Changes;

/// How long closing waits at most for the end of an iWARP connection, for a peer that is not there
/// any more.
pub(super) const PARTING: Duration = Duration::from_secs(1);
/// How long a process that ends waits for all streams together: the kernel would go on in the
/// background.
const AT_EXIT: Duration = Duration::from_secs(2);
/// Time until the first look; each further one waits twice as long, up to the last of these.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(64);
/// A stream takes two descriptors: closed ones may hold a quarter of those that the process may
/// have.
const SHARE: usize = 8;
/// How long a closed stream may take where many others are there as well.
const CROWDED: Duration = Duration::from_secs(2);

/// Streams whose end is under way, and those of them that the program has closed.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
static CLOSED: AtomicUsize = AtomicUsize::new(0);
/// A stream has come to its end.
static ENDED: Changes = Changes::new();
/// The process ends, and has waited.
static WAITED: AtomicBool = AtomicBool::new(false);

/// A stream's end in the background.
pub(super) struct Farewell {
    /// The last message, until it could be sent.
    message: Option<Control>,
    began: Instant,
    until: Instant,
    /// How long to wait until the next look.
    pause: Duration,
    /// The connection has to be ended in order when everything has arrived, and that has been
    /// begun.
    parts: bool,
    parting: bool,
    /// The program has closed the stream.
    closed: bool,
    owner: Owner,
}

impl Farewell {
    fn new(message: Option<Control>, until: Instant, parts: bool) -> Farewell {
        UNDER_WAY.fetch_add(1, Ordering::Relaxed);
        Farewell {
            message,
            began: Instant::now(),
            until,
            pause: FIRST_LOOK,
            parts,
            parting: false,
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

impl Drop for Farewell {
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
    /// Has the reactor say `message`, if there is one, and see that everything arrives. `parts`:
    /// then the connection is ended.
    pub(super) fn begin_farewell(&self, state: &mut State, message: Option<Control>, until: Instant, parts: bool) {
        state.farewell = Some(Farewell::new(message, until, parts));
        if let Some(connection) = &mut state.connection {
            connection.begin_flush();
        }
        // Most of the time it could be sent, and often it has arrived, too.
        if state.key.is_none() || self.is_over(state) {
            state.end_farewell();
        } else {
            state.look_later();
        }
    }

    /// rclose(3) of a stream whose end is under way: it goes on without its number. On failure
    /// there is no number for it.
    pub(super) fn leave_number<'a>(&'a self, mut state: Guard<'a>) -> std::result::Result<(), Guard<'a>> {
        let moved = if has_many_closed(1) { Err(Errno::EMFILE) } else { state.relocate() };
        if moved.is_err() {
            return Err(state);
        }
        if let Some(farewell) = &mut state.farewell {
            farewell.close();
        }
        drop(state);
        self.notify(Notice::Closed);
        Ok(())
    }

    /// The time for the next look has come.
    pub(super) fn go_on(&self, mut state: Guard<'_>) {
        if !self.is_over(&mut state) {
            return state.look_later();
        }
        if !matches!(state.phase, Phase::Closing) {
            state.end_farewell();
            return self.set_keep_alive(&mut state);
        }
        if let Some(connection) =
            state.connection.as_mut().filter(|connection| connection.channel.leadership.has_leader())
        {
            // A thread still sleeps in the channel, which has to stay until it is back.
            connection.flush_qp();
            return state.look_later();
        }
        state.phase = Phase::Closed;
        state.release();
        self.channel_fd.store(-1, Ordering::Relaxed);
        state.end_farewell();
    }

    /// Whether everything has arrived, or nothing more will. Sends what could not be sent before.
    fn is_over(&self, state: &mut State) -> bool {
        self.process_completions(state);
        let (Some(farewell), Some(connection)) = (&mut state.farewell, &mut state.connection) else { return true };
        if connection.failure().is_some() || state.lost || farewell.is_late(Instant::now()) {
            return true;
        }
        if farewell.parting {
            return false;
        }
        if let Some(message) = farewell.message {
            match connection.control(message) {
                Ok(()) => farewell.message = None,
                Err(Errno::EAGAIN) => return false,
                Err(_) => return true,
            }
            self.process_completions(state);
        }
        state.has_arrived() && !state.begin_parting()
    }
}

impl State {
    fn has_arrived(&self) -> bool {
        self.connection.as_ref().is_none_or(|connection| connection.is_flushed())
    }

    /// Ends an iWARP connection in order; whether there is something to wait for.
    fn begin_parting(&mut self) -> bool {
        let parts = self.farewell.as_ref().is_some_and(|farewell| farewell.parts) && self.needs_graceful_end();
        let parting = parts && self.id().is_ok_and(|id| id.disconnect().is_ok());
        if let Some(farewell) = self.farewell.as_mut().filter(|_| parting) {
            farewell.parting = true;
            farewell.until = Instant::now() + PARTING;
        }
        parting
    }

    /// Whether this is a working iWARP connection, which has to be ended in order for the last
    /// messages to arrive.
    pub(super) fn needs_graceful_end(&self) -> bool {
        !self.lost && self.connection.as_ref().is_some_and(|connection| connection.needs_graceful_end())
    }

    /// Ends what goes on in the background, for whoever goes on with it.
    pub(super) fn end_farewell(&mut self) -> Option<Farewell> {
        let farewell = self.farewell.take()?;
        if let Some(connection) = &mut self.connection {
            connection.end_flush();
        }
        Some(farewell)
    }

    fn look_later(&mut self) {
        if let (Some(farewell), Some(key)) = (&mut self.farewell, self.key) {
            reactor::expire(key, Some(Instant::now() + farewell.pause));
            farewell.pause = (farewell.pause * 2).min(LAST_LOOK);
        }
    }

    /// Moves the channel to another number: the one that the program knows is free then.
    fn relocate(&mut self) -> Result<()> {
        let key = self.key.ok_or(Errno::EBADF)?;
        self.id.as_mut().ok_or(Errno::EBADF)?.relocate(key)
    }
}
