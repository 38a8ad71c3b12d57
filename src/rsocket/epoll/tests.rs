//! Tests of repoll with fake rsockets and eventfds.

use std::ffi::c_short;
use std::thread;
use std::time::{Duration, Instant};

use libc::{
    EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLONESHOT, EPOLLOUT, EPOLLPRI,
    EPOLLRDHUP, EPOLLRDNORM,
};

use super::*;
use crate::os::event::EventFd;
use crate::rsocket::fake::{Change, FIRST, Fake, Table, readable};

/// An epoll and its rsockets, which are numbered from FIRST on. Their index is the data of their
/// events.
pub struct Fixture {
    pub epoll: Arc<Epoll>,
    pub table: Table,
    pub fakes: Vec<Arc<Fake>>,
}

impl Fixture {
    pub fn new(count: usize) -> Fixture {
        let fakes: Vec<_> = (0..count).map(|_| Fake::new()).collect();
        let table = Table::of(&fakes.iter().collect::<Vec<_>>());
        Fixture { epoll: Epoll::create(libc::EPOLL_CLOEXEC).unwrap(), table, fakes }
    }

    /// Returns a fixture with one rsocket, which is a member.
    pub fn with(events: c_int) -> (Fixture, Arc<Fake>) {
        let fixture = Fixture::new(1);
        fixture.control(EPOLL_CTL_ADD, 0, events).unwrap();
        let fake = fixture.fakes[0].clone();
        (fixture, fake)
    }

    pub fn control(&self, op: c_int, index: usize, events: c_int) -> Result<()> {
        self.control_fd(op, FIRST + index as c_int, events, index as u64)
    }

    pub fn control_fd(&self, op: c_int, fd: c_int, events: c_int, data: u64) -> Result<()> {
        self.epoll.control(&self.table, op, fd, Some(epoll_event { events: events as u32, u64: data }))
    }

    pub fn wait_for(&self, max: usize, timeout: c_int) -> Result<Vec<(u64, c_int)>> {
        let mut events = vec![std::mem::MaybeUninit::uninit(); max];
        let count = self.epoll.wait(&mut events, timeout)?;
        // SAFETY: wait() has written this event.
        Ok(events[..count]
            .iter()
            .map(|event| unsafe { event.assume_init() })
            .map(|e| (e.u64, e.events as c_int))
            .collect())
    }

    /// Returns the current events, sorted.
    pub fn now(&self) -> Vec<(u64, c_int)> {
        let mut events = self.wait_for(64, 0).unwrap();
        events.sort_unstable();
        events
    }

    pub fn is_readable(&self) -> bool {
        readable(self.epoll.fd)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.epoll.close();
    }
}

#[test]
fn level_triggered() {
    let (fixture, fake) = Fixture::with(EPOLLIN);
    assert!(!fixture.is_readable() && fixture.now().is_empty());
    for round in 0..3 {
        fake.complete(Change::Data);
        assert!(fixture.is_readable(), "round {round}");
        assert_eq!(fixture.now(), [(0, EPOLLIN)]);
        assert_eq!(fixture.now(), [(0, EPOLLIN)]);
        assert!(fixture.is_readable());
        fake.read();
        assert!(fixture.now().is_empty());
        assert!(!fixture.is_readable() && fake.is_armed());
    }
    fake.change(Change::Data);
    assert_eq!(fixture.now(), [(0, EPOLLIN)]);
    assert_eq!(fixture.now(), [(0, EPOLLIN)]);
    assert!(fixture.is_readable());
    fake.read();
    assert!(fixture.now().is_empty() && !fixture.is_readable());
}

#[test]
fn edge_triggered() {
    let (fixture, fake) = Fixture::with(EPOLLIN | EPOLLOUT | EPOLLET);
    assert!(fixture.now().is_empty());
    fake.complete(Change::Space);
    assert_eq!(fixture.now(), [(0, EPOLLOUT)]);
    assert!(fixture.now().is_empty() && !fixture.is_readable());
    fake.complete(Change::Data);
    fake.complete(Change::Data);
    assert!(fixture.is_readable());
    assert_eq!(fixture.now(), [(0, EPOLLIN | EPOLLOUT)]);
    assert!(fixture.now().is_empty());
    fake.complete(Change::Data);
    assert_eq!(fixture.now(), [(0, EPOLLIN | EPOLLOUT)], "more data is an edge");
    fake.fill();
    fake.complete(Change::Data);
    fake.read();
    assert!(fixture.now().is_empty(), "read before the member was polled");
    fake.change(Change::Space);
    assert_eq!(fixture.now(), [(0, EPOLLOUT)]);
}

