//! A model of a stream, for loom: CQs with a completion channel, units of data and of send space,
//! and the calls that wait for them.

use std::collections::VecDeque;
use std::ffi::{c_int, c_short};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use libc::{POLLIN, POLLNVAL, pollfd};
use loom::cell::UnsafeCell;
use loom::sync::{Mutex, MutexGuard};

use super::channel_leader::{self, EventSource, Leadership, Until};
use super::held::{self, HoldsData};
use super::outbox::{self, Outbox, Posts};
use super::polling::{self, LendsCq};
use super::starting::{self, Starts};
use crate::errno::{Errno, Result};
use crate::rsocket::pollable::{Notice, Pollable, Watchers};
use crate::sys::event::{Deadline, EventFd, poll};
use crate::sys::futex::Changes;
use crate::sys::lease::Lease;

/// A deadline. Its value does not matter: every timeout expires at once.
pub fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(1))
}

/// The CQs: receive completions and send completions.
#[derive(Default)]
struct Queue {
    /// Receive completions.
    received: VecDeque<Received>,
    arrived: u32,
    armed: bool,
    /// Send completions, each of which frees a unit of space.
    sent: u32,
    sent_armed: bool,
}

/// A receive completion: its number, and the units of data in it.
#[derive(Clone, Copy)]
pub struct Received {
    number: u32,
    data: u32,
}

/// The CQs as threads poll them: one at a time, also without the stream's lock.
#[derive(Default)]
pub struct Cq {
    queue: Mutex<Queue>,
    polled: UnsafeCell<()>,
    destroyed: Mutex<bool>,
}

// SAFETY: loom reports concurrent accesses to the cell.
unsafe impl Sync for Cq {}
// SAFETY: as above.
unsafe impl Send for Cq {}

impl Cq {
    /// Polls the receive CQ, for at most `limit` completions.
    fn poll(&self, limit: usize) -> Vec<Received> {
        assert!(!*self.destroyed.lock().unwrap());
        self.polled.with_mut(|_| {
            let received = &mut self.queue.lock().unwrap().received;
            let count = received.len().min(limit);
            received.drain(..count).collect()
        })
    }
}

/// The completion channel, with the CQ of each event.
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
    /// Number of receive completions that were processed.
    processed: u32,
    /// Units of send space, and the number of those who wait for it.
    space: u32,
    waiting_for_space: u32,
    sent_armed: bool,
    /// Data is held, and the reactor watches the channel.
    held: bool,
    watched: bool,
    /// No data has arrived yet.
    starting: bool,
    shut: bool,
    closed: bool,
    /// The channel and the send queue were destroyed.
    released: bool,
    /// Number of the next write.
    next_write: u32,
    outbox: Outbox<u32>,
    send_queue: std::sync::Arc<SendQueue>,
    cq: std::sync::Arc<Cq>,
}

/// The send queue: the writes that were posted.
#[derive(Default)]
pub struct SendQueue {
    posted: Mutex<Vec<u32>>,
    destroyed: Mutex<bool>,
}

pub struct Stream {
    cq: std::sync::Arc<Cq>,
    lease: Lease<Received>,
    channel: std::sync::Arc<Channel>,
    pub state: Mutex<State>,
    changed: Changes,
    watchers: Watchers,
    /// The reactor was asked to watch the channel; nothing is held any more, and the first data was
    /// noticed.
    asked: EventFd,
    all_sent: EventFd,
}

impl Stream {
    pub fn new() -> Stream {
        let cq = std::sync::Arc::<Cq>::default();
        Stream {
            cq: cq.clone(),
            lease: Lease::default(),
            channel: std::sync::Arc::new(Channel::new()),
            state: Mutex::new(State {
                leadership: Leadership::default(),
                available: 0,
                processed: 0,
                space: 0,
                waiting_for_space: 0,
                sent_armed: false,
                held: false,
                watched: false,
                starting: false,
                shut: false,
                closed: false,
                released: false,
                next_write: 0,
                outbox: Outbox::new(),
                send_queue: std::sync::Arc::default(),
                cq,
            }),
            changed: Changes::default(),
            watchers: Watchers::default(),
            asked: EventFd::new().unwrap(),
            all_sent: EventFd::new().unwrap(),
        }
    }

    /// A stream whose peer has little space until its first data was noticed.
    pub fn starting() -> Stream {
        let stream = Stream::new();
        stream.lock().starting = true;
        stream
    }

