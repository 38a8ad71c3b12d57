//! The engine with a scripted kernel and scripted hosts. Here: requests from the kernel.

mod any_order;
mod listing;
mod peers;

use std::cell::Cell;
use std::collections::HashSet;
use std::net::IpAddr;

use nix::errno::Errno;

use super::*;
use crate::proto::netlink::{ErrorCode, Incoming, KernelMessage, LIBRARY, messages};
use crate::proto::uapi::*;
use crate::proto::wire::{Kind, Message, Peer};

const PEER: &str = "10.0.0.2:3935";

/// An action, decoded.
#[derive(Clone, Debug, PartialEq)]
enum Out {
    Answer { client: u8, op: u16, values: Vec<u8> },
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
    /// Ports that are in use.
    taken: Vec<u16>,
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn peer(text: &str) -> Peer {
    crate::proto::mappings::key(&address(text))
}

impl World {
    fn new() -> World {
        let last = Cell::new(100);
        let random = move || last.replace(last.get() + 1);
        let engine = Engine::new(77, Box::new(random));
        World { engine, now: 0, seq: 0, open: HashSet::new(), next_port: 40_000, taken: Vec::new() }
    }

    /// A world in which a kernel of version 4 has answered and a client has registered.
    fn registered() -> World {
        let mut world = World::new();
        world.engine.start();
        world.act();
        world.kernel_sends(RDMA_NL_IWPM_HELLO, KernelMessage::Hello(4));
        world.register();
        world
    }

    fn register(&mut self) -> Vec<Out> {
        let (interface, device, library) = (b"eth0".into(), b"siw0".into(), LIBRARY.into());
        self.kernel_sends(RDMA_NL_IWPM_REG_PID, KernelMessage::Register { interface, device, library })
    }

    fn kernel_sends(&mut self, op: u16, message: KernelMessage) -> Vec<Out> {
        self.seq += 1;
        let header = Header { client: RDMA_NL_IWCM, op, seq: self.seq };
        self.engine.kernel(Incoming::Message(header, message), self.now);
        self.act()
    }

    fn add(&mut self, local: &str) -> Vec<Out> {
        self.kernel_sends(RDMA_NL_IWPM_ADD_MAPPING, KernelMessage::Add { local: address(local), flags: 0 })
    }

    fn query(&mut self, local: &str, remote: &str) -> Vec<Out> {
        let message = KernelMessage::Query { local: address(local), remote: address(remote), flags: 0 };
        self.kernel_sends(RDMA_NL_IWPM_QUERY_MAPPING, message)
    }

    fn remove(&mut self, local: &str) -> Vec<Out> {
        self.kernel_sends(RDMA_NL_IWPM_REMOVE_MAPPING, KernelMessage::Remove(address(local)))
    }

    fn restore(&mut self, local: &str, mapped: &str) -> Vec<Out> {
        let message = KernelMessage::MapInfo { local: address(local), mapped: address(mapped), flags: 0 };
        self.kernel_sends(RDMA_NL_IWPM_MAPINFO, message)
    }