#[test]
fn one_shot() {
    for edge in [0, EPOLLET] {
        let (fixture, fake) = Fixture::with(EPOLLIN | EPOLLONESHOT | edge);
        fake.complete(Change::Data);
        assert_eq!(fixture.now(), [(0, EPOLLIN)]);
        assert!(!fixture.is_readable());
        fake.complete(Change::Error);
        fake.change(Change::Data);
        assert!(fixture.now().is_empty() && !fixture.is_readable());
        fixture.control(EPOLL_CTL_MOD, 0, EPOLLIN | EPOLLONESHOT | edge).unwrap();
        assert!(fixture.is_readable());
        assert_eq!(fixture.now(), [(0, EPOLLIN | EPOLLERR | EPOLLHUP)]);
        assert!(fixture.now().is_empty());
    }
}

#[test]
fn reports_the_current_state_after_add_and_modify() {
    let fixture = Fixture::new(1);
    fixture.fakes[0].complete(Change::Eof);
    for events in [EPOLLIN, EPOLLIN | EPOLLET, EPOLLRDNORM | EPOLLONESHOT, EPOLLRDHUP | EPOLLPRI] {
        fixture.control(EPOLL_CTL_ADD, 0, events).unwrap();
        assert!(fixture.is_readable());
        let reported = events & (EPOLLIN | EPOLLRDNORM | EPOLLRDHUP);
        assert_eq!(fixture.now(), [(0, reported)]);
        fixture.control(EPOLL_CTL_MOD, 0, EPOLLOUT).unwrap();
        assert!(fixture.now().is_empty() && !fixture.is_readable());
        fixture.control(EPOLL_CTL_MOD, 0, events).unwrap();
        assert_eq!(fixture.now(), [(0, reported)]);
        fixture.control(EPOLL_CTL_DEL, 0, 0).unwrap();
        assert!(fixture.now().is_empty() && !fixture.is_readable());
        assert!(fixture.fakes[0].watchers_are_gone());
    }
}

#[test]
fn invalid_requests_are_rejected() {
    let (fixture, _fake) = Fixture::with(EPOLLIN | EPOLLEXCLUSIVE);
    let error = |op, fd, events| fixture.control_fd(op, fd, events, 0).unwrap_err().get();
    assert_eq!(error(EPOLL_CTL_ADD, FIRST, EPOLLIN), libc::EEXIST);
    assert_eq!(error(EPOLL_CTL_MOD, FIRST, EPOLLIN), libc::EINVAL, "exclusive");
    fixture.control(EPOLL_CTL_DEL, 0, 0).unwrap();
    assert_eq!(error(EPOLL_CTL_ADD, FIRST, EPOLLEXCLUSIVE | EPOLLRDHUP), libc::EINVAL);
    assert_eq!(error(EPOLL_CTL_MOD, FIRST, EPOLLIN), libc::ENOENT);
    assert_eq!(error(EPOLL_CTL_MOD, FIRST, EPOLLIN | EPOLLEXCLUSIVE), libc::EINVAL);
    assert_eq!(error(EPOLL_CTL_DEL, FIRST, EPOLLIN), libc::ENOENT);
    assert_eq!(error(99, FIRST, EPOLLIN), libc::EINVAL);
    let event = EventFd::new().unwrap();
    assert_eq!(error(EPOLL_CTL_MOD, event.as_raw_fd(), EPOLLIN), libc::ENOENT);
    assert_eq!(error(99, event.as_raw_fd(), EPOLLIN), libc::EINVAL);
    assert_eq!(error(EPOLL_CTL_ADD, fixture.epoll.fd, EPOLLIN), libc::EINVAL);
    assert_eq!(error(EPOLL_CTL_ADD, FIRST + 7, EPOLLIN), libc::EBADF);
    assert_eq!(error(EPOLL_CTL_ADD, -1, EPOLLIN), libc::EBADF);
    let none = fixture.epoll.control(&fixture.table, EPOLL_CTL_ADD, FIRST, None);
    assert_eq!(none.unwrap_err().get(), libc::EFAULT);
    assert_eq!(fixture.wait_for(0, 0), Err(Errno::EINVAL));
    assert_eq!(Epoll::create(1).err(), Some(Errno::EINVAL));
    assert!(Epoll::create(libc::EPOLL_CLOEXEC | libc::O_NONBLOCK).is_ok());
}

