//! Threads that poll before they sleep. They poll under the stream's lock, and release the lock
//! between two polls: completions are processed in order, none is lost, and none is polled after
//! the CQs were destroyed.

use super::explore;
use crate::errno::Errno;
use crate::rsocket::stream::model::{Stream, soon};

/// Polls once, then sleeps.
fn receive(stream: &Stream) {
    assert_eq!(stream.receive_polling(None, 1), Ok(true));
}

fn receive_without_polling(stream: &Stream) {
    assert_eq!(stream.receive(None), Ok(true));
}

fn receive_for_a_while(stream: &Stream) {
    assert!(matches!(stream.receive_polling(soon(), 1), Ok(true) | Err(Errno::ETIMEDOUT)));
}

fn arrive_twice(stream: &Stream) {
    stream.arrive();
    stream.arrive();
}

fn left_over(most: u32) -> impl Fn(&Stream) {
    move |stream| {
        let mut count = 0;
        while stream.receive_now() {
            count += 1;
        }
        assert!(count <= most);
    }
}

fn closed_or_shut(stream: &Stream) {
    assert!(matches!(stream.receive_polling(None, 1), Ok(false) | Err(Errno::EBADF)));
}

#[test]
fn one_polls() {
    explore(3, Stream::new, [receive, Stream::arrive], left_over(0));
}

#[test]
fn one_polls_several_times() {
    fn receive(stream: &Stream) {
        assert_eq!(stream.receive_polling(None, 2), Ok(true));
    }
    explore(2, Stream::new, [receive, arrive_twice], left_over(1));
}

#[test]
fn two_poll() {
    explore(2, Stream::new, [receive, receive, arrive_twice], left_over(0));
}

#[test]
fn one_polls_and_one_sleeps() {
    explore(2, Stream::new, [receive, receive_without_polling, arrive_twice], left_over(0));
}

/// A non-blocking call gets the data that arrived before the call, although another thread polls.
#[test]
fn another_call_does_not_miss_data() {
    fn arrive_and_take_one(stream: &Stream) {
        stream.arrive();
        stream.arrive();
        assert!(stream.receive_now());
    }
    explore(3, Stream::new, [receive, arrive_and_take_one], left_over(0));
}

#[test]
fn one_gives_up() {
    explore(2, Stream::new, [receive, receive_for_a_while, arrive_twice], left_over(1));
}

#[test]
fn shut_down_meanwhile() {
    explore(2, Stream::new, [closed_or_shut, closed_or_shut, Stream::shut_down], |_| {});
}

#[test]
fn closed_meanwhile() {
    explore(2, Stream::new, [closed_or_shut, closed_or_shut, Stream::close], |_| {});
}

/// Waits for space: polls once, then sleeps.
fn send(stream: &Stream) {
    stream.send_polling(1);
}

fn no_space_left(stream: &Stream) {
    assert_eq!(stream.take_all(), (0, 0));
}

#[test]
fn one_polls_for_space() {
    explore(3, Stream::new, [send, Stream::complete_send], no_space_left);
}

#[test]
fn one_polls_for_space_and_one_for_data() {
    fn complete_both(stream: &Stream) {
        stream.complete_send();
        stream.arrive();
    }
    explore(2, Stream::new, [send, receive, complete_both], no_space_left);
}

#[test]
fn two_poll_for_space() {
    fn complete_two(stream: &Stream) {
        stream.complete_send();
        stream.complete_send();
    }
    explore(2, Stream::new, [send, send, complete_two], no_space_left);
}

/// The thread that polls for data does not see the completion that held data waits for.
#[test]
fn held_data_is_sent_beside_one_that_polls_for_data() {
    fn complete_send_then_arrive(stream: &Stream) {
        stream.complete_send();
        stream.arrive();
    }
    let sent = |stream: &Stream| assert!(!stream.has_held());
    explore(2, Stream::new, [receive, Stream::hold, Stream::react, complete_send_then_arrive], sent);
}

/// The call that holds data polls the send CQ while another thread polls it for space.
#[test]
fn held_data_is_sent_beside_one_that_polls_for_space() {
    fn complete_two(stream: &Stream) {
        stream.complete_send();
        stream.complete_send();
    }
    explore(2, Stream::new, [send, Stream::hold, Stream::react, complete_two], |stream| assert!(!stream.has_held()));
}
