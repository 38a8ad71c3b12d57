//! The state of the reactor: the descriptors and timers that the thread for events watches, and the
//! worker's jobs.
//!
//! A cancelled timer stays in the heap until it is the first one, or until the heap is full: then
//! all cancelled timers are removed. The removal takes n steps for n timers, but the heap is full
//! only after cancelled timers have filled the space that the set timers leave free. So setting a
//! timer takes log n steps on average.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ffi::c_int;
use std::mem;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{JOBS, Key, Role, Service, handle_events, spawn, work};
use crate::errno::{Errno, Result};
use crate::os::event::{EventFd, KernelEpoll};
use crate::os::numbered::Numbered;

/// Bit in the epoll's data that marks the second descriptor of a registration.
pub(super) const SECOND: u64 = 1 << 63;
/// The epoll's data for [`Reactor::wake`]. No registration has this key.
const WAKE: u64 = 0;

pub(super) struct Reactor {
    pub epoll: KernelEpoll,
    /// Always writable: making the epoll report it wakes the thread, which reads the timers again.
    wake: EventFd,
    /// Whether the epoll reports `wake`.
    is_waking: bool,
    pub registrations: Numbered<Key, Registration>,
    /// Has capacity for a timer of each [`Call`] per registration.
    pub timers: Timers<(Key, Call, u64)>,
    /// Number of the timer that was set or cancelled last.
    timers_set: u64,
    /// Whether the thread for events waits until the first timer. If set, a new, earlier timer has
    /// to wake the thread.
    pub is_waiting: bool,
    /// The worker's jobs. Has capacity for two jobs per registration.
    pub jobs: VecDeque<(Key, Call)>,
}

/// Why a service is called. Each reason has a timer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Call {
    /// The descriptor is ready. When the timer expires, a paused descriptor is enabled again.
    Service,
    /// The service's timer has expired.
    Expired,
    /// The second descriptor is readable. When the timer expires, the second descriptor is watched,
    /// or the service is called again.
    Channel,
}

/// Number of variants of [`Call`].
const CALLS: usize = Call::Channel as usize + 1;

/// A call that a thread has to make.
pub(super) struct Due {
    pub key: Key,
    pub call: Call,
    pub service: Arc<dyn Service>,
}

pub(super) struct Registration {
    role: Role,
    pub fd: c_int,
    /// The events that the service is called for.
    pub events: u32,
    /// Whether the epoll reports these events, unless `is_job` is set.
    pub is_enabled: bool,
    /// For each [`Call`], whether a job of the worker is queued or in progress.
    is_job: [bool; CALLS],
    /// Number of times in a row that the service was busy.
    busy: u32,
    /// The descriptor of [`watch_channel`](super::watch_channel), and whether the descriptor is in
    /// the epoll.
    pub second: Option<(c_int, bool)>,
    pub service: Arc<dyn Service>,
    /// For each [`Call`] whose timer is set, the time and the number of the timer.
    pub times: [Option<(Instant, u64)>; CALLS],
}

impl Registration {
    /// Returns the epoll event for the descriptor. For a disabled descriptor, the epoll reports an
    /// error once, because the kernel always reports errors. A descriptor whose service the worker
    /// calls is reported once, and enabled again after the call.
    pub fn event(&self, key: Key) -> Option<libc::epoll_event> {
        let is_reported = self.is_enabled && !self.is_job[Call::Service as usize];
        let once = if is_reported && self.role == Role::Events { 0 } else { libc::EPOLLONESHOT as u32 };
        Some(libc::epoll_event { events: if is_reported { self.events | once } else { once }, u64: key.0 })
    }

    /// Returns a call that is about to be made.
    fn due(&mut self, key: Key, call: Call) -> Due {
        // From now on the timer may be set again, and expire again.
        self.is_job[Call::Expired as usize] &= call != Call::Expired;
        Due { key, call, service: Arc::clone(&self.service) }
    }
}