    fn udp(&mut self, socket: Socket, from: &str, message: Message) -> Vec<Out> {
        self.engine.udp(socket, address(from), None, &message.emit(), self.now);
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
                Action::Kernel(bytes) | Action::KernelRetry(bytes) => out.push(read(&bytes)),
                Action::Send { socket, to, message, .. } => {
                    let message = Message::parse(&message, to.is_ipv6()).unwrap();
                    out.push(Out::Send(socket, to, message));
                }
                Action::Open(opening) => {
                    out.push(Out::Open(opening.port));
                    self.next_port += 1;
                    let port = if opening.port == 0 { self.next_port } else { opening.port };
                    let opened = if self.taken.contains(&port) { Err(Errno::EBUSY) } else { Ok(port) };
                    assert!(opened.is_err() || self.open.insert(opening.id.0), "opened twice");
                    self.engine.opened(opening, opened, self.now);
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

/// Decodes a message to the kernel: errors by their fields, others by the bytes after the header.
fn read(bytes: &[u8]) -> Out {
    let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
    assert_eq!(bytes[12..16], 77u32.to_ne_bytes());
    let (client, op) = ((kind >> 10) as u8, kind & 0x3ff);
    if op == RDMA_NL_IWPM_HANDLE_ERR {
        let number = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        return Out::Error { seq: number(20), code: number(28) as u16 };
    }
    Out::Answer { client, op, values: bytes[16..].to_vec() }
}

fn answer(op: u16, values: &[Value<'_>]) -> Out {
    let header = Header { client: RDMA_NL_IWCM, op, seq: 0 };
    Out::Answer { client: RDMA_NL_IWCM, op, values: netlink::emit(header, 0, values)[16..].to_vec() }
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

fn error(seq: u32, code: ErrorCode) -> Out {
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
    assert_eq!(world.kernel_sends(RDMA_NL_IWPM_HELLO, KernelMessage::Hello(4)), [list_request(2, 4)]);
    let registered = [Value::U32(2), Value::Text(b"siw0"), Value::Text(LIBRARY), Value::U16(4), Value::U16(0)];
    assert_eq!(world.register(), [answer(RDMA_NL_IWPM_REG_PID, &registered)]);
    assert_eq!(world.kernel_sends(RDMA_NL_IWPM_HELLO, KernelMessage::Hello(5)), [error(3, ErrorCode::Version)]);
}

#[test]
fn version_3_is_used_with_an_old_kernel() {
    let mut world = World::new();
    world.engine.start();
    let Some(Action::Kernel(hello)) = world.engine.action() else { panic!("no greeting") };
    world.engine.kernel(Incoming::Failed { errno: libc::EINVAL, message: &hello }, 0);
    assert_eq!(world.act(), [list_request(2, 3), list_request(3, 3)]);
    // Another failure does not repeat the greeting. A message that the kernel was too busy for is
    // resent.
    let Out::Answer { .. } = &world.register()[0] else { panic!("not registered") };
    world.engine.kernel(Incoming::Failed { errno: libc::EINVAL, message: &[] }, 0);
    assert_eq!(world.act(), []);
    world.engine.kernel(Incoming::Failed { errno: libc::EBUSY, message: &hello }, 0);
    assert_eq!(world.engine.action(), Some(Action::KernelRetry(hello)));
}

#[test]
fn unregistered_clients_and_other_libraries_are_rejected() {
    let mut world = World::new();
    assert_eq!(world.add("10.0.0.1:7000"), [error(1, ErrorCode::ClientDevice)]);
    assert_eq!(world.query("10.0.0.1:7000", "10.0.0.2:1"), [error(2, ErrorCode::ClientDevice)]);
    world.register();
    let message = KernelMessage::Register { interface: b"e".into(), device: b"d".into(), library: b"other".into() };
    assert_eq!(world.kernel_sends(RDMA_NL_IWPM_REG_PID, message), [error(4, ErrorCode::UserLibrary)]);
    let header = Header { client: 2, op: RDMA_NL_IWPM_ADD_MAPPING, seq: 5 };
    world.engine.kernel(Incoming::Malformed(header), 0);
    assert_eq!(world.act(), [error(5, ErrorCode::InvalidMessage)]);
    world.engine.kernel(Incoming::Malformed(Header { op: RDMA_NL_IWPM_HANDLE_ERR, ..header }), 0);
    assert_eq!(world.act(), []);
}

#[test]
fn a_mapping_is_removed_by_its_client_only() {
    let mut world = World::registered();
    world.add("10.0.0.1:7000");
    let header = Header { client: RDMA_NL_IWCM + 1, op: RDMA_NL_IWPM_REMOVE_MAPPING, seq: 1 };
    world.engine.kernel(Incoming::Message(header, KernelMessage::Remove(address("10.0.0.1:7000"))), world.now);
    assert_eq!((world.act(), world.engine.mappings()), (vec![], 1));
    assert_eq!(world.remove("10.0.0.1:7000"), [Out::Close(1)]);
}

/// The answers are those of rdma-core's iwpmd (44.0).
#[test]
fn mapping_and_its_end() {
    let mut world = World::registered();
    assert_eq!(world.add("10.0.0.1:7000"), [Out::Open(0), added(3, "10.0.0.1:7000", "10.0.0.1:40001")]);
    assert_eq!(world.add("10.0.0.1:7000"), [error(4, ErrorCode::DuplicateMapping)]);
    assert_eq!(world.add("0.0.0.0:7000"), [error(5, ErrorCode::DuplicateMapping)]);
    // The kernel also removes mappings that were refused.
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
    assert_eq!(world.add("10.0.0.1:7001"), [error(5, ErrorCode::DuplicateMapping)]);
    assert_eq!(world.add("[::]:7001").len(), 2, "another family");
    assert_eq!(world.query("10.0.0.1:7001", "10.0.0.2:1"), [error(7, ErrorCode::CreateMapping)]);
    assert_eq!(world.query("0.0.0.0:9999", "10.0.0.2:1"), [error(8, ErrorCode::CreateMapping)]);
    assert_eq!(world.remove("0.0.0.0:7001"), []);
    assert_eq!(world.remove("0.0.0.0:7001"), [Out::Close(1)]);
}

#[test]
fn an_unmapped_address_needs_no_socket() {
    let mut world = World::registered();
    let message = KernelMessage::Add { local: address("10.0.0.1:7002"), flags: IWPM_FLAGS_NO_PORT_MAP };
    assert_eq!(world.kernel_sends(RDMA_NL_IWPM_ADD_MAPPING, message), [added(3, "10.0.0.1:7002", "10.0.0.1:7002")]);
    assert_eq!(world.query("10.0.0.1:7002", "10.0.0.2:1"), [error(4, ErrorCode::DuplicateMapping)]);
    let request = peer_request("10.0.0.1:7002", 9);
    let out = world.udp(Socket::Service, "10.0.0.9:5", request);
    assert!(matches!(out[1], Out::Send(_, _, Message { kind: Kind::Accept, ap, .. }) if ap == peer("10.0.0.1:7002")));
    world.remove("10.0.0.1:7002");
    assert_eq!((world.remove("10.0.0.1:7002"), world.engine.mappings()), (vec![], 0));
}

#[test]
fn no_port_is_an_error() {
    let mut world = World::registered();
    world.taken = vec![40_001];
    assert_eq!(world.add("10.0.0.1:7000"), [Out::Open(0), error(3, ErrorCode::CreateMapping)]);
    assert_eq!(world.engine.mappings(), 0);
}

fn peer_request(asked: &str, handle: u64) -> Message {
    let (cp, mapped_cp) = (peer("10.0.0.9:111"), Some(peer("10.0.0.9:222")));
    Message { kind: Kind::Request, handle, cp, ap: peer(asked), mapped_cp }
}

#[test]
fn sequence_numbers_stay_ahead() {
    let mut world = World::new();
    world.register();
    let mut last = 0;
    for seen in [5u32, 1_000_000, u32::MAX - 3, 2] {
        let header = Header { client: RDMA_NL_IWCM, op: RDMA_NL_IWPM_ADD_MAPPING, seq: seen };
        world.engine.kernel(Incoming::Malformed(header), 0);
        let Some(Action::Log(..)) = world.engine.action() else { panic!("no log") };
        let Some(Action::Kernel(bytes)) = world.engine.action() else { panic!("no answer") };
        let ours = u32::from_ne_bytes(bytes[8..12].try_into().unwrap());
        assert!(ours.wrapping_sub(seen) < u32::MAX / 2 && ours.wrapping_sub(last) < u32::MAX / 2 && ours != last);
        last = ours;
    }
}

/// Adds and removes 50,000 mappings in a shuffled order. With linear lookups this would take hours.
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