#[test]
fn reports_ordinary_members_and_rsockets() {
    let (fixture, fake) = Fixture::with(EPOLLIN);
    let event = EventFd::new().unwrap();
    fixture.control_fd(EPOLL_CTL_ADD, event.as_raw_fd(), EPOLLIN, u64::MAX).unwrap();
    event.raise();
    assert_eq!(fixture.now(), [(u64::MAX, EPOLLIN)]);
    fake.complete(Change::Data);
    assert_eq!(fixture.now(), [(0, EPOLLIN), (u64::MAX, EPOLLIN)]);
    event.clear();
    assert_eq!(fixture.now(), [(0, EPOLLIN)]);
    drop(event);
    fixture.fakes[0].read();
    assert!(fixture.now().is_empty());
}

#[test]
fn small_arrays_report_all_members_in_turn() {
    let fixture = Fixture::new(4);
    let event = EventFd::new().unwrap();
    event.raise();
    fixture.control_fd(EPOLL_CTL_ADD, event.as_raw_fd(), EPOLLIN, 4).unwrap();
    for index in 0..4 {
        fixture.control(EPOLL_CTL_ADD, index, EPOLLIN).unwrap();
    }
    // Two that stay in the queue, two with readable channels.
    (0..2).for_each(|index| fixture.fakes[index].change(Change::Data));
    (2..4).for_each(|index| fixture.fakes[index].complete(Change::Data));
    let mut seen = [0; 5];
    for _ in 0..40 {
        let events = fixture.wait_for(1, -1).unwrap();
        seen[events[0].0 as usize] += 1;
    }
    assert!(seen.iter().all(|&times| times >= 3), "{seen:?}");
}

#[test]
fn each_member_is_reported_once_per_wait() {
    let fixture = Fixture::new(2);
    let events = [EventFd::new().unwrap(), EventFd::new().unwrap()];
    for (index, mode) in [EPOLLIN, EPOLLIN | EPOLLET].into_iter().enumerate() {
        fixture.control(EPOLL_CTL_ADD, index, mode).unwrap();
        fixture.fakes[index].complete(Change::Data);
        fixture.fakes[index].change(Change::Data);
    }
    assert_eq!(fixture.now(), [(0, EPOLLIN), (1, EPOLLIN)], "readable and queued");
    assert_eq!(fixture.now(), [(0, EPOLLIN)]);
    for (data, event) in (2..).zip(&events) {
        event.raise();
        fixture.control_fd(EPOLL_CTL_ADD, event.as_raw_fd(), EPOLLIN, data).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(fixture.now(), [(0, EPOLLIN), (2, EPOLLIN), (3, EPOLLIN)]);
    }
    fixture.fakes[0].read();
    assert_eq!(fixture.now(), [(2, EPOLLIN), (3, EPOLLIN)]);
    assert!(fixture.fakes[0].is_armed());
}

#[test]
fn rsockets_that_connect_later_are_reported() {
    for mode in [0, EPOLLET, EPOLLONESHOT] {
        let fixture = Fixture::new(0);
        let fake = Fake::unconnected();
        fixture.table.insert(FIRST, &fake);
        fixture.control(EPOLL_CTL_ADD, 0, EPOLLIN | EPOLLOUT | mode).unwrap();
        assert!(fixture.now().is_empty());
        fake.connect();
        assert_eq!(fixture.now(), [(0, EPOLLOUT)]);
        fixture.control(EPOLL_CTL_MOD, 0, EPOLLIN | mode).unwrap();
        assert!(fixture.now().is_empty());
        fake.complete(Change::Data);
        assert_eq!(fixture.now(), [(0, EPOLLIN)]);
    }
}

