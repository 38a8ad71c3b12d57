//! What the table's flags say of a pending socket.

use core::ffi::c_int;

use crate::table::{Entry, Kind};

/// What has happened to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Nothing, or it listens.
    Fresh,
    /// It was connected.
    Active,
    /// It was accepted.
    Passive,
    /// It was connected and used as TCP before the peer's word came. The word may still come.
    Late,
}

/// All of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    pub role: Role,
    /// A thread is deciding what it becomes.
    pub busy: bool,
    /// The epoll that it was put into last, plus one; 0 for none.
    epoll: u32,
    /// Of an accepted one whose handshake is under way: its ticket ([`super::slots`]), else -1.
    pub ticket: c_int,
}

const ROLE: u32 = 3;
const BUSY: u32 = 4;
const EPOLL_SHIFT: u32 = 3;
/// The flags are 24 bits.
const EPOLL_MAX: u32 = (1 << (24 - EPOLL_SHIFT)) - 1;

impl State {
    pub fn new(role: Role) -> State {
        State { role, busy: false, epoll: 0, ticket: -1 }
    }

    /// Of a pending entry.
    pub fn of(entry: Entry) -> State {
        let role = match entry.flags & ROLE {
            0 => Role::Fresh,
            1 => Role::Active,
            2 => Role::Passive,
            _ => Role::Late,
        };
        State { role, busy: entry.flags & BUSY != 0, epoll: entry.flags >> EPOLL_SHIFT, ticket: entry.inner }
    }

    pub fn entry(self) -> Entry {
        let busy = if self.busy { BUSY } else { 0 };
        Entry { kind: Kind::Pending, flags: self.role as u32 | busy | self.epoll << EPOLL_SHIFT, inner: self.ticket }
    }

    pub fn with(self, role: Role) -> State {
        State { role, ..self }
    }

    pub fn busy(self, busy: bool) -> State {
        State { busy, ..self }
    }

    /// With its handshake under way, or not (-1).
    pub fn with_ticket(self, ticket: c_int) -> State {
        State { ticket, ..self }
    }

    /// Whether the handshake is under way.
    pub fn has_ticket(self) -> bool {
        self.ticket < -1
    }

    /// An epoll number that is too great is not remembered: the socket is not found in it when it becomes an rsocket.
    pub fn in_epoll(self, epfd: c_int) -> State {
        let epoll = u32::try_from(epfd).map_or(0, |number| number.saturating_add(1));
        State { epoll: if epoll > EPOLL_MAX { 0 } else { epoll }, ..self }
    }

    pub fn epoll(self) -> Option<c_int> {
        c_int::try_from(self.epoll).ok().filter(|&number| number > 0).map(|number| number - 1)
    }
}

/// The flags of a copy of the number: nobody is deciding about it, and it is in no epoll.
pub fn copied(flags: u32) -> u32 {
    flags & ROLE
}
