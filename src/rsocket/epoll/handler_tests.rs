//! Tests of repoll in a signal handler that interrupted a call for a member.

use libc::{EPOLL_CTL_MOD, EPOLLET, EPOLLEXCLUSIVE, EPOLLONESHOT};

use super::tests::Fixture;
use super::*;
use crate::rsocket::fake::Change;
use crate::sys::event::EventFd;

const MODES: [c_int; 3] = [0, EPOLLET, EPOLLONESHOT];

/// Time-out of waits that do not end with it, in milliseconds.
const LONG: c_int = 10_000;

#[test]
fn a_member_that_a_handler_modifies_or_adds_stays_armed() {
    for mode in MODES {
        for operation in [EPOLL_CTL_ADD, EPOLL_CTL_MOD] {
            let fixture = Fixture::new(1);
            let fake = &fixture.fakes[0];
            if operation == EPOLL_CTL_MOD {
                fixture.control(EPOLL_CTL_ADD, 0, EPOLLIN | mode).unwrap();
            }
            fake.interrupt(true);
            fixture.control(operation, 0, EPOLLIN | mode).unwrap();
            fake.interrupt(false);
            assert!(fixture.now().is_empty() && !fixture.is_readable() && fake.is_armed());
            fake.complete(Change::Data);
            assert_eq!(fixture.wait_for(4, LONG), Ok(vec![(0, EPOLLIN)]), "mode {mode:x}");
        }
    }
}

#[test]
fn a_wait_in_a_handler_loses_no_event() {
    for mode in MODES {
        let (fixture, fake) = Fixture::with(EPOLLIN | mode);
        fake.complete(Change::Data);
        fake.interrupt(true);
        assert!(fixture.now().is_empty());
        fake.interrupt(false);
        assert_eq!(fixture.wait_for(4, LONG), Ok(vec![(0, EPOLLIN)]), "mode {mode:x}");
    }
}

#[test]
fn a_member_that_was_reported_before_is_reported_after_the_handler() {
    let (fixture, fake) = Fixture::with(EPOLLIN);
    fake.complete(Change::Data);
    assert_eq!(fixture.now(), [(0, EPOLLIN)]);
    fake.interrupt(true);
    assert!(fixture.now().is_empty());
    fake.interrupt(false);
    assert_eq!(fixture.wait_for(4, LONG), Ok(vec![(0, EPOLLIN)]));
    fake.read();
    assert!(fixture.now().is_empty() && !fixture.is_readable() && fake.is_armed());
}

#[test]
fn a_handler_does_not_wait_for_the_interrupted_rsocket() {
    for mode in MODES {
        let (fixture, fake) = Fixture::with(EPOLLIN | mode);
        fake.complete(Change::Data);
        fake.interrupt(true);
        let polls = fake.polls.load(Ordering::Relaxed);
        assert_eq!(fixture.wait_for(4, -1), Err(Errno::EAGAIN));
        assert_eq!(fixture.wait_for(4, LONG), Err(Errno::EAGAIN));
        assert!(fixture.now().is_empty());
        assert_eq!(fake.polls.load(Ordering::Relaxed), polls);
    }
}

#[test]
fn a_handler_gets_what_else_is_ready() {
    for is_ordinary in [false, true] {
        let fixture = Fixture::new(3);
        (0..3).for_each(|index| fixture.control(EPOLL_CTL_ADD, index, EPOLLIN).unwrap());
        let event = EventFd::new().unwrap();
        if is_ordinary {
            fixture.control_fd(EPOLL_CTL_ADD, event.as_raw_fd(), EPOLLIN, 7).unwrap();
            event.raise();
        }
        fixture.fakes.iter().for_each(|fake| fake.complete(Change::Data));
        fixture.fakes[0].interrupt(true);
        fixture.fakes[1].interrupt(true);
        if is_ordinary {
            fixture.fakes[2].interrupt(true);
        }
        // An array with one slot gets the event although other members are before it.
        let ready = if is_ordinary { 7 } else { 2 };
        for size in [1, 4] {
            for timeout in [0, LONG, -1] {
                assert_eq!(fixture.wait_for(size, timeout), Ok(vec![(ready, EPOLLIN)]));
            }
        }
        fixture.fakes.iter().for_each(|fake| fake.interrupt(false));
        event.clear();
        assert_eq!(fixture.now(), [(0, EPOLLIN), (1, EPOLLIN), (2, EPOLLIN)]);
    }
}

#[test]
fn an_exclusive_member_is_reported_after_the_handler() {
    for mode in [0, EPOLLET] {
        let (fixture, fake) = Fixture::with(EPOLLIN | EPOLLEXCLUSIVE | mode);
        assert!(fixture.now().is_empty());
        fake.interrupt(true);
        fake.change(Change::Data);
        assert_eq!(fixture.wait_for(4, LONG), Err(Errno::EAGAIN));
        fake.interrupt(false);
        assert_eq!(fixture.wait_for(4, LONG), Ok(vec![(0, EPOLLIN)]));
    }
}
