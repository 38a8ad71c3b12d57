//! Shutting down and closing, a listener, too.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::background_close::DISCONNECT_TIMEOUT;
use super::blocking::Wait;
use super::options::Linger;
use super::watching::HoldsData;
use super::{Guard, Notice, Phase, State, Stream, channel_leader, outbox};
use crate::errno::{Errno, Result};
use crate::os::library_fds;
use crate::rsocket::reactor::{self, LOCK_TIMEOUT, Role};
use crate::rsocket::wire::Control;
use crate::{cm, diag};

/// Time-out for the last messages to arrive: longer than the transport's retries, for a peer that
/// is alive but posts no receives.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Time-out of rclose(3) itself if it cannot leave the rest to the reactor.
const SHORT_CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// How a shutdown waits until all sent data has arrived.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FlushMode {
    /// The call waits.
    Wait,
    /// The reactor waits.
    Background,
    /// The reactor waits, and then disconnects.
    BackgroundThenDisconnect,
}

impl Stream {
    /// rshutdown(3). Returns when the peer's adapter has all sent data; at once on a non-blocking
    /// socket.
    pub fn shutdown(&self, how: c_int) -> Result<()> {
        let [read, write] = directions(how)?;
        let mut state = self.enter()?;
        // As with TCP, a later rconnect(3) fails with EISCONN.
        state.success_unreported = false;
        match state.phase {
            Phase::Connected => {}
            Phase::Disconnected => return Ok(()),
            Phase::Connecting(_) => return self.cancel_connect(&mut state),
            Phase::Listening(_) => return if read { self.stop_listening(state) } else { Ok(()) },
            _ => return Err(Errno::ENOTCONN),
        }
        let mode = if state.is_nonblocking() { FlushMode::Background } else { FlushMode::Wait };
        drop(self.shut_down(state, [read, write], Instant::now() + CLOSE_TIMEOUT, mode));
        Ok(())
    }

    /// Shutting down either direction of a connecting socket cancels the attempt, as with TCP. The
    /// socket keeps its address and can connect again.
    fn cancel_connect(&self, state: &mut State) -> Result<()> {
        let result = self.reset(state);
        state.error = Some(Errno::ECONNRESET);
        if result.is_err() {
            state.phase = Phase::Failed { reported: true };
        }
        self.notify(Notice::Changed);
        result
    }

    /// Cancels an attempt to connect. Fails with `EISCONN` if it has succeeded.
    pub fn cancel_attempt(&self) -> Result<()> {
        // Under the lock under which the last message of the handshake is sent.
        let mut state = self.enter()?;
        match state.phase {
            Phase::Connecting(_) => self.cancel_connect(&mut state),
            Phase::Connected | Phase::Disconnected => Err(Errno::EISCONN),
            _ => Ok(()),
        }
    }

