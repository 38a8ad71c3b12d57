//! The daemon with real sockets and a scripted kernel at the other end of a pair of sockets. Two
//! daemons with addresses of their own are two hosts. Everything runs in a single thread, so that
//! each wait is for an event that is already on its way.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "that is how a test fails")]

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use iwpmd::daemon::link::Link;
use iwpmd::daemon::{Daemon, udp_sockets};
use iwpmd::proto::netlink::{Header, Incoming, KernelMessage, LIBRARY, VERSION, Value, emit, messages};
use iwpmd::proto::uapi::*;
use iwpmd::sys::process::raise_descriptor_limit;

const CLIENT: u8 = RDMA_NL_IWCM;

/// A host: its daemon, and the kernel's end of the connection between them.
struct Host {
    daemon: Daemon,
    kernel: UnixDatagram,
    seq: u32,
}

/// An answer: its operation and its payload.
type Answer = (u16, Vec<u8>);

impl Host {
    fn new(last: u8, tell: u8) -> Host {
        let (ours, kernel) = UnixDatagram::pair().unwrap();
        kernel.set_nonblocking(true).unwrap();
        let udp = udp_sockets(&[ip(last, tell).into()]).unwrap();
        let daemon = Daemon::new(Link::from_fd(ours.into()).unwrap(), udp, None, Box::new(|_, _| {})).unwrap();
        let mut host = Host { daemon, kernel, seq: 0 };
        assert_eq!(host.answers()[0].0, RDMA_NL_IWPM_HELLO);
        assert_eq!(host.ask(RDMA_NL_IWPM_HELLO, &[Value::U16(VERSION)])[0].0, RDMA_NL_IWPM_MAPINFO);
        let names = [Value::U32(0), Value::Text(b"eth0"), Value::Text(b"siw0"), Value::Text(LIBRARY)];
        assert_eq!(host.ask(RDMA_NL_IWPM_REG_PID, &names)[0].0, RDMA_NL_IWPM_REG_PID);
        host
    }

