//! Tests of rselect: with the kernel's select for ordinary descriptors, and fake rsockets.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::os::event::EventFd;
use crate::rsocket::fake::{Change, Fake, Table};

/// Exceeds FD_SETSIZE, because other tests have many descriptors open.
const NFDS: usize = 8192;

fn set(fds: &[RawFd]) -> [Word; NFDS / BITS] {
    let mut set = [0; NFDS / BITS];
    fds.iter().for_each(|&fd| set[fd as usize / BITS] |= 1 << (fd as usize % BITS));
    set
}

fn members(set: &[Word]) -> Vec<RawFd> {
    (0..(set.len() * BITS)).filter(|fd| set[fd / BITS] >> (fd % BITS) & 1 != 0).map(|fd| fd as RawFd).collect()
}

fn time(seconds: i64, micros: i64) -> timeval {
    timeval { tv_sec: seconds, tv_usec: micros }
}

type Got = Result<(c_int, [Vec<RawFd>; 3])>;

fn ours(table: &Table, fds: [&[RawFd]; 3], timeout: Option<timeval>) -> Got {
    let [mut read, mut write, mut except] = fds.map(set);
    let mut sets = Sets { read: Some(&mut read), write: Some(&mut write), except: Some(&mut except) };
    let mut timeout = timeout;
    let count = select(table, NFDS as c_int, &mut sets, timeout.as_mut())?;
    Ok((count, [members(&read), members(&write), members(&except)]))
}

fn kernel(fds: [&[RawFd]; 3], mut timeout: timeval) -> Got {
    let mut sets = fds.map(set);
    let [read, write, except] = sets.each_mut().map(|set| set.as_mut_ptr().cast());
    // SAFETY: each set has room for NFDS descriptors.
    let count = unsafe { libc::select(NFDS as c_int, read, write, except, &raw mut timeout) };
    if count < 0 { Err(Errno::last()) } else { Ok((count, sets.map(|set| members(&set)))) }
}

/// Returns an rsocket whose descriptor is that of an open eventfd.
fn rsocket() -> (Table, Arc<Fake>, EventFd, RawFd) {
    let (table, fake, eventfd) = (Table::default(), Fake::new(), EventFd::new().unwrap());
    let fd = eventfd.as_raw_fd();
    table.insert(fd, &fake);
    (table, fake, eventfd, fd)
}

#[test]
fn rsockets_are_reported_in_each_set() {
    let (table, fake, _eventfd, fd) = rsocket();
    assert_eq!(ours(&table, [&[fd], &[fd], &[fd]], Some(time(0, 0))), Ok((0, [vec![], vec![], vec![]])));
    fake.complete(Change::Data);
    assert_eq!(ours(&table, [&[fd], &[fd], &[fd]], None), Ok((1, [vec![fd], vec![], vec![]])));
    fake.complete(Change::Space);
    assert_eq!(ours(&table, [&[fd], &[fd], &[]], None), Ok((2, [vec![fd], vec![fd], vec![]])));
    assert_eq!(ours(&table, [&[], &[fd], &[fd]], None), Ok((1, [vec![], vec![fd], vec![]])));
    fake.complete(Change::Error);
    assert_eq!(ours(&table, [&[fd], &[], &[fd]], None), Ok((1, [vec![fd], vec![], vec![]])));
}

#[test]
fn a_lost_peer_is_not_an_exceptional_condition() {
    let (table, fake, _eventfd, fd) = rsocket();
    fake.complete(Change::Error);
    let start = Instant::now();
    assert_eq!(ours(&table, [&[], &[], &[fd]], Some(time(0, 20_000))), Ok((0, [vec![], vec![], vec![]])));
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[test]
fn wakes_for_an_rsocket() {
    let (table, fake, _eventfd, fd) = rsocket();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| ours(&table, [&[fd], &[], &[]], None));
        fake.await_armed();
        fake.complete(Change::Data);
        assert_eq!(sleeper.join().unwrap(), Ok((1, [vec![fd], vec![], vec![]])));
        fake.read();
        let sleeper = scope.spawn(|| ours(&table, [&[fd], &[], &[]], None));
        fake.await_armed();
        fake.close();
        assert_eq!(sleeper.join().unwrap(), Err(Errno::EBADF));
    });
}

#[test]
fn an_rsocket_that_is_handed_over_fails_with_an_error_that_is_not_logged() {
    let (table, fake, _eventfd, fd) = rsocket();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| ours(&table, [&[fd], &[], &[]], None));
        fake.await_armed();
        fake.hand_over();
        assert_eq!(sleeper.join().unwrap(), Err(Errno::EAGAIN));
    });
    assert_eq!(ours(&table, [&[fd], &[], &[]], None), Err(Errno::EAGAIN));
    fake.close();
    assert_eq!(ours(&table, [&[fd], &[], &[]], None), Err(Errno::EBADF));
}

