//! Posting without a stream's lock: every write is posted once, in order, and none after the send
//! queue was destroyed.

use super::explore;
use crate::rsocket::stream::model::Stream;

fn send(stream: &Stream) {
    assert!(stream.send_large());
}

fn send_twice(stream: &Stream) {
    send(stream);
    send(stream);
}

fn send_twice_unless_closed(stream: &Stream) {
    let _ = stream.send_large() && stream.send_large();
}

fn send_unless_closed(stream: &Stream) {
    stream.send_large();
}

fn in_order(count: u32) -> impl Fn(&Stream) {
    move |stream| assert_eq!(stream.posted(), (0..count).collect::<Vec<_>>())
}

fn all_in_order(stream: &Stream) {
    let posted = stream.posted();
    assert_eq!(posted, (0..stream.writes()).collect::<Vec<_>>());
}

#[test]
fn writes_of_two_threads_are_posted_in_order() {
    explore(3, Stream::new, [send_twice, send_twice], in_order(4));
}

#[test]
fn writes_of_three_threads_are_posted_in_order() {
    explore(2, Stream::new, [send, send, send], in_order(3));
}

#[test]
fn closing_waits_for_writes() {
    explore(3, Stream::new, [send_twice_unless_closed, Stream::close], all_in_order);
    explore(2, Stream::new, [send_unless_closed, send_unless_closed, Stream::close], all_in_order);
}

/// Other waits are not disturbed.
#[test]
fn a_reader_is_woken_beside_writes() {
    fn receive(stream: &Stream) {
        assert_eq!(stream.receive(None), Ok(true));
    }
    explore(2, Stream::new, [receive, send, Stream::arrive], in_order(1));
}
