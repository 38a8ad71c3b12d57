//! Shutting down in the background: the data of a non-blocking socket, and its final message,
//! arrive after rshutdown(3) or rclose(3) has returned.
//!
//! The reactor checks each of these streams at intervals until the peer's adapter has all data, the
//! peer is known to be gone, or the time-out expires. No stream delays another. A process that
//! calls exit(3) waits for all of them together.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{Guard, Notice, Phase, State, Stream};
use crate::errno::{Errno, Result};
use crate::os::event;
use crate::os::fork::Owner;
use crate::os::library_fds::OwnFd;
use crate::os::sync::Changes;
use crate::rsocket::reactor::{self, FREE_TIMEOUT, Role};
use crate::rsocket::wire::Control;

/// Time-out of the graceful end of an iWARP connection: the peer may be gone.
pub(super) const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time-out of exit(3) for all streams together.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval until the first check. It doubles with each check, up to the maximum.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(1);
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(256);
/// The descriptor limit is divided by this: a stream that is closed in the background uses two
/// descriptors, and all of them may use a quarter of the limit.
const DESCRIPTORS_PER_STREAM: usize = 8;
/// Time-out of a closed stream while many streams are closed in the background.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(2);

/// Number of streams that are shut down in the background.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
/// Number of these streams that the program has closed.
static CLOSED: AtomicUsize = AtomicUsize::new(0);
/// Counts streams whose background shutdown has finished.
static FINISHED: Changes = Changes::new();
/// exit(3) has waited already.
static WAITED_AT_EXIT: AtomicBool = AtomicBool::new(false);

/// State of a shutdown or close in the background.
pub(super) struct BackgroundClose {
    /// The final message, until it is sent.
    message: Option<Control>,
    started: Instant,
    deadline: Instant,
    /// Interval until the next check.
    interval: Duration,
    /// The connection has to be ended gracefully when everything was sent.
    graceful: bool,
    /// The graceful disconnect is in progress.
    disconnecting: bool,
    /// The program has closed the stream, and the epolls have forgotten it.
    closed: bool,
    /// All data has arrived, or no more will: exit(3) does not wait for the stream.
    finished: bool,
    owner: Owner,
}

impl BackgroundClose {
    fn new(message: Option<Control>, deadline: Instant, graceful: bool) -> BackgroundClose {
        ACTIVE.fetch_add(1, Ordering::Relaxed);
        BackgroundClose {
            message,
            started: Instant::now(),
            deadline,
            interval: MIN_CHECK_INTERVAL,
            graceful,
            disconnecting: false,
            closed: false,
            finished: false,
            owner: Owner::this_process(),
        }
    }

    /// Returns the final message if it was not sent yet.
    pub fn message(&self) -> Option<Control> {
        self.message
    }

    fn close(&mut self) {
        if !self.closed {
            self.closed = true;
            CLOSED.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn finish(&mut self) {
        if !self.finished {
            self.finished = true;
            ACTIVE.fetch_sub(1, Ordering::Relaxed);
            FINISHED.notify();
        }
    }

    /// Returns whether the time-out has expired.
    fn has_timed_out(&self, now: Instant) -> bool {
        now >= self.deadline || (self.closed && now >= self.started + CROWDED_TIMEOUT && has_many_closed(2))
    }
}

impl Drop for BackgroundClose {
    fn drop(&mut self) {
        // A child of fork() counts only its own streams.
        if self.owner.is_this_process() {
            if self.closed {
                CLOSED.fetch_sub(1, Ordering::Relaxed);
            }
            self.finish();
        }
    }
}

/// Returns whether closed streams use at least one `divisor`th of the descriptors that they may
/// use.
fn has_many_closed(divisor: usize) -> bool {
    CLOSED.load(Ordering::Relaxed) >= event::descriptor_limit() / DESCRIPTORS_PER_STREAM / divisor
}

/// Waits at exit(3) until all background shutdowns have finished, once and for a limited time.
pub fn wait_for_all() {
    if ACTIVE.load(Ordering::Relaxed) == 0 || WAITED_AT_EXIT.swap(true, Ordering::Relaxed) {
        return;
    }
    let deadline = Instant::now() + EXIT_TIMEOUT;
    loop {
        let count = FINISHED.count();
        if ACTIVE.load(Ordering::Relaxed) == 0 || FINISHED.wait(count, Some(deadline)) == Err(Errno::ETIMEDOUT) {
            return;
        }
    }
}

/// Resets the counters in a child of fork(), which has no reactor yet and none of its parent's
/// streams to wait for.
pub fn in_child() {
    ACTIVE.store(0, Ordering::Relaxed);
    CLOSED.store(0, Ordering::Relaxed);
    WAITED_AT_EXIT.store(false, Ordering::Relaxed);
}

impl Stream {
    /// Has the reactor send `message`, if any, and wait until all sent data has arrived.
    /// `graceful`: the connection is ended after that.
    pub(super) fn begin_background_close<'a>(
        &'a self,
        mut state: Guard<'a>,
        message: Option<Control>,
        deadline: Instant,
        graceful: bool,
    ) -> Guard<'a> {
        let (started, was_closed) = (Instant::now(), state.is_closed());
        state.closing = Some(BackgroundClose::new(message, deadline, graceful));
        if let Some(connection) = &mut state.connection {
            connection.begin_flush();
        }
        while state.closing.is_some() {
            // Usually the message can be sent at once, and often it has arrived already.
            if state.key.is_none() || self.is_finished(&mut state) {
                state.take_background_close();
                break;
            }
            // If the reactor cannot be told, the next call that shuts down or closes goes on.
            if state.schedule_check() || !state.is_closed() && started.elapsed() > FREE_TIMEOUT {
                break;
            }
            // Another thread keeps the reactor's lock: other calls on the stream do not wait for
            // it, and may take this over.
            drop(state);
            reactor::wait_until_free();
            state = self.lock();
            if state.is_closed() && !was_closed {
                // rclose(3) has, and what it waits for is its own.
                break;
            }
        }
        state
    }

