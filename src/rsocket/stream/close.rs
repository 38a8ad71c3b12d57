//! Shutting down and closing streams and listeners.
//!
//! An [`Ending`] is the remaining work of rshutdown(3) or rclose(3): to send the last message, to
//! wait until all data has arrived, and to end an iWARP connection gracefully. Either the call
//! waits for this work, or the reactor continues it at intervals: the data of a non-blocking socket
//! may arrive after the call has returned. No stream delays another stream. exit(3) waits for all
//! background shutdowns together.

use std::ffi::c_int;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::channel_leader::EventSource;
use super::connection::{Connection, Ends};
use super::iomap::Mappings;
use super::options::Linger;
use super::waiting::Wait;
use super::{Guard, Life, Notice, State, Stream, channel_leader};
use crate::errno::{Errno, Result};
use crate::os::event;
use crate::os::library_fds::{self, OwnFd};
use crate::os::sync::Changes;
use crate::rsocket::reactor::{self, Role};
use crate::rsocket::wire::Control;
use crate::{cm, diag};

/// Time-out for the last messages to arrive: longer than the transport's retries, for a peer that
/// is alive but posts no receives.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time-out of rclose(3) itself if the call cannot leave the shutdown to the reactor.
const SHORT_CLOSE_TIMEOUT: Duration = Duration::from_millis(100);
/// Time-out of the graceful end of an iWARP connection: the peer may be gone.
const GRACEFUL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time-out of exit(3) for the lock of a stream, and for all streams together.
const LOCK_TIMEOUT: Duration = Duration::from_millis(1);
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// Shortest and longest interval at which the reactor continues a shutdown. Between these limits,
/// the interval is the time that the shutdown has taken so far.
const MIN_INTERVAL: Duration = Duration::from_millis(1);
const MAX_INTERVAL: Duration = Duration::from_millis(256);
/// Divisor of the descriptor limit: a stream that is closed in the background uses two descriptors,
/// and all such streams may use a quarter of the limit.
const DESCRIPTORS_PER_STREAM: usize = 8;

/// Number of streams that are shut down in the background.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
/// Number of these streams that the program has closed.
static CLOSED: AtomicUsize = AtomicUsize::new(0);
/// Counts streams whose background shutdown has finished.
static FINISHED: Changes = Changes::new();
/// exit(3) has begun to wait for the background shutdowns, which happens only once.
static WAITED_AT_EXIT: AtomicBool = AtomicBool::new(false);

/// The remaining work of a shutdown or close.
struct Ending {
    /// The final message, until it is sent.
    message: Option<Control>,
    deadline: Instant,
    /// An iWARP connection is ended gracefully after everything was sent: a completed work request
    /// only means that TCP holds the data, and closing the connection would discard it.
    graceful: bool,
    /// The graceful disconnect is in progress.
    disconnecting: bool,
    /// Deadline of a waiting call once the graceful end has begun: the peer may be gone.
    call_deadline: Option<Instant>,
}

/// Completes a shutdown: [`Stream::wait_for`] or [`Stream::leave_to_reactor`].
type Complete = for<'a> fn(&'a Stream, Guard<'a>, Ending) -> Guard<'a>;

impl Ending {
    /// Creates an ending that has no message and is not graceful.
    fn by(deadline: Instant) -> Ending {
        Ending { message: None, deadline, graceful: false, disconnecting: false, call_deadline: None }
    }

    /// Advances the shutdown without waiting. Returns true if the peer has received all data, if no
    /// more data can reach the peer, or if the deadline has passed.
    fn is_over(&mut self, stream: &Stream, state: &mut State) -> bool {
        stream.process_completions(state);
        let Some(connection) = state.life.connection_mut() else { return true };
        // After a disconnect no data arrives any more, even if the device reports no completions.
        if connection.ends.cm_disconnected || Instant::now() >= self.deadline {
            return true;
        }
        if self.disconnecting {
            return false;
        }
        if connection.failure().is_some() {
            return true;
        }
        if let Some(message) = self.message {
            match connection.control(message) {
                Ok(()) => self.message = None,
                Err(Errno::EAGAIN) => return false,
                Err(_) => return true,
            }
        } else if connection.signal_end().is_err() {
            return true;
        }
        stream.process_completions(state);
        state.life.connection().is_none_or(Connection::is_flushed) && !self.goes_on_gracefully(state)
    }

