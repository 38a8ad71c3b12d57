//! Whether TCP is connected where nobody listened by RDMA, which is remembered then.
//!
//! The thread looks at the program's own numbers. A duplicate would keep the port of a socket that
//! the program closes, and its next bind(2) to the port would fail with EADDRINUSE.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::SeqCst};

use super::attempt;
use super::log::Reason;
use super::shared::AtomicName;
use crate::tcp;
use crate::tcp::name::Name;
use crate::time;

/// The most sockets that are watched at a time: of further ones nothing is remembered.
pub const MAX_WATCHES: usize = 16;

/// The time of a watch, in nanoseconds.
const TIME: i64 = 20_000_000;

/// Between two looks, in milliseconds.
const LOOK_EVERY: c_int = 2;

/// The sockets of this process.
pub static WATCHES: Watches = Watches([const { Watch::new() }; MAX_WATCHES]);

pub struct Watches([Watch; MAX_WATCHES]);

struct Watch {
    /// The kernel's identifier of the socket, which no other socket gets: 0 for none, [`FILLING`] while
    /// the rest is written.
    socket: AtomicU64,
    /// The program's number.
    number: AtomicI32,
    /// The end of the watch, on the monotonic clock.
    end: AtomicU64,
    to: AtomicName,
}

/// In place of an identifier.
const FILLING: u64 = u64::MAX;

impl Watch {
    const fn new() -> Watch {
        let (socket, end) = (AtomicU64::new(0), AtomicU64::new(0));
        Watch { socket, number: AtomicI32::new(-1), end, to: AtomicName::new() }
    }

    /// The socket that is watched.
    fn socket(&self) -> Option<u64> {
        Some(self.socket.load(SeqCst)).filter(|&socket| socket != 0 && socket != FILLING)
    }

    /// Returns whether `socket` may still be connected in time.
    fn goes_on(&self, socket: u64) -> bool {
        let fd = self.number.load(SeqCst);
        // Not SO_ERROR, which is the program's to read.
        let state = tcp::state(fd);
        // After the state: it is that of this socket.
        if tcp::identity(fd) != Some(socket) {
            return false;
        }
        let is_connected = state == Some(tcp::ESTABLISHED);
        if is_connected
            && let Some(to) = self.to.load()
            && self.socket() == Some(socket)
        {
            attempt::accepted_by_tcp(&to, Reason::Rejected);
        }
        !is_connected && time::now() < self.end.load(SeqCst) as i64
    }

    /// Ends the watch of `socket`, unless another thread has ended it. Another watch may have begun by
    /// then.
    fn stop(&self, socket: u64) {
        let _ = self.socket.compare_exchange(socket, 0, SeqCst, SeqCst);
    }
}

impl Watches {
    /// Begins to watch the socket of the program's number `fd`, of which `copy` is a duplicate.
    /// Called before the program learns that the attempt by RDMA has ended.
    pub fn begin(&self, fd: c_int, copy: c_int, to: &Name) {
        let Some(socket) = tcp::identity(copy) else { return };
        let free = |watch: &&Watch| watch.socket.compare_exchange(0, FILLING, SeqCst, SeqCst).is_ok();
        let Some(watch) = self.0.iter().find(free) else { return };
        watch.number.store(fd, SeqCst);
        watch.end.store((time::now() + TIME) as u64, SeqCst);
        watch.to.store(to);
        watch.socket.store(socket, SeqCst);
        // On the same host it is connected already, and the program may close it at once.
        self.look();
    }

    /// Looks at the sockets.
    pub fn look(&self) {
        for watch in &self.0 {
            if let Some(socket) = watch.socket()
                && !watch.goes_on(socket)
            {
                watch.stop(socket);
            }
        }
    }

    /// The milliseconds until the next look, if there is any socket.
    pub fn left(&self) -> Option<c_int> {
        self.0.iter().any(|watch| watch.socket().is_some()).then_some(LOOK_EVERY)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    fn name(address: SocketAddr) -> Name {
        Name::new(address.ip(), address.port())
    }

    #[test]
    fn a_connected_socket_is_watched_no_longer() {
        let watches = Watches([const { Watch::new() }; MAX_WATCHES]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        watches.begin(client.as_raw_fd(), client.as_raw_fd(), &name(address));
        assert_eq!(watches.left(), None);
    }

    #[test]
    fn a_socket_is_watched_until_its_number_is_another_file() {
        let watches = Watches([const { Watch::new() }; MAX_WATCHES]);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        watches.begin(listener.as_raw_fd(), listener.as_raw_fd(), &name(address));
        assert_eq!(watches.left(), Some(LOOK_EVERY));
        // Other tests may get the number, but not the socket's identifier.
        drop(listener);
        watches.look();
        assert_eq!(watches.left(), None);
    }

    #[test]
    fn a_thread_that_looked_before_does_not_end_the_next_watch() {
        let watches = Watches([const { Watch::new() }; MAX_WATCHES]);
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [first, second] =
            listeners.each_ref().map(|listener| (listener.as_raw_fd(), listener.local_addr().unwrap()));
        watches.begin(first.0, first.0, &name(first.1));
        let seen = watches.0[0].socket().unwrap();
        watches.0[0].stop(seen);
        watches.begin(second.0, second.0, &name(second.1));
        // Another thread had decided to end the first one.
        watches.0[0].stop(seen);
        assert_eq!(watches.0[0].socket(), tcp::identity(second.0));
        assert_eq!(watches.left(), Some(LOOK_EVERY));
    }
}
