//! The poll(2) events of a stream.

use std::ffi::{c_int, c_short};
use std::sync::atomic::Ordering;

use libc::{POLLERR, POLLHUP, POLLNVAL, POLLRDHUP};

use super::channel_leader::EventSource;
use super::{Guard, Notice, Phase, State, Stream, channel_leader, polling};
use crate::errno::Result;
use crate::rsocket::poll_events::{IN, OUT};
use crate::rsocket::pollable::{Lent, Pollable, Watchers};
use crate::rsocket::reactor::LOCK_TIMEOUT;
use crate::sys::event::Deadline;
use crate::sys::unlocked;

impl State {
    /// Returns all events that are pending.
    fn pending_events(&self) -> c_short {
        let set = |bits: c_short, on: bool| if on { bits } else { 0 };
        let error = set(POLLERR, self.error.is_some());
        match &self.phase {
            Phase::Idle | Phase::Failed { reported: true } => OUT | POLLHUP | error,
            Phase::Listening(listening) => set(IN, listening.has_ready() || self.shut_read) | error,
            Phase::Connecting(_) | Phase::Accepting(_) => 0,
            Phase::Failed { reported: false } => IN | OUT | POLLRDHUP | POLLHUP | error,
            Phase::Connected => {
                let connection = self.connection.as_ref();
                let readable =
                    self.eof || self.shut_read || connection.is_some_and(|connection| connection.available() > 0);
                let writable = self.shut_write || connection.is_some_and(|connection| connection.can_send());
                set(IN, readable) | set(OUT, writable) | set(POLLRDHUP, self.eof || self.shut_read) | error
            }
            Phase::Disconnected => IN | OUT | POLLRDHUP | POLLHUP | error,
            Phase::Closing | Phase::Closed => POLLNVAL,
        }
    }

    /// Fast path for polling many connections: returns whether none of the `wanted` events, no
    /// error and no hang-up is pending.
    #[inline]
    fn is_quiet(&self, wanted: c_short) -> bool {
        matches!(self.phase, Phase::Connected)
            && self.error.is_none()
            && !(self.eof || self.shut_read || self.shut_write || self.handed_over)
            && self
                .connection
                .as_ref()
                .is_some_and(|connection| connection.available() == 0 && (wanted & OUT == 0 || !connection.can_send()))
    }

    /// Returns the pending events that are `wanted`, and those that poll(2) always reports.
    #[inline]
    pub(super) fn wanted(&self, wanted: c_short) -> c_short {
        if self.is_quiet(wanted) {
            0
        } else if self.handed_over && wanted & rdmacm_private::FORWARDER_EVENT == 0 {
            POLLNVAL
        } else {
            self.pending_events() & (wanted | POLLERR | POLLHUP | POLLNVAL)
        }
    }
}

impl Stream {
    /// librspreload has given the program's numbers to other sockets, and forwards the data. Those
    /// that wait for the stream are woken, to wait for these.
    pub fn hand_over(&self) -> Result<()> {
        let mut state = self.enter()?;
        state.handed_over = true;
        self.wake_leader(&mut state);
        drop(state);
        self.notify(Notice::Changed);
        Ok(())
    }

    /// Processes completions. Returns the poll bits, as [`Pollable::ready`].
    #[inline]
    fn look(&self, state: &mut Guard<'_>, wanted: c_short) -> c_short {
        if wanted & IN != 0 {
            self.turn_to_receive(state);
        }
        self.process_completions(state);
        state.wanted(wanted)
    }

    /// Locks the state for polling. Returns `None` if no event is pending and this lasts until the
    /// watchers are notified, because the stream connects in a command that may block; and in a
    /// signal handler, as [`is_locked_by_this_thread`](Pollable::is_locked_by_this_thread) does.
    #[inline]
    pub(super) fn lock_to_poll(&self) -> Option<Guard<'_>> {
        match self.state.try_enter() {
            Ok(state) if self.is_in_use_here(&state) => None,
            Ok(state) => Some(state),
            Err(_) => self.lock_to_poll_slowly(),
        }
    }

    #[cold]
    fn lock_to_poll_slowly(&self) -> Option<Guard<'_>> {
        if self.is_locked_by_this_thread() {
            return None;
        }
        loop {
            // The command may begin after this, so the wait for the lock is limited.
            if self.in_command.load(Ordering::SeqCst) {
                return None;
            }
            if let Ok(state) = self.state.lock_within(LOCK_TIMEOUT) {
                return Some(state);
            }
        }
    }
}