/// Returns a function that tells whether a timer is set, and not cancelled.
fn is_set(registrations: &Numbered<Key, Registration>) -> impl Fn((Key, Call, u64)) -> bool {
    |(key, kind, number)| {
        let time = registrations.get(&key).and_then(|registration| registration.times[kind as usize]);
        time.is_some_and(|(_, latest)| latest == number)
    }
}

/// Time until a service that was busy is called again. The time doubles with each busy call, up to
/// 64 milliseconds.
const BUSY_PAUSE: Duration = Duration::from_millis(1);
const BUSY_DOUBLINGS: u32 = 6;

impl Reactor {
    pub fn start() -> Result<Reactor> {
        let (epoll, wake) = (KernelEpoll::new(libc::EPOLL_CLOEXEC)?, EventFd::new()?);
        epoll.control(libc::EPOLL_CTL_ADD, wake.as_raw_fd(), Some(libc::epoll_event { events: 0, u64: WAKE }))?;
        // If only the first thread can be started, it finds no reactor, and ends.
        spawn(handle_events)?;
        spawn(work)?;
        Ok(Reactor {
            epoll,
            wake,
            is_waking: false,
            registrations: Numbered::default(),
            timers: Timers::new(),
            timers_set: 0,
            is_waiting: false,
            jobs: VecDeque::new(),
        })
    }

    /// Changes the thread that calls the service. Returns whether the role has changed.
    pub fn set_role(&mut self, key: Key, role: Role) -> bool {
        let changes = self.registrations.get(&key).is_some_and(|registration| registration.role != role);
        changes && self.change(key, |registration| registration.role = role)
    }

    /// Returns the call that the thread for events has to make for `key`. If the worker has to make
    /// the call, queues a job instead. The thread for events always makes calls for second
    /// descriptors.
    pub fn due(&mut self, key: Key, call: Call) -> Option<Due> {
        let registration = self.registrations.get_mut(&key)?;
        if registration.role == Role::Events || call == Call::Channel {
            return Some(registration.due(key, call));
        }
        if mem::replace(&mut registration.is_job[call as usize], true) {
            return None;
        }
        if self.jobs.len() == self.jobs.capacity() {
            let registrations = &self.registrations;
            self.jobs.retain(|(key, _)| registrations.contains_key(key));
        }
        self.jobs.push_back((key, call));
        JOBS.notify_one();
        None
    }

    /// Takes the worker's next job.
    pub fn next_job(&mut self) -> Option<Due> {
        loop {
            let (key, call) = self.jobs.pop_front()?;
            if let Some(registration) = self.registrations.get_mut(&key) {
                return Some(registration.due(key, call));
            }
        }
    }

    /// Handles the return of a service; `done` is false if the service was busy. A busy service is
    /// called again after a pause: its descriptor stays readable, and other services must not wait.
    pub fn finished(&mut self, key: Key, call: Call, done: bool) {
        let Some(registration) = self.registrations.get_mut(&key) else { return };
        let pause = BUSY_PAUSE * (1 << registration.busy.min(BUSY_DOUBLINGS));
        if call != Call::Channel {
            registration.busy = if done { 0 } else { registration.busy.saturating_add(1) };
        }
        match call {
            Call::Service => {
                if mem::take(&mut registration.is_job[Call::Service as usize]) {
                    // The epoll reports the descriptor again.
                    self.change(key, |_| ());
                }
                if !done {
                    self.pause(key, pause);
                }
            }
            Call::Expired if !done => self.set_after(key, Call::Expired, pause),
            Call::Channel if !done => self.set_after(key, Call::Channel, 4 * BUSY_PAUSE),
            Call::Expired | Call::Channel => {}
        }
    }

    /// Makes the epoll report `wake` if `on` is set, otherwise stops the reports.
    pub fn report_wake(&mut self, on: bool) {
        if self.is_waking != on {
            self.is_waking = on;
            let events = if on { libc::EPOLLOUT as u32 } else { 0 };
            let event = Some(libc::epoll_event { events, u64: WAKE });
            // Cannot fail for a watched descriptor.
            let _ = self.epoll.control(libc::EPOLL_CTL_MOD, self.wake.as_raw_fd(), event);
        }
    }

