//! How threads wait for a stream: blocking calls sleep in the completion channel as its leader
//! ([`channel_leader`]), or until another thread wakes them; rpoll and repoll poll its events.

use std::ffi::{c_int, c_short};
use std::mem;
use std::time::{Duration, Instant};

use libc::{POLLERR, POLLHUP, POLLNVAL, POLLRDHUP};

use super::channel_leader::{self, EventSource, Leadership, Until};
use super::connection::{Channel, Connection, Ends, Watch};
use super::{Guard, Life, Notice, State, Stream};
use crate::errno::{Errno, Result};
use crate::os::alloc::try_push_small;
use crate::os::event::Deadline;
use crate::os::mark::Words;
use crate::os::sync::Changes;
use crate::os::{cancel, event};
use crate::rsocket::config::defaults;
use crate::rsocket::pollable::{Descriptors, IN, OUT, Pollable, Watchers, set};
use crate::rsocket::reactor;
use crate::verbs::rc::{ChannelHandle, CqEvent};

/// The state of one blocking call.
pub(super) struct Wait {
    /// Time-out of SO_RCVTIMEO or SO_SNDTIMEO, which begins with the first wait.
    timeout: Option<Duration>,
    pub deadline: Option<Instant>,
    /// Whether the call has waited before.
    waited: bool,
}

impl Wait {
    /// Creates a wait with the time-out of an option. A time-out beyond the clock's range never
    /// expires.
    #[inline]
    pub fn after(timeout: Option<Duration>) -> Wait {
        Wait { timeout, deadline: None, waited: false }
    }

    /// Notes that the call waits. Returns whether this is its first wait.
    #[inline]
    fn begin(&mut self) -> bool {
        let is_first = !mem::replace(&mut self.waited, true);
        if let Some(timeout) = self.timeout.filter(|_| is_first) {
            self.deadline = Instant::now().checked_add(timeout);
        }
        is_first
    }
}

/// Returns whether to poll before sleeping. With one CPU, polling would only delay the thread or
/// the kernel work that makes the change.
#[inline]
fn should_spin(state: &mut State) -> bool {
    let spins = |connection: &Connection| connection.spinning.begin();
    event::cpus() > 1 && channel_leader::may_lead::<Stream>(state) && state.life.connection().is_some_and(spins)
}

impl Stream {
    /// Waits until the stream may have changed. Fails with `ETIMEDOUT` at the deadline, and with
    /// `EINTR` after a signal whose handler was installed without SA_RESTART.
    #[inline(always)] // the usual wait is one function
    pub(super) fn sleep<'a>(&'a self, mut state: Guard<'a>, wait: &mut Wait) -> (Guard<'a>, Result<()>) {
        if wait.begin() {
            if should_spin(&mut state) {
                let (back, changed) = self.spin(state, wait.deadline);
                if changed {
                    return (back, Ok(()));
                }
                state = back;
            }
        } else if channel_leader::has_passed(wait.deadline) {
            // Each message without data ends a sleep early: check the deadline here, too.
            return (state, Err(Errno::ETIMEDOUT));
        }
        channel_leader::wait(self, state, wait.deadline)
    }

    /// Polls the CQs without sleeping for polling_time (rsocket(7)), but not beyond the deadline.
    /// Returns whether the stream has changed.
    #[inline(never)]
    pub(super) fn spin<'a>(&'a self, state: Guard<'a>, deadline: Option<Instant>) -> (Guard<'a>, bool) {
        let end = Instant::now() + Duration::from_micros(defaults().polling_time_us.into());
        let end = deadline.map_or(end, |deadline| deadline.min(end));
        let (state, changed) = channel_leader::spin(self, state, || Instant::now() >= end);
        if let Some(connection) = state.life.connection().filter(|_| changed) {
            connection.spinning.succeeded();
        }
        (state, changed)
    }
}

/// Sets or clears O_NONBLOCK of the channel, which cannot fail for a descriptor of the library.
fn set_nonblocking(channel: &mut Channel, on: bool) {
    if channel.nonblocking != on {
        let _ = event::set_nonblocking(channel.completions.fd(), on);
        channel.nonblocking = on;
    }
}

/// Pause before the reactor watches a new stream.
const PAUSE: Duration = Duration::from_millis(10);

impl EventSource for Stream {
    type State = State;
    type Channel = (ChannelHandle, c_int);
    type Event = CqEvent;

    fn this_thread() -> usize {
        Words::here().address()
    }

