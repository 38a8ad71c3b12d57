//! Fork mode (RDMAV_FORK_SAFE at both ends): connections that are made over TCP and become rsockets when first used.
//!
//! An rsocket belongs to the process that made it. A server that accepts in one process and serves in another can use
//! RDMA all the same, if the connection is made anew by the process that uses it. So a stream socket starts out as a
//! TCP socket, "pending". Its first use decides what it is from then on. The end that accepted listens as an rsocket
//! at the same address, says so by a word of four zero bytes over TCP, and accepts ([`passive`]); the end that
//! connected finds the word and connects an rsocket ([`active`]). Whatever goes wrong, it stays a TCP socket.
//!
//! A socket that has become an rsocket keeps its number, and the TCP socket, shut down, keeps the place.

mod active;
mod copy;
mod decide;
mod matching;
mod member;
mod message;
mod name;
mod others;
mod parked;
mod passive;
mod place;
mod relay;
pub mod remote;
mod semaphore;
mod share;
mod slots;
mod state;
mod thread;

use core::ffi::c_int;

use libc::{EINPROGRESS, EINTR, c_short, sockaddr, socklen_t};

use self::state::{Role, State};
use crate::table::{self, Entry, Kind};
use crate::{config, errno, fds, real};

pub use parked::{control as control_undecided, wait_for_move};
pub use share::is_decided;
pub use slots::abandoned;

/// What a call is about to do with a pending socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Send: it must not wait for ever for a word that may not come.
    Send,
    /// Send what there is room for (MSG_DONTWAIT).
    SendNow,
    /// Shut down, which is as sending.
    Shutdown,
    /// Receive: it waits as long as receiving would.
    Receive,
    /// Receive what is there (MSG_DONTWAIT).
    ReceiveNow,
}

impl Way {
    /// Whether the call waits if the socket is a blocking one.
    fn waits(self) -> bool {
        !matches!(self, Way::ReceiveNow | Way::SendNow)
    }

    fn sends(self) -> bool {
        matches!(self, Way::Send | Way::SendNow | Way::Shutdown)
    }
}

/// Whether `fd` is one of the library's own descriptors for fork mode.
pub fn is_end(fd: c_int) -> bool {
    share::is_end(fd) || slots::is_own(fd)
}

/// Whether a socket that the program makes is to be pending. kind: without flags.
pub fn wanted(domain: c_int, kind: c_int) -> bool {
    (domain == libc::AF_INET || domain == libc::AF_INET6) && kind == libc::SOCK_STREAM && config::fork_safe()
}

/// socket(2) for a pending one.
///
/// # Safety
/// As socket(2): it has no pointers.
pub unsafe fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: as for this function.
    enter(unsafe { real::socket(domain, kind, protocol) }, Role::Fresh)
}

/// accept4(2) on a pending listener.
///
/// # Safety
/// As accept4(2).
pub unsafe fn accept(fd: c_int, _entry: Entry, addr: *mut sockaddr, addrlen: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: as for this function.
    enter(unsafe { real::accept4(fd, addr, addrlen, flags) }, Role::Passive)
}

/// Puts a new socket into the table.
fn enter(fd: c_int, role: Role) -> c_int {
    if fd < 0 {
        return fd;
    }
    if let Err(error) = table::prepare(fd) {
        // SAFETY: a descriptor that nobody has seen.
        unsafe { real::close(fd) };
        return errno::fail(error);
    }
    let stale = table::swap(fd, Some(State::new(role).entry()));
    if let Some(stale) = stale {
        // Closed by a way that is not intercepted.
        errno::keeping(|| fds::release(stale));
    }
    fd
}

/// connect(2) of a pending socket.
///
/// # Safety
/// As connect(2).
pub unsafe fn connect(fd: c_int, entry: Entry, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
    // SAFETY: as for this function.
    let result = unsafe { real::connect(fd, addr, addrlen) };
    // Interrupted, it goes on by itself.
    if result == 0 || matches!(errno::get(), EINPROGRESS | EINTR) {
        let state = State::of(entry);
        if state.role == Role::Fresh {
            table::replace(fd, Some(entry), Some(state.with(Role::Active).entry()));
        }
    }
    result
}

/// A call is about to use a pending socket: what it is. `Ok(Some)`: an rsocket from now on. `Ok(None)`: the call is the
/// kernel's. `Err`: the call fails so.
///
/// # Safety
/// `fd` is a descriptor of the program and `entry` is what the table had for it.
pub unsafe fn settle(fd: c_int, entry: Entry, way: Way) -> Result<Option<c_int>, c_int> {
    errno::keeping(|| decide::settle(fd, entry, way))
}

/// A pending socket is about to be waited for. The handshake of one that was accepted begins, as
/// its peer may be silent until then; while it [goes on](is_undecided) the socket is not ready. One
/// that was connected is decided if the peer's word is there. `None`: the TCP socket itself is to
/// be polled, and if it is still pending, [`after_poll`] is to be asked.
///
/// # Safety
/// As for [`settle`].
pub unsafe fn settle_for_poll(fd: c_int, entry: Entry, _events: c_short) -> Option<c_int> {
    errno::keeping(|| decide::settle(fd, entry, Way::ReceiveNow)).unwrap_or(None)
}

/// Whether `fd` is an accepted connection whose handshake is under way: the program is told nothing
/// of what happens on the TCP connection.
pub fn is_undecided(fd: c_int) -> bool {
    table::get(fd).is_some_and(|entry| entry.kind == Kind::Pending && State::of(entry).has_ticket())
}

/// A pending socket that was polled is ready: true if that was for the peer's word only, and it is another socket now
/// that has to be polled anew.
///
/// # Safety
/// As for [`settle`].
pub unsafe fn after_poll(fd: c_int, revents: c_short) -> bool {
    let Some(entry @ Entry { kind: Kind::Pending, .. }) = table::get(fd) else { return false };
    if revents & libc::POLLIN == 0 || State::of(entry).role == Role::Fresh {
        return false;
    }
    let _ = errno::keeping(|| decide::settle(fd, entry, Way::ReceiveNow));
    table::get(fd) != Some(entry)
}

/// A pending socket's number is copied: the flags of the copy.
pub fn copy_flags(flags: u32) -> u32 {
    copy::made();
    state::copied(flags)
}

/// A pending socket is in an epoll now.
pub fn joined(fd: c_int, epfd: c_int) {
    if let Some(entry @ Entry { kind: Kind::Pending, .. }) = table::get(fd) {
        // If it has changed meanwhile it is no longer pending: too late to be told of epolls.
        table::replace(fd, Some(entry), Some(State::of(entry).in_epoll(epfd).entry()));
    }
}

#[cfg(test)]
mod handshake_tests;
#[cfg(test)]
mod relay_tests;
#[cfg(test)]
mod tests;