    pub fn watch_second(&mut self, key: Key, fd: c_int) -> Result<()> {
        let registration = self.registrations.get_mut(&key).ok_or(Errno::EBADF)?;
        let is_known = registration.second == Some((fd, true));
        let command = if is_known { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_ADD };
        let events = (libc::EPOLLIN | libc::EPOLLONESHOT) as u32;
        self.epoll.control(command, fd, Some(libc::epoll_event { events, u64: key.0 | SECOND }))?;
        registration.second = Some((fd, true));
        Ok(())
    }

    /// Watches the second descriptor after `delay`.
    pub fn watch_second_later(&mut self, key: Key, fd: c_int, delay: Duration) -> Result<()> {
        let registration = self.registrations.get_mut(&key).ok_or(Errno::EBADF)?;
        if registration.second != Some((fd, true)) {
            registration.second = Some((fd, false));
        }
        self.set_after(key, Call::Channel, delay);
        Ok(())
    }

    /// Sets a timer of this kind that expires after `delay`, unless a timer of this kind is set.
    pub fn set_after(&mut self, key: Key, kind: Call, delay: Duration) {
        if self.registrations.get(&key).is_some_and(|registration| registration.times[kind as usize].is_none()) {
            self.set_timer(key, kind, Some(Instant::now() + delay));
        }
    }

    /// Cancels the timer of this kind. Sets a new timer of this kind, unless `time` is `None`.
    pub fn set_timer(&mut self, key: Key, kind: Call, time: Option<Instant>) {
        let Some(registration) = self.registrations.get_mut(&key) else { return };
        self.timers_set += 1;
        registration.times[kind as usize] = time.map(|time| (time, self.timers_set));
        let Some(time) = time else { return };
        let is_first = self.timers.insert(time, (key, kind, self.timers_set), is_set(&self.registrations));
        if is_first && self.is_waiting {
            self.report_wake(true);
        }
    }

    /// Sets the timer of [`Call::Expired`], unless it is set to an earlier time.
    pub fn set_timer_by(&mut self, key: Key, time: Instant) {
        let set = self.registrations.get(&key).and_then(|registration| registration.times[Call::Expired as usize]);
        if set.is_none_or(|(earlier, _)| time < earlier) {
            self.set_timer(key, Call::Expired, Some(time));
        }
    }

    /// Returns the time of the first timer.
    pub fn first_timer(&mut self) -> Option<Instant> {
        self.timers.first(is_set(&self.registrations))
    }

    /// Takes a timer that had expired at `due`, and performs its action. Returns `None` if no timer
    /// had expired, otherwise the call to make, if there is one.
    pub fn next_expired(&mut self, due: Instant) -> Option<Option<Due>> {
        let (key, kind, _) = self.timers.take_expired(due, is_set(&self.registrations))?;
        let registration = self.registrations.get_mut(&key)?;
        registration.times[kind as usize] = None;
        match (kind, registration.second) {
            (Call::Expired, _) => return Some(self.due(key, kind)),
            (Call::Service, _) => _ = self.change(key, |registration| registration.is_enabled = true),
            // After a failure, the program's next call handles the event that the service misses.
            (Call::Channel, Some((fd, _))) => _ = self.watch_second(key, fd),
            (Call::Channel, None) => {}
        }
        Some(None)
    }

