//! rpoll: no change is missed by those who sleep on descriptors, alone and beside blocking calls.

use std::sync::Arc;

use libc::{POLLIN, POLLNVAL};

use super::beside;
use super::stream::{Stream, soon};
use crate::errno::Errno;
use crate::poll::wait_one;
use crate::sys::event::{Deadline, wait_for_edge};
use crate::watch::Pollable;

type Shared = Arc<Stream>;

fn new() -> Shared {
    Arc::new(Stream::new())
}

fn poll_until(stream: &Shared, deadline: Deadline) -> i16 {
    let stream: Arc<dyn Pollable> = stream.clone();
    wait_one(&stream, POLLIN, deadline).unwrap()
}

fn poll(stream: &Shared) -> i16 {
    poll_until(stream, Deadline::after_ms(-1))
}

/// As a call for one rsocket does.
fn poll_alone_until(stream: &Shared, deadline: Deadline) -> i16 {
    match stream.ready(POLLIN) {
        0 => stream.wait_alone(POLLIN, deadline).map_or_else(|| poll_until(stream, deadline), Result::unwrap),
        ready => ready,
    }
}

fn poll_alone(stream: &Shared) {
    assert_eq!(poll_alone_until(stream, Deadline::after_ms(-1)), POLLIN);
}

fn poll_readable(stream: &Shared) {
    assert_eq!(poll(stream), POLLIN);
}

/// Polls, takes what came, and polls again with the same waiter.
fn poll_and_take_twice(stream: &Shared) {
    for _ in 0..2 {
        poll_readable(stream);
        assert!(stream.receive_now());
    }
}

/// As an epoll that watches the channel for edges, and its program, which reads and sends all it can, until it had two of each.
fn watch_for_edges(stream: &Shared) {
    let mut channel = -1;
    stream.descriptors(&mut |fd| channel = fd);
    stream.want_room();
    let (mut data, mut room) = (0, 0);
    loop {
        stream.arm(0);
        let (more_data, more_room) = stream.take_all();
        (data, room) = (data + more_data, room + more_room);
        if (data, room) == (2, 2) {
            return;
        }
        wait_for_edge(channel);
        stream.take_event();
    }
}

fn poll_for_a_while(stream: &Shared) {
    assert!(matches!(poll_until(stream, Deadline::after_ms(1)), 0 | POLLIN));
}

#[test]
fn data_comes() {
    beside(3, new, [poll_readable, |stream| stream.arrive()], |_| {});
}

#[test]
fn data_comes_twice() {
    fn arrive_twice(stream: &Shared) {
        stream.arrive();
        stream.arrive();
    }
    beside(3, new, [poll_and_take_twice, arrive_twice], |_| {});
}

/// The channel holds the events of both queues: one that is left in it hides all that follow.
#[test]
fn both_events_for_one_who_watches_for_edges() {
    fn arrive_twice(stream: &Shared) {
        stream.arrive();
        stream.arrive();
    }
    fn complete_sent_twice(stream: &Shared) {
        stream.complete_sent();
        stream.complete_sent();
    }
    beside(2, new, [watch_for_edges, arrive_twice, complete_sent_twice], |_| {});
}

/// One takes the event that both sleep on.
#[test]
fn two_poll() {
    beside(2, new, [poll_readable, poll_readable, |stream| stream.arrive()], |_| {});
}

#[test]
fn one_of_two_gives_up() {
    beside(2, new, [poll_readable, poll_for_a_while, |stream| stream.arrive()], |_| {});
}

#[test]
fn shut_down() {
    beside(3, new, [poll_readable, |stream| stream.shut_down()], |_| {});
}

#[test]
fn closed() {
    fn poll_closed(stream: &Shared) {
        assert_eq!(poll(stream), POLLNVAL);
    }
    beside(3, new, [poll_closed, |stream| stream.close()], |_| {});
}

/// A notice for an earlier wait costs a look, and hides none for this one.
#[test]
fn an_old_notice_and_a_new_one() {
    fn twice(stream: &Shared) {
        poll_for_a_while(stream);
        poll_readable(stream);
    }
    beside(2, new, [twice, |stream| stream.wake(), |stream| stream.shut_down()], |_| {});
}

/// Notices that come while the waiter is made unreadable hide none that comes later.
#[test]
fn notices_in_a_row() {
    fn change(stream: &Shared) {
        stream.wake();
        stream.wake();
        stream.shut_down();
    }
    beside(3, new, [poll_readable, change], |_| {});
}

/// The leader takes the event that the poller sleeps on, and leaves it the second piece of data.
#[test]
fn beside_a_leader() {
    fn receive(stream: &Shared) {
        assert_eq!(stream.receive(None), Ok(true));
    }
    beside(2, new, [poll_readable, receive, |stream| stream.arrive_many(2)], |_| {});
}

/// Something completes that is nothing to either: the poller leaves the event to the leader, and does not ask for it over and
/// over. (It would do so for ever in one of the orders, which loom takes for an endless loop.)
#[test]
fn nothing_comes_beside_a_leader() {
    fn receive(stream: &Shared) {
        assert_eq!(stream.receive(None), Ok(true));
    }
    fn arrive_late(stream: &Shared) {
        stream.arrive_many(0);
        stream.arrive_many(2);
    }
    beside(2, new, [poll_readable, receive, arrive_late], |_| {});
}

/// There is no leader any more for the event that the poller relies on.
#[test]
fn beside_a_leader_that_gives_up() {
    fn receive_for_a_while(stream: &Shared) {
        assert!(matches!(stream.receive(soon()), Ok(true) | Err(Errno::ETIMEDOUT)));
    }
    beside(2, new, [poll_readable, receive_for_a_while, |stream| stream.arrive_many(2)], |_| {});
}

#[test]
fn closed_beside_a_leader() {
    fn receive(stream: &Shared) {
        assert_eq!(stream.receive(None), Err(Errno::EBADF));
    }
    fn poll_closed(stream: &Shared) {
        assert_eq!(poll(stream), POLLNVAL);
    }
    beside(2, new, [poll_closed, receive, |stream| stream.close()], |_| {});
}

#[test]
fn data_comes_to_one_alone() {
    beside(4, new, [poll_alone, |stream| stream.arrive()], |_| {});
}

#[test]
fn shut_down_under_one_alone() {
    beside(3, new, [poll_alone, |stream| stream.shut_down()], |_| {});
}

#[test]
fn closed_under_one_alone() {
    fn poll_closed(stream: &Shared) {
        assert_eq!(poll_alone_until(stream, Deadline::after_ms(-1)), POLLNVAL);
    }
    beside(3, new, [poll_closed, |stream| stream.close()], |_| {});
}

/// One leads, the other is told by it, or finds its event.
#[test]
fn two_alone() {
    beside(2, new, [poll_alone, poll_alone, |stream| stream.arrive()], |_| {});
}

#[test]
fn one_alone_and_one_of_several() {
    beside(2, new, [poll_alone, poll_readable, |stream| stream.arrive()], |_| {});
}

#[test]
fn one_alone_gives_up() {
    fn poll_for_a_while(stream: &Shared) {
        assert!(matches!(poll_alone_until(stream, Deadline::after_ms(1)), 0 | POLLIN));
    }
    beside(2, new, [poll_for_a_while, poll_readable, |stream| stream.arrive()], |_| {});
}

#[test]
fn one_alone_beside_a_leader() {
    fn receive(stream: &Shared) {
        assert_eq!(stream.receive(None), Ok(true));
    }
    beside(2, new, [poll_alone, receive, |stream| stream.arrive_many(2)], |_| {});
}
