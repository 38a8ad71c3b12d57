//! The kernel and other hosts, played.

use std::cell::Cell;
use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::iwpm::netlink::{Code, Incoming, LIBRARY, Said, messages};
use crate::iwpm::requests::{AGAIN, LIFE};
use crate::iwpm::wire::{Kind, Message, Peer};
use crate::sys::uapi::*;

const PEER: &str = "10.0.0.2:3935";

/// What came out, read again.
#[derive(Clone, Debug, PartialEq)]
enum Out {
    Answer { client: u8, op: u32, values: Vec<u8> },
    Error { seq: u32, code: u16 },
    Send(Socket, SocketAddr, Message),
    Open(u16),
    Close(u64),
}

struct World {
    engine: Engine,
    now: u64,
    seq: u32,
    open: HashSet<u64>,
    next_port: u16,
    /// Ports that cannot be had.
    taken: Vec<u16>,
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn peer(text: &str) -> Peer {
    crate::iwpm::mappings::key(&address(text))
}

impl World {
    fn new() -> World {
        let last = Cell::new(100);
        let random = move || last.replace(last.get() + 1);
        let engine = Engine::new(77, Box::new(random));
        World { engine, now: 0, seq: 0, open: HashSet::new(), next_port: 40_000, taken: Vec::new() }
    }

    /// One that a kernel of version 4 has greeted, and that a client has registered with.
    fn registered() -> World {
        let mut world = World::new();
        world.engine.start();
        world.act();
        world.said(RDMA_NL_IWPM_HELLO, Said::Hello(4));
        world.register();
        world
    }

    fn register(&mut self) -> Vec<Out> {
        let (interface, device, library) = (b"eth0".into(), b"siw0".into(), LIBRARY.into());
        self.said(RDMA_NL_IWPM_REG_PID, Said::Register { interface, device, library })
    }

    fn said(&mut self, op: u32, said: Said) -> Vec<Out> {
        self.seq += 1;
        let header = Header { client: IWCM, op: op as u16, seq: self.seq };
        self.engine.kernel(Incoming::Said(header, said), self.now);
        self.act()
    }

    fn add(&mut self, local: &str) -> Vec<Out> {
        self.said(RDMA_NL_IWPM_ADD_MAPPING, Said::Add { local: address(local), flags: 0 })
    }

    fn query(&mut self, local: &str, remote: &str) -> Vec<Out> {
        let said = Said::Query { local: address(local), remote: address(remote), flags: 0 };
        self.said(RDMA_NL_IWPM_QUERY_MAPPING, said)
    }

    fn remove(&mut self, local: &str) -> Vec<Out> {
        self.said(RDMA_NL_IWPM_REMOVE_MAPPING, Said::Remove(address(local)))
    }

    fn restore(&mut self, local: &str, mapped: &str) -> Vec<Out> {
        let said = Said::MapInfo { local: address(local), mapped: address(mapped), flags: 0 };
        self.said(RDMA_NL_IWPM_MAPINFO, said)
    }

    fn udp(&mut self, socket: Socket, from: &str, message: Message) -> Vec<Out> {
        self.engine.udp(socket, address(from), None, message.emit().as_slice(), self.now);
        self.act()
    }

    fn at(&mut self, now: u64) -> Vec<Out> {
        self.now = now;
        self.engine.timer(now);
        self.act()
    }

