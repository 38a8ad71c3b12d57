//! Fork mode (RDMAV_FORK_SAFE at both ends): connections are made over TCP and become rsockets when
//! they are first used.
//!
//! An rsocket belongs to the process that created it. A server that accepts in one process and
//! serves in another can still use RDMA if the serving process creates the rsocket. So a stream
//! socket starts as a TCP socket, "pending", and its first use decides what it becomes. The
//! accepting end listens as an rsocket at the same address, announces this over TCP with the
//! *word*, four zero bytes, and accepts; the connecting end reads the word and connects an rsocket
//! ([`handshake`]). If any step fails the connection stays a TCP socket.
//!
//! A socket that has become an rsocket keeps its descriptor. The TCP socket, shut down, is its
//! placeholder.

mod handshake;
#[cfg(test)]
mod tests;

use core::ffi::c_int;

use libc::{EAGAIN, EINPROGRESS, EINTR, c_short, sockaddr, socklen_t};

use crate::epoll::members;
use crate::table::{self, Entry, Kind};
use crate::thread::without_cancel;
use crate::transition::{self, Intent, Target};
use crate::{config, errno, next_symbol, open_fds, rsocket, tcp};

/// Whether a new socket starts as pending. `kind` has no flags.
pub fn wanted(domain: c_int, kind: c_int) -> bool {
    (domain == libc::AF_INET || domain == libc::AF_INET6) && kind == libc::SOCK_STREAM && config::fork_safe()
}

/// connect(2) of a pending socket.
///
/// # Safety
/// `addr` is NULL or readable for `addrlen` bytes.
pub unsafe fn connect(fd: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
    // SAFETY: `addr` is NULL or readable for `addrlen` bytes: guaranteed by the caller.
    let result = unsafe { next_symbol::connect(fd, addr, addrlen) };
    // After EINTR the kernel goes on connecting.
    if result == 0 || matches!(errno::get(), EINPROGRESS | EINTR) {
        table::replace(fd, Some(Role::Fresh.entry()), Some(Role::Active.entry()));
    }
    result
}

/// Decides what a pending socket becomes, because a call is about to use the socket.
pub fn resolve_pending(fd: c_int, entry: Entry, intent: Intent) -> Target {
    errno::keeping(|| decide_pending(fd, entry, intent))
}

/// Called before a pending socket is polled. Decides what an accepted socket becomes, because the
/// peer may send nothing before this decision, and what a connected socket becomes if something has
/// arrived.
///
/// Returns the rsocket, or `None` if the TCP socket itself has to be polled. In this case call
/// [`after_poll`] when it is ready.
pub fn resolve_for_poll(fd: c_int, entry: Entry) -> Option<c_int> {
    errno::keeping(|| decide_pending(fd, entry, Intent::ReceiveNow)).unwrap_or(None)
}

/// Called when a polled socket is ready. If the socket is pending, decides what it becomes. Returns
/// true if its entry has changed: the caller must poll again.
pub fn after_poll(fd: c_int, revents: c_short) -> bool {
    let Some(entry @ Entry { kind: Kind::Pending, .. }) = table::get(fd) else { return false };
    if revents & libc::POLLIN == 0 || Role::of(entry) == Role::Fresh {
        return false;
    }
    let _ = errno::keeping(|| decide_pending(fd, entry, Intent::ReceiveNow));
    table::get(fd) != Some(entry)
}

/// Called before a pending socket's descriptor is copied. Keeps a connected or accepted socket TCP,
/// because a program may be executed with the copy. Returns false if the entry can be copied as it
/// is, true if the entry may have changed and must be read again.
pub fn stay_tcp(fd: c_int, entry: Entry) -> bool {
    if is_busy(entry) {
        transition::wait_for_change(fd, entry);
        return true;
    }
    let next = match Role::of(entry) {
        Role::Fresh | Role::Late => return false,
        Role::Active => Some(Role::Late.entry()),
        Role::Passive => None,
    };
    table::replace(fd, Some(entry), next);
    true
}

// The state of a pending socket, in the flags of its table entry.

/// What the program has done with the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Nothing yet, or listen(2).
    Fresh,
    /// Connected.
    Active,
    /// Accepted.
    Passive,
    /// Connected, and used as TCP before the peer's word came. The word may still come.
    Late,
}

/// Bit in the flags of an entry: a thread is deciding what the socket becomes.
const BUSY: u32 = 4;

impl Role {
    /// Returns the role of a pending entry.
    fn of(entry: Entry) -> Role {
        match entry.flags & !BUSY {
            0 => Role::Fresh,
            1 => Role::Active,
            2 => Role::Passive,
            _ => Role::Late,
        }
    }