    #[inline]
    fn lock(&self) -> Guard<'_> {
        Stream::lock(self)
    }

    fn changed(&self) -> &Changes {
        &self.changed
    }

    fn notify_pollers(&self) {
        self.watchers.notify(Notice::Changed);
    }

    fn leadership(state: &mut State) -> Option<&mut Leadership> {
        state.life.connection_mut().map(|connection| &mut connection.channel.leadership)
    }

    fn uses_channel(state: &State) -> bool {
        matches!(&state.life, Life::Open(connection) | Life::Closing(connection) if !connection.channel.device_gone)
    }

    #[inline]
    fn process_completions(&self, state: &mut State) -> bool {
        self.process_completions(state)
    }

    #[inline(always)] // the usual wait is one function
    fn arm_recv_cq(&self, state: &mut State) -> bool {
        let Some(connection) = state.life.connection_mut() else { return false };
        let is_armed = mem::replace(&mut connection.channel.leadership.armed, true) || connection.arm_recv_cq().is_ok();
        if !is_armed {
            self.channel_failed(state);
        }
        is_armed
    }

    #[inline(always)] // the usual wait is one function
    fn arm_send_cq(&self, state: &mut State) -> bool {
        let Some(connection) = state.life.connection_mut().filter(|connection| !connection.channel.device_gone) else {
            return false;
        };
        connection.arm_send_cq().unwrap_or_else(|_| {
            self.channel_failed(state);
            true
        })
    }

    fn is_send_cq_armed(state: &State) -> bool {
        state.life.connection().is_some_and(Connection::is_send_cq_armed)
    }

    /// Ends a connection whose device and QP are gone: system calls fail with `EIO` before the
    /// connection manager reports the removal. No work request completes any more.
    #[cold]
    #[inline(never)]
    fn channel_failed(&self, state: &mut State) {
        let Some(connection) = state.life.connection_mut().filter(|connection| !connection.channel.device_gone) else {
            return;
        };
        connection.channel.device_gone = true;
        connection.fail(Errno::ENETDOWN);
        connection.disconnect(Some(Errno::ENETDOWN), &mut state.error);
        self.notify(Notice::Changed);
    }

    fn lead(&self, state: &mut State) -> Option<(ChannelHandle, c_int)> {
        let connection = state.life.connection_mut()?;
        connection.sleeps = 1;
        let channel = &mut connection.channel;
        channel.leadership.leader = Self::this_thread();
        set_nonblocking(channel, false);
        Some((channel.completions.handle(), channel.completions.fd()))
    }

    fn sleep((events, fd): (ChannelHandle, c_int), until: Until) -> Result<CqEvent> {
        if until.deadline.is_some() || until.any_signal {
            let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            if event::poll(&mut fds, event::left(until.deadline)?)? == 0 {
                return Err(Errno::ETIMEDOUT);
            }
        } else if cancel::may_lose() {
            // SAFETY: the channel is live and in blocking mode while it has a leader, see below.
            cancel::sleep(|| unsafe { events.wait() })?;
        } else {
            // In a blocking read, SA_RESTART of the program's handler decides whether a signal ends
            // the read.
            // SAFETY: a connection is dropped only after its leader has returned, so the channel is
            // live.
            return cancel::sleep(|| unsafe { events.take() });
        }
        // Only the leader reads events, so the event is still there. A thread that is cancelled
        // after reading the event would never acknowledge it, and destroying the CQ would wait for
        // ever.
        // SAFETY: the channel is live while it has a leader, which is this thread.
        cancel::disabled(|| unsafe { events.take() })
    }

    fn with_cleanup<T>(undo: impl FnMut(), sleep: impl FnOnce() -> T) -> T {
        cancel::with_cleanup(undo, sleep)
    }

    fn pause<T>(pause: impl FnOnce() -> T) -> T {
        cancel::sleep(pause)
    }

    fn read_event(&self, state: &mut State) -> Result<CqEvent> {
        let channel = &mut state.life.connection_mut().ok_or(Errno::ENOTCONN)?.channel;
        set_nonblocking(channel, true);
        // SAFETY: the channel is live while the lock is held.
        unsafe { channel.completions.handle().take() }
    }

    #[inline]
    fn note_event(state: &mut State, event: &CqEvent) {
        if let Some(connection) = state.life.connection_mut() {
            connection.note_event(event);
        }
    }

    fn try_lock(&self) -> Option<Guard<'_>> {
        self.state.try_lock()
    }

    #[inline]
    fn has_held(state: &State) -> bool {
        state.life.connection().is_some_and(Connection::has_held)
    }

    fn send_held(&self, state: &mut State) {
        let Some(connection) = state.life.connection_mut().filter(|connection| connection.has_held()) else { return };
        connection.send_held();
        if connection.failure().is_some() {
            self.process_completions(state);
        }
    }

    fn must_hold(&self, state: &mut State) -> bool {
        state.life.connection_mut().is_some_and(Connection::must_hold)
    }

    fn watch(&self, state: &mut State) -> bool {
        let (Some(connection), Some(key)) = (state.life.connection_mut(), state.key) else { return false };
        let channel = &mut connection.channel;
        if channel.watch != Watch::Now && reactor::watch_channel(key, channel.completions.fd()).is_ok() {
            channel.watch = Watch::Now;
        }
        channel.watch == Watch::Now
    }

    fn watched(&self, state: &mut State) {
        if let Some(connection) = state.life.connection_mut() {
            connection.channel.watch = Watch::None;
        }
    }

    fn watch_soon(&self, state: &mut State) {
        let (Some(connection), Some(key)) = (state.life.connection_mut(), state.key) else { return };
        if reactor::watch_channel_later(key, connection.channel.completions.fd(), PAUSE).is_ok() {
            connection.channel.watch = Watch::Soon;
        }
    }

    #[inline]
    fn is_starting(state: &State) -> bool {
        let Life::Open(connection) = &state.life else { return false };
        connection.is_starting() && !connection.ends.eof && !connection.ends.over
    }

    #[inline]
    fn is_watched(state: &State) -> bool {
        state.life.connection().is_some_and(|connection| connection.channel.watch != Watch::None)
    }
}

