//! Tests of forwarding between two pairs of kernel sockets, which stand for the rsocket and the
//! stand-in.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::IntoRawFd;

use super::*;
use crate::calls::tests::connection;

/// Returns a forward, and the far ends of its rsocket and of its stand-in.
fn forward(index: usize) -> (Forward, TcpStream, TcpStream) {
    let ((peer, rsocket), (program, stand_in)) = (connection(), connection());
    stand_in.set_nonblocking(true).unwrap();
    assert!(super::super::shared::prepare());
    connections::enter(index, rsocket.into_raw_fd(), stand_in.into_raw_fd()).unwrap();
    (Forward::begin(index).unwrap(), peer, program)
}

/// Polls and steps the forward until `done`. Returns whether the connection goes on.
fn run(forward: &mut Forward, done: impl Fn() -> bool) -> bool {
    while !done() {
        let mut fds = forward.events().map(|(fd, events)| libc::pollfd { fd, events, revents: 0 });
        // SAFETY: two structures.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, 10) };
        if !forward.step(fds.map(|fd| fd.revents)) {
            return false;
        }
    }
    true
}

#[test]
fn data_and_ends_pass_in_both_directions() {
    let (mut forward, mut peer, mut program) = forward(100);
    let sent: Vec<u8> = (0..3_000_000_u32).map(|number| (number * 7) as u8).collect();
    let (out, back) = (sent.clone(), sent.clone());
    let one = std::thread::spawn(move || {
        let mut writer = peer.try_clone().unwrap();
        let sends = std::thread::spawn(move || {
            writer.write_all(&out).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut got = Vec::new();
        peer.read_to_end(&mut got).unwrap();
        sends.join().unwrap();
        got
    });
    let other = std::thread::spawn(move || {
        let mut got = Vec::new();
        program.read_to_end(&mut got).unwrap();
        // The program sends after the other direction has ended.
        program.write_all(&back).unwrap();
        got
    });
    assert!(!run(&mut forward, || false), "it ends when both directions have ended");
    assert!(one.join().unwrap() == sent && other.join().unwrap() == sent);
}

#[test]
fn a_reset_passes() {
    let (mut forward, peer, mut program) = forward(101);
    reset(peer);
    assert!(!run(&mut forward, || false));
    assert_eq!(program.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

/// The reset is what the stand-in gets when the kernel probes a program's end that no process has
/// open.
#[test]
fn a_program_that_has_ended_and_gone_ends_the_connection() {
    let (mut forward, mut peer, program) = forward(103);
    for (level, name, value) in
        [(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1), (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, ORPHAN_TIMEOUT)]
    {
        assert_eq!(crate::tcp::int(forward.stand_in, level, name), Some(value));
    }
    program.shutdown(Shutdown::Write).unwrap();
    peer.set_nonblocking(true).unwrap();
    assert!(run(&mut forward, || peer.peek(&mut [0]).is_ok()), "the peer has not ended");
    peer.set_nonblocking(false).unwrap();
    reset(program);
    assert!(!run(&mut forward, || false));
    assert_eq!(peer.read(&mut [0]).unwrap_or(0), 0);
}

/// The program does not read until the peer has gone.
#[test]
fn what_a_peer_has_sent_arrives_after_a_send_to_it_has_failed() {
    let (mut forward, mut peer, mut program) = forward(104);
    // With small buffers most data is still on the way when the peer goes.
    kernel::set(forward.stand_in, (libc::SOL_SOCKET, libc::SO_SNDBUF), &16_384).unwrap();
    kernel::set(std::os::fd::AsRawFd::as_raw_fd(&program), (libc::SOL_SOCKET, libc::SO_RCVBUF), &16_384).unwrap();
    let sent: Vec<u8> = (0..150_000_u32).map(|number| (number * 7) as u8).collect();
    let data = sent.clone();
    let writer = std::thread::spawn(move || {
        peer.write_all(&data).unwrap();
        // Wait until all data is at the other end.
        let mut unsent: libc::c_int = 1;
        while unsent > 0 {
            std::thread::yield_now();
            // SAFETY: an open descriptor, and a live int.
            unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&peer), libc::TIOCOUTQ, &raw mut unsent) };
        }
        reset(peer);
    });
    assert!(run(&mut forward, || writer.is_finished()));
    program.write_all(b"to nobody").unwrap();
    let reader = std::thread::spawn(move || {
        let (mut got, mut piece) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match program.read(&mut piece) {
                Ok(count) => got.extend_from_slice(&piece[..count]),
                Err(error) => return (got, error.kind()),
            }
        }
    });
    assert!(!run(&mut forward, || false));
    let (got, end) = reader.join().unwrap();
    assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    assert_eq!(end, std::io::ErrorKind::ConnectionReset);
}

