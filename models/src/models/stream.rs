//! A stream reduced to its waiting: a completion queue with a channel, data that is counted, and the calls that wait.

use std::collections::VecDeque;
use std::ffi::{c_int, c_short};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use libc::{POLLIN, POLLNVAL};
use loom::sync::{Mutex, MutexGuard};

use crate::errno::{Errno, Result};
use crate::sys::event::{Deadline, EventFd};
use crate::sys::futex::Changes;
use crate::channel_leader::{self, EventSource, Leadership, Until};
use crate::watch::{Notice, Pollable, Watchers};

/// Any deadline: they come at once.
pub fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(1))
}

/// The completion queue.
#[derive(Default)]
struct Queue {
    /// Completions, and those among them that bring data.
    any: u32,
    data: u32,
    armed: bool,
    /// What was sent and is complete, each of which brings room: a queue of its own.
    sent: u32,
    sent_armed: bool,
}

/// The completion channel: which queue its events are of, too.
pub struct Channel {
    events: EventFd,
    kinds: Mutex<VecDeque<Kind>>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Received,
    Sent,
}

impl Channel {
    fn new() -> Channel {
        Channel { events: EventFd::new().unwrap(), kinds: Mutex::default() }
    }

    fn raise(&self, kind: Kind) {
        self.kinds.lock().unwrap().push_back(kind);
        self.events.raise();
    }

    fn take(&self, wait: bool) -> Result<Kind> {
        self.events.take(wait)?;
        Ok(self.kinds.lock().unwrap().pop_front().unwrap())
    }
}

pub struct State {
    leadership: Leadership,
    pub available: u32,
    /// Room to send, and those who wait for it.
    room: u32,
    wanting: u32,
    sent_armed: bool,
    shut: bool,
    closed: bool,
    /// The channel is gone.
    released: bool,
}

pub struct Stream {
    queue: Mutex<Queue>,
    channel: std::sync::Arc<Channel>,
    pub state: Mutex<State>,
    changed: Changes,
    watchers: Watchers,
}

impl Stream {
    pub fn new() -> Stream {
        Stream {
            queue: Mutex::default(),
            channel: std::sync::Arc::new(Channel::new()),
            state: Mutex::new(State {
                leadership: Leadership::default(),
                available: 0,
                room: 0,
                wanting: 0,
                sent_armed: false,
                shut: false,
                closed: false,
                released: false,
            }),
            changed: Changes::default(),
            watchers: Watchers::default(),
        }
    }

    /// The device: something completed.
    fn complete(&self, data: u32) {
        let mut queue = self.queue.lock().unwrap();
        queue.any += 1;
        queue.data += data;
        if queue.armed {
            queue.armed = false;
            self.channel.raise(Kind::Received);
        }
    }

    /// The device: something that was sent is complete.
    pub fn complete_sent(&self) {
        let mut queue = self.queue.lock().unwrap();
        queue.sent += 1;
        if queue.sent_armed {
            queue.sent_armed = false;
            self.channel.raise(Kind::Sent);
        }
    }

    /// Waits for room and takes it.
    pub fn send(&self) {
        let mut state = self.lock();
        state.wanting += 1;
        loop {
            self.process_completions(&mut state);
            if state.room > 0 {
                state.room -= 1;
                state.wanting -= 1;
                return;
            }
            state = channel_leader::wait(self, state, None).0;
        }
    }

    /// The peer sent something.
    pub fn arrive(&self) {
        self.arrive_many(1);
    }

    /// The peer sent so much in one piece.
    pub fn arrive_many(&self, data: u32) {
        self.complete(data);
    }

    /// Tells everybody of nothing.
    pub fn wake(&self) {
        self.notify(Notice::Changed);
    }

    /// Takes one piece of data. `EBADF` after close, `false` after shutdown.
    pub fn receive(&self, deadline: Option<Instant>) -> Result<bool> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return Err(Errno::EBADF);
            }
            if state.available == 0 {
                self.process_completions(&mut state);
            }
            if state.available > 0 {
                state.available -= 1;
                return Ok(true);
            }
            if state.shut {
                return Ok(false);
            }
            let (back, result) = channel_leader::wait(self, state, deadline);
            state = back;
            if !state.closed {
                result?;
            }
        }
    }

    /// As a call that does not wait.
    pub fn receive_now(&self) -> bool {
        let mut state = self.lock();
        self.process_completions(&mut state);
        let some = state.available > 0;
        state.available -= u32::from(some);
        some
    }

    /// Somebody wants room from now on, who does not wait for it in a call.
    pub fn want_room(&self) {
        self.lock().wanting += 1;
    }

    /// As calls that do not wait, until there is neither data nor room: how much there was.
    pub fn take_all(&self) -> (u32, u32) {
        let mut state = self.lock();
        self.process_completions(&mut state);
        (mem::take(&mut state.available), mem::take(&mut state.room))
    }

    fn notify(&self, notice: Notice) {
        self.changed.notify();
        self.watchers.notify(notice);
    }

    pub fn shut_down(&self) {
        let mut state = self.lock();
        state.shut = true;
        if state.leadership.has_leader() {
            self.complete(0);
        }
        self.notify(Notice::Changed);
    }

    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        if state.leadership.has_leader() {
            self.complete(0);
        }
        drop(state);
        self.notify(Notice::Closed);
        let Ok(mut state) = channel_leader::wait_for_no_leader(self, self.lock()) else { unreachable!("no signal handlers here") };
        assert!(!state.leadership.has_leader());
        state.released = true;
    }
}

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
        let mut queue = self.queue.lock().unwrap();
        let mut any = queue.any > 0;
        state.available += queue.data;
        (queue.any, queue.data) = (0, 0);
        if state.wanting > 0 {
            any |= queue.sent > 0;
            state.room += mem::take(&mut queue.sent);
        }
        drop(queue);
        if any {
            self.changed.notify();
        }
        any
    }

    fn arm_recv_cq(&self, _: &mut State) -> bool {
        self.queue.lock().unwrap().armed = true;
        true
    }

    fn arm_send_cq(&self, state: &mut State) -> bool {
        let asks = state.wanting > 0 && !state.sent_armed;
        if asks {
            self.queue.lock().unwrap().sent_armed = true;
            state.sent_armed = true;
        }
        asks
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

    fn channel(&self, state: &mut State) -> Option<Self::Channel> {
        (!state.released).then(|| self.channel.clone())
    }

    fn sleep(channel: Self::Channel, until: Until) -> Result<Kind> {
        match channel.take(until.deadline.is_none()) {
            Err(Errno::EAGAIN) => Err(Errno::ETIMEDOUT),
            result => result,
        }
    }

    fn note_event(state: &mut State, event: &Kind) -> bool {
        if *event == Kind::Sent {
            state.sent_armed = false;
        }
        *event == Kind::Received
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

    fn descriptors(&self, add: &mut dyn FnMut(c_int)) {
        let state = self.lock();
        if !state.released && !state.leadership.has_leader() {
            add(self.channel.events.as_raw_fd());
        }
    }

    fn edges(&self) -> u64 {
        0
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