impl Ends {
    /// Returns the pending events of a connection with data to read or space to send.
    fn events(&self, available: bool, space: bool) -> c_short {
        if self.over {
            return IN | OUT | POLLRDHUP | POLLHUP;
        }
        let read_ended = self.eof || self.shut_read;
        set(IN, available || read_ended) | set(OUT, space || self.shut_write) | set(POLLRDHUP, read_ended)
    }
}

impl State {
    /// Returns all events that are pending.
    fn pending_events(&self) -> c_short {
        let events = match &self.life {
            Life::Connecting(_) | Life::Accepting(..) => return 0,
            Life::Closing(_) | Life::Leaving { .. } | Life::Closed => return POLLNVAL,
            Life::Idle | Life::Stopped | Life::Failed { reported: true, .. } => OUT | POLLHUP,
            Life::Failed { reported: false, .. } => IN | OUT | POLLRDHUP | POLLHUP,
            Life::Listening(listening) => set(IN, listening.has_ready() || listening.is_lost),
            Life::Open(connection) => connection.ends.events(connection.available() > 0, connection.can_send()),
        };
        events | set(POLLERR, self.error.is_some())
    }

    /// Returns the pending events that are `wanted`, and those that poll(2) always reports.
    #[inline]
    pub(super) fn wanted(&self, wanted: c_short) -> c_short {
        // The usual case.
        if let (Life::Open(connection), None) = (&self.life, self.error)
            && connection.ends.none()
            && !self.handed_over
        {
            let readable = if connection.available() > 0 { IN } else { 0 };
            return wanted & if wanted & OUT != 0 && connection.can_send() { readable | OUT } else { readable };
        }
        self.wanted_at_end(wanted)
    }

    #[inline(never)]
    fn wanted_at_end(&self, wanted: c_short) -> c_short {
        if self.handed_over && wanted & base::private::FORWARDER_EVENT == 0 {
            POLLNVAL
        } else {
            self.pending_events() & (wanted | POLLERR | POLLHUP | POLLNVAL)
        }
    }
}

impl Stream {
    /// Wakes all threads that wait for the stream, the leader included.
    pub(super) fn wake_all(&self, state: &mut State) {
        if let Some(connection) = state.life.with_leader() {
            connection.wake_leader();
        }
        self.notify(Notice::Changed);
    }

    /// Notes that librspreload has given the program's descriptors to other sockets, and forwards
    /// data to them. Wakes the stream's waiters, so that they wait for those sockets.
    pub fn hand_over(&self) -> Result<()> {
        let mut state = self.enter()?;
        state.handed_over = true;
        self.wake_all(&mut state);
        Ok(())
    }

    /// Locks the state for polling, and sends held data if the calling thread polls for data.
    /// Returns POLLNVAL as the error in a child of fork().
    #[inline(always)] // rpoll comes here for each descriptor
    pub(super) fn lock_to_poll(&self, wanted: c_short) -> std::result::Result<Guard<'_>, c_short> {
        if !self.owner.is_this_process() {
            return Err(POLLNVAL);
        }
        let mut state = self.lock();
        if wanted & IN != 0 {
            self.flush_before_read(&mut state);
        }
        Ok(state)
    }
}

impl Pollable for Stream {
    #[inline(always)] // rpoll comes here for each descriptor
    fn ready(&self, wanted: c_short) -> c_short {
        match self.lock_to_poll(wanted) {
            Ok(mut state) => {
                self.process_completions_here(&mut state);
                state.wanted(wanted)
            }
            Err(bits) => bits,
        }
    }

