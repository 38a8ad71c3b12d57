//! Shutting down and closing.

use std::ffi::c_int;
use std::mem;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::background_close::DISCONNECT_TIMEOUT;
use super::blocking::Wait;
use super::options::Linger;
use super::{Guard, Notice, Phase, State, Stream, channel_leader};
use crate::errno::{Errno, Result};
use crate::rsocket::reactor;
use crate::rsocket::wire::Control;
use crate::sys::own;

/// How long the last messages may take to arrive: longer than the transport's retries, for a peer
/// that is alive but posts no receives.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a closing call waits itself if the reactor cannot.
const SHORT_CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// Who waits until everything that was sent has arrived.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// The call.
    Waits,
    /// The reactor.
    Background,
    /// The reactor, which then ends the connection.
    WholeInBackground,
}

impl Stream {
    /// rshutdown(3). Returns when the peer's adapter has everything that was sent; at once for a
    /// non-blocking socket.
    pub fn shutdown(&self, how: c_int) -> Result<()> {
        let (read, write) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return Err(Errno::EINVAL),
        };
        let mut state = self.enter()?;
        match state.phase {
            Phase::Connected => {}
            Phase::Disconnected => return Ok(()),
            Phase::Connecting(_) => return self.stop_connecting(&mut state),
            Phase::Listening(_) => return if read { self.end_listening(state) } else { Ok(()) },
            _ => return Err(Errno::ENOTCONN),
        }
        let how = if state.is_nonblocking() { Ending::Background } else { Ending::Waits };
        drop(self.shut(state, read, write, Instant::now() + CLOSE_TIMEOUT, how));
        Ok(())
    }

    /// A listener that is shut down for reading stops listening, as with TCP: new connections are
    /// refused, those that were not accepted are dropped, and the socket keeps its address.
    fn end_listening(&self, mut state: Guard<'_>) -> Result<()> {
        let Phase::Listening(listening) = &mut state.phase else { return Ok(()) };
        let streams = listening.take_all();
        let result = self.start_over(&mut state);
        state.shut_read = true;
        drop(state);
        self.notify(Notice::Changed);
        for stream in streams {
            stream.close_unseen();
        }
        result
    }

    /// Shutting down either direction of a connecting socket ends the attempt, as with TCP. The
    /// socket keeps its address and can be connected again.
    fn stop_connecting(&self, state: &mut State) -> Result<()> {
        let result = self.start_over(state);
        state.error = Some(Errno::ECONNRESET);
        if result.is_err() {
            state.phase = Phase::Failed { told: true };
        }
        self.notify(Notice::Changed);
        result
    }

    /// Shuts directions of a connection down. `how` says who waits until everything has arrived, at
    /// most until `deadline`.
    fn shut<'a>(&'a self, mut state: Guard<'a>, read: bool, write: bool, deadline: Instant, how: Ending) -> Guard<'a> {
        let wrote = state.shut_write;
        state.shut_read |= read;
        state.shut_write |= write;
        let both = state.shut_write && (state.shut_read || state.ended);
        // The peer is told that no more data follows, or that everything is over; not that the
        // program reads no more.
        let message = match (both, write && !wrote) {
            (true, _) => Some(Control::Disconnect),
            (false, true) => Some(Control::Shutdown),
            (false, false) => None,
        };
        let message = message.filter(|_| !state.said_all);
        state.said_all |= both;
        // An earlier call may have left its work to the reactor.
        let earlier = state.take_background_close();
        let message = message.or_else(|| earlier.as_ref()?.message());
        if message.is_some() || earlier.is_some() {
            match how {
                Ending::Waits => state = self.send_final(state, message, deadline),
                Ending::Background => self.begin_background_close(&mut state, message, deadline, false),
                Ending::WholeInBackground => self.begin_background_close(&mut state, message, deadline, true),
            }
        }
        if both {
            state.disconnect(None);
        }
        self.wake_leader(&mut state);
        self.notify(Notice::Changed);
        state
    }

    /// Sends a last message, if there is one, and waits until everything has arrived.
    fn send_final<'a>(&'a self, mut state: Guard<'a>, message: Option<Control>, deadline: Instant) -> Guard<'a> {
        if let Some(connection) = &mut state.connection {
            connection.begin_flush();
        }
        state = self.send_final_and_flush(state, message, deadline);
        if let Some(connection) = &mut state.connection {
            connection.end_flush();
        }
        state
    }

    fn send_final_and_flush<'a>(
        &'a self,
        mut state: Guard<'a>,
        mut message: Option<Control>,
        deadline: Instant,
    ) -> Guard<'a> {
        let mut wait = Wait::until(deadline);
        loop {
            self.process_completions(&mut state);
            let Some(connection) = state.connection.as_mut().filter(|connection| connection.failure().is_none()) else {
                return state;
            };
            if let Some(last) = message {
                match connection.control(last) {
                    Ok(()) => message = None,
                    Err(Errno::EAGAIN) => {}
                    Err(_) => return state,
                }
            }
            let arrived = message.is_none() && connection.is_flushed();
            if arrived || state.lost {
                return state;
            }
            let (back, result) = self.sleep(state, &mut wait);
            state = back;
            // Signals do not end it: the program could not call again for the rest. Without a
            // connection nothing arrives any more, even if the device reports nothing.
            if result == Err(Errno::ETIMEDOUT) || state.lost || matches!(state.phase, Phase::Closed) {
                return state;
            }
        }
    }

    /// Wakes the thread that sleeps in the completion channel.
    fn wake_leader(&self, state: &mut State) {
        if let Some(connection) =
            state.connection.as_mut().filter(|connection| connection.channel.leadership.has_leader())
            && connection.force_completion().is_err()
        {
            connection.flush_qp();
        }
    }

    /// rclose(3). The caller has removed the descriptor from the table. Calls of other threads fail
    /// with `EBADF`.
    pub fn close(&self) -> Result<()> {
        if !self.owner.is_this_process() {
            self.close_copies();
            return Ok(());
        }
        let mut state = self.lock();
        if state.is_closed() {
            return Err(Errno::EBADF);
        }
        if !matches!(state.phase, Phase::Connected | Phase::Disconnected) {
            self.end(state);
            return Ok(());
        }
        // As with TCP, SO_LINGER makes the call wait even if the socket is non-blocking.
        let (limit, waits) = match state.options.linger {
            Linger::On(seconds) => (Duration::from_secs(seconds.unsigned_abs().into()), true),
            Linger::Default | Linger::Off(_) => (CLOSE_TIMEOUT, !state.is_nonblocking()),
        };
        let talks = matches!(state.phase, Phase::Connected) || state.closing.is_some();
        state.said_all |= !talks;
        state.phase = Phase::Closing;
        // Other threads' calls end now.
        self.wake_leader(&mut state);
        self.notify(Notice::Changed);
        if limit.is_zero() {
            state.take_background_close();
            self.end(state);
            return Ok(());
        }
        let deadline = Instant::now() + limit;
        if waits {
            state = self.shut(state, true, true, deadline, Ending::Waits);
            state = self.graceful_disconnect(state);
        } else {
            match self.close_later(state, deadline) {
                Ok(()) => return Ok(()),
                Err(back) => state = back,
            }
        }
        self.end(state);
        Ok(())
    }

    /// Has the reactor send the disconnect message, unless it was sent, and then end the
    /// connection.
    fn end_later<'a>(&'a self, state: Guard<'a>, deadline: Instant) -> Guard<'a> {
        let mut state = self.shut(state, true, true, deadline, Ending::WholeInBackground);
        if state.closing.is_none() && state.needs_graceful_end() {
            self.begin_background_close(&mut state, None, deadline, true);
        }
        state
    }

    /// Leaves the rest of closing to the reactor. Fails if nothing is left to do, or there is no
    /// descriptor for it.
    fn close_later<'a>(&'a self, state: Guard<'a>, deadline: Instant) -> std::result::Result<(), Guard<'a>> {
        let state = self.end_later(state, deadline);
        if state.closing.is_none() {
            return Err(state);
        }
        let mut state = match self.leave_number(state) {
            Ok(()) => return Ok(()),
            Err(state) => state,
        };
        // No descriptor, or too many streams in the background: a peer that is alive still gets
        // everything in this time.
        let message = state.take_background_close().and_then(|closing| closing.message());
        Err(self.send_final(state, message, Instant::now() + SHORT_CLOSE_TIMEOUT))
    }

    /// iWARP: a completed work request only means that TCP holds the data; tearing the connection
    /// down would discard it. Disconnects gracefully, and waits until the peer's adapter has done
    /// so, too.
    fn graceful_disconnect<'a>(&'a self, mut state: Guard<'a>) -> Guard<'a> {
        if !state.needs_graceful_end() {
            return state;
        }
        if !state.id().is_ok_and(|id| id.disconnect().is_ok()) {
            return state;
        }
        let deadline = Instant::now() + DISCONNECT_TIMEOUT;
        while !state.lost && !matches!(state.phase, Phase::Closed) {
            let count = self.changed.count();
            drop(state);
            let result = self.changed.wait(count, Some(deadline));
            state = self.lock();
            if result == Err(Errno::ETIMEDOUT) {
                break;
            }
        }
        state
    }

    /// For a process that ends without rclose(3): has the reactor do what that would do; the stream
    /// stays. Skipped while a call holds the stream, which the signal handler that ends the process
    /// may have interrupted. Without `all` only for a stream that the program has shut down, whose
    /// data would be lost with the connection.
    pub fn flush_on_exit(&self, all: bool) {
        if !self.owner.is_this_process() {
            return;
        }
        let Ok(mut state) = self.state.try_lock() else { return };
        let connected = matches!(state.phase, Phase::Connected);
        let lives = connected || matches!(state.phase, Phase::Disconnected);
        let meant = lives && (all || state.shut_write && state.needs_graceful_end());
        if meant && state.options.linger != Linger::On(0) {
            state.said_all |= !connected && state.closing.is_none();
            drop(self.end_later(state, Instant::now() + CLOSE_TIMEOUT));
        }
    }

    /// As [`close`](Self::close), for a connection that the program never saw.
    pub(super) fn close_unseen(&self) {
        let state = self.lock();
        if !state.is_closed() {
            self.end(state);
        }
    }

    fn end<'a>(&'a self, mut state: Guard<'a>) {
        let phase = mem::replace(&mut state.phase, Phase::Closed);
        if let Some(connection) =
            state.connection.as_mut().filter(|connection| connection.channel.leadership.has_leader())
        {
            // Wakes the leader. Without a leader the connection is disconnected gracefully, which
            // lets the last messages of iWARP arrive.
            connection.flush_qp();
        }
        drop(state);
        // Without the lock: watchers check their members when they drop one.
        self.notify(Notice::Closed);
        match channel_leader::wait_for_no_leader(self, self.lock()) {
            Ok(mut state) => {
                state.release();
                self.channel_fd.store(-1, Ordering::Relaxed);
            }
            // The sleeping call holds the last reference to the stream, and releases it when it
            // returns.
            Err(mut state) => state.key.take().into_iter().for_each(reactor::forget),
        }
        if let Phase::Listening(mut listening) = phase {
            for stream in listening.take_all() {
                stream.close_unseen();
            }
        }
    }

    /// In a child of fork(): the connection is the parent's, the descriptors are copies.
    fn close_copies(&self) {
        for fd in [self.fd, self.channel_fd.swap(-1, Ordering::Relaxed)] {
            if fd >= 0 {
                own::close(fd);
            }
        }
    }
}

impl State {
    /// Releases everything but the memory of the stream itself.
    pub(super) fn release(&mut self) {
        if let Some(key) = self.key.take() {
            reactor::forget(key);
        }
        let has_qp = self.connection.is_some() || self.unconnected.is_some();
        if let (Some(id), true) = (&self.id, has_qp) {
            // Notifies the peer at once; fails without a connection.
            let _ = id.disconnect();
        }
        // The QP is destroyed before the memory that the peer may write to.
        (self.connection, self.unconnected) = (None, None);
        self.mappings.clear();
        self.domain = None;
        self.id = None;
    }
}
