//! Waiting, as leader in the completion channel or as one who is told.

use std::ffi::c_int;
use std::hint;
use std::time::{Duration, Instant};

use super::{Guard, Notice, Phase, State, Stream};
use crate::errno::{Errno, Result};
use crate::rsocket::config::defaults;
use crate::sys::rc::Events;
use crate::sys::{clock, event};

/// One blocking call's waiting.
pub(super) struct Wait {
    deadline: Option<Instant>,
    /// How long it may look before it sleeps, until it has slept.
    spin: Option<Duration>,
}

impl Wait {
    pub fn new(deadline: Option<Instant>) -> Wait {
        // Looking keeps the only CPU from whoever would make the change.
        let spin = (event::cpus() > 1).then(|| Duration::from_micros(defaults().polling_time_us.into()));
        Wait { deadline, spin }
    }
}

impl Stream {
    /// Waits until something may have changed: `ETIMEDOUT` at the deadline, `EINTR` after a signal whose handler asks for it.
    pub(super) fn sleep<'a>(&'a self, mut state: Guard<'a>, wait: &mut Wait) -> (Guard<'a>, Result<()>) {
        if !self.leads(&state) {
            let count = self.changed.count();
            drop(state);
            let result = self.changed.wait(count, wait.deadline);
            return (self.lock(), result);
        }
        if self.look(&mut state, wait.spin.take()) || self.arm_channel(&mut state) {
            return (state, Ok(()));
        }
        let Some((events, fd)) = state.begin_leading() else { return (state, Ok(())) };
        drop(state);
        let result = wait_in_channel(events, fd, wait.deadline);
        let mut state = self.lock();
        self.end_leading(&mut state, result.is_ok());
        match result {
            Ok(()) | Err(Errno::EINTR | Errno::ETIMEDOUT | Errno::EAGAIN) => (state, result),
            Err(_) => {
                self.cut_off(&mut state);
                (state, Ok(()))
            }
        }
    }

    /// Whether a thread that wants to wait may do so in the completion channel.
    fn leads(&self, state: &State) -> bool {
        match (&state.phase, &state.link) {
            (Phase::Connected | Phase::Disconnected, Some(link)) => !link.leader && !link.cut_off,
            _ => false,
        }
    }

    /// Looks for a while, without sleeping; whether something came.
    fn look(&self, state: &mut State, time: Option<Duration>) -> bool {
        let Some(time) = time else { return false };
        let start = Instant::now();
        loop {
            if self.poll(state).any {
                return true;
            }
            if start.elapsed() >= time {
                return false;
            }
            hint::spin_loop();
        }
    }

    /// Has the next completion raise an event, and looks once more; whether something came.
    pub(super) fn arm_channel(&self, state: &mut State) -> bool {
        let Some(link) = &mut state.link else { return false };
        if !link.armed {
            if link.cut_off || link.completions.arm().is_err() {
                self.cut_off(state);
                return true;
            }
            link.armed = true;
        }
        self.poll(state).any
    }

    fn end_leading(&self, state: &mut State, took: bool) {
        if let Some(link) = &mut state.link {
            link.leader = false;
            if took {
                link.completions.took();
                link.armed = false;
            }
        }
        self.poll(state);
        // Those who wait to be told: one of them leads next, if this thread is done.
        self.changed.notify();
        if took && !self.watchers.is_empty() {
            // They rely on the event that this thread has taken.
            self.watchers.notify(Notice::Changed);
        }
    }

    /// The device is gone, and with it the QP: the kernel answers with `EIO`, before the connection manager knows. Nothing
    /// completes any more.
    fn cut_off(&self, state: &mut State) {
        let Some(link) = state.link.as_mut().filter(|link| !link.cut_off) else { return };
        link.cut_off = true;
        link.fail(Errno::ENETDOWN);
        state.disconnect(Some(Errno::ENETDOWN));
        self.notify(Notice::Changed);
    }

    /// Takes a completion event, if one is there, on behalf of a poller.
    pub(super) fn take_channel_event(&self, state: &mut State) {
        let Some(link) = state.link.as_mut().filter(|link| !link.leader) else { return };
        if !link.nonblocking {
            // It cannot fail for our own descriptor.
            let _ = event::set_nonblocking(link.completions.fd(), true);
            link.nonblocking = true;
        }
        // SAFETY: the channel is live while the lock is held.
        match unsafe { link.completions.events().take() } {
            Ok(()) => {
                link.completions.took();
                link.armed = false;
            }
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(_) => self.cut_off(state),
        }
    }
}

impl State {
    fn begin_leading(&mut self) -> Option<(Events, c_int)> {
        let link = self.link.as_mut()?;
        if link.nonblocking {
            let _ = event::set_nonblocking(link.completions.fd(), false);
            link.nonblocking = false;
        }
        link.leader = true;
        Some((link.completions.events(), link.completions.fd()))
    }
}

/// Whoever ends the link waits until its leader is back, so the channel is live.
fn wait_in_channel(events: Events, fd: c_int, deadline: Option<Instant>) -> Result<()> {
    if let Some(deadline) = deadline {
        let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        if event::poll(&mut fds, Some(clock::left(deadline).unwrap_or_default()))? == 0 {
            return Err(Errno::ETIMEDOUT);
        }
    }
    // A read that a signal ends or does not end, as the program's handler wants it.
    // SAFETY: see above.
    unsafe { events.take() }
}
