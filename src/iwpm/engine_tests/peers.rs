//! Questions to other hosts, and theirs.

use super::*;
use crate::iwpm::requests::{AGAIN, LIFE, MAX_ASKED_BY_HOST};

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
    assert_eq!(world.at(AGAIN), [Out::Send(Socket::Client, address(PEER), request)]);
    let accept = Message { ap: peer("10.0.0.2:33333"), ..request.answer(Kind::Accept) };
    assert_eq!(world.udp(Socket::Client, "10.0.0.3:3935", accept), [], "who was not asked");
    assert_eq!(world.udp(Socket::Service, PEER, accept), [], "by another socket");
    let ack = Out::Send(Socket::Client, address(PEER), accept.answer(Kind::Ack));
    let told = queried(3, "10.0.0.1:8000", "10.0.0.2:9000", ["10.0.0.1:40001", "10.0.0.2:33333"], 0);
    assert_eq!(world.udp(Socket::Client, PEER, accept), [told, ack.clone()]);
    assert_eq!(world.udp(Socket::Client, PEER, accept), [ack]);
    assert_eq!(world.at(2 * AGAIN), []);
    assert_eq!(world.at(LIFE + AGAIN), []);
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
    let told = queried(3, "10.0.0.1:8000", "10.0.0.2:9000", ["10.0.0.1:40001", "10.0.0.2:9000"], 16);
    assert_eq!(world.udp(Socket::Client, PEER, reject), [told]);
    assert_eq!(world.udp(Socket::Client, PEER, reject), []);
}

#[test]
fn an_unanswered_query_gives_its_mapping_back() {
    let mut world = World::registered();
    world.query("10.0.0.1:8000", "10.0.0.2:9000");
    for second in 1..10 {
        assert_eq!(world.at(second * AGAIN).len(), 1);
    }
    assert_eq!(world.at(LIFE), [Out::Close(1), error(3, Code::UnknownMapping)]);
    assert_eq!(world.engine.mappings(), 0);
    assert_eq!(world.engine.deadline(), None);
    assert_eq!(world.remove("10.0.0.1:8000"), [], "what the kernel sends all the same");
}

#[test]
fn an_unanswered_query_takes_nothing_from_others() {
    let mut world = World::registered();
    world.query("10.0.0.1:8000", "10.0.0.2:9000");
    let request = sent(&world.query("10.0.0.1:8000", "10.0.0.2:9001"));
    world.udp(Socket::Client, PEER, request.answer(Kind::Accept));
    // The kernel has given up before we do: its removal and our release must not both count.
    assert_eq!(world.remove("10.0.0.1:8000"), []);
    assert_eq!(world.at(LIFE), [error(3, Code::UnknownMapping)]);
    assert_eq!(world.engine.mappings(), 1);
    assert_eq!(world.remove("10.0.0.1:8000"), [Out::Close(1)]);
}

#[test]
fn questions_of_others() {
    let mut world = World::registered();
    world.add("10.0.0.1:7000");
    world.add("0.0.0.0:7001");
    let request = question("10.0.0.1:7000", 9);
    let accept = Message { ap: peer("10.0.0.1:40001"), ..request.answer(Kind::Accept) };
    let told = [
        Value::U32(0),
        Value::Address(address("10.0.0.1:7000")),
        Value::Address(address("10.0.0.9:111")),
        Value::Address(address("10.0.0.1:40001")),
        Value::Address(address("10.0.0.9:222")),
        Value::U16(0),
    ];
    let from = "10.0.0.9:5";
    let sent = Out::Send(Socket::Service, address(from), accept);
    let told = answer(RDMA_NL_IWPM_REMOTE_INFO, &told);
    assert_eq!(world.udp(Socket::Service, from, request), [told, sent.clone()]);
    // Again: the answer was lost. The kernel knows already.
    assert_eq!(world.udp(Socket::Service, from, request), [sent]);
    assert_eq!(world.udp(Socket::Service, from, accept.answer(Kind::Ack)), []);
    assert_eq!(world.udp(Socket::Client, from, request), []);
    let out = world.udp(Socket::Service, from, question("10.0.0.1:7001", 10));
    assert!(matches!(out[1], Out::Send(_, _, message) if message.ap == peer("10.0.0.1:40002")));
    let unknown = question("10.0.0.1:7999", 11);
    let reject = Out::Send(Socket::Service, address(from), unknown.answer(Kind::Reject));
    assert_eq!(world.udp(Socket::Service, from, unknown), [reject]);
}

/// Each makes the kernel keep some 400 bytes until its connection comes.
#[test]
fn forged_questions_make_the_kernel_keep_little() {
    let mut world = World::registered();
    world.add("10.0.0.1:7000");
    let (mut reports, from) = (0, "10.0.0.9:5");
    for handle in 0..20 * u64::from(MAX_ASKED_BY_HOST) {
        world.at(handle * 10);
        let out = world.udp(Socket::Service, from, question("10.0.0.1:7000", handle));
        assert!(matches!(out.last(), Some(Out::Send(Socket::Service, ..))), "it is answered all the same");
        reports += out.len() - 1;
    }
    assert_eq!(reports, MAX_ASKED_BY_HOST as usize);
    assert_eq!(world.engine.counts().not_reported, 19 * u64::from(MAX_ASKED_BY_HOST));
    // Another host's connections are told of.
    assert_eq!(world.udp(Socket::Service, "10.0.0.8:5", question("10.0.0.1:7000", 1)).len(), 2);
}
