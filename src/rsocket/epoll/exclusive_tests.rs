//! Tests of EPOLLEXCLUSIVE with fake rsockets, and of several threads that wait in one epoll.

use std::fs;
use std::sync::atomic::AtomicI32;
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use libc::{EPOLL_CTL_DEL, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLONESHOT, EPOLLOUT};

use super::tests::Fixture;
use super::*;
use crate::rsocket::fake::{Change, FIRST, Fake, Table, readable};
use crate::sys::event::EventFd;

/// Epolls with one rsocket as a member.
fn sharing(fake: &Arc<Fake>, events: &[c_int]) -> Vec<Fixture> {
    let fixture = |&events: &c_int| {
        let fixture =
            Fixture { epoll: Epoll::create(0).unwrap(), table: Table::of(&[fake]), fakes: vec![fake.clone()] };
        fixture.control(EPOLL_CTL_ADD, 0, events).unwrap();
        fixture
    };
    events.iter().map(fixture).collect()
}

/// A thread in wait().
struct Sleeper<'a> {
    thread: ScopedJoinHandle<'a, Result<Vec<(u64, c_int)>>>,
    id: Arc<AtomicI32>,
}

impl<'a> Sleeper<'a> {
    fn start<'b>(scope: &'a Scope<'a, 'b>, fixture: &'a Fixture) -> Sleeper<'a> {
        let id = Arc::new(AtomicI32::new(0));
        let to = Arc::clone(&id);
        let thread = scope.spawn(move || {
            // SAFETY: plain system call.
            to.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            fixture.wait_for(1, -1)
        });
        Sleeper { thread, id }
    }

    fn is_asleep(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/self/task/{}/stat", self.id.load(Ordering::SeqCst)));
        stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S")))
    }
}