    /// Shuts down a connection for reading, writing, or both. `mode` says how the call waits until
    /// all sent data has arrived, at most until `deadline`.
    fn shut_down<'a>(
        &'a self,
        mut state: Guard<'a>,
        directions: [bool; 2],
        deadline: Instant,
        mode: FlushMode,
    ) -> Guard<'a> {
        let (message, both) = state.end_directions(directions);
        // An earlier shutdown may still be in progress in the background.
        let earlier = state.take_background_close();
        let message = message.or_else(|| earlier.as_ref()?.message());
        // A call of the ended direction returns before the flush, which may wait for a dead link.
        self.wake_all(&mut state);
        // Another thread may be in rshutdown(3), whose wait a close would end.
        if message.is_some() || earlier.is_some() || both && state.is_flush_awaited() {
            state = match mode {
                FlushMode::Wait => self.send_final(state, message, deadline),
                FlushMode::Background => self.begin_background_close(state, message, deadline, false),
                FlushMode::BackgroundThenDisconnect => self.begin_background_close(state, message, deadline, true),
            }
        }
        if both {
            state.disconnect(None);
            self.wake_all(&mut state);
        }
        state
    }

    /// Sends the final `message`, if any, and waits until all sent data has arrived.
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

    /// See [`send_final`](Self::send_final), which keeps the send CQ polled meanwhile.
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
            if let Some(control) = message {
                match connection.control(control) {
                    Ok(()) => message = None,
                    Err(Errno::EAGAIN) => {}
                    Err(_) => return state,
                }
            }
            let is_flushed = message.is_none() && connection.is_flushed();
            if is_flushed || state.cm_disconnected {
                return state;
            }
            let (back, result) = self.sleep(state, &mut wait);
            state = back;
            // A signal does not end the wait: the program could not call again for the rest. After
            // a disconnect nothing arrives any more, even if the device reports no completions.
            if result == Err(Errno::ETIMEDOUT) || state.cm_disconnected || matches!(state.phase, Phase::Closed) {
                return state;
            }
        }
    }

    /// rclose(3). The caller has removed the descriptor from the table. Calls of other threads then
    /// fail with `EBADF`.
    pub fn close(&self) -> Result<()> {
        if !self.owner.is_this_process() {
            self.close_inherited_fds();
            return Ok(());
        }
        let mut state = self.wait_for_rejects(self.lock());
        if !self.owner.is_this_process() {
            self.close_inherited_fds();
            return Ok(());
        }
        if state.is_closed() {
            return Err(Errno::EBADF);
        }
        if !matches!(state.phase, Phase::Connected | Phase::Disconnected) {
            self.finish_close(state);
            return Ok(());
        }
        let (limit, waits) = close_timeout(state.options.linger, state.is_nonblocking());
        let is_active = matches!(state.phase, Phase::Connected) || state.closing.is_some() || state.is_flush_awaited();
        state.disconnect_sent |= !is_active;
        state.end(Phase::Closing);
        if let Some(connection) = &state.connection {
            connection.list_as_closing();
            if diag::shows_connections() {
                let (sent, received) = connection.bytes();
                diag::closed(self.fd, &cm::log::endpoints(state.id()?.id()), sent, received);
            }
        }
        // The calls of other threads fail now. What follows wakes the leader.
        self.notify(Notice::Changed);
        if limit.is_zero() {
            state.take_background_close();
            self.finish_close(state);
            return Ok(());
        }
        let deadline = Instant::now() + limit;
        if waits {
            state = self.shut_down(state, [true, true], deadline, FlushMode::Wait);
            state = self.end_gracefully(state, deadline);
        }
        if !waits || !state.is_flushed() {
            match self.close_in_background(state, deadline) {
                Ok(()) => return Ok(()),
                Err(back) => state = back,
            }
        }
        self.finish_close(state);
        Ok(())
    }

    /// Has the reactor send the disconnect message, unless it was sent, and then disconnect.
    fn disconnect_in_background<'a>(&'a self, state: Guard<'a>, deadline: Instant) -> Guard<'a> {
        let mut state = self.shut_down(state, [true, true], deadline, FlushMode::BackgroundThenDisconnect);
        if state.closing.is_none() && state.needs_graceful_end() {
            state = self.begin_background_close(state, None, deadline, true);
        }
        state
    }

    /// Leaves the rest of rclose(3) to the reactor. Fails if nothing is left to do, or if no
    /// descriptor is available.
    fn close_in_background<'a>(&'a self, state: Guard<'a>, deadline: Instant) -> std::result::Result<(), Guard<'a>> {
        let state = self.disconnect_in_background(state, deadline);
        if state.closing.is_none() {
            return Err(state);
        }
        let mut state = match self.detach_fd(state) {
            Ok(()) => return Ok(()),
            Err(state) => state,
        };
        // No descriptor, or too many streams are closed in the background: a peer that is alive
        // gets all data within this time.
        let message = state.take_background_close().and_then(|closing| closing.message());
        Err(self.send_final(state, message, Instant::now() + SHORT_CLOSE_TIMEOUT))
    }

    /// On iWARP a completed work request only means that TCP holds the data; tearing the connection
    /// down would discard it. Waits for an RDMA read that follows the data. If the peer takes none,
    /// disconnects gracefully, and waits until the peer's adapter has disconnected, too.
    fn end_gracefully<'a>(&'a self, mut state: Guard<'a>, deadline: Instant) -> Guard<'a> {
        if !state.needs_graceful_end() {
            return state;
        }
        let deadline = deadline.min(Instant::now() + DISCONNECT_TIMEOUT);
        // The write that wakes the leader may be outstanding.
        state = self.send_final(state, None, deadline);
        if !state.is_flushed() || !state.needs_graceful_end() {
            return state;
        }
        if state.post_end_read() {
            return self.send_final(state, None, deadline);
        }
        if !state.id().is_ok_and(|id| id.disconnect().is_ok()) {
            return state;
        }
        while !state.cm_disconnected && !matches!(state.phase, Phase::Closed) {
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

    /// Flushes a stream in the background when the process exits without rclose(3); the stream
    /// itself stays. Does nothing in a signal handler that has interrupted a call which holds the
    /// lock or uses the connection without it, nor if another thread holds the lock for long.
    /// Unless `all` is set, flushes only streams that hold data, and iWARP streams that the program
    /// has shut down, whose data would otherwise be lost with the connection.
    pub fn flush_on_exit(&self, all: bool) {
        if !self.owner.is_this_process() {
            return;
        }
        let Ok(mut state) = self.state.lock_within(LOCK_TIMEOUT) else { return };
        // An adapter may discard what is posted only now.
        let had_held = Self::has_held(&state);
        self.send_held(&mut state);
        let connected = matches!(state.phase, Phase::Connected);
        let is_open = connected || matches!(state.phase, Phase::Disconnected);
        let needs_flush = is_open && (all || had_held || state.shut_write && state.needs_graceful_end());
        if needs_flush && state.options.linger != Linger::On(0) {
            state.disconnect_sent |= !connected && state.closing.is_none();
            drop(self.disconnect_in_background(state, Instant::now() + CLOSE_TIMEOUT));
        }
    }

    /// Closes a connection that the program has not accepted.
    pub(super) fn close_unaccepted(&self) {
        let state = self.lock();
        if !state.is_closed() {
            self.finish_close(state);
        }
    }

    /// As [`close_unaccepted`](Self::close_unaccepted), for the thread that handles events: the
    /// worker releases the resources, with commands that may block.
    pub(super) fn close_soon(&self) {
        let mut state = self.lock();
        if state.is_closed() {
            return;
        }
        if state.move_to(Role::Setup) {
            state.end(Phase::Closed);
            state.release_due = true;
            state.key.into_iter().for_each(|key| reactor::set_timer(key, Some(Instant::now())));
        } else {
            self.finish_close(state);
        }
    }

    /// Releases the stream's resources once no thread sleeps in the completion channel.
    fn finish_close<'a>(&'a self, mut state: Guard<'a>) {
        let mut phase = state.end(Phase::Closed);
        if let Phase::Listening(_) = phase {
            // No more requests are read, so the channel may stay readable.
            state.key.take().into_iter().for_each(reactor::unregister);
        }
        if let Some(connection) = state.with_leader() {
            // Wakes the leader. Without a leader the QP is not flushed: iWARP's last messages
            // arrive only if the connection is disconnected gracefully.
            connection.flush_qp();
        }
        drop(state);
        // Without the lock: a watcher polls its members when it drops one.
        self.notify(Notice::Closed);
        if !self.owner.is_this_process() {
            // A child that a signal handler has made meanwhile: the parent goes on.
            if let Phase::Listening(listening) = &mut phase {
                listening.forget_waiting();
            }
            return;
        }
        // Rejecting a thousand requests takes a while, and handshakes that end meanwhile need the
        // lock. No other thread uses the id or the channel of a closed listener; both are needed.
        if let Phase::Listening(listening) = &mut phase {
            drop(listening.take_waiting());
        }
        match channel_leader::wait_for_no_leader(self, self.lock()) {
            Ok(state) => {
                let mut state = outbox::wait_until_unused(self, state);
                state.release();
                self.channel_fd.store(-1, Ordering::Relaxed);
            }
            // The interrupted call of this thread holds the last reference to the stream, and
            // releases it when it returns.
            Err(mut state) => state.key.take().into_iter().for_each(reactor::unregister),
        }
        if let Phase::Listening(mut listening) = phase {
            for stream in listening.take_all() {
                stream.close_unaccepted();
            }
        }
    }

    /// Closes the descriptors in a child of fork(): they are copies, and the connection belongs to
    /// the parent.
    fn close_inherited_fds(&self) {
        for fd in [self.fd, self.channel_fd.swap(-1, Ordering::Relaxed)] {
            if fd >= 0 {
                library_fds::close(fd);
            }
        }
    }
}

