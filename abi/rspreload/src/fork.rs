//! Fork mode (RDMAV_FORK_SAFE at both ends): connections are made over TCP and become rsockets when
//! they are first used.
//!
//! An rsocket belongs to the process that made it. A server that accepts in one process and serves
//! in another can use RDMA all the same if the process that uses the connection makes it anew. So a
//! stream socket starts out as a TCP socket, "pending", and its first use decides what it is from
//! then on. The accepting end listens as an rsocket at the same address, says so with a word of
//! four zero bytes over TCP, and accepts ([`passive`]); the connecting end finds the word and
//! connects an rsocket ([`active`]). If any of that fails the connection stays a TCP socket.
//!
//! A socket that has become an rsocket keeps its number. The TCP socket, shut down, is its
//! placeholder.

mod active;
mod decide;
mod passive;
mod semaphore;
mod sibling_handshakes;

use core::ffi::c_int;

use libc::{EINPROGRESS, EINTR, c_short, sockaddr, socklen_t};

use self::decide::{Role, State};
use crate::table::{self, Entry, Kind};
use crate::transition::{self, Moving, Way};
use crate::{config, errno, next_symbol};

/// Whether a new socket is to be pending. `kind` is without flags.
pub fn wanted(domain: c_int, kind: c_int) -> bool {
    (domain == libc::AF_INET || domain == libc::AF_INET6) && kind == libc::SOCK_STREAM && config::fork_safe()
}

/// The entry of a new socket.
pub fn new_entry() -> Entry {
    State::new(Role::Fresh).entry()
}

/// The entry of a connection that a pending listener has accepted.
pub fn accepted_entry() -> Entry {
    State::new(Role::Passive).entry()
}

/// connect(2) of a pending socket.
///
/// # Safety
/// As connect(2).
pub unsafe fn connect(fd: c_int, entry: Entry, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
    // SAFETY: as for this function.
    let result = unsafe { next_symbol::connect(fd, addr, addrlen) };
    // Interrupted, it goes on by itself.
    if result == 0 || matches!(errno::get(), EINPROGRESS | EINTR) {
        let state = State::of(entry);
        if state.role == Role::Fresh {
            table::replace(fd, Some(entry), Some(state.with(Role::Active).entry()));
        }
    }
    result
}

/// A call is about to use a pending socket: decides what it is. Returns the rsocket that it is from
/// now on, or `None` if the call is the kernel's, or the errno with which the call fails.
///
/// # Safety
/// `fd` is a descriptor of the program and `entry` is what the table had for it.
pub unsafe fn resolve_pending(fd: c_int, entry: Entry, way: Way) -> Result<Option<c_int>, c_int> {
    errno::keeping(|| decide::resolve_pending(fd, entry, way))
}

/// A pending socket is about to be waited for. If it was accepted it is decided now, because the
/// peer may be silent until then. If it was connected, it is decided provided that the peer's word
/// has come.
///
/// Returns the rsocket, or `None` if the TCP socket itself is to be polled; [`after_poll`] is then
/// to be called if the socket is still pending.
///
/// # Safety
/// As for [`resolve_pending`].
pub unsafe fn resolve_for_poll(fd: c_int, entry: Entry) -> Option<c_int> {
    errno::keeping(|| decide::resolve_pending(fd, entry, Way::ReceiveNow)).unwrap_or(None)
}

/// A pending socket that was polled is ready. Returns true if that was for the peer's word only: it
/// is another socket now, which has to be polled anew.
///
/// # Safety
/// As for [`resolve_pending`].
pub unsafe fn after_poll(fd: c_int, revents: c_short) -> bool {
    let Some(entry @ Entry { kind: Kind::Pending, .. }) = table::get(fd) else { return false };
    if revents & libc::POLLIN == 0 || State::of(entry).role == Role::Fresh {
        return false;
    }
    let _ = errno::keeping(|| decide::resolve_pending(fd, entry, Way::ReceiveNow));
    table::get(fd) != Some(entry)
}

/// A pending socket's number is about to be copied: the socket stays TCP, also for a program that
/// gets the copy, unless it is not connected yet. Returns false if its entry is right for both.
pub fn stay_tcp(fd: c_int, entry: Entry) -> bool {
    let state = State::of(entry);
    if state.busy {
        transition::wait_for_change(fd, entry);
        return true;
    }
    let next = match state.role {
        Role::Fresh | Role::Late => return false,
        Role::Active => Some(state.with(Role::Late).entry()),
        Role::Passive => None,
    };
    table::replace(fd, Some(entry), next);
    true
}

/// The entry of the copy of a pending socket's number.
pub fn copied(entry: Entry) -> Entry {
    State::new(State::of(entry).role).entry()
}

/// After fork(2), in the child: a turn is the parent's.
pub fn in_child() {
    semaphore::forget();
    Moving::reset();
}

#[cfg(test)]
mod tests;