    fn arm(&self, wanted: c_short) -> c_short {
        match self.lock_to_poll(wanted) {
            Ok(mut state) => {
                if channel_leader::may_lead::<Stream>(&mut state) {
                    channel_leader::arm(self, &mut state);
                } else {
                    // The leader has armed the channel, but perhaps not for send completions.
                    channel_leader::arm_send_cq(self, &mut state);
                    self.process_completions(&mut state);
                }
                state.wanted(wanted)
            }
            Err(bits) => bits,
        }
    }

    fn wait_alone(&self, wanted: c_short, deadline: Deadline) -> Option<Result<c_short>> {
        // ready() has sent held data.
        let (mut state, deadline) = (self.lock_to_poll(0).ok()?, deadline.instant());
        if should_spin(&mut state) {
            (state, _) = self.spin(state, deadline);
        }
        let ready = |state: &State| Some(state.wanted(wanted)).filter(|&bits| bits != 0);
        Some(channel_leader::wait_alone(self, state, deadline, ready)?.map(Option::unwrap_or_default))
    }

    fn take_event(&self) {
        if let Ok(mut state) = self.lock_to_poll(0) {
            channel_leader::take_event(self, &mut state);
        }
    }

    fn descriptors(&self) -> Result<Descriptors> {
        let mut all = Descriptors::new();
        if let Ok(state) = self.lock_to_poll(0)
            && let Life::Open(connection) = &state.life
            && !connection.channel.device_gone
            // The leader reads the event and notifies the watchers. Meanwhile the watchers would
            // find the channel readable again and again.
            && !connection.channel.leadership.has_other_leader(Stream::this_thread())
        {
            try_push_small(&mut all, connection.channel.completions.fd())?;
        }
        Ok(all)
    }

    fn watchers(&self) -> &Watchers {
        &self.watchers
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{connecting, failed, listening, state};
    use super::*;
    use crate::errno::Errno;

    #[test]
    fn events_of_a_connection() {
        for flags in 0..64 {
            let [over, eof, shut_read, shut_write, available, space] =
                [1, 2, 4, 8, 16, 32].map(|flag| flags & flag != 0);
            let events = Ends { over, eof, shut_read, shut_write, ..Ends::default() }.events(available, space);
            let ended = eof | shut_read;
            let expected = set(IN, available | ended) | set(POLLRDHUP, ended) | set(OUT, space | shut_write);
            assert_eq!(events, if over { IN | OUT | POLLRDHUP | POLLHUP } else { expected }, "{flags:#x}");
        }
    }

    #[test]
    fn events_without_a_connection() {
        for error in [None, Some(Errno::ECONNRESET)] {
            let events = |life| State { error, ..state(life) }.pending_events();
            let error = set(POLLERR, error.is_some());
            // As with TCP: before a stream is connected, and after its end.
            let (unconnected, over) = (POLLHUP | OUT | error, IN | OUT | POLLRDHUP | POLLHUP | error);
            assert_eq!([Life::Idle, Life::Stopped, failed(true)].map(events), [unconnected; 3]);
            assert_eq!((events(failed(false)), events(connecting()), events(Life::Closed)), (over, 0, POLLNVAL));
            assert_eq!(events(listening()), error);
        }
    }

    #[test]
    fn nobody_gets_bits_that_were_not_asked_for() {
        for wanted in [0, IN, OUT, POLLRDHUP, IN | OUT, libc::POLLPRI] {
            let failed = State { error: Some(Errno::ECONNRESET), ..state(failed(false)) };
            assert_eq!(failed.wanted(wanted), wanted & (IN | OUT | POLLRDHUP) | POLLHUP | POLLERR);
            assert_eq!(state(Life::Closed).wanted(wanted), POLLNVAL);
            assert_eq!(state(connecting()).wanted(wanted), 0);
        }
    }

    #[test]
    fn a_listener_that_is_lost_is_readable() {
        let mut listener = state(listening());
        assert_eq!(listener.wanted(IN | OUT), 0);
        let Life::Listening(listening) = &mut listener.life else { unreachable!() };
        listening.is_lost = true;
        listener.error = Some(Errno::ENETDOWN);
        assert_eq!(listener.wanted(IN | OUT), IN | POLLERR);
    }

    #[test]
    fn a_stream_that_was_handed_over_is_the_forwarders() {
        let state = State { handed_over: true, ..state(failed(false)) };
        assert_eq!(state.wanted(IN), POLLNVAL);
        assert_eq!(state.wanted(IN | base::private::FORWARDER_EVENT), IN | POLLHUP);
    }
}
