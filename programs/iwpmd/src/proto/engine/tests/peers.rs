//! Queries to other hosts, and requests from peers.

use super::*;
use crate::proto::requests::{MAX_PEER_REQUESTS_PER_HOST, QUERY_TIMEOUT_MS, RESEND_INTERVAL_MS};

fn sent(out: &[Out]) -> Message {
    let Some(Out::Send(Socket::Client, to, message)) = out.last() else { panic!("nothing sent: {out:?}") };
    assert_eq!(*to, address(PEER));
    *message
}

#[test]
fn a_query_is_answered_once_and_acknowledged_each_time() {
    let mut world = World::registered();
    let request = sent(&world.query("10.0.0.1:8000", "10.0.0.2:9000"));
    assert_eq!((request.cp, request.ap), (peer("10.0.0.1:8000"), peer("10.0.0.2:9000")));
    assert_eq!(request.mapped_cp, Some(peer("10.0.0.1:40001")));
    assert_eq!(world.at(RESEND_INTERVAL_MS), [Out::Send(Socket::Client, address(PEER), request)]);
    let accept = Message { ap: peer("10.0.0.2:33333"), ..request.answer(Kind::Accept) };
    assert_eq!(world.udp(Socket::Client, "10.0.0.3:3935", accept), [], "a host that was not queried");
    assert_eq!(world.udp(Socket::Service, PEER, accept), [], "by another socket");
    let ack = Out::Send(Socket::Client, address(PEER), accept.answer(Kind::Ack));
    let expected = queried(3, "10.0.0.1:8000", "10.0.0.2:9000", ["10.0.0.1:40001", "10.0.0.2:33333"], 0);
    assert_eq!(world.udp(Socket::Client, PEER, accept), [expected, ack.clone()]);
    assert_eq!(world.udp(Socket::Client, PEER, accept), [ack]);
    assert_eq!(world.at(2 * RESEND_INTERVAL_MS), []);
    assert_eq!(world.at(QUERY_TIMEOUT_MS + RESEND_INTERVAL_MS), []);
    assert_eq!(world.udp(Socket::Client, PEER, accept), []);
    assert_eq!(world.engine.counts().dropped, 3);
    assert_eq!(world.remove("10.0.0.1:8000"), [Out::Close(1)]);
}

#[test]
fn a_reject_gives_the_unmapped_address() {
    let mut world = World::registered();
    let request = sent(&world.query("10.0.0.1:8000", "10.0.0.2:9000"));
    let reject = request.answer(Kind::Reject);
    assert_eq!(world.udp(Socket::Client, "10.0.0.3:3935", reject), []);
    let expected = queried(3, "10.0.0.1:8000", "10.0.0.2:9000", ["10.0.0.1:40001", "10.0.0.2:9000"], 16);
    assert_eq!(world.udp(Socket::Client, PEER, reject), [expected]);
    assert_eq!(world.udp(Socket::Client, PEER, reject), []);
}

#[test]
fn a_query_that_times_out_drops_its_mapping() {
    let mut world = World::registered();
    world.query("10.0.0.1:8000", "10.0.0.2:9000");
    for second in 1..10 {
        assert_eq!(world.at(second * RESEND_INTERVAL_MS).len(), 1);
    }
    assert_eq!(world.at(QUERY_TIMEOUT_MS), [Out::Close(1), error(3, ErrorCode::UnknownMapping)]);
    assert_eq!(world.engine.mappings(), 0);
    assert_eq!(world.engine.deadline(), None);
    assert_eq!(world.remove("10.0.0.1:8000"), [], "the kernel still sends it");
}

#[test]
fn a_query_that_times_out_leaves_the_references_of_others() {
    let mut world = World::registered();
    world.query("10.0.0.1:8000", "10.0.0.2:9000");
    let request = sent(&world.query("10.0.0.1:8000", "10.0.0.2:9001"));
    world.udp(Socket::Client, PEER, request.answer(Kind::Accept));
    // The kernel gives up first. Its removal drops a reference; the timeout must not drop another.
    assert_eq!(world.remove("10.0.0.1:8000"), []);
    assert_eq!(world.at(QUERY_TIMEOUT_MS), [error(3, ErrorCode::UnknownMapping)]);
    assert_eq!(world.engine.mappings(), 1);
    assert_eq!(world.remove("10.0.0.1:8000"), [Out::Close(1)]);
}

#[test]
fn requests_of_peers() {
    let mut world = World::registered();
    world.add("10.0.0.1:7000");
    world.add("0.0.0.0:7001");
    let request = peer_request("10.0.0.1:7000", 9);
    let accept = Message { ap: peer("10.0.0.1:40001"), ..request.answer(Kind::Accept) };
    let expected = [
        Value::U32(0),
        Value::Address(address("10.0.0.1:7000")),
        Value::Address(address("10.0.0.9:111")),
        Value::Address(address("10.0.0.1:40001")),
        Value::Address(address("10.0.0.9:222")),
        Value::U16(0),
    ];
    let from = "10.0.0.9:5";
    let sent = Out::Send(Socket::Service, address(from), accept);
    let expected = answer(RDMA_NL_IWPM_REMOTE_INFO, &expected);
    assert_eq!(world.udp(Socket::Service, from, request), [expected, sent.clone()]);
    // The request is repeated because the answer was lost. It is not reported again.
    assert_eq!(world.udp(Socket::Service, from, request), [sent]);
    assert_eq!(world.udp(Socket::Service, from, accept.answer(Kind::Ack)), []);
    assert_eq!(world.udp(Socket::Client, from, request), []);
    let out = world.udp(Socket::Service, from, peer_request("10.0.0.1:7001", 10));
    assert!(matches!(out[1], Out::Send(_, _, message) if message.ap == peer("10.0.0.1:40002")));
    let unknown = peer_request("10.0.0.1:7999", 11);
    let reject = Out::Send(Socket::Service, address(from), unknown.answer(Kind::Reject));
    assert_eq!(world.udp(Socket::Service, from, unknown), [reject]);
}

/// Each report occupies about 400 bytes in the kernel until its connection arrives.
#[test]
fn forged_requests_occupy_little_memory_of_the_kernel() {
    let mut world = World::registered();
    world.add("10.0.0.1:7000");
    let (mut reports, from) = (0, "10.0.0.9:5");
    for handle in 0..20 * u64::from(MAX_PEER_REQUESTS_PER_HOST) {
        world.at(handle * 10);
        let out = world.udp(Socket::Service, from, peer_request("10.0.0.1:7000", handle));
        assert!(matches!(out.last(), Some(Out::Send(Socket::Service, ..))), "it is still answered");
        reports += out.len() - 1;
    }
    assert_eq!(reports, MAX_PEER_REQUESTS_PER_HOST as usize);
    assert_eq!(world.engine.counts().not_reported, 19 * u64::from(MAX_PEER_REQUESTS_PER_HOST));
    // The connections of another host are reported.
    assert_eq!(world.udp(Socket::Service, "10.0.0.8:5", peer_request("10.0.0.1:7000", 1)).len(), 2);
}
