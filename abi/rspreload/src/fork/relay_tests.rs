//! A child's calls by its parent, both in one process, with one of the kernel's sockets as the
//! rsocket.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use libc::{EAGAIN, EPIPE, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, POLLIN, POLLOUT, pollfd};

use super::{message, relay, remote};
use crate::errno;
use crate::table::{self, Entry, Kind};

/// An rsocket's peer, and a number of the "child" for the rsocket; its channel.
fn relayed() -> (UnixStream, OwnedFd, RawFd) {
    let (peer, rsocket) = UnixStream::pair().unwrap();
    let inner = rsocket.into_raw_fd();
    let mut ends = [-1; 2];
    // SAFETY: room for two numbers; new descriptors.
    let fd = unsafe {
        assert_eq!(libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, ends.as_mut_ptr()), 0);
        OwnedFd::from_raw_fd(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR))
    };
    table::first(inner).unwrap();
    assert!(relay::serve(ends[0], inner));
    assert!(relay::is_end(ends[0]) && !relay::is_end(ends[1]));
    table::first(ends[1]).unwrap();
    table::prepare(fd.as_raw_fd()).unwrap();
    // The number of the rsocket in a child would be the child's own copy.
    table::swap(fd.as_raw_fd(), Some(Entry { kind: Kind::Relayed, flags: 0xff_ffff, inner: ends[1] }));
    (peer, fd, ends[1])
}

/// Closes the child's number: its parent ends its part.
fn close(mut peer: UnixStream, fd: OwnedFd) {
    let entry = table::swap(fd.as_raw_fd(), None).unwrap();
    assert!(table::drop(entry.inner));
    assert_eq!(remote::release(entry), 0);
    assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn data_goes_both_ways() {
    let (mut peer, fd, channel) = relayed();
    let sent: Vec<u8> = (0..500_000_u32).map(|n| (n >> 3) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sent = &sent[..];
            while !sent.is_empty() {
                // SAFETY: the slice is this long.
                let n = unsafe { remote::rwrite(fd.as_raw_fd(), channel, sent.as_ptr().cast(), sent.len()) };
                sent = &sent[usize::try_from(n).unwrap()..];
            }
        });
        let mut back = vec![0; sent.len()];
        peer.read_exact(&mut back).unwrap();
        assert!(back == sent);
        let mut writer = peer.try_clone().unwrap();
        let sent = &sent;
        scope.spawn(move || writer.write_all(sent).unwrap());
        let mut back = vec![0; sent.len()];
        let mut done = 0;
        while done < back.len() {
            let room = &mut back[done..];
            // SAFETY: the slice is this long.
            let n = unsafe { remote::rread(fd.as_raw_fd(), channel, room.as_mut_ptr().cast(), room.len()) };
            assert!(n > 0);
            done += n as usize;
        }
        assert!(back == *sent);
    });
    close(peer, fd);
}

/// One thread receives, by blocking and by polling, while another sends more than there is room
/// for: neither misses what the other took from the channel.
#[test]
fn threads_wait_for_both_directions_at_once() {
    const LEN: usize = 2_000_000;
    let (peer, fd, channel) = relayed();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut echo = [0; 5000];
            let mut left = LEN;
            while left > 0 {
                let count = (&peer).read(&mut echo).unwrap();
                (&peer).write_all(&echo[..count]).unwrap();
                left -= count;
            }
        });
        scope.spawn(|| {
            let (data, mut sent) = ([7_u8; 70_000], 0);
            while sent < LEN {
                let len = data.len().min(LEN - sent);
                // SAFETY: the array is at least so long.
                let count = unsafe { remote::rwrite(fd.as_raw_fd(), channel, data.as_ptr().cast(), len) };
                sent += usize::try_from(count).unwrap();
            }
        });
        let mut received = 0;
        let receive = |flags| {
            let mut data = [0_u8; 3000];
            // SAFETY: the array is this long.
            let count = unsafe { remote::rrecv(fd.as_raw_fd(), channel, data.as_mut_ptr().cast(), data.len(), flags) };
            assert!(data[..usize::try_from(count).unwrap_or(0)].iter().all(|&byte| byte == 7));
            usize::try_from(count).unwrap_or(0)
        };
        while received < LEN / 2 {
            received += receive(0);
        }
        while received < LEN {
            let mut fds = [pollfd { fd: fd.as_raw_fd(), events: POLLIN, revents: 0 }];
            // SAFETY: an array of one.
            assert_eq!(unsafe { crate::calls::poll::poll(fds.as_mut_ptr(), 1, -1) }, 1);
            received += receive(MSG_DONTWAIT);
        }
    });
    close(peer, fd);
}

#[test]
fn nothing_is_taken_that_was_not_asked_for() {
    let (mut peer, fd, channel) = relayed();
    let mut byte = [0_u8; 4];
    // SAFETY: the array is this long.
    let mut receive =
        |flags| unsafe { remote::rrecv(fd.as_raw_fd(), channel, byte.as_mut_ptr().cast(), byte.len(), flags) };
    assert_eq!((receive(MSG_DONTWAIT), errno::get()), (-1, EAGAIN));
    peer.write_all(b"abcdef").unwrap();
    assert_eq!(receive(MSG_PEEK), 4);
    assert_eq!(receive(0), 4);
    assert_eq!(receive(0), 2);
    // SAFETY: no pointers.
    unsafe { assert_eq!(remote::rshutdown(fd.as_raw_fd(), channel, libc::SHUT_WR), 0) };
    assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0);
    // SAFETY: one byte.
    let sent = unsafe { remote::rsend(fd.as_raw_fd(), channel, c"".as_ptr().cast(), 1, MSG_NOSIGNAL) };
    assert_eq!((sent, errno::get()), (-1, EPIPE));
    close(peer, fd);
}