    /// Adds a registration.
    pub fn add(&mut self, role: Role, fd: c_int, is_enabled: bool, service: Arc<dyn Service>) -> Result<Key> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let key = Key(NEXT.fetch_add(1, Ordering::Relaxed));
        self.registrations.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let count = self.registrations.len() + 1;
        self.timers.reserve(CALLS * count)?;
        self.jobs.try_reserve((2 * count).saturating_sub(self.jobs.len())).map_err(|_| Errno::ENOMEM)?;
        let registration = Registration {
            role,
            fd,
            events: libc::EPOLLIN as u32,
            is_enabled,
            is_job: [false; CALLS],
            busy: 0,
            second: None,
            service,
            times: [None; CALLS],
        };
        self.epoll.control(libc::EPOLL_CTL_ADD, fd, registration.event(key))?;
        self.registrations.insert(key, registration);
        Ok(key)
    }

    /// Removes a registration.
    pub fn remove(&mut self, key: Key) -> Option<Registration> {
        let registration = self.registrations.remove(&key)?;
        for fd in registration.second.map(|(fd, _)| fd).into_iter().chain([registration.fd]) {
            // Cannot fail for a watched descriptor.
            let _ = self.epoll.control(libc::EPOLL_CTL_DEL, fd, None);
        }
        Some(registration)
    }

    /// Changes the descriptor of a registration.
    pub fn set_fd(&mut self, key: Key, fd: c_int) -> Result<()> {
        let registration = self.registrations.get_mut(&key).ok_or(Errno::EBADF)?;
        self.epoll.control(libc::EPOLL_CTL_ADD, fd, registration.event(key))?;
        // Cannot fail for a registered descriptor.
        let _ = self.epoll.control(libc::EPOLL_CTL_DEL, registration.fd, None);
        registration.fd = fd;
        Ok(())
    }

    /// Returns the epoll event of the latest registration of `fd`. Earlier registrations may be of
    /// a file that was closed before `fd` was reused.
    pub fn find_fd(&self, fd: c_int) -> Option<Option<libc::epoll_event>> {
        let all = self.registrations.iter().filter(|(_, registration)| registration.fd == fd);
        all.max_by_key(|(key, _)| **key).map(|(&key, registration)| registration.event(key))
    }

    /// Disables the descriptor of `key` for `time`, if it is enabled.
    pub fn pause(&mut self, key: Key, time: Duration) {
        let is_enabled = self.registrations.get(&key).is_some_and(|registration| registration.is_enabled);
        if is_enabled && self.change(key, |registration| registration.is_enabled = false) {
            self.set_after(key, Call::Service, time);
        }
    }

    /// Applies `change` to a registration, and updates the epoll to report its events. Returns
    /// false if the registration no longer exists.
    pub fn change(&mut self, key: Key, change: impl FnOnce(&mut Registration)) -> bool {
        let Some(registration) = self.registrations.get_mut(&key) else { return false };
        change(registration);
        // Cannot fail for a registered descriptor.
        let _ = self.epoll.control(libc::EPOLL_CTL_MOD, registration.fd, registration.event(key));
        true
    }
}

/// Timers, each of which is set once and identified by a `T`. The caller knows which timers were
/// cancelled, and passes a function `is_set`, which returns whether a timer is still set.
pub(super) struct Timers<T> {
    entries: BinaryHeap<Reverse<(Instant, T)>>,
}

impl<T: Ord + Copy> Timers<T> {
    pub const fn new() -> Timers<T> {
        Timers { entries: BinaryHeap::new() }
    }

    /// Reserves memory for `count` timers in total: [`insert`](Self::insert) does not allocate up
    /// to this number.
    pub fn reserve(&mut self, count: usize) -> Result<()> {
        let missing = count.saturating_sub(self.entries.len());
        self.entries.try_reserve(missing).map_err(|_| Errno::ENOMEM)
    }

    /// Adds a timer. Returns whether the timer is earlier than all others, including cancelled
    /// timers that are still in the heap.
    pub fn insert(&mut self, time: Instant, timer: T, is_set: impl Fn(T) -> bool) -> bool {
        if self.entries.len() == self.entries.capacity() {
            self.entries.retain(|&Reverse((_, timer))| is_set(timer));
        }
        let is_first = self.entries.peek().is_none_or(|&Reverse((first, _))| time < first);
        self.entries.push(Reverse((time, timer)));
        is_first
    }

