//! The traits that the model-checked modules require of a stream, implemented by the model.

use std::ffi::c_short;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::os::fd::AsRawFd;

use libc::{POLLIN, POLLNVAL};

use super::*;
use crate::os::alloc::try_push_small;

impl EventSource for Stream {
    type State = State;
    type Channel = std::sync::Arc<Channel>;
    type Event = Kind;

    fn this_thread() -> usize {
        let mut hasher = DefaultHasher::new();
        loom::thread::current().id().hash(&mut hasher);
        hasher.finish() as usize | 1
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn changed(&self) -> &Changes {
        &self.changed
    }

    fn notify_pollers(&self) {
        self.watchers.notify(Notice::Changed);
    }

    fn leadership(state: &mut State) -> Option<&mut Leadership> {
        (!state.released).then_some(&mut state.leadership)
    }

    fn uses_channel(state: &State) -> bool {
        !state.closed
    }

    fn process_completions(&self, state: &mut State) -> bool {
        if state.closed {
            return false;
        }
        let mut sent = 0;
        let mut any = mem::take(&mut state.pending_notify);
        for received in self.cqs.poll(usize::MAX) {
            assert_eq!(received.number, state.processed);
            any = true;
            state.processed += 1;
            state.available += received.data;
            if state.starting && received.data > 0 {
                state.starting = false;
                self.all_sent.raise();
            }
        }
        if state.waiting_for_space > 0 || state.held {
            sent += self.cqs.poll_sent(u32::MAX);
        }
        any |= sent > 0;
        state.space += sent;
        if state.held && state.space > 0 {
            self.send_held(state);
        }
        if any {
            self.changed.notify();
        }
        channel_leader::ensure_flush_scheduled(self, state);
        channel_leader::ensure_armed(self, state);
        any
    }

    fn arm_recv_cq(&self, state: &mut State) -> bool {
        if !state.released && !mem::replace(&mut state.leadership.armed, true) {
            self.cqs.queue.lock().unwrap().armed = true;
        }
        !state.released
    }

    fn arm_send_cq(&self, state: &mut State) -> bool {
        let arms = (state.waiting_for_space > 0 || state.held) && !state.sent_armed;
        if arms {
            self.cqs.queue.lock().unwrap().sent_armed = true;
            state.sent_armed = true;
        }
        arms
    }

    fn is_send_cq_armed(state: &State) -> bool {
        state.sent_armed
    }

    fn channel_failed(&self, _: &mut State) {
        unreachable!("the model's channel never fails");
    }

    fn read_event(&self, state: &mut State) -> Result<Kind> {
        assert!(!state.released);
        self.channel.take(false)
    }

    fn lead(&self, state: &mut State) -> Option<Self::Channel> {
        if state.released {
            return None;
        }
        state.leadership.leader = Self::this_thread();
        Some(self.channel.clone())
    }

    fn sleep(channel: Self::Channel, until: Until) -> Result<Kind> {
        match channel.take(until.deadline.is_none()) {
            Err(Errno::EAGAIN) => Err(Errno::ETIMEDOUT),
            result => result,
        }
    }

    fn note_event(state: &mut State, event: &Kind) {
        state.leadership.leader = 0;
        match event {
            Kind::Received => state.leadership.armed = false,
            Kind::Sent => state.sent_armed = false,
        }
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock().ok()
    }

    fn has_held(state: &State) -> bool {
        state.held
    }

    fn send_held(&self, state: &mut State) {
        state.held = false;
        self.all_sent.raise();
    }

    fn must_hold(&self, state: &mut State) -> bool {
        let sent = self.cqs.poll_sent(u32::MAX);
        state.pending_notify |= sent > 0;
        state.space += sent;
        state.space == 0
    }

    fn watch(&self, state: &mut State) -> bool {
        if !mem::replace(&mut state.watched, true) {
            self.asked.raise();
        }
        true
    }

    fn watched(&self, state: &mut State) {
        state.watched = false;
    }

    fn watch_soon(&self, state: &mut State) {
        self.watch(state);
    }

    fn is_starting(state: &State) -> bool {
        state.starting
    }

    fn is_watched(state: &State) -> bool {
        state.watched
    }
}

impl Pollable for Stream {
    fn ready(&self, wanted: c_short) -> c_short {
        let mut state = self.lock();
        self.process_completions(&mut state);
        bits(&state, wanted)
    }

    fn arm(&self, wanted: c_short) -> c_short {
        let mut state = self.lock();
        if channel_leader::may_lead::<Stream>(&mut state) {
            channel_leader::arm(self, &mut state);
        } else {
            channel_leader::arm_send_cq(self, &mut state);
            self.process_completions(&mut state);
        }
        bits(&state, wanted)
    }

    fn wait_alone(&self, wanted: c_short, deadline: Deadline) -> Option<Result<c_short>> {
        let ready = |state: &State| Some(bits(state, wanted)).filter(|&bits| bits != 0);
        Some(channel_leader::wait_alone(self, self.lock(), deadline.instant(), ready)?.map(Option::unwrap_or_default))
    }

    fn take_event(&self) {
        let mut state = self.lock();
        channel_leader::take_event(self, &mut state);
    }

    fn descriptors(&self) -> Result<Descriptors> {
        let (state, mut all) = (self.lock(), Descriptors::new());
        if !state.released && !state.leadership.has_leader() {
            try_push_small(&mut all, self.channel.events.as_raw_fd())?;
        }
        Ok(all)
    }

    fn watchers(&self) -> &Watchers {
        &self.watchers
    }
}

fn bits(state: &State, wanted: c_short) -> c_short {
    match (state.closed, state.available > 0 || state.shut) {
        (true, _) => POLLNVAL,
        (false, true) => wanted & POLLIN,
        (false, false) => 0,
    }
}
