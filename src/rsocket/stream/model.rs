//! A model of a stream, for loom: CQs with a completion channel, units of data and of send space,
//! and the calls that wait for them.

mod interfaces;

use std::collections::VecDeque;
use std::mem;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use libc::{POLLIN, pollfd};
use loom::cell::UnsafeCell;
use loom::sync::{Mutex, MutexGuard};

use super::channel_leader::{self, EventSource, Leadership, Until};
use crate::errno::{Errno, Result};
use crate::os::event::{Deadline, EventFd, poll};
use crate::os::sync::Changes;
use crate::rsocket::pollable::{Descriptors, Notice, Pollable, Watchers};

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

/// The CQs. One thread at a time may poll each CQ, also without the stream's lock.
#[derive(Default)]
pub struct Cqs {
    queue: Mutex<Queue>,
    polled: [UnsafeCell<()>; 2],
    destroyed: Mutex<bool>,
}

// SAFETY: loom reports concurrent accesses to the cells.
unsafe impl Sync for Cqs {}
// SAFETY: the cells may be sent because loom reports an access that is not ordered.
unsafe impl Send for Cqs {}

impl Cqs {
    /// Polls the receive CQ, for at most `limit` completions.
    fn poll(&self, limit: usize) -> Vec<Received> {
        assert!(!*self.destroyed.lock().unwrap());
        self.polled[0].with_mut(|_| {
            let received = &mut self.queue.lock().unwrap().received;
            let count = received.len().min(limit);
            received.drain(..count).collect()
        })
    }

    /// Polls the send CQ, for at most `limit` completions. Returns their number.
    fn poll_sent(&self, limit: u32) -> u32 {
        assert!(!*self.destroyed.lock().unwrap());
        self.polled[1].with_mut(|_| {
            let sent = &mut self.queue.lock().unwrap().sent;
            let count = (*sent).min(limit);
            *sent -= count;
            count
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
    /// Units of send space, and the number of waiters for space.
    space: u32,
    waiting_for_space: u32,
    /// Send completions were processed without notifying the waiters.
    pending_notify: bool,
    sent_armed: bool,
    /// Data is held, and the reactor watches the channel.
    held: bool,
    watched: bool,
    /// No data has arrived yet.
    starting: bool,
    shut: bool,
    closed: bool,
    /// The channel was destroyed.
    released: bool,
    cqs: std::sync::Arc<Cqs>,
}

pub struct Stream {
    cqs: std::sync::Arc<Cqs>,
    channel: std::sync::Arc<Channel>,
    pub state: Mutex<State>,
    changed: Changes,
    watchers: Watchers,
    /// `asked`: the reactor was asked to watch the channel. `all_sent`: held data was sent, or the
    /// first data was noticed.
    asked: EventFd,
    all_sent: EventFd,
}

impl Stream {
    pub fn new() -> Stream {
        let cqs = std::sync::Arc::<Cqs>::default();
        Stream {
            cqs: cqs.clone(),
            channel: std::sync::Arc::new(Channel::new()),
            state: Mutex::new(State {
                leadership: Leadership::default(),
                available: 0,
                processed: 0,
                space: 0,
                waiting_for_space: 0,
                pending_notify: false,
                sent_armed: false,
                held: false,
                watched: false,
                starting: false,
                shut: false,
                closed: false,
                released: false,
                cqs,
            }),
            changed: Changes::default(),
            watchers: Watchers::default(),
            asked: EventFd::new().unwrap(),
            all_sent: EventFd::new().unwrap(),
        }
    }

    /// A new stream: the peer has little space for messages until this end notices the peer's first
    /// data.
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
        let mut queue = self.cqs.queue.lock().unwrap();
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
        let mut queue = self.cqs.queue.lock().unwrap();
        queue.sent += 1;
        if queue.sent_armed {
            queue.sent_armed = false;
            self.channel.raise(Kind::Sent);
        }
    }

    /// Waits for a unit of space and takes it.
    pub fn send(&self) {
        self.send_polling(0);
    }

    /// [`send`](Self::send) that polls like [`receive_polling`](Self::receive_polling).
    pub fn send_polling(&self, polls: u32) {
        let mut checks = polls + 1;
        let mut state = self.lock();
        state.waiting_for_space += 1;
        loop {
            self.process_completions(&mut state);
            if state.space > 0 {
                state.space -= 1;
                state.waiting_for_space -= 1;
                return;
            }
            let changed;
            (state, changed) = self.spin(state, polls, &mut checks);
            if changed {
                continue;
            }
            state = channel_leader::wait(self, state, None).0;
        }
    }

    /// Sends a small message after another one, whose completion may not have been seen, and makes
    /// no further call.
    pub fn hold(&self) {
        let mut state = self.lock();
        state.held = self.must_hold(&mut state);
        if state.held {
            channel_leader::ensure_flush_scheduled(self, &mut state);
        } else {
            self.all_sent.raise();
        }
    }

    /// Does what the reactor does, until everything is sent or the first data was noticed.
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
            while !channel_leader::channel_is_readable(self) {
                // Retry after a pause: another thread may have released the lock, or polled.
                drop(self.lock());
                loom::thread::yield_now();
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

    /// Notifies all threads although nothing has changed.
    pub fn wake(&self) {
        self.notify(Notice::Changed);
    }

    /// Receives a unit of data. Returns `false` after shutdown, EBADF after close.
    pub fn receive(&self, deadline: Option<Instant>) -> Result<bool> {
        self.receive_polling(deadline, 0)
    }

    /// [`receive`](Self::receive) that polls `polls` times before the first sleep.
    pub fn receive_polling(&self, deadline: Option<Instant>, polls: u32) -> Result<bool> {
        let mut checks = polls;
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
            let changed;
            (state, changed) = self.spin(state, polls, &mut checks);
            if changed {
                continue;
            }
            let (back, result) = channel_leader::wait(self, state, deadline);
            state = back;
            if !state.closed {
                result?;
            }
        }
    }

    /// Polls before the first sleep, until `checks` is 0. Returns whether something has changed.
    fn spin<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        polls: u32,
        checks: &mut u32,
    ) -> (MutexGuard<'a, State>, bool) {
        if polls == 0 || *checks == 0 || !channel_leader::may_lead::<Stream>(&mut state) {
            return (state, false);
        }
        channel_leader::spin(self, state, || {
            let is_over = *checks == 0;
            *checks = checks.saturating_sub(1);
            is_over
        })
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
        *self.cqs.destroyed.lock().unwrap() = true;
        state.released = true;
    }
}