    /// Ends the connection gracefully after all data was sent: posts an RDMA read, whose completion
    /// shows that the data has arrived. If the peer accepts no reads, disconnects; the shutdown is
    /// then complete when the peer's adapter has disconnected, too. Returns false if there is
    /// nothing to wait for.
    fn goes_on_gracefully(&mut self, state: &mut State) -> bool {
        let Some(connection) = state.life.connection_mut().filter(|_| self.graceful) else { return false };
        if !connection.needs_graceful_end() {
            return false;
        }
        let deadline = *self.call_deadline.get_or_insert(Instant::now() + GRACEFUL_TIMEOUT);
        if connection.post_end_read() {
            return true;
        }
        self.disconnecting = state.id().is_ok_and(|id| id.disconnect().is_ok());
        self.deadline = self.deadline.min(deadline);
        self.disconnecting
    }
}

/// A shutdown that the reactor continues at intervals. A child of fork() forgets its parent's
/// shutdowns, and counts only its own.
pub(super) struct Background {
    ending: Ending,
    started: Instant,
    /// The program has closed the stream, and the stream was removed from all epoll instances.
    closed: bool,
}

impl Background {
    fn new(ending: Ending) -> Background {
        ACTIVE.fetch_add(1, Ordering::Relaxed);
        Background { ending, started: Instant::now(), closed: false }
    }

    fn close(&mut self) {
        self.closed = true;
        CLOSED.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if self.closed {
            CLOSED.fetch_sub(1, Ordering::Relaxed);
        }
        ACTIVE.fetch_sub(1, Ordering::Relaxed);
        FINISHED.notify();
    }
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

/// Resets the counters in a child of fork(), which has no reactor yet and does not wait for its
/// parent's streams.
pub fn in_child() {
    ACTIVE.store(0, Ordering::Relaxed);
    CLOSED.store(0, Ordering::Relaxed);
    WAITED_AT_EXIT.store(false, Ordering::Relaxed);
}

impl Stream {
    /// rshutdown(3). Returns when the peer's adapter (on iWARP, this side's TCP) has all sent data;
    /// at once on a non-blocking socket.
    pub fn shutdown(&self, how: c_int) -> Result<()> {
        let [read, write] = directions(how)?;
        let mut state = self.enter()?;
        match &mut state.life {
            Life::Open(connection) => {
                // As with TCP, a later rconnect(3) fails with EISCONN.
                connection.ends.success_unreported = false;
                if connection.ends.over {
                    return Ok(());
                }
            }
            Life::Connecting(_) => return self.cancel_connect(&mut state),
            Life::Listening(_) => return if read { self.stop_listening(state) } else { Ok(()) },
            _ => return Err(Errno::ENOTCONN),
        }
        let complete: Complete = if state.is_nonblocking() { Stream::leave_to_reactor } else { Stream::wait_for };
        drop(self.shut_down(state, [read, write], Ending::by(Instant::now() + CLOSE_TIMEOUT), complete));
        Ok(())
    }

    /// Cancels an attempt to connect, as TCP does when either direction is shut down. The socket
    /// keeps its address and can connect again.
    fn cancel_connect(&self, state: &mut State) -> Result<()> {
        let result = self.reset(state);
        state.error = Some(Errno::ECONNRESET);
        if result.is_err() {
            state.life = Life::tried();
        }
        self.notify(Notice::Changed);
        result
    }