/// Returns the number of threads that have returned, when this is at least `returned` and all other
/// ones are asleep at many checks in a row.
fn settle(sleepers: &[Sleeper<'_>], returned: usize) -> usize {
    let mut settled = 0;
    loop {
        let now = sleepers.iter().filter(|sleeper| sleeper.thread.is_finished()).count();
        let is_still = now >= returned && sleepers.iter().all(|each| each.thread.is_finished() || each.is_asleep());
        settled = if is_still { settled + 1 } else { 0 };
        if settled == 50 {
            return now;
        }
        thread::yield_now();
    }
}

/// Lets threads wait for the epolls in turn, and calls `each` until it has done everything.
fn with_sleepers(fixtures: &[Fixture], threads: usize, each: impl FnOnce(&[Sleeper<'_>])) {
    thread::scope(|scope| {
        let sleepers: Vec<_> =
            (0..threads).map(|index| Sleeper::start(scope, &fixtures[index % fixtures.len()])).collect();
        assert_eq!(settle(&sleepers, 0), 0);
        each(&sleepers);
        fixtures.iter().for_each(|fixture| fixture.epoll.close());
    });
}

#[test]
fn an_event_wakes_one_thread_of_an_epoll() {
    for mode in [EPOLLET, EPOLLONESHOT] {
        for change in [Fake::complete, Fake::change] {
            let fixtures = [Fixture::new(2)];
            (0..2).for_each(|index| fixtures[0].control(EPOLL_CTL_ADD, index, EPOLLIN | mode).unwrap());
            with_sleepers(&fixtures, 3, |sleepers| {
                for (index, fake) in fixtures[0].fakes.iter().enumerate() {
                    change(fake, Change::Data);
                    assert_eq!(settle(sleepers, index + 1), index + 1);
                }
            });
        }
    }
}

#[test]
fn an_event_wakes_one_of_several_epolls() {
    for mode in [0, EPOLLET] {
        for change in [Fake::complete, Fake::change] {
            let fake = Fake::new();
            let fixtures = sharing(&fake, &[EPOLLIN | EPOLLEXCLUSIVE | mode; 3]);
            with_sleepers(&fixtures, 3, |sleepers| {
                for count in 1..3 {
                    change(&fake, Change::Data);
                    assert_eq!(settle(sleepers, count), count);
                }
            });
        }
    }
}

/// As many as become ready at once.
#[test]
fn each_connection_of_a_listener_wakes_an_epoll() {
    for mode in [0, EPOLLET] {
        for (connections, woken) in [(1, 1), (2, 2), (4, 4), (9, 4)] {
            let fake = Fake::new();
            let fixtures = sharing(&fake, &[EPOLLIN | EPOLLEXCLUSIVE | mode; 4]);
            with_sleepers(&fixtures, 4, |sleepers| {
                fake.become_ready(connections);
                assert_eq!(settle(sleepers, woken), woken);
            });
        }
    }
}

#[test]
fn epolls_without_the_flag_are_always_woken() {
    let fake = Fake::new();
    let exclusive = EPOLLIN | EPOLLEXCLUSIVE;
    let fixtures = sharing(&fake, &[EPOLLIN, exclusive, EPOLLIN, exclusive]);
    with_sleepers(&fixtures, 4, |sleepers| {
        fake.complete(Change::Data);
        assert_eq!(settle(sleepers, 3), 3);
        assert!(sleepers[0].thread.is_finished() && sleepers[2].thread.is_finished());
    });
}

#[test]
fn the_end_of_a_connection_wakes_all_epolls() {
    for change in [Change::Eof, Change::Error] {
        let fake = Fake::new();
        let fixtures = sharing(&fake, &[EPOLLIN | EPOLLEXCLUSIVE; 3]);
        with_sleepers(&fixtures, 3, |sleepers| {
            fake.complete(change);
            assert_eq!(settle(sleepers, 3), 3);
        });
    }
}

/// Members that wait for different events share no wait queue: the only one that waits for space is
/// woken for it.
#[test]
fn an_event_wakes_an_epoll_that_waits_for_it() {
    let fake = Fake::new();
    let fixtures = sharing(&fake, &[EPOLLIN | EPOLLEXCLUSIVE, EPOLLOUT | EPOLLEXCLUSIVE]);
    with_sleepers(&fixtures, 2, |sleepers| {
        fake.complete(Change::Space);
        assert_eq!(settle(sleepers, 1), 1);
        assert!(sleepers[1].thread.is_finished());
        fake.complete(Change::Data);
        assert_eq!(settle(sleepers, 2), 2);
    });
}

#[test]
fn an_exclusive_member_is_reported_like_others() {
    for mode in [0, EPOLLET] {
        let fake = Fake::new();
        let event = EventFd::new().unwrap();
        let fixture = &sharing(&fake, &[EPOLLIN | EPOLLEXCLUSIVE | mode])[0];
        assert!(fixture.now().is_empty());
        for change in [Fake::complete, Fake::change] {
            change(&fake, Change::Data);
            assert_eq!(fixture.wait_for(4, -1), Ok(vec![(0, EPOLLIN)]));
            let again = if mode == 0 { vec![(0, EPOLLIN)] } else { vec![] };
            assert_eq!((fixture.now(), fixture.now()), (again.clone(), again));
            fake.read();
            assert!(fixture.now().is_empty());
        }
        event.raise();
        fixture.control_fd(EPOLL_CTL_ADD, event.as_raw_fd(), EPOLLIN, 7).unwrap();
        fake.complete(Change::Error);
        while !readable(fixture.epoll.inner.as_raw_fd()) {
            thread::yield_now();
        }
        let events = fixture.now();
        assert_eq!(events.iter().map(|event| event.0).collect::<Vec<_>>(), [0, 7]);
        assert_eq!(events[0].1 & (EPOLLIN | EPOLLHUP), EPOLLIN | EPOLLHUP);
    }
}

#[test]
fn what_is_ready_is_reported_after_add() {
    let fake = Fake::new();
    fake.complete(Change::Data);
    for fixture in sharing(&fake, &[EPOLLIN | EPOLLEXCLUSIVE, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET]) {
        assert_eq!(fixture.now(), [(0, EPOLLIN)]);
    }
}

#[test]
fn the_wait_queue_ends_with_its_last_member() {
    let fake = Fake::new();
    let mut fixtures = sharing(&fake, &[EPOLLIN | EPOLLEXCLUSIVE; 3]);
    fixtures[0].control(EPOLL_CTL_DEL, 0, 0).unwrap();
    drop(fixtures.remove(1));
    assert!(!fake.watchers_are_gone());
    fake.complete(Change::Data);
    assert_eq!(fixtures[1].wait_for(4, -1), Ok(vec![(0, EPOLLIN)]));
    assert!(fixtures[0].now().is_empty() && !fixtures[0].is_readable());
    fixtures[1].control(EPOLL_CTL_DEL, 0, 0).unwrap();
    assert!(fake.watchers_are_gone());
    fixtures[0].control(EPOLL_CTL_ADD, 0, EPOLLIN | EPOLLEXCLUSIVE).unwrap();
    assert_eq!(fixtures[0].now(), [(0, EPOLLIN)]);
}

#[test]
fn a_closed_rsocket_is_removed_from_all_epolls() {
    let fake = Fake::new();
    let fixtures = sharing(&fake, &[EPOLLIN | EPOLLEXCLUSIVE; 2]);
    fake.change(Change::Data);
    assert_eq!(fixtures[0].wait_for(4, -1), Ok(vec![(0, EPOLLIN)]));
    fake.close();
    for fixture in &fixtures {
        assert!(fixture.now().is_empty() && fixture.epoll.members().is_empty());
        fixture.table.insert(FIRST, &Fake::new());
        fixture.control(EPOLL_CTL_ADD, 0, EPOLLIN | EPOLLEXCLUSIVE).unwrap();
    }
    assert!(fake.watchers_are_gone());
}

/// Threads that wait while all members are rsockets sleep where an exclusive member is not visible.
#[test]
fn the_first_exclusive_member_wakes_a_thread_that_waits() {
    for _ in 0..20 {
        let fixtures = [Fixture::new(1)];
        with_sleepers(&fixtures, 2, |sleepers| {
            fixtures[0].control(EPOLL_CTL_ADD, 0, EPOLLIN | EPOLLET | EPOLLEXCLUSIVE).unwrap();
            fixtures[0].fakes[0].complete(Change::Data);
            assert_eq!(settle(sleepers, 1), 1);
        });
    }
}

/// The epolls of a program with librspreload: the threads sleep in the host, which reports the
/// exclusive member by a number.
#[test]
fn a_host_reports_exclusive_members() {
    const DATA: u64 = 0xA5C6 << 48;
    let fake = Fake::new();
    let host = KernelEpoll::new(0).unwrap();
    let fixture = Fixture { epoll: Epoll::create(0).unwrap(), table: Table::default(), fakes: vec![] };
    let number = EventFd::new().unwrap();
    fixture.table.insert(number.as_raw_fd(), &fake);
    fixture.epoll.set_host(host.as_raw_fd(), DATA).unwrap();
    assert_eq!(fixture.epoll.set_host(host.as_raw_fd(), DATA), Err(Errno::EINVAL));
    fixture.control_fd(EPOLL_CTL_ADD, number.as_raw_fd(), EPOLLIN | EPOLLET | EPOLLEXCLUSIVE, 7).unwrap();
    let mut event = [std::mem::MaybeUninit::uninit()];
    fake.complete(Change::Data);
    assert_eq!(host.wait(&mut event, None), Ok(1));
    // SAFETY: the kernel has written the event.
    let data = unsafe { event[0].assume_init() }.u64;
    assert_eq!(data, DATA | number.as_raw_fd() as u64);
    assert!(fixture.now().is_empty() && !fixture.is_readable(), "the host has the event");
    fixture.epoll.host_event(number.as_raw_fd());
    assert!(fixture.is_readable());
    assert_eq!(fixture.now(), [(7, EPOLLIN)]);
    fixture.control_fd(EPOLL_CTL_DEL, number.as_raw_fd(), 0, 0).unwrap();
    fixture.epoll.host_event(number.as_raw_fd());
    assert!(fixture.now().is_empty() && !readable(host.as_raw_fd()));
}

#[test]
fn a_member_is_handed_over_to_the_host_with_its_event() {
    let host = KernelEpoll::new(0).unwrap();
    let (fixture, fake) = Fixture::with(EPOLLIN | EPOLLET);
    let number = EventFd::new().unwrap();
    assert_eq!(fixture.epoll.hand_over(FIRST, number.as_raw_fd()), Err(Errno::EINVAL), "no host");
    fixture.epoll.set_host(host.as_raw_fd(), 0).unwrap();
    fake.complete(Change::Data);
    assert_eq!(fixture.epoll.hand_over(FIRST, number.as_raw_fd()), Ok(()));
    assert!(fixture.now().is_empty() && !fixture.is_readable(), "the rsocket is no member any more");
    let other = EventFd::new().unwrap();
    other.raise();
    assert_eq!(fixture.epoll.hand_over(FIRST, other.as_raw_fd()), Ok(()), "no member");
    number.raise();
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
    let number = EventFd::new().unwrap();
    fixture.epoll.set_host(host.as_raw_fd(), 0).unwrap();
    fake.complete(Change::Data);
    assert_eq!(fixture.now().len(), 1);
    assert_eq!(fixture.epoll.hand_over(FIRST, number.as_raw_fd()), Ok(()));
    number.raise();
    let mut events = [std::mem::MaybeUninit::uninit(); 2];
    assert_eq!(host.wait(&mut events, Some(Duration::ZERO)), Ok(0));
    let event = epoll_event { events: EPOLLIN as u32, u64: 5 };
    host.control(libc::EPOLL_CTL_MOD, number.as_raw_fd(), Some(event)).unwrap();
    assert_eq!(host.wait(&mut events, Some(Duration::ZERO)), Ok(1));
}
