//! The poll(2) events of a stream.

use std::ffi::c_short;
use std::sync::atomic::Ordering;

use libc::{POLLERR, POLLHUP, POLLNVAL, POLLRDHUP};

use super::channel_leader::EventSource;
use super::{Guard, Notice, Phase, State, Stream, channel_leader};
use crate::errno::Result;
use crate::os::event::Deadline;
use crate::rsocket::pollable::{Descriptors, IN, OUT, Pollable, Watchers};
use crate::rsocket::reactor::LOCK_TIMEOUT;

/// What, besides the phase, determines the pending events of a stream.
#[derive(Clone, Copy, Debug)]
struct Conditions {
    /// There is data to read, or a connection to accept.
    available: bool,
    /// Data can be sent.
    space: bool,
    /// No more data comes: the peer has sent all, or the program has shut down reading.
    read_ended: bool,
    /// The program has shut down writing.
    write_ended: bool,
    /// An error is pending.
    error: bool,
}

impl Conditions {
    /// Returns all events that are pending in `phase`.
    #[inline]
    fn events(self, phase: &Phase) -> c_short {
        let set = |bits: c_short, on: bool| if on { bits } else { 0 };
        let Conditions { available, space, read_ended, write_ended, error } = self;
        let error = set(POLLERR, error);
        match phase {
            Phase::Idle | Phase::Failed { reported: true } => OUT | POLLHUP | error,
            Phase::Listening(_) => set(IN, available || read_ended) | error,
            Phase::Connecting(_) | Phase::Accepting(_) => 0,
            Phase::Failed { reported: false } | Phase::Disconnected => IN | OUT | POLLRDHUP | POLLHUP | error,
            Phase::Connected => {
                set(IN, available || read_ended) | set(OUT, space || write_ended) | set(POLLRDHUP, read_ended) | error
            }
            Phase::Closing | Phase::Closed => POLLNVAL,
        }
    }
}

/// Returns the pending events that are `wanted`, and those that poll(2) always reports.
#[inline]
fn masked(pending: c_short, wanted: c_short) -> c_short {
    pending & (wanted | POLLERR | POLLHUP | POLLNVAL)
}

impl State {
    /// Returns all events that are pending.
    #[inline]
    fn pending_events(&self) -> c_short {
        let connection = self.connection.as_ref();
        let (available, read_ended) = match &self.phase {
            Phase::Listening(listening) => (listening.has_ready(), self.shut_read),
            _ => (connection.is_some_and(|connection| connection.available() > 0), self.eof || self.shut_read),
        };
        let space = connection.is_some_and(|connection| connection.can_send());
        let (write_ended, error) = (self.shut_write, self.error.is_some());
        Conditions { available, space, read_ended, write_ended, error }.events(&self.phase)
    }

    /// Returns the pending events that are `wanted`, and those that poll(2) always reports.
    #[inline]
    pub(super) fn wanted(&self, wanted: c_short) -> c_short {
        // The usual case.
        if let (Phase::Connected, Some(connection), None) = (&self.phase, &self.connection, self.error)
            && !(self.eof | self.shut_read | self.shut_write | self.handed_over)
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
            masked(self.pending_events(), wanted)
        }
    }
}

impl Stream {
    /// Wakes all threads that wait for the stream, the leader included.
    pub(super) fn wake_all(&self, state: &mut State) {
        if let Some(connection) = state.with_leader() {
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

    /// Processes completions. Returns the poll bits, like [`Pollable::ready`].
    #[expect(clippy::inline_always, reason = "rpoll comes here for each descriptor")]
    #[inline(always)]
    fn look(&self, state: &mut Guard<'_>, wanted: c_short) -> c_short {
        if wanted & IN != 0 {
            self.flush_before_read(state);
        }
        self.process_completions(state);
        state.wanted(wanted)
    }

    /// Locks the state for polling. Returns `None` if the stream connects in a command that may
    /// block: then no event is pending until the watchers are notified.
    #[inline]
    pub(super) fn lock_to_poll(&self) -> Option<Guard<'_>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(_) => self.lock_to_poll_slowly(),
        }
    }