#[test]
fn errors_leave_the_sets_unchanged() {
    let (table, fake, _eventfd, fd) = rsocket();
    fake.complete(Change::Data);
    let mut read = set(&[fd, 8000]);
    let before = read;
    let mut sets = Sets { read: Some(&mut read), ..Sets::default() };
    assert_eq!(select(&table, NFDS as c_int, &mut sets, None), Err(Errno::EBADF));
    assert_eq!(select(&table, -1, &mut sets, None), Err(Errno::EINVAL));
    for wrong in [time(-1, 0), time(0, -1)] {
        assert_eq!(select(&table, NFDS as c_int, &mut sets, Some(&mut wrong.clone())), Err(Errno::EINVAL));
    }
    assert_eq!(read, before);
}

#[test]
fn descriptors_from_nfds_on_are_ignored() {
    let (table, fake, _eventfd, fd) = rsocket();
    fake.complete(Change::Data);
    let mut read = set(&[fd]);
    let mut sets = Sets { read: Some(&mut read), ..Sets::default() };
    assert_eq!(select(&table, fd, &mut sets, Some(&mut time(0, 0))), Ok(0));
    let mut read = set(&[fd]);
    let mut sets = Sets { read: Some(&mut read[..words(fd as usize + 1)]), ..Sets::default() };
    assert_eq!(select(&table, fd + 1, &mut sets, Some(&mut time(0, 0))), Ok(1));
    assert_eq!(select(&table, 0, &mut Sets::default(), Some(&mut time(0, 1))), Ok(0));
}

#[test]
fn sets_may_be_larger_than_fd_setsize() {
    let (table, fake) = (Table::default(), Fake::new());
    table.insert(70_000, &fake);
    fake.complete(Change::Data);
    let mut read = vec![0; words(70_001)];
    read[70_000 / BITS] = 1 << (70_000 % BITS);
    let mut sets = Sets { read: Some(&mut read), ..Sets::default() };
    assert_eq!(select(&table, 70_001, &mut sets, None), Ok(1));
    assert_eq!(members(&read), [70_000]);
}

#[test]
fn the_timeout_is_updated_to_the_time_left() {
    let (table, fake, _eventfd, fd) = rsocket();
    fake.complete(Change::Data);
    let mut left = time(100, 0);
    let mut read = set(&[fd]);
    select(&table, NFDS as c_int, &mut Sets { read: Some(&mut read), ..Sets::default() }, Some(&mut left)).unwrap();
    assert!((1..100).contains(&left.tv_sec));
    fake.read();
    left = time(0, 2_000);
    select(&table, NFDS as c_int, &mut Sets { read: Some(&mut read), ..Sets::default() }, Some(&mut left)).unwrap();
    assert_eq!((left.tv_sec, left.tv_usec), (0, 0));
    assert_eq!(duration(&time(1, 2_500_000)), Ok(Duration::from_millis(3500)));
}

/// Descriptors of many kinds, in the states that select(2) distinguishes.
struct Zoo {
    fds: Vec<RawFd>,
    _keep: Vec<Box<dyn std::any::Any>>,
}

impl Zoo {
    fn new() -> Zoo {
        let mut zoo = Zoo { fds: Vec::new(), _keep: Vec::new() };
        let (a, b) = UnixStream::pair().unwrap();
        let (hung_up, _) = UnixStream::pair().unwrap();
        let (mut c, d) = UnixStream::pair().unwrap();
        c.write_all(b"x").unwrap();
        c.shutdown(std::net::Shutdown::Write).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let urgent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap().0;
        // SAFETY: the buffer has one byte.
        assert_eq!(unsafe { libc::send(peer.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) }, 1);
        let (pipe_read, pipe_write) = std::io::pipe().unwrap();
        drop(pipe_read);
        let (ended, _) = std::io::pipe().unwrap();
        for (fd, keep) in [
            (a.as_raw_fd(), Box::new((a, b)) as Box<dyn std::any::Any>),
            (hung_up.as_raw_fd(), Box::new(hung_up)),
            (c.as_raw_fd(), Box::new(c)),
            (d.as_raw_fd(), Box::new(d)),
            (urgent.as_raw_fd(), Box::new((urgent, peer))),
            (listener.as_raw_fd(), Box::new(listener)),
            (pipe_write.as_raw_fd(), Box::new(pipe_write)),
            (ended.as_raw_fd(), Box::new(ended)),
        ] {
            zoo.fds.push(fd);
            zoo._keep.push(keep);
        }
        zoo
    }
}

#[test]
fn matches_the_kernels_select() {
    let zoo = Zoo::new();
    let fds = zoo.fds.clone();
    let subset = move || prop::sample::subsequence(fds.clone(), 0..=fds.len());
    let (table, _fake, _eventfd, own) = rsocket();
    let some = (subset(), subset(), subset(), any::<bool>());
    proptest!(|((read, write, except, with_rsocket) in some)| {
        let expected = kernel([&read, &write, &except], time(0, 0));
        let mut also = read.clone();
        also.extend(with_rsocket.then_some(own));
        prop_assert_eq!(ours(&table, [&also, &write, &except], Some(time(0, 0))), expected);
    });
}