    /// Returns the entry of a pending socket with this role.
    pub fn entry(self) -> Entry {
        Entry { kind: Kind::Pending, flags: self as u32, handle: -1 }
    }
}

fn is_busy(entry: Entry) -> bool {
    entry.flags & BUSY != 0
}

// Deciding what a pending socket becomes: one thread decides, and others that want to use the
// socket wait.
//
// The deciding thread works on a copy of the TCP descriptor, so the program may close the original.
// The close changes the table entry, and the thread then discards the outcome.

/// The outcome of a decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The socket becomes this connected rsocket.
    Rsocket(c_int),
    /// The socket stays an ordinary TCP socket for good.
    Tcp,
    /// Undecided: the call fails with this errno.
    Later(c_int),
    /// The socket is used as TCP, but the peer's word may still come.
    Late,
}

/// Decides what a pending socket becomes, or waits for the thread that decides.
fn decide_pending(fd: c_int, entry: Entry, intent: Intent) -> Target {
    let mut seen = Some(entry);
    loop {
        let entry = match seen {
            Some(entry @ Entry { kind: Kind::Pending, .. }) => entry,
            Some(Entry { kind: Kind::Socket, handle: rsocket, .. }) => return Ok(Some(rsocket)),
            _ => return Ok(None),
        };
        let role = Role::of(entry);
        if role == Role::Fresh || role == Role::Late && intent.sends() {
            return Ok(None);
        }
        if is_busy(entry) && transition::wait_for_change(fd, entry) {
            seen = table::get(fd);
            continue;
        }
        if !is_busy(entry) && role != Role::Passive && intent == Intent::Receive {
            // Wait for the peer's word or data as the program's recv(2) does: the socket's flags,
            // its timeout and signals apply. The entry is not busy meanwhile, so another thread can
            // send.
            tcp::peek(fd, &mut [0], 0)?;
        }
        match begin(fd, entry, intent) {
            Some(Err(EAGAIN)) if intent == Intent::Receive => {}
            Some(result) => return result,
            None => {}
        }
        seen = table::get(fd);
    }
}

/// Makes the decision unless another thread does. Returns `None` if the table entry must be read
/// again.
fn begin(fd: c_int, entry: Entry, intent: Intent) -> Option<Target> {
    // A cancelled thread would leave the entry busy. Each decision has a timeout.
    without_cancel(|_| {
        let busy = Entry { flags: entry.flags | BUSY, ..entry };
        let result = table::replace(fd, Some(entry), Some(busy)).then(|| decide(fd, busy, intent));
        transition::announce();
        result
    })
}

/// Decides what the socket becomes, and stores the final entry in the table. Only the thread that
/// has set `BUSY` calls this function.
fn decide(fd: c_int, busy: Entry, intent: Intent) -> Target {
    let tcp = open_fds::duplicate(fd);
    let outcome = match Role::of(busy) {
        _ if tcp < 0 => Outcome::Tcp,
        Role::Passive => handshake::accept(tcp),
        role => handshake::find_word(tcp, role, intent),
    };
    let result = commit(fd, tcp, busy, outcome);
    open_fds::close(tcp);
    result
}

/// Stores the outcome in the table if the descriptor still has its busy entry; otherwise the
/// program has closed the descriptor, and its call on the descriptor fails.
fn commit(fd: c_int, tcp: c_int, busy: Entry, outcome: Outcome) -> Target {
    let (next, result) = match outcome {
        Outcome::Rsocket(rsocket) => return Ok(become_rsocket(fd, tcp, busy, rsocket)),
        Outcome::Tcp => (None, Ok(None)),
        Outcome::Late => (Some(Role::Late), Ok(None)),
        Outcome::Later(error) => (Some(Role::of(busy)), Err(error)),
    };
    table::replace(fd, Some(busy), next.map(Role::entry));
    result
}

fn become_rsocket(fd: c_int, tcp: c_int, busy: Entry, rsocket: c_int) -> Option<c_int> {
    tcp::copy_reuse(tcp, rsocket);
    if !transition::become_rsocket(fd, tcp, Some(busy), rsocket, 0) {
        rsocket::close(rsocket);
        table::replace(fd, Some(busy), None);
        return None;
    }
    // The kernel's epoll instances still have the TCP socket as a member: replace it.
    members::leave(fd);
    members::join(fd);
    // The peer shuts down TCP, too. Another process with a copy of the TCP socket, such as the
    // parent, then sees the end of the connection.
    next_symbol::shutdown(tcp, libc::SHUT_RDWR);
    Some(rsocket)
}