    #[cold]
    fn lock_to_poll_slowly(&self) -> Option<Guard<'_>> {
        loop {
            // A command may begin after this check, so the wait for the lock is limited.
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
    #[expect(clippy::inline_always, reason = "rpoll comes here for each descriptor")]
    #[inline(always)]
    fn ready(&self, wanted: c_short) -> c_short {
        if !self.owner.is_this_process() {
            return POLLNVAL;
        }
        let Some(mut state) = self.lock_to_poll() else { return 0 };
        self.look(&mut state, wanted)
    }

    fn is_ready(&self, wanted: c_short) -> bool {
        if !self.owner.is_this_process() {
            return true;
        }
        let Some(mut state) = self.lock_to_poll() else { return false };
        if wanted & IN != 0 {
            self.flush_before_read(&mut state);
        }
        state.wanted(wanted) != 0 || self.process_completions(&mut state) && state.wanted(wanted) != 0
    }

    fn arm(&self, wanted: c_short) -> c_short {
        if !self.owner.is_this_process() {
            return POLLNVAL;
        }
        let Some(mut state) = self.lock_to_poll() else { return 0 };
        if wanted & IN != 0 {
            self.flush_before_read(&mut state);
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

    fn descriptors(&self) -> Result<Descriptors> {
        let mut all = Descriptors::new();
        let state = if self.owner.is_this_process() { self.lock_to_poll() } else { None };
        let Some(state) = state else { return Ok(all) };
        if let (Phase::Connected | Phase::Disconnected, Some(connection)) = (&state.phase, &state.connection)
            && !connection.channel.device_gone
            // The leader reads the event and notifies the watchers. Until it does, they would find
            // the channel readable again and again.
            && !connection.channel.leadership.has_other_leader(Stream::this_thread())
        {
            all.push(connection.channel.completions.fd())?;
        }
        Ok(all)
    }

    fn edges(&self) -> u64 {
        self.edges.load(Ordering::Relaxed)
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
    use std::sync::Weak;

    /// All conditions, each of them on and off.
    fn all() -> impl Iterator<Item = Conditions> {
        (0..32).map(|bits| Conditions {
            available: bits & 1 != 0,
            space: bits & 2 != 0,
            read_ended: bits & 4 != 0,
            write_ended: bits & 8 != 0,
            error: bits & 16 != 0,
        })
    }

    fn bits(on: bool, bits: c_short) -> c_short {
        if on { bits } else { 0 }
    }

    #[test]
    fn events_of_each_phase() {
        for conditions in all() {
            let events = |phase| conditions.events(&phase);
            let error = bits(conditions.error, POLLERR);
            let readable = bits(conditions.available | conditions.read_ended, IN);
            // As with TCP: before a stream is connected, and after its end.
            let (unconnected, over) = (POLLHUP | OUT | error, IN | OUT | POLLRDHUP | POLLHUP | error);
            assert_eq!((events(Phase::Idle), events(failed(true))), (unconnected, unconnected));
            assert_eq!((events(Phase::Disconnected), events(failed(false))), (over, over));
            assert_eq!((events(connecting()), events(Phase::Accepting(Weak::new()))), (0, 0));
            assert_eq!((events(Phase::Closing), events(Phase::Closed)), (POLLNVAL, POLLNVAL));
            assert_eq!(events(listening()), readable | error);
            let writable = bits(conditions.space | conditions.write_ended, OUT);
            let ended = bits(conditions.read_ended, POLLRDHUP);
            assert_eq!(events(Phase::Connected), readable | writable | ended | error, "{conditions:?}");
        }
    }

    #[test]
    fn nobody_gets_bits_that_were_not_asked_for() {
        let errors = POLLERR | POLLHUP | POLLNVAL;
        for wanted in [0, IN, OUT, POLLRDHUP, IN | OUT, libc::POLLPRI] {
            assert_eq!(masked(!0, wanted), wanted | errors);
            assert_eq!(masked(0, wanted), 0);
            let ended = state(Phase::Disconnected);
            assert_eq!(ended.wanted(wanted), wanted & (IN | OUT | POLLRDHUP) | POLLHUP);
        }
    }

    #[test]
    fn what_the_program_and_the_peer_have_done_is_pending() {
        let mut listener = state(listening());
        assert_eq!(listener.wanted(IN | OUT), 0);
        (listener.shut_read, listener.error) = (true, Some(Errno::ENETDOWN));
        assert_eq!(listener.wanted(IN | OUT), IN | POLLERR);
        let changes: [fn(&mut State); 5] = [
            |_| {},
            |state| state.eof = true,
            |state| state.shut_read = true,
            |state| state.shut_write = true,
            |state| state.error = Some(Errno::ECONNRESET),
        ];
        let events = changes.map(|change| {
            let mut state = state(Phase::Connected);
            change(&mut state);
            state.wanted(IN | OUT | POLLRDHUP)
        });
        assert_eq!(events, [0, IN | POLLRDHUP, IN | POLLRDHUP, OUT, POLLERR]);
    }

    #[test]
    fn a_stream_that_was_handed_over_is_the_forwarders() {
        let mut state = state(Phase::Disconnected);
        state.handed_over = true;
        assert_eq!(state.wanted(IN), POLLNVAL);
        assert_eq!(state.wanted(IN | base::private::FORWARDER_EVENT), IN | POLLHUP);
    }
}