impl Pollable for Stream {
    fn ready(&self, wanted: c_short) -> c_short {
        if !self.owner.is_this_process() {
            return POLLNVAL;
        }
        self.lock_to_poll().map_or(0, |mut state| self.look(&mut state, wanted))
    }

    fn ready_and_lend(&self, wanted: c_short) -> (c_short, Option<Lent>) {
        if !self.owner.is_this_process() {
            return (POLLNVAL, None);
        }
        let count = self.changed.count();
        let Some(mut state) = self.lock_to_poll() else { return (0, None) };
        let ready = self.look(&mut state, wanted);
        let lent = if ready == 0 { polling::lend_to_several::<Stream>(&mut state) } else { None };
        (ready, lent.map(|cqs| Lent { cqs, count }))
    }

    fn poll_lent(&self, lent: &Lent) -> bool {
        // The child of a fork in a signal handler may return to a call that its parent has begun.
        !self.owner.is_this_process() || polling::poll_one_of_several(self, &lent.cqs, lent.count)
    }

    fn is_locked_by_this_thread(&self) -> bool {
        self.state.is_interrupted() || unlocked::is_used_here(self)
    }

    fn is_ready(&self, wanted: c_short) -> bool {
        if !self.owner.is_this_process() {
            return true;
        }
        let Some(mut state) = self.lock_to_poll() else { return false };
        if wanted & IN != 0 {
            self.turn_to_receive(&mut state);
        }
        state.wanted(wanted) != 0 || self.process_completions(&mut state) && state.wanted(wanted) != 0
    }

    fn arm(&self, wanted: c_short) -> c_short {
        if !self.owner.is_this_process() {
            return POLLNVAL;
        }
        let Some(mut state) = self.lock_to_poll() else { return 0 };
        if wanted & IN != 0 {
            self.turn_to_receive(&mut state);
        }
        if channel_leader::may_lead::<Stream>(&mut state) {
            channel_leader::arm(self, &mut state);
        } else {
            // The leader has armed the channel, but perhaps not for send completions.
            channel_leader::arm_send_cq(self, &mut state);
            self.process_completions(&mut state);
        }
        state.wanted(wanted)
    }

    fn wait_alone(&self, wanted: c_short, deadline: Deadline) -> Option<Result<c_short>> {
        if !self.owner.is_this_process() {
            return None;
        }
        Stream::wait_alone(self, wanted, deadline.instant())
    }

    fn take_event(&self) {
        if self.owner.is_this_process()
            && let Some(mut state) = self.lock_to_poll()
        {
            channel_leader::take_event(self, &mut state);
        }
    }

    fn descriptors(&self, add: &mut dyn FnMut(c_int)) {
        if !self.owner.is_this_process() {
            return;
        }
        let Some(state) = self.lock_to_poll() else { return };
        if let (Phase::Connected | Phase::Disconnected, Some(connection)) = (&state.phase, &state.connection)
            && !connection.channel.device_gone
            // The leader reads the event and notifies the watchers. Until it does, they would find
            // the channel readable again and again.
            && !connection.channel.leadership.has_other_leader(Stream::this_thread())
        {
            add(connection.channel.completions.fd());
        }
    }

    fn edges(&self) -> u64 {
        self.edges.load(Ordering::Relaxed)
    }

    fn ready_connections(&self) -> usize {
        match self.lock_to_poll().as_deref().map(|state| &state.phase) {
            Some(Phase::Listening(listening)) => listening.ready_count(),
            _ => 0,
        }
    }

    fn watchers(&self) -> &Watchers {
        &self.watchers
    }
}
