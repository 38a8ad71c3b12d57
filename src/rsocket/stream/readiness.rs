//! The poll(2) events of a stream.

use std::ffi::c_short;
use std::sync::atomic::Ordering;

use libc::{POLLERR, POLLHUP, POLLNVAL, POLLRDHUP};

use super::channel_leader::EventSource;
use super::{Guard, Notice, Phase, State, Stream, blocking, channel_leader};
use crate::errno::Result;
use crate::os::alloc::try_push_small;
use crate::os::event::Deadline;
use crate::rsocket::pollable::{Descriptors, IN, OUT, Pollable, Watchers};

impl State {
    /// Returns all events that are pending.
    fn pending_events(&self) -> c_short {
        let set = |bits: c_short, on: bool| if on { bits } else { 0 };
        let error = set(POLLERR, self.error.is_some());
        match &self.phase {
            Phase::Idle | Phase::Failed { reported: true } => OUT | POLLHUP | error,
            Phase::Listening(listening) => set(IN, listening.has_ready() || self.shut_read) | error,
            Phase::Connecting(_) | Phase::Accepting(_) => 0,
            Phase::Failed { reported: false } | Phase::Disconnected => IN | OUT | POLLRDHUP | POLLHUP | error,
            Phase::Connected => {
                let connection = self.connection.as_ref();
                let available = connection.is_some_and(|connection| connection.available() > 0);
                let space = connection.is_some_and(|connection| connection.can_send());
                let read_ended = self.eof || self.shut_read;
                set(IN, available || read_ended)
                    | set(OUT, space || self.shut_write)
                    | set(POLLRDHUP, read_ended)
                    | error
            }
            Phase::Closing | Phase::Closed => POLLNVAL,
        }
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
            self.pending_events() & (wanted | POLLERR | POLLHUP | POLLNVAL)
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

    /// Locks the state for polling, and sends held data if the calling thread polls for data.
    /// Returns POLLNVAL as the error in a child of fork().
    #[expect(clippy::inline_always, reason = "rpoll comes here for each descriptor")]
    #[inline(always)]
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
    #[expect(clippy::inline_always, reason = "rpoll comes here for each descriptor")]
    #[inline(always)]
    fn ready(&self, wanted: c_short) -> c_short {
        match self.lock_to_poll(wanted) {
            Ok(mut state) => {
                self.process_completions(&mut state);
                state.wanted(wanted)
            }
            Err(bits) => bits,
        }
    }

    fn is_ready(&self, wanted: c_short) -> bool {
        match self.lock_to_poll(wanted) {
            Ok(mut state) => {
                state.wanted(wanted) != 0 || self.process_completions(&mut state) && state.wanted(wanted) != 0
            }
            Err(bits) => bits != 0,
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
        if blocking::should_spin(&mut state) {
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
            && let (Phase::Connected | Phase::Disconnected, Some(connection)) = (&state.phase, &state.connection)
            && !connection.channel.device_gone
            // The leader reads the event and notifies the watchers. Meanwhile the watchers would
            // find the channel readable again and again.
            && !connection.channel.leadership.has_other_leader(Stream::this_thread())
        {
            try_push_small(&mut all, connection.channel.completions.fd())?;
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

    fn bits(on: bool, bits: c_short) -> c_short {
        if on { bits } else { 0 }
    }

    #[test]
    fn events_of_each_phase() {
        for flags in 0..16 {
            let [eof, shut_read, shut_write, has_error] = [1, 2, 4, 8].map(|flag| flags & flag != 0);
            let events = |phase| {
                let mut state = state(phase);
                (state.eof, state.shut_read, state.shut_write) = (eof, shut_read, shut_write);
                state.error = has_error.then_some(Errno::ECONNRESET);
                state.pending_events()
            };
            let error = bits(has_error, POLLERR);
            // As with TCP: before a stream is connected, and after its end.
            let (unconnected, over) = (POLLHUP | OUT | error, IN | OUT | POLLRDHUP | POLLHUP | error);
            assert_eq!((events(Phase::Idle), events(failed(true))), (unconnected, unconnected));
            assert_eq!((events(Phase::Disconnected), events(failed(false))), (over, over));
            assert_eq!((events(connecting()), events(Phase::Accepting(Weak::new()))), (0, 0));
            assert_eq!((events(Phase::Closing), events(Phase::Closed)), (POLLNVAL, POLLNVAL));
            assert_eq!(events(listening()), bits(shut_read, IN) | error);
            let ended = bits(eof | shut_read, IN | POLLRDHUP);
            assert_eq!(events(Phase::Connected), ended | bits(shut_write, OUT) | error, "{flags:#x}");
        }
    }

    #[test]
    fn nobody_gets_bits_that_were_not_asked_for() {
        for wanted in [0, IN, OUT, POLLRDHUP, IN | OUT, libc::POLLPRI] {
            let mut ended = state(Phase::Disconnected);
            ended.error = Some(Errno::ECONNRESET);
            assert_eq!(ended.wanted(wanted), wanted & (IN | OUT | POLLRDHUP) | POLLHUP | POLLERR);
            assert_eq!(state(Phase::Closed).wanted(wanted), POLLNVAL);
            assert_eq!(state(connecting()).wanted(wanted), 0);
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