    /// Returns the time of the first timer that is set.
    pub fn first(&mut self, is_set: impl Fn(T) -> bool) -> Option<Instant> {
        loop {
            let &Reverse((time, timer)) = self.entries.peek()?;
            if is_set(timer) {
                return Some(time);
            }
            self.entries.pop();
        }
    }

    /// Takes the first timer that is set and has expired at `due`.
    pub fn take_expired(&mut self, due: Instant, is_set: impl Fn(T) -> bool) -> Option<T> {
        self.first(is_set).filter(|&time| time <= due)?;
        self.entries.pop().map(|Reverse((_, timer))| timer)
    }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::time::Duration;

    use super::*;

    /// Timers, and for each timer number whether it is set, and how often it was set.
    struct Fixture {
        timers: Timers<(usize, u32)>,
        start: Instant,
        set: [(bool, u32); 10],
    }

    impl Fixture {
        /// Sets timers for these seconds after the start, numbered in this order.
        fn new(seconds: &[u64]) -> Fixture {
            let mut fixture = Fixture { timers: Timers::new(), start: Instant::now(), set: [(false, 0); 10] };
            fixture.timers.reserve(seconds.len()).unwrap();
            for (number, &after) in seconds.iter().enumerate() {
                fixture.set(number, after);
            }
            fixture
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        fn set(&mut self, number: usize, after: u64) -> bool {
            let time = self.at(after);
            self.set[number] = (true, self.set[number].1 + 1);
            self.timers.insert(time, (number, self.set[number].1), is_set(&self.set))
        }

        fn cancel(&mut self, number: usize) {
            self.set[number].0 = false;
        }

        fn first(&mut self) -> Option<Instant> {
            self.timers.first(is_set(&self.set))
        }

        fn take_all(&mut self, seconds: u64) -> Vec<usize> {
            let due = self.at(seconds);
            iter::from_fn(|| {
                let (number, _) = self.timers.take_expired(due, is_set(&self.set))?;
                self.cancel(number);
                Some(number)
            })
            .collect()
        }
    }

    fn is_set(set: &[(bool, u32); 10]) -> impl Fn((usize, u32)) -> bool {
        |(number, times)| set[number] == (true, times)
    }

    #[test]
    fn expire_in_the_order_of_their_times() {
        let mut fixture = Fixture::new(&[3, 1, 2, 1]);
        assert_eq!(fixture.first(), Some(fixture.at(1)));
        assert!(fixture.take_all(0).is_empty());
        assert_eq!(fixture.take_all(2), [1, 3, 2]);
        assert_eq!(fixture.take_all(3), [0]);
        assert_eq!(fixture.first(), None);
    }

    #[test]
    fn tell_whether_they_are_first() {
        let mut fixture = Fixture::new(&[2]);
        assert!(fixture.set(1, 1));
        assert!(!fixture.set(2, 3));
    }

    #[test]
    fn only_the_cancelled_one_does_not_expire() {
        let mut fixture = Fixture::new(&[1, 2, 2, 2, 3]);
        fixture.cancel(0);
        fixture.cancel(2);
        assert_eq!(fixture.first(), Some(fixture.at(2)));
        assert_eq!(fixture.take_all(9), [1, 3, 4]);
    }

    #[test]
    fn expire_once_when_set_again() {
        let mut fixture = Fixture::new(&[1, 5]);
        for after in [3, 2, 2] {
            fixture.set(0, after);
        }
        assert!(fixture.take_all(1).is_empty());
        assert_eq!(fixture.take_all(9), [0, 1]);
    }

    #[test]
    fn cancelled_ones_need_no_more_memory() {
        let mut fixture = Fixture::new(&[1, 2]);
        fixture.timers.reserve(5).unwrap();
        let capacity = fixture.timers.entries.capacity();
        for round in 0..1000 {
            fixture.set(round % 4, 1000 + round as u64);
        }
        assert!(capacity >= 5);
        assert_eq!(fixture.timers.entries.capacity(), capacity);
        assert_eq!(fixture.take_all(2000), [0, 1, 2, 3]);
    }
}