#[test]
fn data_is_reported_although_another_thread_read_the_event() {
    for mode in [0, EPOLLET, EPOLLONESHOT] {
        let (fixture, fake) = Fixture::with(EPOLLIN | mode);
        fake.complete(Change::Data);
        fake.steal_event();
        assert!(fixture.is_readable());
        assert_eq!(fixture.now(), [(0, EPOLLIN)]);
    }
}

/// A blocking call that sleeps in the channel may read the event at any time. Until the call
/// returns, the event does not make the epoll readable.
#[test]
fn a_blocking_call_uses_the_channel() {
    for mode in [0, EPOLLET, EPOLLONESHOT] {
        for took in [true, false] {
            let (fixture, fake) = Fixture::with(EPOLLIN | mode);
            fake.start_leading();
            fake.complete(Change::Space);
            assert!(readable(fake.channel()));
            assert!(fixture.now().is_empty() && !fixture.is_readable(), "not readable before the call has ended");
            fake.stop_leading(took);
            assert!(fixture.now().is_empty() && !fixture.is_readable() && !readable(fake.channel()));
            fake.complete(Change::Data);
            assert_eq!(fixture.now(), [(0, EPOLLIN)]);
            if mode == 0 {
                fake.start_leading();
                assert_eq!((fixture.now(), fixture.now()), (vec![(0, EPOLLIN)], vec![(0, EPOLLIN)]));
            }
        }
    }
}

#[test]
fn two_epolls_share_an_rsocket() {
    for mode in [0, EPOLLET, EPOLLONESHOT] {
        let (one, fake) = Fixture::with(EPOLLIN | mode);
        let other = Fixture { epoll: Epoll::create(0).unwrap(), table: Table::of(&[&fake]), fakes: Vec::new() };
        other.control(EPOLL_CTL_ADD, 0, EPOLLIN | mode).unwrap();
        fake.complete(Change::Data);
        assert_eq!((one.now(), other.now()), (vec![(0, EPOLLIN)], vec![(0, EPOLLIN)]));
    }
}

#[test]
fn epolls_can_be_nested() {
    let (inner, fake) = Fixture::with(EPOLLIN);
    let outer = Fixture::new(0);
    outer.control_fd(EPOLL_CTL_ADD, inner.epoll.fd, EPOLLIN, 9).unwrap();
    let back = inner.control_fd(EPOLL_CTL_ADD, outer.epoll.fd, EPOLLIN, 0);
    assert_eq!(back, Err(Errno::new(libc::ELOOP)));
    let kernel = KernelEpoll::new(0).unwrap();
    kernel.control(EPOLL_CTL_ADD, inner.epoll.fd, Some(epoll_event { events: EPOLLIN as u32, u64: 3 })).unwrap();
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| kernel.wait(&mut [std::mem::MaybeUninit::uninit()], None));
        fake.complete(Change::Data);
        assert_eq!(sleeper.join().unwrap(), Ok(1));
    });
    assert_eq!(outer.now(), [(9, EPOLLIN)]);
    fake.read();
    assert!(inner.now().is_empty());
    assert!(outer.now().is_empty() && !outer.is_readable() && !readable(kernel.as_raw_fd()));
}

#[test]
fn a_closed_rsocket_is_removed() {
    let (mut fixture, fake) = Fixture::with(EPOLLIN);
    fake.change(Change::Data);
    assert_eq!(fixture.now(), [(0, EPOLLIN)]);
    fake.close();
    assert!(fixture.now().is_empty() && !fixture.is_readable());
    assert_eq!(fixture.control(EPOLL_CTL_ADD, 0, EPOLLIN), Err(Errno::EBADF), "closed after the lookup");
    let next = Fake::new();
    fixture.table.insert(FIRST, &next);
    fixture.control(EPOLL_CTL_ADD, 0, EPOLLIN).unwrap();
    next.complete(Change::Data);
    assert_eq!(fixture.now(), [(0, EPOLLIN)]);
    let kept = Arc::downgrade(&fake);
    fixture.fakes.clear();
    drop(fake);
    assert!(kept.upgrade().is_none(), "no reference is left");
}

