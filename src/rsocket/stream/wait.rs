//! Waiting, as leader in the completion channel or as one who is told.

use std::ffi::{c_int, c_short};
use std::mem;
use std::time::{Duration, Instant};

use super::channel_leader::{self, EventSource, Leadership, Until};
use super::{Guard, Notice, Phase, State, Stream};
use crate::errno::{Errno, Result};
use crate::rsocket::config::defaults;
use crate::sys::futex::Changes;
use crate::sys::rc::{ChannelHandle, CqEvent};
use crate::sys::{cancel, clock, event};

/// One blocking call's waiting.
pub(super) struct Wait {
    end: End,
    /// It has slept, or looked for a while instead.
    slept: bool,
}

/// When a wait is over in any case.
enum End {
    Never,
    /// So long after it begins.
    After(Duration),
    At(Instant),
}

impl Wait {
    /// For a time-out option; one that the clock cannot count to never ends.
    #[inline]
    pub fn after(timeout: Option<Duration>) -> Wait {
        Wait { end: timeout.map_or(End::Never, End::After), slept: false }
    }

    pub fn until(deadline: Instant) -> Wait {
        Wait { end: End::At(deadline), slept: false }
    }

    #[inline]
    fn deadline(&mut self) -> Option<Instant> {
        if let End::After(time) = self.end {
            self.end = Instant::now().checked_add(time).map_or(End::Never, End::At);
        }
        if let End::At(deadline) = self.end { Some(deadline) } else { None }
    }

    /// Whether the call sleeps for the first time.
    #[inline]
    fn is_first(&mut self) -> bool {
        !mem::replace(&mut self.slept, true)
    }
}

#[inline]
fn has_passed(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// Looking without sleeping would keep the only CPU from whoever makes the change.
fn looking_helps() -> bool {
    event::cpus() > 1
}

impl Stream {
    /// Waits until something may have changed: `ETIMEDOUT` at the deadline, `EINTR` after a signal whose handler asks for it.
    #[inline]
    pub(super) fn sleep<'a>(&'a self, mut state: Guard<'a>, wait: &mut Wait) -> (Guard<'a>, Result<()>) {
        let deadline = wait.deadline();
        if wait.is_first() {
            if looking_helps() && channel_leader::may_lead::<Stream>(&mut state) {
                let (back, came) = self.look_for_a_while(state, deadline);
                if came {
                    return (back, Ok(()));
                }
                state = back;
            }
        } else if has_passed(deadline) {
            // The sleep before ended in vain. A peer that sends messages without data would end
            // each of them so, before the clock is looked at.
            return (state, Err(Errno::ETIMEDOUT));
        }
        channel_leader::wait(self, state, deadline)
    }

    /// For a poller of nothing else: see [`channel_leader::wait_alone`].
    pub(super) fn wait_alone(&self, wanted: c_short, deadline: Option<Instant>) -> Option<Result<c_short>> {
        let mut state = self.lock();
        if looking_helps() && channel_leader::may_lead::<Stream>(&mut state) {
            (state, _) = self.look_for_a_while(state, deadline);
        }
        let ready = |state: &State| Some(state.wanted(wanted)).filter(|&bits| bits != 0);
        Some(channel_leader::wait_alone(self, state, deadline, ready)?.map(Option::unwrap_or_default))
    }

    /// Looks without sleeping, for polling_time but not beyond the deadline; whether something
    /// came. Between two looks the lock is released: other threads send and receive meanwhile.
    fn look_for_a_while<'a>(&'a self, mut state: Guard<'a>, deadline: Option<Instant>) -> (Guard<'a>, bool) {
        let end = Instant::now() + Duration::from_micros(defaults().polling_time_us.into());
        let end = deadline.map_or(end, |deadline| deadline.min(end));
        let count = self.changed.count();
        loop {
            if self.process_completions(&mut state) {
                return (state, true);
            }
            if Instant::now() >= end {
                return (state, false);
            }
            drop(state);
            event::spin();
            state = self.lock();
            // Another thread took what came, or changed the state in another way.
            if self.changed.count() != count {
                return (state, true);
            }
        }
    }

    /// The device is gone, and with it the QP: the kernel answers with `EIO`, before the connection manager knows. Nothing
    /// completes any more.
    fn cut_off(&self, state: &mut State) {
        let Some(connection) = state.connection.as_mut().filter(|connection| !connection.channel.device_gone) else {
            return;
        };
        connection.channel.device_gone = true;
        connection.fail(Errno::ENETDOWN);
        state.disconnect(Some(Errno::ENETDOWN));
        self.notify(Notice::Changed);
    }
}

impl EventSource for Stream {
    type State = State;
    type Channel = (ChannelHandle, c_int);
    type Event = CqEvent;

    fn this_thread() -> usize {
        // SAFETY: never fails. The number is the address of what the C library keeps of the thread.
        unsafe { libc::pthread_self() as usize }
    }

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

    #[inline]
    fn arm_recv_cq(&self, state: &mut State) -> bool {
        let gone = state
            .connection
            .as_ref()
            .is_some_and(|connection| connection.channel.device_gone || connection.arm_recv_cq().is_err());
        if gone {
            self.cut_off(state);
        }
        !gone
    }

    #[inline]
    fn arm_send_cq(&self, state: &mut State) -> bool {
        let Some(connection) = state.connection.as_mut().filter(|connection| !connection.channel.device_gone) else {
            return false;
        };
        match connection.arm_send_cq() {
            Ok(asked) => asked,
            Err(_) => {
                self.cut_off(state);
                true
            }
        }
    }

    fn is_send_cq_armed(state: &State) -> bool {
        state.connection.as_ref().is_some_and(|connection| connection.is_send_cq_armed())
    }

    fn channel_failed(&self, state: &mut State) {
        self.cut_off(state);
    }

    fn channel(&self, state: &mut State) -> Option<(ChannelHandle, c_int)> {
        let connection = state.connection.as_mut()?;
        if connection.channel.nonblocking {
            let _ = event::set_nonblocking(connection.channel.completions.fd(), false);
            connection.channel.nonblocking = false;
        }
        Some((connection.channel.completions.handle(), connection.channel.completions.fd()))
    }

    fn sleep((events, fd): (ChannelHandle, c_int), until: Until) -> Result<CqEvent> {
        if until.deadline.is_some() || until.any_signal {
            let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            if event::poll(&mut fds, until.deadline.map(|end| clock::left(end).unwrap_or_default()))? == 0 {
                return Err(Errno::ETIMEDOUT);
            }
        }
        // A read that a signal ends or does not end, as the program's handler wants it.
        // SAFETY: whoever ends the link waits until its leader is back, so the channel is live.
        cancel::sleep(|| unsafe { events.take() })
    }

    fn with_cleanup<T>(undo: impl FnMut(), sleep: impl FnOnce() -> T) -> T {
        cancel::with_cleanup(undo, sleep)
    }

    fn read_event(&self, state: &mut State) -> Result<CqEvent> {
        let connection = state.connection.as_mut().ok_or(Errno::ENOTCONN)?;
        if !connection.channel.nonblocking {
            // It cannot fail for our own descriptor.
            let _ = event::set_nonblocking(connection.channel.completions.fd(), true);
            connection.channel.nonblocking = true;
        }
        // SAFETY: the channel is live while the lock is held.
        unsafe { connection.channel.completions.handle().take() }
    }

    #[inline]
    fn note_event(state: &mut State, event: &CqEvent) -> bool {
        state.connection.as_mut().is_some_and(|connection| connection.note_event(event))
    }
}