    fn send(&mut self, op: u16, values: &[Value<'_>]) {
        self.seq += 1;
        let header = Header { client: CLIENT, op, seq: self.seq };
        self.kernel.send(&emit(header, 0, values)).unwrap();
    }

    fn ask(&mut self, op: u16, values: &[Value<'_>]) -> Vec<Answer> {
        self.send(op, values);
        self.daemon.turn(None).unwrap();
        self.answers()
    }

    fn answers(&mut self) -> Vec<Answer> {
        let (mut answers, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(length) = self.kernel.recv(&mut buffer) {
            let op = u16::from_ne_bytes([buffer[4], buffer[5]]) & 0x3ff;
            answers.push((op, buffer[16..length].to_vec()));
        }
        answers
    }

    /// Adds a mapping. Returns the mapped port, or `None` if the request is rejected.
    fn add(&mut self, local: SocketAddr) -> Option<u16> {
        let answers = self.ask(RDMA_NL_IWPM_ADD_MAPPING, &[Value::U32(0), Value::Address(local), Value::U32(0)]);
        let (op, values) = &answers[0];
        (*op == RDMA_NL_IWPM_ADD_MAPPING).then(|| port(values, 1))
    }

    fn remove(&mut self, local: SocketAddr) {
        assert_eq!(self.ask(RDMA_NL_IWPM_REMOVE_MAPPING, &[Value::U32(0), Value::Address(local)]), []);
    }
}

/// Returns the port of address number `index` after the sequence number.
fn port(values: &[u8], index: usize) -> u16 {
    let at = 8 + index * 132 + 4 + 2;
    u16::from_be_bytes([values[at], values[at + 1]])
}

/// Returns an address of the test's own network.
fn ip(last: u8, test: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 39, test, last)
}

fn at(ip: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(ip), port)
}

fn free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[test]
fn a_mapping_binds_its_port() {
    let mut host = Host::new(1, 1);
    let local = at(ip(1, 1), 7174);
    let mapped = host.add(local).unwrap();
    assert!(!free(mapped));
    assert_eq!(host.add(local), None);
    host.remove(local); // the removal of the refused mapping
    assert!(!free(mapped));
    host.remove(local);
    assert!(free(mapped));
}

#[test]
fn ports_are_restored_in_a_new_daemon() {
    let mut host = Host::new(1, 2);
    let local = at(ip(1, 2), 7174);
    let mapped = host.add(local).unwrap();
    drop(host);
    assert!(free(mapped));
    let mut host = Host::new(1, 2);
    let listed = [Value::Address(local), Value::Address(at(ip(1, 2), mapped)), Value::U32(0)];
    assert_eq!(host.ask(RDMA_NL_IWPM_MAPINFO, &listed), []);
    assert!(!free(mapped));
    let answers = host.ask(RDMA_NL_IWPM_MAPINFO_NUM, &[Value::U32(0), Value::U32(1)]);
    assert_eq!(answers[0].1[20..], [1, 0, 0, 0]);
    assert_eq!(host.daemon.engine().mappings(), 1);
}

/// The kernel of `active` asks for the port of a listener of `passive`, which answers.
fn query(active: &mut Host, passive: &mut Host, caller: SocketAddr, listener: SocketAddr) {
    let values = [Value::U32(0), Value::Address(caller), Value::Address(listener), Value::U32(0)];
    active.send(RDMA_NL_IWPM_QUERY_MAPPING, &values);
    active.daemon.turn(None).unwrap();
    passive.daemon.turn(None).unwrap();
    active.daemon.turn(None).unwrap();
}

#[test]
fn two_hosts_tell_each_other_their_ports() {
    let (mut passive, mut active) = (Host::new(1, 3), Host::new(2, 3));
    let (listener, caller) = (at(ip(1, 3), 7174), at(ip(2, 3), 5000));
    let mapped = passive.add(listener).unwrap();
    query(&mut active, &mut passive, caller, listener);
    let answers = active.answers();
    assert_eq!(answers[0].0, RDMA_NL_IWPM_QUERY_MAPPING);
    assert_eq!((port(&answers[0].1, 0), port(&answers[0].1, 3)), (5000, mapped));
    // The other kernel learns whose connection comes from the mapped port.
    let reported = passive.answers();
    assert_eq!(reported[0].0, RDMA_NL_IWPM_REMOTE_INFO);
    assert_eq!((port(&reported[0].1, 1), port(&reported[0].1, 3)), (5000, port(&answers[0].1, 2)));
    // Let `passive` receive the acknowledgement.
    passive.daemon.turn(None).unwrap();
    assert_eq!(passive.daemon.engine().counts().dropped, 0);
}

#[test]
fn an_unmapped_port_is_rejected() {
    let (mut passive, mut active) = (Host::new(1, 4), Host::new(2, 4));
    let (listener, caller) = (at(ip(1, 4), 7174), at(ip(2, 4), 5000));
    query(&mut active, &mut passive, caller, listener);
    let (op, values) = active.answers().remove(0);
    assert_eq!((op, port(&values, 3)), (RDMA_NL_IWPM_QUERY_MAPPING, 7174));
    assert_eq!(values[values.len() - 4..][..2], 16u16.to_ne_bytes());
}

#[test]
fn answers_are_no_larger_than_requests() {
    let mut host = Host::new(1, 5);
    let listener = at(ip(1, 5), 7174);
    host.add(listener).unwrap();
    let stranger = UdpSocket::bind((ip(9, 5), 0)).unwrap();
    stranger.set_nonblocking(true).unwrap();
    let (mut sent, mut received, mut buffer) = (0, 0, [0; 100]);
    for handle in 0..5000u32 {
        let mut request = [0u8; 64];
        request[0] = 4;
        request[4..6].copy_from_slice(&7174u16.to_be_bytes());
        request[12..16].copy_from_slice(&handle.to_be_bytes());
        request[32..36].copy_from_slice(&ip(1, 5).octets());
        let size = [48, 64, 47, 1, 0][handle as usize % 5];
        sent += stranger.send_to(&request[..size], (ip(1, 5), 3935)).unwrap();
        host.daemon.turn(None).unwrap();
        while let Ok(size) = stranger.recv(&mut buffer) {
            received += size;
        }
        host.answers();
    }
    assert_eq!(received, 2000 * 48);
    assert!(received <= sent);
    assert_eq!(host.daemon.engine().counts().dropped, 3000);
}

/// Returns the resident memory of the process in pages, and its number of descriptors.
fn size() -> (usize, usize) {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let resident = pages.split_whitespace().nth(1).unwrap().parse().unwrap();
    (resident, fs::read_dir("/proc/self/fd").unwrap().count())
}

/// Adds and removes mappings with real sockets, as many as RLIMIT_NOFILE allows, in shuffled
/// orders. Later rounds take no more memory than earlier ones. The mappings use less than half of
/// the range of ports: beyond, the kernel searches most of the range for a free port. The engine's
/// tests have 50,000 mappings.
#[test]
fn thousands_of_mappings_come_and_go() {
    const WANTED: usize = 12_000;
    let count = WANTED.min(raise_descriptor_limit().saturating_sub(200));
    if count < WANTED {
        println!("{count} mappings instead of {WANTED}: RLIMIT_NOFILE allows no more");
    }
    let mut host = Host::new(1, 6);
    let local = |index: usize| at(ip(1 + (index / 5000) as u8, 6), 10_000 + (index % 5000) as u16);
    // A step that has no common factor with the count visits all indices.
    let shuffled = |step: usize| (0..count).map(move |index| index * step % count);
    let (mut sizes, before) = (Vec::new(), size().1);
    for step in [7919, 7907, 7901, 7883] {
        for index in shuffled(step) {
            assert!(host.add(local(index)).is_some(), "mapping {index}");
        }
        assert_eq!(host.daemon.engine().mappings(), count);
        sizes.push(size().0);
        for index in shuffled(7877) {
            host.remove(local(index));
        }
        assert_eq!(host.daemon.engine().mappings(), 0);
    }
    println!("{count} mappings, resident pages after each round: {sizes:?}");
    // AddressSanitizer quarantines freed memory.
    if std::env::var_os("ASAN_OPTIONS").is_none() {
        assert!(sizes[3] <= sizes[1] + sizes[1] / 10);
    }
    // Other tests of this process open descriptors, too.
    assert!(size().1 <= before + 50);
}

#[test]
fn answers_wait_for_a_kernel_that_does_not_receive() {
    let mut host = Host::new(1, 7);
    // More answers than the sockets can hold.
    let mut sent = 0;
    for round in 0..400u16 {
        host.seq += 1;
        let header = Header { client: CLIENT, op: RDMA_NL_IWPM_ADD_MAPPING, seq: host.seq };
        let values = [Value::U32(0), Value::Address(at(ip(1, 7), 20_000 + round)), Value::U32(1)];
        if host.kernel.send(&emit(header, 0, &values)).is_ok() {
            sent += 1;
        }
        host.daemon.turn(Some(Duration::ZERO)).unwrap();
    }
    assert!(sent > 0);
    let mut answered = 0;
    while answered < sent {
        answered += host.answers().len();
        host.daemon.turn(Some(Duration::ZERO)).unwrap();
    }
    assert_eq!((answered, host.daemon.engine().mappings()), (sent, sent));
}

/// A message that the kernel was too busy for is resent once everything from the kernel was
/// received.
#[test]
fn a_message_refused_with_ebusy_is_resent() {
    let mut host = Host::new(1, 8);
    let refused = emit(Header { client: CLIENT, op: RDMA_NL_IWPM_MAPINFO, seq: 9 }, 1, &[Value::U16(7)]);
    let mut busy = vec![0; 16];
    busy[4..6].copy_from_slice(&2u16.to_ne_bytes());
    busy.extend((-libc::EBUSY).to_ne_bytes());
    busy.extend(&refused);
    let length = busy.len() as u32;
    busy[..4].copy_from_slice(&length.to_ne_bytes());
    host.kernel.send(&busy).unwrap();
    host.send(RDMA_NL_IWPM_ADD_MAPPING, &[Value::U32(0), Value::Address(at(ip(1, 8), 7174)), Value::U32(1)]);
    host.daemon.turn(None).unwrap();
    let answers = host.answers();
    assert_eq!(answers.iter().map(|(op, _)| *op).collect::<Vec<_>>(), [RDMA_NL_IWPM_ADD_MAPPING, RDMA_NL_IWPM_MAPINFO]);
    assert_eq!(answers[1].1, refused[16..]);
}

/// The timer of the daemon resends a query that nobody answers, and is then armed for the next
/// time.
#[test]
fn a_query_is_resent_by_the_timer() {
    let mut host = Host::new(1, 9);
    let peer = UdpSocket::bind((ip(2, 9), 3935)).unwrap();
    let (local, remote) = (at(ip(1, 9), 5000), at(ip(2, 9), 7174));
    host.ask(
        RDMA_NL_IWPM_QUERY_MAPPING,
        &[Value::U32(0), Value::Address(local), Value::Address(remote), Value::U32(0)],
    );
    let (mut first, mut second) = ([0; 64], [0; 64]);
    assert_eq!(peer.recv(&mut first).unwrap(), 64);
    // The turn ends when the timer expires.
    host.daemon.turn(None).unwrap();
    assert_eq!((peer.recv(&mut second).unwrap(), first), (64, second));
    peer.set_nonblocking(true).unwrap();
    host.daemon.turn(Some(Duration::from_millis(1))).unwrap();
    assert!(peer.recv(&mut second).is_err());
}

#[test]
fn emitted_messages_are_parsed() {
    let bytes = emit(Header { client: CLIENT, op: RDMA_NL_IWPM_HELLO, seq: 3 }, 9, &[Value::U16(4)]);
    let message = messages(&bytes).next();
    assert!(matches!(message, Some(Incoming::Message(Header { seq: 3, .. }, KernelMessage::Hello(4)))));
}