#[test]
fn waits_until_the_timeout() {
    let (fixture, fake) = Fixture::with(EPOLLIN);
    let start = Instant::now();
    assert_eq!(fixture.wait_for(1, 20), Ok(vec![]));
    assert!(start.elapsed() >= Duration::from_millis(20));
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| fixture.wait_for(1, -1));
        fake.complete(Change::Space);
        fake.await_armed();
        fake.complete(Change::Data);
        assert_eq!(sleeper.join().unwrap(), Ok(vec![(0, EPOLLIN)]));
    });
}

#[test]
fn a_wait_polls_only_what_changed() {
    let fixture = Fixture::new(200);
    (0..200).for_each(|index| fixture.control(EPOLL_CTL_ADD, index, EPOLLIN).unwrap());
    fixture.fakes.iter().for_each(|fake| fake.polls.store(0, Ordering::Relaxed));
    fixture.fakes[77].complete(Change::Data);
    assert_eq!(fixture.now(), [(77, EPOLLIN)]);
    let polled: Vec<_> = (0..200).filter(|&index| fixture.fakes[index].polls.load(Ordering::Relaxed) > 0).collect();
    assert_eq!(polled, [77]);
}

#[test]
fn poll_bits_and_keys_are_consistent() {
    assert_eq!(c_short::try_from(EPOLLRDHUP), Ok(libc::POLLRDHUP));
    let epoll = Epoll::create(0).unwrap();
    epoll.serial.store(u32::MAX, Ordering::Relaxed);
    let member = Member::new(&epoll, c_int::MAX, Fake::new(), member::Interest::default()).unwrap();
    assert_eq!(Member::fd_from_key(member.key()), c_int::MAX);
}

#[test]
fn a_member_is_handed_over_with_its_event() {
    let host = KernelEpoll::new(0).unwrap();
    let (fixture, fake) = Fixture::with(EPOLLIN | EPOLLET);
    let eventfd = EventFd::new().unwrap();
    fake.complete(Change::Data);
    assert_eq!(fixture.epoll.hand_over(FIRST, eventfd.as_raw_fd(), host.as_raw_fd()), Ok(()));
    assert!(fixture.now().is_empty() && !fixture.is_readable(), "the rsocket is no member any more");
    let other = EventFd::new().unwrap();
    other.raise();
    assert_eq!(fixture.epoll.hand_over(FIRST, other.as_raw_fd(), host.as_raw_fd()), Ok(()), "no member");
    eventfd.raise();
    let mut events = [std::mem::MaybeUninit::uninit(); 2];
    assert_eq!(host.wait(&mut events, Some(Duration::ZERO)), Ok(1));
    // SAFETY: the kernel has written the event.
    let (data, reported) = unsafe { (events[0].assume_init().u64, events[0].assume_init().events) };
    assert_eq!((data, reported), (0, EPOLLIN as u32));
    assert_eq!(host.wait(&mut events, Some(Duration::ZERO)), Ok(0), "edge-triggered");
}

#[test]
fn a_member_that_has_reported_its_only_event_is_handed_over_without_events() {
    let host = KernelEpoll::new(0).unwrap();
    let (fixture, fake) = Fixture::with(EPOLLIN | EPOLLONESHOT);
    let eventfd = EventFd::new().unwrap();
    fake.complete(Change::Data);
    assert_eq!(fixture.now().len(), 1);
    assert_eq!(fixture.epoll.hand_over(FIRST, eventfd.as_raw_fd(), host.as_raw_fd()), Ok(()));
    eventfd.raise();
    let mut events = [std::mem::MaybeUninit::uninit(); 2];
    assert_eq!(host.wait(&mut events, Some(Duration::ZERO)), Ok(0));
    let event = epoll_event { events: EPOLLIN as u32, u64: 5 };
    host.control(EPOLL_CTL_MOD, eventfd.as_raw_fd(), Some(event)).unwrap();
    assert_eq!(host.wait(&mut events, Some(Duration::ZERO)), Ok(1));
}