    /// The connection is established.
    pub fn connected(&self) {
        self.process_completions(&mut self.lock());
    }

    pub fn is_starting(&self) -> bool {
        self.lock().starting
    }

    /// The peer sends a message without data, then a unit of data.
    pub fn arrive_after_another_message(&self) {
        self.complete(0);
        self.complete(1);
    }

    /// The device completes a receive with `data` units.
    fn complete(&self, data: u32) {
        let mut queue = self.cq.queue.lock().unwrap();
        let number = queue.arrived;
        queue.received.push_back(Received { number, data });
        queue.arrived += 1;
        if queue.armed {
            queue.armed = false;
            self.channel.raise(Kind::Received);
        }
    }

    /// The device completes a send.
    pub fn complete_send(&self) {
        let mut queue = self.cq.queue.lock().unwrap();
        queue.sent += 1;
        if queue.sent_armed {
            queue.sent_armed = false;
            self.channel.raise(Kind::Sent);
        }
    }

    /// Waits for a unit of space and takes it.
    pub fn send(&self) {
        let mut state = self.lock();
        state.waiting_for_space += 1;
        loop {
            self.process_completions(&mut state);
            if state.space > 0 {
                state.space -= 1;
                state.waiting_for_space -= 1;
                return;
            }
            state = channel_leader::wait(self, state, None).0;
        }
    }

    /// Sends a large message, which is posted without the lock. Returns false if the stream is
    /// closed.
    pub fn send_large(&self) -> bool {
        let mut state = self.lock();
        if state.closed {
            return false;
        }
        state.outbox.reserve(8).unwrap();
        state.outbox.begin();
        let number = state.next_write;
        state.next_write += 1;
        assert!(state.outbox.is_open());
        state.outbox.add(number).unwrap();
        drop(outbox::post_collected(self, state));
        true
    }

    /// Returns the number of writes that were to be posted.
    pub fn writes(&self) -> u32 {
        self.lock().next_write
    }

    /// Returns the writes that were posted.
    pub fn posted(&self) -> Vec<u32> {
        self.lock().send_queue.posted.lock().unwrap().clone()
    }

    /// Sends a small message after another one, whose completion may not have been seen, and makes
    /// no further call.
    pub fn hold(&self) {
        let mut state = self.lock();
        state.held = self.must_hold(&mut state);
        if state.held {
            held::attend(self, &mut state);
        } else {
            self.all_sent.raise();
        }
    }

    /// The reactor, until everything is sent.
    pub fn react(&self) {
        let event = |fd: &EventFd| pollfd { fd: fd.as_raw_fd(), events: POLLIN, revents: 0 };
        loop {
            for event_of in [&self.asked, &self.channel.events] {
                let mut fds = [event(event_of), event(&self.all_sent)];
                poll(&mut fds, None).unwrap();
                if fds[1].revents != 0 {
                    return;
                }
            }
            self.asked.clear();
            while !held::channel_is_readable(self) {
                // The next try is after a pause: another thread may have released the lock.
                drop(self.lock());
            }
            // While a connection is new, the reactor watches again only after a pause.
            loom::thread::yield_now();
        }
    }

    pub fn has_held(&self) -> bool {
        self.lock().held
    }

    /// The peer sent a unit of data.
    pub fn arrive(&self) {
        self.arrive_many(1);
    }

    /// The peer sent `data` units in one message.
    pub fn arrive_many(&self, data: u32) {
        self.complete(data);
    }

    /// Notifies all threads without a change.
    pub fn wake(&self) {
        self.notify(Notice::Changed);
    }

    /// Receives a unit of data. Returns `false` after shutdown, EBADF after close.
    pub fn receive(&self, deadline: Option<Instant>) -> Result<bool> {
        self.receive_polling(deadline, 0)
    }