    /// Cancels an attempt to connect, if there is one. Fails with `EISCONN` if the attempt has
    /// succeeded.
    pub fn cancel_attempt(&self) -> Result<()> {
        // The handshake's last message is sent under this lock, so the attempt cannot end
        // meanwhile.
        let mut state = self.enter()?;
        match state.life {
            Life::Connecting(_) => self.cancel_connect(&mut state),
            Life::Open(_) => Err(Errno::EISCONN),
            _ => Ok(()),
        }
    }

    /// Shuts down both directions of a connection, and ends the connection gracefully.
    fn end_connection<'a>(&'a self, state: Guard<'a>, deadline: Instant, complete: Complete) -> Guard<'a> {
        self.shut_down(state, [true, true], Ending { graceful: true, ..Ending::by(deadline) }, complete)
    }

    /// Shuts down a connection for reading, writing, or both. `complete` waits until all sent data
    /// has arrived, or leaves this wait to the reactor. The message of `ending` is added here.
    fn shut_down<'a>(
        &'a self,
        mut state: Guard<'a>,
        directions: [bool; 2],
        mut ending: Ending,
        complete: Complete,
    ) -> Guard<'a> {
        // An earlier shutdown may still be in progress in the background.
        let earlier = state.take_background();
        let Some(connection) = state.life.connection_mut() else { return state };
        let (message, both) = connection.shut_down(directions);
        ending.message = message.or_else(|| earlier.as_ref()?.ending.message);
        // Another thread may wait for the flush in rshutdown(3). Closing now would end its wait.
        let is_pending = ending.message.is_some() || earlier.is_some() || both && connection.is_end_awaited();
        let goes_on = is_pending || ending.graceful && connection.needs_graceful_end();
        // Wake the calls of the ended direction before the flush, which may wait for a dead link.
        self.wake_all(&mut state);
        if goes_on {
            state = complete(self, state, ending);
        }
        if both {
            let State { life, error, .. } = &mut *state;
            life.connection_mut().into_iter().for_each(|connection| connection.disconnect(None, error));
            self.wake_all(&mut state);
        }
        state
    }

    /// Waits until a shutdown is complete or has timed out.
    fn wait_for<'a>(&'a self, mut state: Guard<'a>, mut ending: Ending) -> Guard<'a> {
        state.life.connection_mut().into_iter().for_each(Connection::begin_flush);
        let mut wait = Wait::after(None);
        loop {
            state = self.wait_while(state, Connection::is_sending_unlocked);
            if ending.is_over(self, &mut state) {
                break;
            }
            let result;
            (state, result) = if ending.disconnecting {
                // No completion reports that the peer's adapter has disconnected.
                channel_leader::wait_for_change_until(self, state, Some(ending.deadline))
            } else {
                let deadline = ending.call_deadline.map_or(ending.deadline, |deadline| deadline.min(ending.deadline));
                wait.deadline = Some(deadline);
                self.sleep(state, &mut wait)
            };
            // A signal does not end the wait: the program could not continue the wait with another
            // call.
            if result == Err(Errno::ETIMEDOUT) || state.life.is_over() {
                break;
            }
        }
        state.life.connection_mut().into_iter().for_each(Connection::end_flush);
        state
    }

    /// Leaves a shutdown to the reactor, unless it is complete at once: usually the last message
    /// can be sent, and often the message has arrived already. Drops the shutdown if the reactor
    /// does not serve the stream.
    fn leave_to_reactor<'a>(&'a self, mut state: Guard<'a>, mut ending: Ending) -> Guard<'a> {
        state.life.connection_mut().into_iter().for_each(Connection::begin_flush);
        let is_over = ending.is_over(self, &mut state) || state.key.is_none();
        let Some(connection) = state.life.connection_mut() else { return state };
        if is_over {
            connection.end_flush();
        } else {
            state.background = Some(Background::new(ending));
            state.schedule_look();
        }
        state
    }

    /// rclose(3). The caller has removed the descriptor from the table. Calls of other threads on
    /// the socket fail with `EBADF`.
    pub fn close(&self) {
        if !self.owner.is_this_process() {
            return self.close_inherited_fds();
        }
        let mut state = self.lock();
        let mut connection = match mem::take(&mut state.life) {
            Life::Open(connection) => connection,
            life => {
                state.life = life;
                return self.finish_close(state);
            }
        };
        let (limit, waits) = close_timeout(state.options.linger, state.is_nonblocking());
        let is_active = !connection.ends.over || state.background.is_some() || connection.is_end_awaited();
        connection.ends.disconnect_sent |= !is_active;
        connection.end();
        if diag::shows_connections()
            && let Ok(id) = state.id()
        {
            let (sent, received) = connection.bytes();
            diag::closed(self.fd, &cm::log::endpoints(id.id()), sent, received);
        }
        state.life = Life::Closing(connection);
        // The calls of other threads fail from now on. The steps below wake the leader.
        self.notify(Notice::Changed);
        // With SO_LINGER of 0, nothing is sent, and flushing the QP in `finish_close` wakes the
        // leader.
        if limit.is_zero() {
            state.take_background();
            return self.finish_close(state);
        }
        let deadline = Instant::now() + limit;
        if waits {
            state = self.end_connection(state, deadline, Stream::wait_for);
        }
        if !waits || !state.life.connection().is_none_or(Connection::is_flushed) {
            let Some(back) = self.close_in_background(state, deadline) else { return };
            state = back;
        }
        self.finish_close(state);
    }

    /// Leaves the rest of rclose(3) to the reactor. Returns the lock if nothing is left to do. Also
    /// returns the lock, after a short wait for the data, if no descriptor is available or too many
    /// streams are closed in the background.
    fn close_in_background<'a>(&'a self, state: Guard<'a>, deadline: Instant) -> Option<Guard<'a>> {
        let state = self.end_connection(state, deadline, Stream::leave_to_reactor);
        if state.background.is_none() {
            return Some(state);
        }
        let mut state = self.detach_fd(state)?;
        // There is no descriptor, or too many streams are closed in the background. A peer that is
        // alive usually gets all data within this short time-out.
        let message = state.take_background().and_then(|background| background.ending.message);
        Some(self.wait_for(state, Ending { message, ..Ending::by(Instant::now() + SHORT_CLOSE_TIMEOUT) }))
    }

    /// rclose(3) of a stream that is shut down in the background: moves the stream to another
    /// descriptor. Returns the lock if no descriptor is available, or too many streams are being
    /// closed.
    fn detach_fd<'a>(&'a self, mut state: Guard<'a>) -> Option<Guard<'a>> {
        let has_many = CLOSED.load(Ordering::Relaxed) >= event::descriptor_limit() / DESCRIPTORS_PER_STREAM;
        let moved = if has_many { Err(Errno::EMFILE) } else { state.relocate() };
        let Ok(old) = moved else { return Some(state) };
        drop(state);
        self.notify(Notice::Closed);
        // Let the reactor close the stream's descriptors only after `notify` has removed the stream
        // from all epoll instances. Otherwise the removal could hit another rsocket that already
        // has the same descriptor.
        self.lock().background.iter_mut().for_each(Background::close);
        // Close the old descriptor last: another thread may get it for a new rsocket at once, and
        // add it to an epoll instance, from which this stream must have been removed before.
        drop(old);
        None
    }

    /// Continues a background shutdown when its timer has expired.
    pub(super) fn continue_in_background(&self, mut state: Guard<'_>) {
        let Some(mut background) = state.background.take() else { return };
        let is_over = background.ending.is_over(self, &mut state);
        let is_closing = matches!(state.life, Life::Closing(_));
        // rclose(3) may not have moved the stream to another descriptor yet.
        let is_detached = background.closed || !is_closing;
        state.background = Some(background);
        if !is_over || !is_detached {
            return state.schedule_look();
        }
        state.take_background();
        if is_closing { self.release_soon(state) } else { state.set_keep_alive() }
    }

    /// Flushes a stream in the background when the process exits without rclose(3), but does not
    /// close the stream. Does nothing in a signal handler that has interrupted the lock's holder,
    /// or if another thread holds the lock for long. Unless `all` is set, flushes only streams that
    /// hold data, and iWARP streams that the program has shut down, whose data would otherwise be
    /// lost with the connection.
    pub fn flush_on_exit(&self, all: bool) {
        if !self.owner.is_this_process() {
            return;
        }
        let Some(mut state) = self.state.lock_within(LOCK_TIMEOUT) else { return };
        // Held data is posted only now, and an adapter may discard it when the process ends, so the
        // stream is flushed.
        let had_held = Self::has_held(&state);
        self.send_held(&mut state);
        let State { life, options, background, .. } = &mut *state;
        let Life::Open(connection) = life else { return };
        let needs_flush = all || had_held || connection.ends.shut_write && connection.needs_graceful_end();
        if needs_flush && options.linger != Linger::On(0) {
            connection.ends.disconnect_sent |= connection.ends.over && background.is_none();
            drop(self.end_connection(state, Instant::now() + CLOSE_TIMEOUT, Stream::leave_to_reactor));
        }
    }

    /// Closes a connection that the program has not accepted. The caller has taken the connection
    /// from its listener, so no other thread closes it.
    pub(super) fn close_unaccepted(&self) {
        self.finish_close(self.lock());
    }

    /// Closes a stream that is used only by the reactor's threads and by threads that are about to
    /// return. The worker thread releases the resources, with commands that may block. The process
    /// may exit before the worker does so.
    pub(super) fn release_soon(&self, mut state: Guard<'_>) {
        if !state.move_to(Role::Setup) {
            return self.finish_close(state);
        }
        state.life.close(true);
        if let Some(connection) = state.life.with_leader() {
            // Wakes the leader, as in `finish_close`.
            connection.flush_qp();
        }
        state.key.into_iter().for_each(|key| reactor::set_timer(key, Some(Instant::now())));
    }

    /// Closes the stream, and releases its resources once no thread sleeps in the channel.
    fn finish_close(&self, mut state: Guard<'_>) {
        let mut listening = state.life.close(false);
        if listening.is_some() {
            // No more requests are read, so the channel may stay readable and must not be watched.
            state.key.take().into_iter().for_each(reactor::unregister);
        }
        if let Some(connection) = state.life.with_leader() {
            // Wakes the leader. Without a leader the QP is not flushed: iWARP's last messages
            // arrive only if the connection is disconnected gracefully.
            connection.flush_qp();
        }
        drop(state);
        // Notify without the lock: a repoll takes a lock that must not be taken under a stream's
        // lock.
        self.notify(Notice::Closed);
        // Reject without the lock: a thousand rejections take a while, and handshakes that end
        // meanwhile need the lock. No other thread uses the id and the channel that rejecting
        // needs.
        listening.iter_mut().for_each(|listening| drop(mem::take(&mut listening.waiting)));
        match channel_leader::wait_for_no_leader(self, self.lock()) {
            Ok(state) => {
                let mut state = self.wait_while(state, Connection::is_in_use);
                state.release();
            }
            // This thread's interrupted call holds the last reference to the stream, and releases
            // the stream when it returns.
            Err(mut state) => state.key.take().into_iter().for_each(reactor::unregister),
        }
        listening.iter_mut().flat_map(|listening| listening.take_all()).for_each(|stream| stream.close_unaccepted());
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

    /// Stops a listener that is shut down for reading, as with TCP: new connections are refused,
    /// unaccepted connections are dropped, and the socket keeps its address.
    pub(super) fn stop_listening(&self, mut state: Guard<'_>) -> Result<()> {
        let Life::Listening(listening) = &mut state.life else { return Ok(()) };
        // Dropping the requests rejects them.
        listening.waiting.clear();
        let streams = listening.take_all();
        let result = self.reset(&mut state);
        // Otherwise the next rbind, rlisten or rconnect resets the socket again.
        state.life = if result.is_ok() { Life::Stopped } else { Life::tried() };
        drop(state);
        self.notify(Notice::Changed);
        streams.for_each(|stream| stream.close_unaccepted());
        result
    }
}

