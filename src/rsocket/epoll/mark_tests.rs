//! Tests of ordinary descriptors whose data looks like that of exclusive members.

use libc::{EPOLL_CTL_DEL, EPOLLET, EPOLLEXCLUSIVE, EPOLLOUT};

use super::tests::Fixture;
use super::*;
use crate::rsocket::fake::{Change, FIRST};
use crate::sys::event::EventFd;

/// Returns the data of an exclusive member with this serial number and descriptor.
fn mark(serial: u32, fd: c_int) -> u64 {
    exclusive::mark(u64::from(serial) << 32 | u64::from(fd as u32))
}

fn ordinary(fixture: &Fixture, events: c_int, data: u64) -> EventFd {
    let event = EventFd::new().unwrap();
    event.raise();
    fixture.control_fd(EPOLL_CTL_ADD, event.as_raw_fd(), events, data).unwrap();
    event
}

/// Expects that both kinds of waits report one event, and nothing once it is cleared.
#[track_caller]
fn assert_reported(fixture: &Fixture, event: &EventFd, expected: (u64, c_int)) {
    assert_eq!(fixture.now(), [expected]);
    assert_eq!(fixture.wait_for(4, 1000), Ok(vec![expected]));
    event.clear();
    assert!(fixture.now().is_empty());
}

#[test]
fn any_data_is_reported_without_exclusive_members() {
    let (fixture, _fake) = Fixture::with(EPOLLIN);
    let data = mark(1, FIRST);
    let event = ordinary(&fixture, EPOLLIN, data);
    assert_reported(&fixture, &event, (data, EPOLLIN));
}

#[test]
fn other_data_is_reported_beside_exclusive_members() {
    let (fixture, fake) = Fixture::with(EPOLLIN | EPOLLEXCLUSIVE);
    for data in [mark(0, 5), mark(2, FIRST), mark(0xFFFF, FIRST), mark(0x1234, 0x5678_9ABC)] {
        let event = ordinary(&fixture, EPOLLIN, data);
        assert_reported(&fixture, &event, (data, EPOLLIN));
    }
    // An exclusive member's eventfd is not waited for to become writable.
    let event = ordinary(&fixture, EPOLLIN | EPOLLOUT, mark(1, FIRST));
    assert_eq!(fixture.now(), [(mark(1, FIRST), EPOLLIN | EPOLLOUT)]);
    fixture.control_fd(EPOLL_CTL_DEL, event.as_raw_fd(), 0, 0).unwrap();
    fake.complete(Change::Data);
    assert_eq!(fixture.wait_for(4, -1), Ok(vec![(0, EPOLLIN)]));
}

#[test]
fn data_of_a_removed_member_is_reported() {
    let (fixture, _fake) = Fixture::with(EPOLLIN | EPOLLEXCLUSIVE);
    fixture.control(EPOLL_CTL_DEL, 0, 0).unwrap();
    let data = mark(1, FIRST);
    for mode in [0, EPOLLET] {
        let events = [(), ()].map(|()| ordinary(&fixture, EPOLLIN | mode, data));
        assert_eq!(fixture.now(), [(data, EPOLLIN); 2], "mode {mode:x}");
        drop(events);
    }
}

/// Members come and go while threads wait: their marks are not reported, and other data is.
#[test]
fn marks_of_members_that_leave_are_not_reported() {
    const ROUNDS: usize = 2000;
    let (fixture, done) = (Fixture::new(1), AtomicBool::new(false));
    let data = mark(0xFFFF, 77);
    let _event = ordinary(&fixture, EPOLLIN, data);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let reported = fixture.wait_for(4, 1000).unwrap();
                    assert!(reported.iter().all(|&(data_or_index, _)| data_or_index == data || data_or_index == 0));
                }
            });
        }
        for _ in 0..ROUNDS {
            fixture.fakes[0].complete(Change::Data);
            fixture.control(EPOLL_CTL_ADD, 0, EPOLLIN | EPOLLEXCLUSIVE).unwrap();
            fixture.fakes[0].complete(Change::Data);
            fixture.control(EPOLL_CTL_DEL, 0, 0).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_member_that_is_not_exclusive_has_no_mark() {
    let fixture = Fixture::new(2);
    fixture.control(EPOLL_CTL_ADD, 0, EPOLLIN).unwrap();
    fixture.control(EPOLL_CTL_ADD, 1, EPOLLIN | EPOLLEXCLUSIVE).unwrap();
    let event = ordinary(&fixture, EPOLLIN, mark(1, FIRST));
    assert_reported(&fixture, &event, (mark(1, FIRST), EPOLLIN));
}
