//! The change of a descriptor into another kind of socket: the lock under which its table entry and
//! its epoll memberships change together, the wait for another thread's decision, and the change
//! itself.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::{AF_INET, AF_INET6, F_GETFL, F_SETFL, O_NONBLOCK};

use crate::sockets::{SockAddr, kernel, rdma};
use crate::table::{self, Entry, Kind};
use crate::thread::{Held, Lock, sleep_while, wake_all};
use crate::{errno, tcp};

/// The descriptor that is changing; -1 if no descriptor is changing.
static MOVING: AtomicI32 = AtomicI32::new(-1);

static LOCK: Lock = Lock::new();

/// A guard that holds the lock while a descriptor changes.
pub struct Moving {
    _held: Held<'static>,
}

impl Moving {
    /// Waits for the lock, and marks `fd` as changing.
    pub fn begin(fd: c_int) -> Moving {
        let held = LOCK.hold();
        MOVING.store(fd, Ordering::SeqCst);
        Moving { _held: held }
    }

    /// Frees the lock in a child of fork(2), which does not have the thread that may hold it.
    pub fn reset() {
        MOVING.store(-1, Ordering::SeqCst);
        LOCK.reset();
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        MOVING.store(-1, Ordering::SeqCst);
    }
}

/// Waits while `fd` is changing. Returns true if `fd` was changing: its table entry may be
/// different now.
pub fn wait_for_move(fd: c_int) -> bool {
    let moves = MOVING.load(Ordering::SeqCst) == fd;
    if moves {
        drop(LOCK.hold());
    }
    moves
}

/// Limit of a wait for another thread's decision, in seconds: longer than any decision takes. In a
/// child of fork(2) the other thread may exist in the parent only.
const DECISION_TIMEOUT: u64 = 60;

/// Number of decisions so far: the futex on which threads wait for a decision.
static DECISIONS: AtomicU32 = AtomicU32::new(0);

/// Waits until `fd` has an entry other than `entry`. Returns false if a wait times out.
pub fn wait_for_change(fd: c_int, entry: Entry) -> bool {
    loop {
        let decisions = DECISIONS.load(Ordering::SeqCst);
        if table::get(fd) != Some(entry) {
            return true;
        }
        if !sleep_while(&DECISIONS, decisions, DECISION_TIMEOUT) {
            return false;
        }
    }
}

/// Counts a decision, and wakes the threads that wait for it.
pub fn announce() {
    DECISIONS.fetch_add(1, Ordering::SeqCst);
    wake_all(&DECISIONS);
}

/// Where a call on a socket goes. `Ok(Some)`: to librdmacm, with this rsocket. `Ok(None)`: to the
/// next definition of the call's name. `Err`: the call fails with this errno.
pub type Target = Result<Option<c_int>, c_int>;

/// What a call is about to do with a socket whose kind may not be decided yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// Sends. The decision must not wait without a limit for a message from the peer.
    Send,
    /// Sends as much as there is space for (MSG_DONTWAIT).
    SendNow,
    /// Shuts down. Otherwise like [`Intent::Send`].
    Shutdown,
    /// Receives. The decision may wait as long as the receiving call would.
    Receive,
    /// Receives what is available (MSG_DONTWAIT).
    ReceiveNow,
}

impl Intent {
    /// Whether the call waits if the socket is blocking.
    pub fn waits(self) -> bool {
        !matches!(self, Intent::ReceiveNow | Intent::SendNow)
    }

    /// Whether the call sends data, or shuts the socket down.
    pub fn sends(self) -> bool {
        matches!(self, Intent::Send | Intent::SendNow | Intent::Shutdown)
    }
}

// Entries of automatic mode in the table.

/// Bit in the flags of an entry: the entry is that of an rsocket of automatic mode.
pub const AUTO: u32 = 1;

/// Bit in the flags of an entry: the program's socket is IPv6, and its rsocket is IPv4.
pub const MAPPED: u32 = AUTO << 1;

/// Whether an entry is that of an rsocket of automatic mode. The placeholders of such rsockets are
/// TCP sockets.
pub fn is_auto(entry: Entry) -> bool {
    entry.kind == Kind::Socket && entry.flags & AUTO != 0
}

/// Whether `entry` belongs to a descriptor for `rsocket`, an rsocket of automatic mode.
pub fn is_entry_of(rsocket: c_int, entry: Entry) -> bool {
    is_auto(entry) && entry.handle == rsocket
}

// The result of an attempt: the descriptor becomes an rsocket, or TCP is connected.

/// Makes `fd` stand for the connected rsocket `rsocket`, with the options of the TCP socket, if the
/// entry of `fd` is `before`. `copy` is `fd` or a duplicate of it, `flags` is [`AUTO`] or 0.
/// Returns false if there is no memory, or if the entry has changed.
pub fn become_rsocket(fd: c_int, copy: c_int, before: Option<Entry>, rsocket: c_int, flags: u32) -> bool {
    // This copies O_NONBLOCK, too.
    tcp::copy_connected_options(copy, rsocket);
    let is_mapped =
        tcp::family(copy) == Some(AF_INET6) && rdma::peer(rsocket).is_some_and(|peer| peer.family() == AF_INET);
    let mapped = if is_mapped && flags == AUTO { MAPPED } else { 0 };
    if table::prepare(fd).is_err() || table::first(rsocket, 0).is_err() {
        return false;
    }
    let done = table::replace(fd, before, Some(Entry::rsocket(rsocket, flags | mapped)));
    if !done {
        table::drop(rsocket);
    }
    done
}

/// Starts to connect the TCP socket `copy`, without waiting: the program waits for the connection.
pub fn connect_tcp(copy: c_int, to: &SockAddr) {
    let family = tcp::family(copy).unwrap_or(AF_INET);
    let to = to.in_family(family);
    errno::keeping(|| {
        let flags = kernel::fcntl(copy, F_GETFL, 0);
        // The program may have cleared O_NONBLOCK meanwhile.
        kernel::fcntl(copy, F_SETFL, flags | O_NONBLOCK);
        kernel::connect(copy, &to);
        if flags & O_NONBLOCK == 0 {
            kernel::fcntl(copy, F_SETFL, flags);
        }
    });
}

#[cfg(test)]
mod tests_of_tcp {
    use std::net::TcpListener;

    use libc::{SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM};

    use super::*;
    use crate::next_symbol;

    #[test]
    fn a_socket_that_connects_keeps_its_mode() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        for mode in [0, SOCK_NONBLOCK] {
            let socket = next_symbol::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | mode, 0);
            connect_tcp(socket, &SockAddr::new(to.ip(), to.port()));
            assert_eq!(kernel::fcntl(socket, F_GETFL, 0) & O_NONBLOCK, mode);
            next_symbol::close(socket);
        }
    }
}