/// Returns whether rshutdown(3) with this argument ends reading, and whether it ends writing. Fails
/// with `EINVAL` for an invalid argument.
fn directions(how: c_int) -> Result<[bool; 2]> {
    match how {
        libc::SHUT_RD => Ok([true, false]),
        libc::SHUT_WR => Ok([false, true]),
        libc::SHUT_RDWR => Ok([true, true]),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the time-out for the data of a closed socket to arrive, and whether rclose(3) waits for
/// the data. As with TCP, SO_LINGER makes the call wait even if the socket is non-blocking.
fn close_timeout(linger: Linger, nonblocking: bool) -> (Duration, bool) {
    match linger {
        Linger::On(seconds) => (Duration::from_secs(seconds.unsigned_abs().into()), true),
        Linger::Default | Linger::Off(_) => (CLOSE_TIMEOUT, !nonblocking),
    }
}

impl Ends {
    /// Ends reading, writing, or both. Returns the message for the peer, if there is one, and
    /// whether both directions have ended now.
    fn shut_down(&mut self, [read, write]: [bool; 2]) -> (Option<Control>, bool) {
        let had_shut_write = self.shut_write;
        self.shut_read |= read;
        self.shut_write |= write;
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
}

impl Connection {
    /// [`Ends::shut_down`], which also ends sending.
    fn shut_down(&mut self, [read, write]: [bool; 2]) -> (Option<Control>, bool) {
        if write {
            self.end_sending();
        }
        self.ends.shut_down([read, write])
    }

    /// Returns whether a call waits until all sent data has arrived, on a connection that has not
    /// failed.
    fn is_end_awaited(&self) -> bool {
        !self.ends.cm_disconnected && self.failure().is_none() && self.is_flush_awaited()
    }
}

impl State {
    /// Takes the background shutdown from the reactor, if there is one.
    fn take_background(&mut self) -> Option<Background> {
        let background = self.background.take()?;
        self.life.connection_mut().into_iter().for_each(Connection::end_flush);
        Some(background)
    }

    /// Sets the timer for the reactor's next turn at the background shutdown.
    fn schedule_look(&self) {
        let (Some(background), Some(key)) = (&self.background, self.key) else { return };
        let now = Instant::now();
        let interval = (now - background.started).clamp(MIN_INTERVAL, MAX_INTERVAL);
        // A complete shutdown may be kept beyond its deadline, until rclose(3) has moved the
        // stream.
        let deadline = background.ending.deadline.max(now + MIN_INTERVAL);
        reactor::set_timer(key, Some(deadline.min(now + interval)));
    }

    /// Moves the event channel to another descriptor. Returns the old descriptor, which is closed
    /// when it is dropped.
    fn relocate(&mut self) -> Result<OwnFd> {
        let key = self.key.ok_or(Errno::EBADF)?;
        self.id.as_mut().ok_or(Errno::EBADF)?.relocate(key)
    }

    /// Releases the stream's resources, except for the memory of the stream itself.
    #[inline(never)] // long, and called from three places
    pub(super) fn release(&mut self) {
        self.key.take().into_iter().for_each(reactor::unregister);
        self.disconnect_id();
        // In the order of `State`.
        self.life = Life::Closed;
        self.mappings = Mappings::default();
        self.domain = None;
        self.id = None;
        self.background = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{SHUT_RD as RD, SHUT_RDWR as RDWR, SHUT_WR as WR};

    /// Returns the messages that the peer gets for a sequence of shutdowns, and whether both
    /// directions have ended then.
    fn messages(eof: bool, hows: &[c_int]) -> (Vec<Control>, bool) {
        let mut ends = Ends { eof, ..Ends::default() };
        let results: Vec<_> = hows.iter().map(|&how| ends.shut_down(directions(how).unwrap())).collect();
        (results.iter().filter_map(|(message, _)| *message).collect(), results.iter().any(|(_, both)| *both))
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
            // The peer has ended its direction, and is notified of the end of the connection.
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
