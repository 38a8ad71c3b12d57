//! Blocking waits of a stream: the thread sleeps in the completion channel as its leader
//! ([`channel_leader`]), or until another thread wakes it.

use std::ffi::c_int;
use std::mem;
use std::time::{Duration, Instant};

use super::channel_leader::{self, EventSource, Leadership, Until};
use super::connection::Channel;
use super::{Guard, Notice, Phase, State, Stream};
use crate::errno::{Errno, Result};
use crate::os::mark::Words;
use crate::os::sync::Changes;
use crate::os::{cancel, event};
use crate::rsocket::config::defaults;
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
pub(super) fn should_spin(state: &mut State) -> bool {
    event::cpus() > 1 && channel_leader::may_lead::<Stream>(state) && state.spinning.begin()
}

impl Stream {
    /// Waits until the stream may have changed. Fails with `ETIMEDOUT` at the deadline, and with
    /// `EINTR` after a signal whose handler was installed without SA_RESTART.
    #[expect(clippy::inline_always, reason = "the usual wait is one function")]
    #[inline(always)]
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
        if changed {
            state.spinning.succeeded();
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
        state.connection.as_mut().map(|connection| &mut connection.channel.leadership)
    }

    fn uses_channel(state: &State) -> bool {
        matches!(state.phase, Phase::Connected | Phase::Disconnected | Phase::Closing)
            && state.connection.as_ref().is_some_and(|connection| !connection.channel.device_gone)
    }

    #[inline]
    fn process_completions(&self, state: &mut State) -> bool {
        self.process_completions(state)
    }

    #[expect(clippy::inline_always, reason = "the usual wait is one function")]
    #[inline(always)]
    fn arm_recv_cq(&self, state: &mut State) -> bool {
        let armed = state.connection.as_ref().is_some_and(|connection| connection.arm_recv_cq().is_ok());
        if !armed {
            self.channel_failed(state);
        }
        armed
    }

    #[expect(clippy::inline_always, reason = "the usual wait is one function")]
    #[inline(always)]
    fn arm_send_cq(&self, state: &mut State) -> bool {
        let Some(connection) = state.connection.as_mut().filter(|connection| !connection.channel.device_gone) else {
            return false;
        };
        connection.arm_send_cq().unwrap_or_else(|_| {
            self.channel_failed(state);
            true
        })
    }

    fn is_send_cq_armed(state: &State) -> bool {
        state.connection.as_ref().is_some_and(|connection| connection.is_send_cq_armed())
    }

    /// Ends a connection whose device and QP are gone: system calls fail with `EIO` before the
    /// connection manager reports the removal. No work request completes any more.
    #[cold]
    #[inline(never)]
    fn channel_failed(&self, state: &mut State) {
        let Some(connection) = state.connection.as_mut().filter(|connection| !connection.channel.device_gone) else {
            return;
        };
        connection.channel.device_gone = true;
        connection.fail(Errno::ENETDOWN);
        state.disconnect(Some(Errno::ENETDOWN));
        self.notify(Notice::Changed);
    }

    fn channel(&self, state: &mut State) -> Option<(ChannelHandle, c_int)> {
        state.sleeps = 1;
        let channel = &mut state.connection.as_mut()?.channel;
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
        let channel = &mut state.connection.as_mut().ok_or(Errno::ENOTCONN)?.channel;
        set_nonblocking(channel, true);
        // SAFETY: the channel is live while the lock is held.
        unsafe { channel.completions.handle().take() }
    }

    #[inline]
    fn note_event(state: &mut State, event: &CqEvent) -> bool {
        state.connection.as_mut().is_some_and(|connection| connection.note_event(event))
    }
}