    /// As [`receive`](Self::receive), and polls without the lock so many times before the first
    /// sleep; less often if another thread takes the CQ back.
    pub fn receive_polling(&self, deadline: Option<Instant>, polls: u32) -> Result<bool> {
        // It is asked once before the CQ is lent.
        let mut checks = polls + 1;
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
            if polls > 0 && checks > 0 && channel_leader::may_lead::<Stream>(&mut state) {
                let is_over = || {
                    let is_over = checks == 0;
                    checks = checks.saturating_sub(1);
                    is_over
                };
                let (back, changed) = polling::spin(self, state, is_over);
                state = back;
                if changed {
                    continue;
                }
            }
            let (back, result) = channel_leader::wait(self, state, deadline);
            state = back;
            if !state.closed {
                result?;
            }
        }
    }

    /// Receives without waiting. Returns whether there was a unit of data.
    pub fn receive_now(&self) -> bool {
        let mut state = self.lock();
        self.process_completions(&mut state);
        let some = state.available > 0;
        state.available -= u32::from(some);
        some
    }

    /// Registers a watcher of send space that does not wait in a call.
    pub fn want_space(&self) {
        self.lock().waiting_for_space += 1;
    }

    /// Receives and sends without waiting until both would block. Returns the units of data and
    /// space.
    pub fn take_all(&self) -> (u32, u32) {
        let mut state = self.lock();
        self.process_completions(&mut state);
        (mem::take(&mut state.available), mem::take(&mut state.space))
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
        let Ok(mut state) = channel_leader::wait_for_no_leader(self, self.lock()) else {
            unreachable!("no signal handlers here")
        };
        assert!(!state.leadership.has_leader());
        state = outbox::wait_until_unused(self, state);
        assert!(polling::take_back(self, &mut state).is_ok());
        *self.cq.destroyed.lock().unwrap() = true;
        *state.send_queue.destroyed.lock().unwrap() = true;
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
        // Without signal handlers it does not fail.
        let found = polling::take_back(self, state).unwrap();
        let mut any = false;
        for received in found.into_iter().chain(self.cq.poll(usize::MAX)) {
            assert_eq!(received.number, state.processed);
            any = true;
            state.processed += 1;
            state.available += received.data;
            if state.starting && received.data > 0 {
                state.starting = false;
                self.all_sent.raise();
            }
        }
        let mut queue = self.cq.queue.lock().unwrap();
        if state.waiting_for_space > 0 || state.held {
            any |= queue.sent > 0;
            state.space += mem::take(&mut queue.sent);
        }
        drop(queue);
        if state.held && state.space > 0 {
            self.send_held(state);
        }
        if any {
            self.changed.notify();
        }
        held::attend(self, state);
        starting::attend(self, state);
        any
    }

    fn arm_recv_cq(&self, _: &mut State) -> bool {
        self.cq.queue.lock().unwrap().armed = true;
        true
    }

    fn arm_send_cq(&self, state: &mut State) -> bool {
        let arms = (state.waiting_for_space > 0 || state.held) && !state.sent_armed;
        if arms {
            self.cq.queue.lock().unwrap().sent_armed = true;
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

impl LendsCq for Stream {
    type Cq = std::sync::Arc<Cq>;
    type Completion = Received;

    fn lease(&self) -> &Lease<Received> {
        &self.lease
    }

    fn recv_cq(state: &State) -> Option<Self::Cq> {
        (!state.closed).then(|| state.cq.clone())
    }

    fn poll_one(cq: &Self::Cq) -> Result<Option<Received>> {
        Ok(cq.poll(1).pop())
    }
}

impl Posts for Stream {
    type Write = u32;
    type Queue = std::sync::Arc<SendQueue>;

    fn outbox(state: &mut State) -> Option<(&mut Outbox<u32>, Self::Queue)> {
        let queue = state.send_queue.clone();
        Some((&mut state.outbox, queue))
    }

    fn post(queue: &Self::Queue, writes: &[Option<u32>]) -> Result<()> {
        for write in writes.iter().flatten() {
            assert!(!*queue.destroyed.lock().unwrap());
            queue.posted.lock().unwrap().push(*write);
        }
        Ok(())
    }

    fn post_failed(&self, _: &mut State, _: Errno) {
        unreachable!("the model's posts never fail");
    }

    fn is_in_use(state: &State) -> bool {
        state.outbox.is_posting()
    }

    fn is_closing(state: &State) -> bool {
        state.closed
    }
}

impl HoldsData for Stream {
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
        state.space += mem::take(&mut self.cq.queue.lock().unwrap().sent);
        state.space == 0
    }

    fn watch(&self, state: &mut State) -> bool {
        if !mem::replace(&mut state.watched, true) {
            self.asked.raise();
        }
        true
    }

    fn watched(state: &mut State) {
        state.watched = false;
    }
}

impl Starts for Stream {
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