/// Returns whether rshutdown(3) with this argument ends reading, and writing.
fn directions(how: c_int) -> Result<[bool; 2]> {
    match how {
        libc::SHUT_RD => Ok([true, false]),
        libc::SHUT_WR => Ok([false, true]),
        libc::SHUT_RDWR => Ok([true, true]),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns how long the data of a closed socket has to arrive, and whether rclose(3) waits for
/// that. As with TCP, SO_LINGER makes the call wait even if the socket is non-blocking.
fn close_timeout(linger: Linger, nonblocking: bool) -> (Duration, bool) {
    match linger {
        Linger::On(seconds) => (Duration::from_secs(seconds.unsigned_abs().into()), true),
        Linger::Default | Linger::Off(_) => (CLOSE_TIMEOUT, !nonblocking),
    }
}

impl State {
    /// Ends reading, writing, or both. Returns the message for the peer, if there is one, and
    /// whether both directions have ended now.
    fn end_directions(&mut self, [read, write]: [bool; 2]) -> (Option<Control>, bool) {
        let had_shut_write = self.shut_write;
        self.shut_read |= read;
        self.shut_write |= write;
        if write && let Some(connection) = &mut self.connection {
            connection.end_sending();
        }
        let both = self.shut_write && (self.shut_read || self.eof);
        // The peer is notified of the end of data or of the connection, but not of SHUT_RD.
        let message = match (both, write && !had_shut_write) {
            (true, _) => Some(Control::Disconnect),
            (false, true) => Some(Control::Shutdown),
            (false, false) => None,
        };
        let message = message.filter(|_| !self.disconnect_sent);
        self.disconnect_sent |= both;
        (message, both)
    }

    /// Returns whether a call waits until all sent data has arrived, on a connection that has not
    /// failed.
    fn is_flush_awaited(&self) -> bool {
        let connection = self.connection.as_ref().filter(|connection| connection.failure().is_none());
        !self.cm_disconnected && connection.is_some_and(|connection| connection.is_flush_awaited())
    }

    /// Releases the stream's resources, except for the memory of the stream itself.
    pub(super) fn release(&mut self) {
        if let Some(key) = self.key.take() {
            reactor::unregister(key);
        }
        let has_qp = self.connection.is_some() || self.unconnected.is_some();
        if let (Some(id), true) = (&self.id, has_qp) {
            // Notifies the peer at once. Fails without a connection.
            let _ = id.disconnect();
        }
        // The QP is destroyed before the memory that the peer may write to.
        (self.connection, self.unconnected) = (None, None);
        self.mappings.clear();
        self.domain = None;
        self.id = None;
    }
}

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

#[cfg(test)]
mod tests {
    use super::super::tests::state;
    use super::*;
    use libc::{SHUT_RD as RD, SHUT_RDWR as RDWR, SHUT_WR as WR};

    /// Returns the messages that the peer gets for a sequence of shutdowns, and whether both
    /// directions have ended then.
    fn messages(eof: bool, hows: &[c_int]) -> (Vec<Control>, bool) {
        let mut state = state(Phase::Connected);
        state.eof = eof;
        let ends: Vec<_> = hows.iter().map(|&how| state.end_directions(directions(how).unwrap())).collect();
        (ends.iter().filter_map(|(message, _)| *message).collect(), ends.iter().any(|(_, both)| *both))
    }

    #[test]
    fn messages_to_the_peer() {
        use Control::{Disconnect, Shutdown};
        for (eof, hows, sent, both) in [
            (false, &[RD][..], &[][..], false),
            (false, &[WR], &[Shutdown], false),
            (false, &[WR, WR], &[Shutdown], false),
            (false, &[RDWR], &[Disconnect], true),
            (false, &[RD, WR], &[Disconnect], true),
            (false, &[WR, RD], &[Shutdown, Disconnect], true),
            (false, &[RDWR, RDWR, WR], &[Disconnect], true),
            // The peer has ended its direction: it hears of the end of the connection.
            (true, &[RD], &[], false),
            (true, &[WR], &[Disconnect], true),
        ] {
            assert_eq!(messages(eof, hows), (sent.to_vec(), both), "end of data: {eof}, shutdowns: {hows:?}");
        }
    }

    #[test]
    fn only_the_three_arguments_of_shutdown_are_valid() {
        assert_eq!([RD, WR, RDWR].map(directions), [Ok([true, false]), Ok([false, true]), Ok([true, true])]);
        assert_eq!([-1, 3].map(directions), [Err(Errno::EINVAL); 2]);
    }

    #[test]
    fn time_for_the_last_data() {
        let seconds = Duration::from_secs;
        for (linger, nonblocking, expected) in [
            (Linger::Default, false, (CLOSE_TIMEOUT, true)),
            (Linger::Default, true, (CLOSE_TIMEOUT, false)),
            (Linger::Off(5), false, (CLOSE_TIMEOUT, true)),
            (Linger::Off(5), true, (CLOSE_TIMEOUT, false)),
            (Linger::On(5), true, (seconds(5), true)),
            (Linger::On(0), true, (seconds(0), true)),
        ] {
            assert_eq!(close_timeout(linger, nonblocking), expected, "{linger:?}, non-blocking: {nonblocking}");
        }
    }
}
