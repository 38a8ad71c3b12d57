//! Blocking calls of a stream: no wake-up is lost when the leader leaves, for any reason.

use super::explore;
use crate::errno::Errno;
use crate::rsocket::stream::model::{Stream, soon};

fn receive(stream: &Stream) {
    assert_eq!(stream.receive(None), Ok(true));
}

/// The call may time out or not, but must not take the wake-up of another thread.
fn receive_for_a_while(stream: &Stream) {
    assert!(matches!(stream.receive(soon()), Ok(true) | Err(Errno::ETIMEDOUT)));
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

#[test]
fn one_waits() {
    explore(4, Stream::new, [receive, Stream::arrive], left_over(0));
}

#[test]
fn one_waits_twice() {
    fn twice(stream: &Stream) {
        receive(stream);
        receive(stream);
    }
    fn arrive_twice(stream: &Stream) {
        stream.arrive();
        stream.arrive();
    }
    explore(3, Stream::new, [twice, arrive_twice], left_over(0));
}

#[test]
fn two_wait() {
    fn arrive_twice(stream: &Stream) {
        stream.arrive();
        stream.arrive();
    }
    explore(2, Stream::new, [receive, receive, arrive_twice], left_over(0));
}

/// One completion has the data of both threads.
#[test]
fn two_wait_for_one_completion() {
    explore(2, Stream::new, [receive, receive, |stream| stream.arrive_many(2)], left_over(0));
}

#[test]
fn one_of_two_gives_up() {
    explore(2, Stream::new, [receive, receive_for_a_while, |stream| stream.arrive_many(2)], left_over(1));
}

/// A non-blocking call processes the completion that other threads wait for.
#[test]
fn another_call_makes_progress() {
    fn take_one(stream: &Stream) {
        stream.receive_now();
    }
    explore(2, Stream::new, [receive, take_one, |stream| stream.arrive_many(2)], left_over(1));
}

#[test]
fn two_wait_beside_another_call() {
    fn take_one(stream: &Stream) {
        stream.receive_now();
        stream.arrive_many(3);
    }
    explore(2, Stream::new, [receive, receive, take_one], left_over(1));
}

fn closed_or_shut(stream: &Stream) {
    assert!(matches!(stream.receive(None), Ok(false) | Err(Errno::EBADF)));
}

#[test]
fn shut_down_under_two() {
    explore(2, Stream::new, [closed_or_shut, closed_or_shut, Stream::shut_down], |_| {});
}

#[test]
fn closed_under_two() {
    explore(2, Stream::new, [closed_or_shut, closed_or_shut, Stream::close], |_| {});
}

#[test]
fn closed_while_one_gives_up() {
    fn give_up(stream: &Stream) {
        assert!(matches!(stream.receive(soon()), Err(Errno::EBADF | Errno::ETIMEDOUT)));
    }
    explore(2, Stream::new, [closed_or_shut, give_up, Stream::close], |_| {});
}

/// Either the reader or the sender leads. Each is woken by the event it waits for.
#[test]
fn a_sender_beside_a_reader() {
    fn peer(stream: &Stream) {
        stream.complete_send();
        stream.arrive();
    }
    explore(2, Stream::new, [receive, Stream::send, peer], left_over(0));
}

/// The data arrives after the send space; the sender must not wait for it.
#[test]
fn a_sender_beside_a_reader_that_goes_on_waiting() {
    fn space_then_data(stream: &Stream) {
        stream.complete_send();
        stream.send();
        stream.arrive();
    }
    fn nobody(_: &Stream) {}
    explore(2, Stream::new, [receive, space_then_data, nobody], left_over(0));
}

#[test]
fn two_senders() {
    fn complete_twice(stream: &Stream) {
        stream.complete_send();
        stream.complete_send();
    }
    explore(2, Stream::new, [Stream::send, Stream::send, complete_twice], left_over(0));
}

fn nothing_held(stream: &Stream) {
    assert!(!stream.has_held());
}

#[test]
fn held_data_is_sent() {
    explore(3, Stream::new, [Stream::hold, Stream::react, Stream::complete_send], nothing_held);
}

/// Either the reader, as the leader, or the reactor reads the event. The reader may have to wait
/// again for its data.
#[test]
fn held_data_is_sent_beside_a_reader() {
    fn peer(stream: &Stream) {
        stream.complete_send();
        stream.arrive();
    }
    fn answer_first(stream: &Stream) {
        stream.arrive();
        stream.complete_send();
    }
    for peer in [peer, answer_first] {
        explore(2, Stream::new, [receive, Stream::hold, Stream::react, peer], nothing_held);
    }
}

#[test]
fn held_data_is_sent_beside_a_reader_that_gives_up() {
    explore(
        2,
        Stream::new,
        [receive_for_a_while, Stream::hold, Stream::react, |stream| {
            stream.complete_send();
            stream.arrive();
        }],
        nothing_held,
    );
}

fn noticed(stream: &Stream) {
    assert!(!stream.is_starting());
}

/// The program makes no call after the connection is established.
#[test]
fn first_data_is_noticed() {
    let peer = Stream::arrive_after_another_message;
    explore(3, Stream::starting, [Stream::connected, Stream::react, peer], noticed);
}

/// A reader that gives up may have read the event.
#[test]
fn first_data_is_noticed_beside_a_reader_that_gives_up() {
    fn connected_then_receive(stream: &Stream) {
        stream.connected();
        receive_for_a_while(stream);
    }
    let peer = Stream::arrive_after_another_message;
    explore(2, Stream::starting, [connected_then_receive, Stream::react, peer], noticed);
}