/// Both ends have sent until nothing more fits, and read nothing.
#[test]
fn a_program_that_is_blocked_in_a_send_reads_what_has_arrived_after_its_peer_has_gone() {
    let (mut forward, mut peer, mut program) = forward(105);
    for end in [&peer, &program] {
        end.set_nonblocking(true).unwrap();
    }
    let piece = vec![7; 1 << 16];
    let full = |end: &mut TcpStream| while end.write(&piece).is_ok() {};
    // Until the forward cannot move anything either way.
    for _ in 0..20 {
        full(&mut peer);
        full(&mut program);
        assert!(run(&mut forward, still(10)));
    }
    reset(peer);
    program.set_nonblocking(false).unwrap();
    let writer = std::thread::spawn(move || {
        program.write_all(&[7; 1 << 16]).unwrap();
        let (mut got, mut piece) = (0, vec![0; 1 << 16]);
        loop {
            match program.read(&mut piece) {
                Ok(count) => got += count,
                Err(error) => return (got, error.kind()),
            }
        }
    });
    assert!(!run(&mut forward, || false));
    let (got, end) = writer.join().unwrap();
    assert!(got > 0 && end == std::io::ErrorKind::ConnectionReset);
}

/// A program that never reads does not go on for ever.
#[test]
fn a_program_that_only_sends_sees_the_reset_of_its_peer() {
    let (mut forward, mut peer, mut program) = forward(106);
    kernel::set(forward.stand_in, (libc::SOL_SOCKET, libc::SO_SNDBUF), &16_384).unwrap();
    kernel::set(std::os::fd::AsRawFd::as_raw_fd(&program), (libc::SOL_SOCKET, libc::SO_RCVBUF), &16_384).unwrap();
    peer.set_nonblocking(true).unwrap();
    let piece = vec![7; 1 << 16];
    for _ in 0..20 {
        while peer.write(&piece).is_ok() {}
        assert!(run(&mut forward, still(10)));
    }
    reset(peer);
    let writer = std::thread::spawn(move || while program.write_all(&piece).is_ok() {});
    assert!(!run(&mut forward, || false));
    writer.join().unwrap();
}

/// Returns a condition that becomes true after some milliseconds.
fn still(milliseconds: u128) -> impl Fn() -> bool {
    let start = std::time::Instant::now();
    move || start.elapsed().as_millis() > milliseconds
}

fn reset(end: TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let fd = end.into_raw_fd();
    // SAFETY: a live structure of that length, and a descriptor of this test.
    unsafe {
        let len = size_of::<libc::linger>() as libc::socklen_t;
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len);
        libc::close(fd);
    }
}

#[test]
fn a_slow_reader_is_waited_for() {
    let (mut forward, mut peer, mut program) = forward(102);
    let writer = std::thread::spawn(move || {
        peer.write_all(&vec![1; 20_000_000]).unwrap();
    });
    let start = std::time::Instant::now();
    assert!(run(&mut forward, || start.elapsed().as_millis() > 200), "nobody reads");
    let reader = std::thread::spawn(move || {
        let mut got = Vec::new();
        program.read_to_end(&mut got).unwrap();
        got.len()
    });
    assert!(!run(&mut forward, || false));
    writer.join().unwrap();
    assert_eq!(reader.join().unwrap(), 20_000_000);
}

fn indexes(forwards: &mut Forwards) -> Vec<usize> {
    let mut indexes = Vec::new();
    forwards.each(|forward| indexes.push(forward.index));
    indexes
}

#[test]
fn every_connection_with_a_slot_may_be_forwarded() {
    let mut forwards = Forwards::new().unwrap();
    let begun: Vec<_> = (0..MAX_SLOTS).rev().step_by(7).collect();
    assert!(begun.len() > 2_000 && begun.iter().all(|&index| forwards.begin(index)));
    assert!(indexes(&mut forwards).iter().eq(begun.iter().rev()));
    assert_eq!([0, 1, MAX_SLOTS].map(|index| FORWARDED.has(index)), [false; 3]);
    assert_eq!(FORWARDED.count(), begun.len());
    assert!(begun.iter().all(|&index| FORWARDED.clear(index)));
    assert!(indexes(&mut forwards).is_empty());
}