    /// rclose(3) of a stream that is shut down in the background: the stream continues on another
    /// descriptor. Fails if none is available.
    pub(super) fn detach_fd<'a>(&'a self, mut state: Guard<'a>) -> std::result::Result<(), Guard<'a>> {
        let moved = if has_many_closed(1) { Err(Errno::EMFILE) } else { state.relocate() };
        let Ok(number) = moved else { return Err(state) };
        drop(state);
        self.notify(Notice::Closed);
        // Only now: an epoll must not remove a descriptor that the reactor has closed, whose number
        // another rsocket may have. Not in a child that a signal handler has made meanwhile.
        if self.owner.is_this_process()
            && let Some(closing) = &mut self.lock().closing
        {
            closing.close();
        }
        // Another thread may get this number for a new rsocket at once, and add it to an
        // epoll, which must have forgotten this stream.
        drop(number);
        Ok(())
    }

    /// The timer of the next check has expired. Returns false if another thread keeps the reactor's
    /// lock.
    pub(super) fn continue_close(&self, mut state: Guard<'_>) -> bool {
        if !self.is_finished(&mut state) {
            return state.schedule_check();
        }
        if !matches!(state.phase, Phase::Closing) {
            state.take_background_close();
            return state.set_keep_alive().is_ok();
        }
        if let Some(connection) = state.with_leader() {
            // A thread still sleeps in the channel: keep the channel until it returns.
            connection.flush_qp();
            return state.schedule_check();
        }
        if self.is_used_unlocked(&state) || state.is_being_detached() {
            return state.schedule_check();
        }
        // The worker releases the connection, with commands that may block. The process
        // may exit before.
        if state.move_to(Role::Setup) {
            state.closing.as_mut().into_iter().for_each(BackgroundClose::finish);
            state.key.into_iter().for_each(|key| reactor::set_timer(key, Some(Instant::now())));
            return true;
        }
        state.end(Phase::Closed);
        state.release();
        self.channel_fd.store(-1, Ordering::Relaxed);
        state.take_background_close();
        true
    }

    /// Returns whether all data has arrived, or no more will arrive. Sends the final message if it
    /// was not sent yet.
    fn is_finished(&self, state: &mut State) -> bool {
        self.process_completions(state);
        let (Some(closing), Some(connection)) = (&mut state.closing, &mut state.connection) else { return true };
        if connection.failure().is_some() || state.cm_disconnected || closing.has_timed_out(Instant::now()) {
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
        state.is_flushed() && !state.begin_graceful_end()
    }
}

impl State {
    /// Returns whether all sent data has arrived.
    pub(super) fn is_flushed(&self) -> bool {
        self.connection.as_ref().is_none_or(|connection| connection.is_flushed())
    }

    /// Begins the graceful end of an iWARP connection. Returns false if none is needed.
    fn begin_graceful_end(&mut self) -> bool {
        let graceful = self.closing.as_ref().is_some_and(|closing| closing.graceful) && self.needs_graceful_end();
        if graceful && self.post_end_read() {
            return true;
        }
        let disconnecting = graceful && self.id().is_ok_and(|id| id.disconnect().is_ok());
        if let Some(closing) = self.closing.as_mut().filter(|_| disconnecting) {
            closing.disconnecting = true;
            closing.deadline = Instant::now() + DISCONNECT_TIMEOUT;
        }
        disconnecting
    }

    /// See [`Connection::post_end_read`](super::connection::Connection::post_end_read).
    pub(super) fn post_end_read(&mut self) -> bool {
        self.connection.as_mut().is_some_and(|connection| connection.post_end_read())
    }

    /// Returns whether this is a working iWARP connection whose last messages may not have arrived
    /// yet, although their work requests have completed.
    pub(super) fn needs_graceful_end(&self) -> bool {
        !self.cm_disconnected && self.connection.as_ref().is_some_and(|connection| connection.needs_graceful_end())
    }

    /// Takes over a shutdown in the background: the reactor does not continue it.
    pub(super) fn take_background_close(&mut self) -> Option<BackgroundClose> {
        let closing = self.closing.take()?;
        if let Some(connection) = &mut self.connection {
            connection.end_flush();
        }
        Some(closing)
    }

    /// Returns whether rclose(3) has not finished its part ([`Stream::detach_fd`]).
    fn is_being_detached(&self) -> bool {
        matches!(self.phase, Phase::Closing) && self.closing.as_ref().is_some_and(|closing| !closing.closed)
    }

    /// Makes the reactor check after the interval. Returns false if another thread keeps the
    /// reactor's lock.
    fn schedule_check(&mut self) -> bool {
        let (Some(closing), Some(key)) = (&mut self.closing, self.key) else { return true };
        let now = Instant::now();
        // A finished one may be kept for longer.
        let time = if now < closing.deadline {
            closing.deadline.min(now + closing.interval)
        } else {
            now + MIN_CHECK_INTERVAL
        };
        closing.interval = (closing.interval * 2).min(MAX_CHECK_INTERVAL);
        reactor::try_set_timer(key, Some(time)).is_ok()
    }

    /// Moves the event channel to another descriptor. Returns the old one; dropping it frees its
    /// number.
    fn relocate(&mut self) -> Result<OwnFd> {
        let key = self.key.ok_or(Errno::EBADF)?;
        self.id.as_mut().ok_or(Errno::EBADF)?.relocate(key)
    }
}
