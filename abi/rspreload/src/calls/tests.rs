//! Unit tests of calls on placeholders. Kernel sockets take the place of rsockets.

use core::ffi::{c_int, c_void};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::Duration;

use libc::{EAGAIN, EBADF, EINVAL, EPIPE, MSG_DONTWAIT, MSG_NOSIGNAL, timeval};

use super::{data, waits};
use crate::errno;
use crate::table::{self, Entry, Kind};

/// Returns the connecting and the accepted end of a connection.
pub fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// A placeholder, the kernel socket that acts as its rsocket, and the peer of that socket.
struct Placeholder {
    socket: UdpSocket,
    rsocket: TcpStream,
    far: TcpStream,
}

impl Placeholder {
    fn new() -> Placeholder {
        let (far, rsocket) = connection();
        far.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // The descriptors behind placeholders may be higher than all descriptors of the program.
        // SAFETY: fcntl(2) has just returned the descriptor, which nothing else owns.
        let rsocket = unsafe { TcpStream::from_raw_fd(libc::fcntl(rsocket.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 700)) };
        let placeholder = Placeholder { socket: UdpSocket::bind("127.0.0.1:0").unwrap(), rsocket, far };
        table::prepare(placeholder.fd()).unwrap();
        placeholder.becomes(Kind::Socket, placeholder.rsocket.as_raw_fd());
        placeholder
    }

    fn becomes(&self, kind: Kind, rsocket: c_int) {
        table::swap(self.fd(), Some(Entry { kind, flags: 0, handle: rsocket }));
    }

    fn fd(&self) -> c_int {
        self.socket.as_raw_fd()
    }

    /// The peer sends a byte. Returns when it has arrived.
    fn receives(&self) {
        (&self.far).write_all(&[1]).unwrap();
        assert_eq!(self.rsocket.peek(&mut [0]).unwrap(), 1);
    }
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        table::swap(self.fd(), None);
    }
}

/// Calls select(2) with a time-out of 0 for the descriptors of three sets. Returns its result, and
/// the descriptors that are left in the sets.
fn select_now(asked: [&[c_int]; 3]) -> (Result<c_int, c_int>, [Vec<c_int>; 3]) {
    // SAFETY: all-zero bytes are an empty set.
    let mut sets: [libc::fd_set; 3] = unsafe { core::mem::zeroed() };
    let fds = || asked.iter().copied().flatten().copied();
    // SAFETY: the descriptors are below FD_SETSIZE, and `sets` and `time` outlive the call.
    unsafe {
        for (set, fds) in sets.iter_mut().zip(asked) {
            fds.iter().for_each(|&fd| libc::FD_SET(fd, set));
        }
        let mut time = timeval { tv_sec: 0, tv_usec: 0 };
        let [read, write, except] = &mut sets;
        let count = fds().max().map_or(0, |highest| highest + 1);
        let result = waits::select(count, read, write, except, &raw mut time);
        let result = if result < 0 { Err(errno::get()) } else { Ok(result) };
        (result, [0, 1, 2].map(|set| asked[set].iter().copied().filter(|&fd| libc::FD_ISSET(fd, &sets[set])).collect()))
    }
}

#[test]
fn select_leaves_the_descriptors_that_are_ready() {
    let (data, idle) = (Placeholder::new(), Placeholder::new());
    let [kernel, silent] = [0; 2].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    data.receives();
    silent.send_to(&[1], kernel.local_addr().unwrap()).unwrap();
    kernel.peek(&mut [0]).unwrap();
    let [a, b, k, s] = [data.fd(), idle.fd(), kernel.as_raw_fd(), silent.as_raw_fd()];
    assert_eq!(select_now([&[a, b, k, s], &[b], &[a]]), (Ok(3), [vec![a, k], vec![b], vec![]]));
    assert_eq!(select_now([&[b, s], &[], &[a, b]]), (Ok(0), [vec![], vec![], vec![]]));
    // Another thread is closing the rsocket. A failure leaves the sets as they are.
    idle.becomes(Kind::Socket, table::CLOSING);
    assert_eq!(select_now([&[a, b], &[b], &[]]), (Err(EBADF), [vec![a, b], vec![b], vec![]]));
}

#[test]
fn calls_go_to_what_the_descriptor_stands_for() {
    let mut one = Placeholder::new();
    let (fd, mut byte) = (one.fd(), [0_u8; 2]);
    let start = byte.as_mut_ptr().cast::<c_void>();
    let (value, len) = (1, size_of::<c_int>() as libc::socklen_t);
    let pointer = (&raw const value).cast::<c_void>();
    // SAFETY: the pointers refer to local variables of the lengths that are passed.
    unsafe {
        assert_eq!(data::recv(fd, start, 2, MSG_DONTWAIT), -1);
        assert_eq!(errno::get(), EAGAIN);
        one.receives();
        assert_eq!((data::recv(fd, start, 2, MSG_DONTWAIT), byte), (1, [1, 0]));
        assert_eq!(data::send(fd, start, 2, 0), 2);
        one.far.read_exact(&mut [0; 2]).unwrap();
        assert_eq!(data::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, pointer, len), 0);
        assert!(one.rsocket.nodelay().unwrap());
        assert_eq!(data::shutdown(fd, libc::SHUT_WR), 0);
        assert_eq!(one.far.read(&mut [0; 2]).unwrap(), 0);
        assert_eq!((data::write(fd, start, 2), errno::get()), (-1, EPIPE));
        // A socket whose data is forwarded is a kernel socket; this one has no peer.
        one.becomes(Kind::Forwarded, c_int::MAX);
        assert_eq!((data::send(fd, start, 2, MSG_NOSIGNAL), errno::get()), (-1, libc::EDESTADDRREQ));
        // listen(2) fails as for a connecting TCP socket.
        one.becomes(Kind::Connecting, c_int::MAX);
        assert_eq!((data::listen(fd, 1), errno::get()), (-1, EINVAL));
    }
}