#[test]
fn poll_and_select_are_told() {
    let (mut peer, fd, channel) = relayed();
    let poll = |events, timeout| {
        let mut fds = [pollfd { fd: fd.as_raw_fd(), events, revents: 0 }];
        // SAFETY: an array of one.
        unsafe { crate::calls::poll::poll(fds.as_mut_ptr(), 1, timeout) };
        fds[0].revents
    };
    assert_eq!(poll(POLLIN, 0), 0);
    assert_eq!(poll(POLLIN | POLLOUT, -1), POLLOUT);
    std::thread::scope(|scope| {
        scope.spawn(|| peer.write_all(b"x").unwrap());
        assert_eq!(poll(POLLIN, -1), POLLIN);
    });
    // SAFETY: sets that hold the number.
    unsafe {
        let (mut read, mut write) = (core::mem::zeroed(), core::mem::zeroed());
        libc::FD_SET(fd.as_raw_fd(), &raw mut read);
        libc::FD_SET(fd.as_raw_fd(), &raw mut write);
        let null = core::ptr::null_mut();
        assert_eq!(
            crate::calls::select::select(
                fd.as_raw_fd() + 1,
                &raw mut read,
                &raw mut write,
                null,
                core::ptr::null_mut()
            ),
            2
        );
        let mut byte = 0_u8;
        assert_eq!(remote::rread(fd.as_raw_fd(), channel, (&raw mut byte).cast(), 1), 1);
        let (mut none, mut now) = (libc::timeval { tv_sec: 0, tv_usec: 0 }, write);
        libc::FD_SET(fd.as_raw_fd(), &raw mut read);
        assert_eq!(
            crate::calls::select::select(fd.as_raw_fd() + 1, &raw mut read, &raw mut now, null, &raw mut none),
            1
        );
        assert!(!libc::FD_ISSET(fd.as_raw_fd(), &raw const read));
        assert!(libc::FD_ISSET(fd.as_raw_fd(), &raw const now));
    }
    close(peer, fd);
}

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> libc::c_int;
}

unsafe extern "C-unwind" {
    fn pthread_exit(result: *mut libc::c_void) -> !;
}

/// Ends the thread in a wait for a channel, as cancellation does.
extern "C" fn end_in_wait(channel: *mut libc::c_void) -> *mut libc::c_void {
    let channel = channel.addr() as RawFd;
    let _ = remote::Waits::with(1, |waits| {
        waits.enter(channel, POLLIN);
        assert!(remote::is_waited_for(channel));
        // SAFETY: the frames up to the thread's first one have nothing to drop.
        unsafe { pthread_exit(core::ptr::null_mut()) }
    });
    core::ptr::null_mut()
}

#[test]
fn a_thread_that_ends_in_a_wait_waits_no_longer() {
    // No descriptor has this number.
    const CHANNEL: RawFd = 1_000_003;
    // SAFETY: room for a thread's number; the thread has not been joined.
    unsafe {
        let mut thread = core::mem::zeroed();
        let argument = core::ptr::without_provenance_mut(CHANNEL as usize);
        assert_eq!(libc::pthread_create(&raw mut thread, core::ptr::null(), end_in_wait, argument), 0);
        assert_eq!(libc::pthread_join(thread, core::ptr::null_mut()), 0);
    }
    assert!(!remote::is_waited_for(CHANNEL));
}

/// Shuts a direction down by a channel. Returns the result plus one, so that -1 is null.
extern "C" fn shut_down(channel: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: no pointers.
    let result = unsafe { remote::rshutdown(-1, channel as usize as RawFd, libc::SHUT_WR) };
    core::ptr::without_provenance_mut((result + 1) as usize)
}

/// A cancelled thread finishes its request: it has the lock that all requests need.
#[test]
fn requests_are_not_cancelled() {
    let mut ends = [-1; 2];
    // SAFETY: room for two numbers and a thread's; new descriptors.
    let (parent, channel, thread) = unsafe {
        assert_eq!(libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, ends.as_mut_ptr()), 0);
        let argument = core::ptr::without_provenance_mut(ends[1] as usize);
        let mut thread = core::mem::zeroed();
        assert_eq!(libc::pthread_create(&raw mut thread, core::ptr::null(), shut_down, argument), 0);
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]), thread)
    };
    let (request, _) = message::take(parent.as_raw_fd(), &[], 0).unwrap();
    assert_eq!(request.what, message::SHUTDOWN);
    let mut result = core::ptr::null_mut();
    // SAFETY: a thread that has not been joined; `result` is writable.
    unsafe {
        assert_eq!(pthread_cancel(thread), 0);
        let reply = message::Head { what: message::REPLY, value: 0, flags: 0 };
        message::put(parent.as_raw_fd(), reply, &[]).unwrap();
        assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
    }
    assert_eq!(result.addr(), 1, "the thread was cancelled in its request");
    drop(channel);
}
