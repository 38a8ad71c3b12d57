//! A fake rsocket for tests: a completion queue in memory with an eventfd as its completion
//! channel. The queue is armed only by an arm() that returns 0.

use std::collections::HashMap;
use std::ffi::{c_int, c_short};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, pollfd};

use super::pollable::{Descriptors, Lookup, Notice, Pollable, Watchers};
use crate::errno::Result;
use crate::os::alloc::try_push_small;
use crate::os::event::{EventFd, poll};

#[derive(Clone, Copy)]
pub enum Change {
    Data,
    Space,
    Eof,
    Error,
}

#[derive(Default)]
struct State {
    unhandled: Vec<Change>,
    armed: bool,
    connected: bool,
    /// A blocking call sleeps in the completion channel.
    has_leader: bool,
    /// The rsocket was handed over to librspreload.
    handed_over: bool,
    ready: c_short,
}

pub struct Fake {
    state: Mutex<State>,
    channel: EventFd,
    watchers: Watchers,
    /// Number of ready() and arm() calls.
    pub polls: AtomicUsize,
}

impl Fake {
    pub fn unconnected() -> Arc<Fake> {
        Arc::new(Fake {
            state: Mutex::default(),
            channel: EventFd::new().unwrap(),
            watchers: Watchers::default(),
            polls: AtomicUsize::new(0),
        })
    }

    pub fn new() -> Arc<Fake> {
        let fake = Fake::unconnected();
        fake.state().connected = true;
        fake
    }

    /// Adds a completion, and makes the channel readable if the queue is armed.
    pub fn complete(&self, change: Change) {
        let mut state = self.state();
        state.unhandled.push(change);
        if std::mem::take(&mut state.armed) {
            self.channel.raise();
        }
    }

    /// Makes a change without a completion.
    pub fn change(&self, change: Change) {
        let mut state = self.state();
        self.apply(&mut state, change);
        drop(state);
        self.watchers.notify(Notice::Changed);
    }

    pub fn connect(&self) {
        self.state().connected = true;
        self.change(Change::Space);
    }

    /// The program reads all data. Returns whether there was any.
    pub fn read(&self) -> bool {
        let mut state = self.state();
        self.handle(&mut state);
        let some = state.ready & POLLIN != 0;
        state.ready &= !POLLIN;
        some
    }

    /// The program writes until the send buffer is full.
    pub fn fill(&self) {
        let mut state = self.state();
        self.handle(&mut state);
        state.ready &= !POLLOUT;
    }

    /// A blocking call in another thread reads the event.
    pub fn steal_event(&self) {
        self.take_event();
        self.watchers.notify(Notice::Changed);
    }

    /// A blocking call begins to sleep in the completion channel.
    pub fn start_leading(&self) {
        let mut state = self.state();
        state.has_leader = true;
        state.armed = true;
    }

    /// The blocking call returns, after reading the event if `took` is set.
    pub fn stop_leading(&self, took: bool) {
        if took {
            self.channel.clear();
        }
        self.state().has_leader = false;
        self.watchers.notify(Notice::Changed);
    }

    pub fn hand_over(&self) {
        self.state().handed_over = true;
        self.watchers.notify(Notice::Changed);
    }

    pub fn close(&self) {
        self.watchers.notify(Notice::Closed);
    }

    pub fn watchers_are_gone(&self) -> bool {
        self.watchers.is_empty()
    }

    pub fn is_armed(&self) -> bool {
        self.state().armed
    }

    /// Waits until there is a watcher.
    pub fn await_watchers(&self) {
        while self.watchers.is_empty() {
            std::thread::yield_now();
        }
    }

    /// Waits until a sleeping thread has armed the queue.
    pub fn await_armed(&self) {
        while !self.is_armed() {
            std::thread::yield_now();
        }
    }

    pub fn channel(&self) -> RawFd {
        self.channel.as_raw_fd()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn handle(&self, state: &mut State) {
        for change in std::mem::take(&mut state.unhandled) {
            self.apply(state, change);
        }
    }

    /// Returns the current bits of those in `wanted`.
    fn bits(&self, state: &State, wanted: c_short) -> c_short {
        let is_handed_over = state.handed_over && wanted & base::private::FORWARDER_EVENT == 0;
        if self.watchers.is_closed() || is_handed_over { POLLNVAL } else { state.ready & (wanted | POLLERR | POLLHUP) }
    }

    fn apply(&self, state: &mut State, change: Change) {
        state.ready |= match change {
            Change::Data => POLLIN,
            Change::Space => POLLOUT,
            Change::Eof => POLLIN | POLLRDHUP,
            Change::Error => POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP,
        };
        self.watchers.edges.fetch_add(1, Ordering::SeqCst);
    }
}

impl Pollable for Fake {
    fn ready(&self, wanted: c_short) -> c_short {
        self.polls.fetch_add(1, Ordering::Relaxed);
        assert_eq!(wanted & !(POLLIN | POLLOUT | POLLRDHUP | base::private::FORWARDER_EVENT), 0);
        let mut state = self.state();
        self.handle(&mut state);
        self.bits(&state, wanted)
    }

    fn arm(&self, wanted: c_short) -> c_short {
        let mut state = self.state();
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.handle(&mut state);
        let ready = self.bits(&state, wanted);
        state.armed |= ready == 0 && !state.has_leader;
        ready
    }

    fn take_event(&self) {
        let state = self.state();
        if !state.has_leader {
            self.channel.clear();
        }
    }

    fn descriptors(&self) -> Result<Descriptors> {
        let (state, mut all) = (self.state(), Descriptors::new());
        if state.connected && !state.has_leader {
            try_push_small(&mut all, self.channel())?;
        }
        Ok(all)
    }

    fn watchers(&self) -> &Watchers {
        &self.watchers
    }
}

/// The rsockets of a process. Their descriptors are greater than any that the kernel assigns.
#[derive(Default)]
pub struct Table(Mutex<HashMap<c_int, Arc<Fake>>>);

pub const FIRST: c_int = 1 << 30;

impl Table {
    pub fn of(fakes: &[&Arc<Fake>]) -> Table {
        let table = Table::default();
        for (fd, fake) in (FIRST..).zip(fakes) {
            table.insert(fd, fake);
        }
        table
    }

    pub fn insert(&self, fd: c_int, fake: &Arc<Fake>) {
        self.0.lock().unwrap().insert(fd, Arc::clone(fake));
    }
}

impl Lookup for Table {
    fn find(&self, fd: c_int) -> Option<Arc<dyn Pollable>> {
        self.0.lock().unwrap().get(&fd).map(|fake| Arc::clone(fake) as Arc<dyn Pollable>)
    }
}

pub fn readable(fd: RawFd) -> bool {
    let mut fds = [pollfd { fd, events: POLLIN, revents: 0 }];
    poll(&mut fds, Some(Duration::ZERO)).unwrap() == 1
}