    fn act(&mut self) -> Vec<Out> {
        let mut out = Vec::new();
        while let Some(action) = self.engine.action() {
            match action {
                Action::Kernel(bytes) => out.push(read(&bytes)),
                Action::Send { socket, to, message, .. } => {
                    let message = Message::parse(message.as_slice(), to.is_ipv6()).unwrap();
                    out.push(Out::Send(socket, to, message));
                }
                Action::Open { id, port, .. } => {
                    out.push(Out::Open(port));
                    self.next_port += 1;
                    let port = if port == 0 { self.next_port } else { port };
                    let opened = if self.taken.contains(&port) { Err(Errno::EBUSY) } else { Ok(port) };
                    assert!(opened.is_err() || self.open.insert(id.0), "opened twice");
                    self.engine.opened(id, opened, self.now);
                }
                Action::Close(id) => {
                    assert!(self.open.remove(&id.0), "closed, but not open");
                    out.push(Out::Close(id.0));
                }
                Action::Log(..) => {}
            }
        }
        out
    }
}

/// What goes to the kernel: errors by their meaning, all else by its bytes behind the header.
fn read(bytes: &[u8]) -> Out {
    let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
    assert_eq!(bytes[12..16], 77u32.to_ne_bytes());
    let (client, op) = ((kind >> 10) as u8, u32::from(kind & 0x3ff));
    if op == RDMA_NL_IWPM_HANDLE_ERR {
        let number = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        return Out::Error { seq: number(20), code: number(28) as u16 };
    }
    Out::Answer { client, op, values: bytes[16..].to_vec() }
}

fn answer(op: u32, values: &[Value<'_>]) -> Out {
    let header = Header { client: IWCM, op: op as u16, seq: 0 };
    Out::Answer { client: IWCM, op, values: netlink::emit(header, 0, values)[16..].to_vec() }
}

fn added(seq: u32, local: &str, mapped: &str) -> Out {
    let values = [Value::U32(seq), Value::Address(address(local)), Value::Address(address(mapped)), Value::U16(0)];
    answer(RDMA_NL_IWPM_ADD_MAPPING, &values)
}

fn queried(seq: u32, local: &str, remote: &str, mapped: [&str; 2], code: u16) -> Out {
    let [mapped_local, mapped_remote] = mapped.map(address);
    let values = [
        Value::U32(seq),
        Value::Address(address(local)),
        Value::Address(address(remote)),
        Value::Address(mapped_local),
        Value::Address(mapped_remote),
        Value::U16(code),
    ];
    answer(RDMA_NL_IWPM_QUERY_MAPPING, &values)
}

fn error(seq: u32, code: Code) -> Out {
    Out::Error { seq, code: code as u16 }
}

fn list_request(client: u8, version: u16) -> Out {
    let Out::Answer { op, values, .. } = answer(RDMA_NL_IWPM_MAPINFO, &[Value::Text(LIBRARY), Value::U16(version)])
    else {
        unreachable!()
    };
    Out::Answer { client, op, values }
}

#[test]
fn greeting_and_list() {
    let mut world = World::new();
    world.engine.start();
    assert_eq!(world.act(), [answer(RDMA_NL_IWPM_HELLO, &[Value::U16(4)])]);
    assert_eq!(world.said(RDMA_NL_IWPM_HELLO, Said::Hello(4)), [list_request(2, 4)]);
    let registered = [Value::U32(2), Value::Text(b"siw0"), Value::Text(LIBRARY), Value::U16(4), Value::U16(0)];
    assert_eq!(world.register(), [answer(RDMA_NL_IWPM_REG_PID, &registered)]);
    assert_eq!(world.said(RDMA_NL_IWPM_HELLO, Said::Hello(5)), [error(3, Code::Version)]);
}

#[test]
fn an_old_kernel_is_spoken_to_in_version_3() {
    let mut world = World::new();
    world.engine.start();
    let Some(Action::Kernel(hello)) = world.engine.action() else { panic!("no greeting") };
    world.engine.kernel(Incoming::Failed { errno: libc::EINVAL, message: &hello }, 0);
    assert_eq!(world.act(), [list_request(2, 3), list_request(3, 3)]);
    // Another failure is no reason to greet again; what came while the kernel was busy is sent once more.
    let Out::Answer { .. } = &world.register()[0] else { panic!("not registered") };
    world.engine.kernel(Incoming::Failed { errno: libc::EINVAL, message: &[] }, 0);
    assert_eq!(world.act(), []);
    world.engine.kernel(Incoming::Failed { errno: libc::EBUSY, message: &hello }, 0);
    assert_eq!(world.engine.action(), Some(Action::Kernel(hello)));
}

#[test]
fn strangers_and_other_libraries_are_refused() {
    let mut world = World::new();
    assert_eq!(world.add("10.0.0.1:7000"), [error(1, Code::ClientDevice)]);
    assert_eq!(world.query("10.0.0.1:7000", "10.0.0.2:1"), [error(2, Code::ClientDevice)]);
    world.register();
    let said = Said::Register { interface: b"e".into(), device: b"d".into(), library: b"other".into() };
    assert_eq!(world.said(RDMA_NL_IWPM_REG_PID, said), [error(4, Code::UserLibrary)]);
    let header = Header { client: 2, op: RDMA_NL_IWPM_ADD_MAPPING as u16, seq: 5 };
    world.engine.kernel(Incoming::Malformed(header), 0);
    assert_eq!(world.act(), [error(5, Code::InvalidMessage)]);
    world.engine.kernel(Incoming::Malformed(Header { op: RDMA_NL_IWPM_HANDLE_ERR as u16, ..header }), 0);
    assert_eq!(world.act(), []);
}

/// As the reference answers (44.0).
#[test]
fn mapping_and_its_end() {
    let mut world = World::registered();
    assert_eq!(world.add("10.0.0.1:7000"), [Out::Open(0), added(3, "10.0.0.1:7000", "10.0.0.1:40001")]);
    assert_eq!(world.add("10.0.0.1:7000"), [error(4, Code::DuplicateMapping)]);
    assert_eq!(world.add("0.0.0.0:7000"), [error(5, Code::DuplicateMapping)]);
    // The kernel removes what it was refused, too.
    assert_eq!(world.remove("10.0.0.1:7000"), []);
    assert_eq!(world.remove("0.0.0.0:7000"), []);
    assert_eq!(world.remove("10.0.0.1:7000"), [Out::Close(1)]);
    assert_eq!(world.remove("10.0.0.1:7000"), []);
    assert_eq!(world.engine.mappings(), 0);
}

#[test]
fn a_wildcard_is_shared() {
    let mut world = World::registered();
    assert_eq!(world.add("0.0.0.0:7001"), [Out::Open(0), added(3, "0.0.0.0:7001", "0.0.0.0:40001")]);
    assert_eq!(world.add("0.0.0.0:7001"), [added(4, "0.0.0.0:7001", "0.0.0.0:40001")]);
    assert_eq!(world.add("10.0.0.1:7001"), [error(5, Code::DuplicateMapping)]);
    assert_eq!(world.add("[::]:7001").len(), 2, "another family");
    assert_eq!(world.query("10.0.0.1:7001", "10.0.0.2:1"), [error(7, Code::CreateMapping)]);
    assert_eq!(world.query("0.0.0.0:9999", "10.0.0.2:1"), [error(8, Code::CreateMapping)]);
    assert_eq!(world.remove("0.0.0.0:7001"), []);
    assert_eq!(world.remove("0.0.0.0:7001"), [Out::Close(1)]);
}

#[test]
fn not_mapped_means_no_socket() {
    let mut world = World::registered();
    let said = Said::Add { local: address("10.0.0.1:7002"), flags: IWPM_FLAGS_NO_PORT_MAP };
    assert_eq!(world.said(RDMA_NL_IWPM_ADD_MAPPING, said), [added(3, "10.0.0.1:7002", "10.0.0.1:7002")]);
    assert_eq!(world.query("10.0.0.1:7002", "10.0.0.2:1"), [error(4, Code::DuplicateMapping)]);
    let request = question("10.0.0.1:7002", 9);
    let out = world.udp(Socket::Service, "10.0.0.9:5", request);
    assert!(matches!(out[1], Out::Send(_, _, Message { kind: Kind::Accept, ap, .. }) if ap == peer("10.0.0.1:7002")));
    world.remove("10.0.0.1:7002");
    assert_eq!((world.remove("10.0.0.1:7002"), world.engine.mappings()), (vec![], 0));
}

#[test]
fn no_port_is_an_error() {
    let mut world = World::registered();
    world.taken = vec![40_001];
    assert_eq!(world.add("10.0.0.1:7000"), [Out::Open(0), error(3, Code::CreateMapping)]);
    assert_eq!(world.engine.mappings(), 0);
}

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

fn question(asked: &str, handle: u64) -> Message {
    let (cp, mapped_cp) = (peer("10.0.0.9:111"), Some(peer("10.0.0.9:222")));
    Message { kind: Kind::Request, handle, cp, ap: peer(asked), mapped_cp }
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

#[test]
fn mappings_of_an_earlier_port_mapper() {
    let mut world = World::registered();
    assert_eq!(world.restore("10.0.0.1:7000", "10.0.0.1:45000"), [Out::Open(45000)]);
    assert_eq!(world.restore("0.0.0.0:7001", "0.0.0.0:45001"), [Out::Open(45001)]);
    assert_eq!(world.restore("0.0.0.0:7001", "0.0.0.0:45001"), []);
    assert_eq!(world.restore("10.0.0.1:7000", "10.0.0.1:45002"), [error(6, Code::DuplicateMapping)]);
    let values = [Value::U32(7), Value::U32(4), Value::U32(3)];
    let out = world.said(RDMA_NL_IWPM_MAPINFO_NUM, Said::MapInfoNumber(4));
    assert_eq!(out, [answer(RDMA_NL_IWPM_MAPINFO_NUM, &values)]);
    assert_eq!(world.remove("0.0.0.0:7001"), [], "two listeners");
    assert_eq!(world.remove("0.0.0.0:7001"), [Out::Close(2)]);
    assert_eq!(world.remove("10.0.0.1:7000"), [Out::Close(1)]);
}

#[test]
fn after_an_overrun_the_list_counts() {
    let mut world = World::registered();
    for local in ["10.0.0.1:7000", "0.0.0.0:7001", "0.0.0.0:7001", "10.0.0.1:7002"] {
        world.add(local);
    }
    world.at(60_000);
    world.add("10.0.0.1:7003");
    world.engine.overrun(world.now);
    assert_eq!(world.act(), [list_request(2, 4)]);
    // A second one at once is asked about later.
    world.engine.overrun(world.now);
    assert_eq!(world.act(), []);
    assert_eq!(world.at(61_000), [list_request(2, 4)]);
    world.restore("10.0.0.1:7000", "10.0.0.1:40001");
    world.restore("0.0.0.0:7001", "0.0.0.0:40002");
    let out = world.said(RDMA_NL_IWPM_MAPINFO_NUM, Said::MapInfoNumber(2));
    assert_eq!(out[1..], [Out::Close(3)], "7002 is gone, 7003 too young to tell");
    assert_eq!(world.remove("0.0.0.0:7001"), [Out::Close(2)], "one of two listeners was removed unheard");
    assert_eq!(world.engine.mappings(), 2);
}

#[test]
fn an_incomplete_list_is_not_believed() {
    let mut world = World::registered();
    world.add("10.0.0.1:7000");
    world.at(60_000);
    world.engine.overrun(world.now);
    world.act();
    assert_eq!(world.said(RDMA_NL_IWPM_MAPINFO_NUM, Said::MapInfoNumber(1)).len(), 1);
    assert_eq!(world.engine.mappings(), 1);
}

#[test]
fn sequence_numbers_stay_ahead() {
    let mut world = World::new();
    world.register();
    let mut last = 0;
    for seen in [5u32, 1_000_000, u32::MAX - 3, 2] {
        let header = Header { client: IWCM, op: RDMA_NL_IWPM_ADD_MAPPING as u16, seq: seen };
        world.engine.kernel(Incoming::Malformed(header), 0);
        let Some(Action::Log(..)) = world.engine.action() else { panic!("no log") };
        let Some(Action::Kernel(bytes)) = world.engine.action() else { panic!("no answer") };
        let ours = u32::from_ne_bytes(bytes[8..12].try_into().unwrap());
        assert!(ours.wrapping_sub(seen) < u32::MAX / 2 && ours.wrapping_sub(last) < u32::MAX / 2 && ours != last);
        last = ours;
    }
}

/// Fifty thousand, made and removed in an order that is no order: were a look-up as long as a list this would not end today.
#[test]
fn fifty_thousand_mappings() {
    const COUNT: u32 = 50_000;
    let mut world = World::registered();
    world.next_port = 0;
    let local = |index: u32| SocketAddr::new(IpAddr::V4((0x0a00_0000 + index % 999).into()), (1 + index / 999) as u16);
    for index in 0..COUNT {
        world.add(&local(index * 7919 % COUNT).to_string());
    }
    assert_eq!((world.engine.mappings(), world.open.len()), (COUNT as usize, COUNT as usize));
    for index in 0..COUNT {
        assert_eq!(world.remove(&local(index * 7901 % COUNT).to_string()).len(), 1);
    }
    assert_eq!((world.engine.mappings(), world.open.len()), (0, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Add(u8, u16, bool),
    Query(u8, u16),
    Remove(u8, u16),
    Restore(u8, u16),
    Listed(u32),
    Overrun,
    Ask(u8, u16, u64),
    Answer(bool, u8),
    Time(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u8..3, 1u16..4, any::<bool>()).prop_map(|(host, port, map)| Step::Add(host, port, map)),
        4 => (0u8..3, 1u16..4).prop_map(|(host, port)| Step::Query(host, port)),
        6 => (0u8..3, 1u16..4).prop_map(|(host, port)| Step::Remove(host, port)),
        1 => (0u8..3, 1u16..4).prop_map(|(host, port)| Step::Restore(host, port)),
        1 => (0u32..3).prop_map(Step::Listed),
        1 => Just(Step::Overrun),
        3 => (0u8..3, 1u16..4, 0u64..3).prop_map(|(host, port, handle)| Step::Ask(host, port, handle)),
        3 => (any::<bool>(), any::<u8>()).prop_map(|(accept, which)| Step::Answer(accept, which)),
        3 => (0u64..20_000).prop_map(Step::Time),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    /// Whatever happens: what is kept is what the mappings need, each datagram out answers one in or is a query's, and when
    /// the kernel has removed everything nothing is left.
    #[test]
    fn any_order_of_things(steps in steps()) {
        let mut world = World::registered();
        let at = |host: u8, port: u16| format!("{}:{port}", if host == 0 { "0.0.0.0".into() } else { format!("10.0.0.{host}") });
        let mut requests = Vec::new();
        for step in steps {
            let out = match step {
                Step::Add(host, port, map) => {
                    let flags = if map { 0 } else { IWPM_FLAGS_NO_PORT_MAP };
                    world.said(RDMA_NL_IWPM_ADD_MAPPING, Said::Add { local: address(&at(host, port)), flags })
                }
                Step::Query(host, port) => world.query(&at(host, port), "10.0.0.2:9000"),
                Step::Remove(host, port) => world.remove(&at(host, port)),
                Step::Restore(host, port) => world.restore(&at(host, port), &at(host, 50_000 + port)),
                Step::Listed(number) => world.said(RDMA_NL_IWPM_MAPINFO_NUM, Said::MapInfoNumber(number)),
                Step::Overrun => { world.engine.overrun(world.now); world.act() }
                Step::Ask(host, port, handle) => {
                    let out = world.udp(Socket::Service, "10.0.0.9:5", question(&at(host, port), handle));
                    prop_assert_eq!(out.iter().filter(|out| matches!(out, Out::Send(..))).count(), 1);
                    out
                }
                Step::Answer(accept, which) => {
                    let kind = if accept { Kind::Accept } else { Kind::Reject };
                    let request = requests.get(usize::from(which) % requests.len().max(1)).copied();
                    let request: Message = request.unwrap_or(question("10.0.0.1:1", 4));
                    let out = world.udp(Socket::Client, PEER, request.answer(kind));
                    prop_assert!(out.iter().filter(|out| matches!(out, Out::Send(..))).count() <= 1);
                    out
                }
                Step::Time(more) => world.at(world.now + more),
            };
            requests.extend(out.iter().filter_map(|out| match out {
                Out::Send(Socket::Client, _, message) if message.kind == Kind::Request => Some(*message),
                _ => None,
            }));
            let kept = world.engine.mappings.iter().filter(|mapping| mapping.kept).count();
            prop_assert_eq!(kept, world.open.len());
            prop_assert!(world.engine.mappings.iter().all(|mapping| mapping.references > 0));
        }
        for (host, port) in (0..3).flat_map(|host| (1..4).map(move |port| (host, port))) {
            for _ in 0..240 {
                world.remove(&at(host, port));
            }
        }
        world.at(world.now + 100_000);
        world.at(world.now + 100_000);
        prop_assert_eq!((world.engine.mappings(), world.open.len(), world.engine.deadline()), (0, 0, None));
    }

    #[test]
    fn any_messages_of_the_kernel(datagrams in proptest::collection::vec((0u16..10, proptest::collection::vec(any::<u8>(), 0..200)), 0..30)) {
        let mut world = World::registered();
        for (op, bytes) in datagrams {
            let mut datagram = netlink::emit(Header { client: IWCM, op, seq: 1 }, 0, &[]);
            datagram.extend(&bytes);
            let length = datagram.len() as u32;
            datagram[..4].copy_from_slice(&length.to_ne_bytes());
            for message in messages(&datagram) {
                world.engine.kernel(message, 0);
            }
            world.act();
        }
    }
}
