//! rpoll: threads that sleep on descriptors miss no change, alone and beside blocking calls.

use std::sync::Arc;

use libc::{POLLIN, POLLNVAL};

use super::explore;
use crate::errno::Errno;
use crate::os::event::{Deadline, wait_for_edge};
use crate::rsocket::poll::wait_one;
use crate::rsocket::pollable::Pollable;
use crate::rsocket::stream::model::{Stream, soon};

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

/// Like rpoll of a single rsocket.
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

/// Polls, receives, and polls again with the same waiter.
fn poll_and_take_twice(stream: &Shared) {
    for _ in 0..2 {
        poll_readable(stream);
        assert!(stream.receive_now());
    }
}

/// An edge-triggered epoll on the channel and its program, which receives and sends until both
/// would block. Ends after two units of data and two units of space.
fn watch_for_edges(stream: &Shared) {
    let channel = stream.descriptors().unwrap().as_slice()[0];
    stream.want_space();
    let (mut data, mut space) = (0, 0);
    loop {
        stream.arm(0);
        let (more_data, more_space) = stream.take_all();
        (data, space) = (data + more_data, space + more_space);
        if (data, space) == (2, 2) {
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
    explore(3, new, [poll_readable, |stream| stream.arrive()], |_| {});
}

#[test]
fn data_comes_twice() {
    fn arrive_twice(stream: &Shared) {
        stream.arrive();
        stream.arrive();
    }
    explore(3, new, [poll_and_take_twice, arrive_twice], |_| {});
}

/// The channel has the events of both CQs: an unread event hides all later events.
#[test]
fn an_edge_triggered_watcher_gets_both_events() {
    fn arrive_twice(stream: &Shared) {
        stream.arrive();
        stream.arrive();
    }
    fn complete_send_twice(stream: &Shared) {
        stream.complete_send();
        stream.complete_send();
    }
    explore(2, new, [watch_for_edges, arrive_twice, complete_send_twice], |_| {});
}

/// One thread takes the event that both sleep on.
#[test]
fn two_poll() {
    explore(2, new, [poll_readable, poll_readable, |stream| stream.arrive()], |_| {});
}

#[test]
fn one_of_two_gives_up() {
    explore(2, new, [poll_readable, poll_for_a_while, |stream| stream.arrive()], |_| {});
}

#[test]
fn shut_down() {
    explore(3, new, [poll_readable, |stream| stream.shut_down()], |_| {});
}

#[test]
fn closed() {
    fn poll_closed(stream: &Shared) {
        assert_eq!(poll(stream), POLLNVAL);
    }
    explore(3, new, [poll_closed, |stream| stream.close()], |_| {});
}

/// A notice of an earlier wait causes a spurious wake-up, and hides no later notice.
#[test]
fn an_old_notice_and_a_new_one() {
    fn twice(stream: &Shared) {
        poll_for_a_while(stream);
        poll_readable(stream);
    }
    explore(2, new, [twice, |stream| stream.wake(), |stream| stream.shut_down()], |_| {});
}

/// Notices that arrive while the waiter is cleared hide no later notice.
#[test]
fn notices_in_a_row() {
    fn change(stream: &Shared) {
        stream.wake();
        stream.wake();
        stream.shut_down();
    }
    explore(3, new, [poll_readable, change], |_| {});
}

/// The leader takes the event that the poller sleeps on, and leaves the second unit of data to the
/// poller.
#[test]
fn beside_a_leader() {
    fn receive(stream: &Shared) {
        assert_eq!(stream.receive(None), Ok(true));
    }
    explore(2, new, [poll_readable, receive, |stream| stream.arrive_many(2)], |_| {});
}

/// A completion without data: the poller leaves the event to the leader instead of polling for it
/// repeatedly. (In one of the orders it would poll forever, which loom reports as an endless loop.)
#[test]
fn a_completion_without_data_beside_a_leader() {
    fn receive(stream: &Shared) {
        assert_eq!(stream.receive(None), Ok(true));
    }
    fn arrive_late(stream: &Shared) {
        stream.arrive_many(0);
        stream.arrive_many(2);
    }
    explore(2, new, [poll_readable, receive, arrive_late], |_| {});
}

/// The leader on which the poller relies for the event gives up.
#[test]
fn beside_a_leader_that_gives_up() {
    fn receive_for_a_while(stream: &Shared) {
        assert!(matches!(stream.receive(soon()), Ok(true) | Err(Errno::ETIMEDOUT)));
    }
    explore(2, new, [poll_readable, receive_for_a_while, |stream| stream.arrive_many(2)], |_| {});
}

#[test]
fn closed_beside_a_leader() {
    fn receive(stream: &Shared) {
        assert_eq!(stream.receive(None), Err(Errno::EBADF));
    }
    fn poll_closed(stream: &Shared) {
        assert_eq!(poll(stream), POLLNVAL);
    }
    explore(2, new, [poll_closed, receive, |stream| stream.close()], |_| {});
}

#[test]
fn data_comes_to_one_alone() {
    explore(4, new, [poll_alone, |stream| stream.arrive()], |_| {});
}

#[test]
fn shut_down_under_one_alone() {
    explore(3, new, [poll_alone, |stream| stream.shut_down()], |_| {});
}

#[test]
fn closed_under_one_alone() {
    fn poll_closed(stream: &Shared) {
        assert_eq!(poll_alone_until(stream, Deadline::after_ms(-1)), POLLNVAL);
    }
    explore(3, new, [poll_closed, |stream| stream.close()], |_| {});
}

/// One thread leads. The leader notifies the other thread, or the other thread finds the event.
#[test]
fn two_alone() {
    explore(2, new, [poll_alone, poll_alone, |stream| stream.arrive()], |_| {});
}

#[test]
fn one_alone_and_one_of_several() {
    explore(2, new, [poll_alone, poll_readable, |stream| stream.arrive()], |_| {});
}

#[test]
fn one_alone_gives_up() {
    fn poll_for_a_while(stream: &Shared) {
        assert!(matches!(poll_alone_until(stream, Deadline::after_ms(1)), 0 | POLLIN));
    }
    explore(2, new, [poll_for_a_while, poll_readable, |stream| stream.arrive()], |_| {});
}

#[test]
fn one_alone_beside_a_leader() {
    fn receive(stream: &Shared) {
        assert_eq!(stream.receive(None), Ok(true));
    }
    explore(2, new, [poll_alone, receive, |stream| stream.arrive_many(2)], |_| {});
}

/// The reactor reads events of the channel that the poller sleeps on.
#[test]
fn beside_held_data() {
    fn peer(stream: &Shared) {
        stream.complete_send();
        stream.arrive();
    }
    let reactor = |stream: &Shared| stream.react();
    explore(2, new, [poll_readable, |stream| stream.hold(), reactor, peer], |stream| assert!(!stream.has_held()));
}
