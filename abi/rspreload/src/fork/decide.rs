//! Deciding what a pending socket becomes: one thread decides, and others that want to use the
//! socket wait.
//!
//! The decision works on a copy of the TCP descriptor, so the program may close its own meanwhile.
//! The table then has another entry than the deciding thread left there, and its result is
//! discarded.

use core::ffi::c_int;

use libc::EAGAIN;

use super::{active, passive, sibling_handshakes};
use crate::epoll::members;
use crate::own_fd::OwnFd;
use crate::table::{Entry, Kind};
use crate::tcp::make_rsocket;
use crate::time::Deadline;
use crate::transition::Way;
use crate::{cancel, next_symbol, rsocket, rsocket_abi, table, tcp, transition};

// The state of a pending socket, in the flags of its table entry.

/// What the program has done with the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Nothing yet, or listen(2).
    Fresh,
    /// It was connected.
    Active,
    /// It was accepted.
    Passive,
    /// It was connected, and used as TCP before the peer's word came, which may still come.
    Late,
}

/// The state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    pub role: Role,
    /// A thread is deciding what the socket becomes.
    pub busy: bool,
}

const ROLE: u32 = 3;
const BUSY: u32 = 4;

impl State {
    pub fn new(role: Role) -> State {
        State { role, busy: false }
    }

    /// Of a pending entry.
    pub fn of(entry: Entry) -> State {
        let role = match entry.flags & ROLE {
            0 => Role::Fresh,
            1 => Role::Active,
            2 => Role::Passive,
            _ => Role::Late,
        };
        State { role, busy: entry.flags & BUSY != 0 }
    }

    pub fn entry(self) -> Entry {
        let busy = if self.busy { BUSY } else { 0 };
        Entry { kind: Kind::Pending, flags: self.role as u32 | busy, inner: -1 }
    }

    pub fn with(self, role: Role) -> State {
        State { role, ..self }
    }

    pub fn busy(self, busy: bool) -> State {
        State { busy, ..self }
    }
}

// Deciding what a pending socket becomes: one thread decides, and others that want to use the
// socket wait.
//
// The decision works on a copy of the TCP descriptor, so the program may close its own meanwhile.
// The table then has another entry than the deciding thread left there, and its result is
// discarded.

/// How long either end waits for the other, in milliseconds, where the program has not asked for
/// waiting itself.
pub const HANDSHAKE_TIMEOUT: c_int = 10_000;

/// What a decision came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The socket is this rsocket, connected.
    Rsocket(c_int),
    /// The socket is an ordinary TCP socket for good.
    Tcp,
    /// Undecided. The call at hand can only fail with this errno.
    Later(c_int),
    /// Used as TCP, but the peer's word may still come.
    Late,
}

/// [`super::resolve_pending`].
pub fn resolve_pending(fd: c_int, entry: Entry, way: Way) -> Result<Option<c_int>, c_int> {
    let mut seen = Some(entry);
    loop {
        let decisions = transition::count();
        let entry = match seen {
            Some(entry @ Entry { kind: Kind::Pending, .. }) => entry,
            Some(Entry { kind: Kind::Socket, inner, .. }) => return Ok(Some(inner)),
            _ => return Ok(None),
        };
        let state = State::of(entry);
        if state.role == Role::Fresh || state.role == Role::Late && way.sends() {
            return Ok(None);
        }
        // `seen` may be older than the number of decisions.
        if state.busy && (table::get(fd) != Some(entry) || transition::wait(decisions)) {
            seen = table::get(fd);
            continue;
        }
        if !state.busy && state.role != Role::Passive && way == Way::Receive {
            wait_for_peer(fd)?;
        }
        match begin(fd, entry, way) {
            Some(Err(EAGAIN)) if way == Way::Receive => {}
            Some(result) => return result,
            None => {}
        }
        seen = table::get(fd);
    }
}

/// Decides if no other thread does. `None` means that the table's entry is to be read again.
fn begin(fd: c_int, entry: Entry, way: Way) -> Option<Result<Option<c_int>, c_int>> {
    // A cancelled thread would leave the socket busy. Decisions have a time-out.
    cancel::disabled(|_| {
        let busy = State::of(entry).busy(true);
        let result = table::replace(fd, Some(entry), Some(busy.entry())).then(|| decide(fd, busy, way));
        transition::announce();
        result
    })
}

/// Waits for the peer's word or data as the program's recv(2) would: with its flags, its time-out
/// and its signals. Not as the deciding thread, because another thread may want to send meanwhile.
fn wait_for_peer(fd: c_int) -> Result<(), c_int> {
    if tcp::is_silent(fd) && tcp::is_blocking(fd) && sibling_handshakes::exist(fd) {
        sibling_handshakes::wait(fd, &Deadline::after(tcp::receive_timeout(fd)), resolve_sibling);
    }
    tcp::peek(fd, &mut [0], 0).map(|_| ())
}

/// Settles another connection of the same peer, on which something has arrived. What the outcome
/// means for the program its next call on that connection finds out.
fn resolve_sibling(fd: c_int, entry: Entry) {
    let _ = resolve_pending(fd, entry, Way::ReceiveNow);
}

/// Decides, as the only thread that does, and leaves the final entry in the table.
fn decide(fd: c_int, busy: State, way: Way) -> Result<Option<c_int>, c_int> {
    let copy = OwnFd::duplicate(fd);
    let outcome = match (copy.as_ref().map(OwnFd::fd), busy.role) {
        (None, _) => Outcome::Tcp,
        (Some(tcp), Role::Passive) => passive::decide(tcp),
        (Some(tcp), role) => active::decide(tcp, role, way, resolve_sibling),
    };
    commit(fd, copy.as_ref().map_or(-1, OwnFd::fd), busy, outcome)
}

/// Puts the outcome for a number into the table if the number still has its busy entry; otherwise
/// the program has closed it, and the call itself fails. Returns the rsocket, `None` for a call
/// that goes to the kernel, or the errno that the call fails with.
fn commit(fd: c_int, tcp: c_int, busy: State, outcome: Outcome) -> Result<Option<c_int>, c_int> {
    let (next, result) = match outcome {
        Outcome::Rsocket(inner) => return Ok(become_rsocket(fd, tcp, busy, inner)),
        Outcome::Tcp => (None, Ok(None)),
        Outcome::Late => (Some(busy.busy(false).with(Role::Late)), Ok(None)),
        Outcome::Later(error) => (Some(busy.busy(false)), Err(error)),
    };
    table::replace(fd, Some(busy.entry()), next.map(State::entry));
    result
}

fn become_rsocket(fd: c_int, tcp: c_int, busy: State, inner: c_int) -> Option<c_int> {
    make_rsocket::copy_options(tcp, inner);
    if table::first(inner).is_err() {
        rsocket_abi::rclose(inner);
        table::replace(fd, Some(busy.entry()), None);
        return None;
    }
    let entry = Entry::rsocket(inner, table::DECIDED);
    if !table::replace(fd, Some(busy.entry()), Some(entry)) {
        rsocket::release(entry);
        return None;
    }
    // The kernel still has the TCP socket there.
    members::leave(fd);
    members::join(fd);
    // The peer does the same. Another process with a copy of the TCP socket, a parent perhaps, sees
    // its end.
    next_symbol::shutdown(tcp, libc::SHUT_RDWR);
    Some(inner)
}
