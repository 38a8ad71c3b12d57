//! The state of a pending socket, in the flags of its table entry.

use core::ffi::c_int;

use crate::table::{Entry, Kind};

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
    /// The epoll instance that it was added to last, plus one; 0 for none.
    epoll: u32,
}

const ROLE: u32 = 3;
const BUSY: u32 = 4;
const EPOLL_SHIFT: u32 = 3;
/// The flags are 24 bits.
const EPOLL_MAX: u32 = (1 << (24 - EPOLL_SHIFT)) - 1;

impl State {
    pub fn new(role: Role) -> State {
        State { role, busy: false, epoll: 0 }
    }

    /// Of a pending entry.
    pub fn of(entry: Entry) -> State {
        let role = match entry.flags & ROLE {
            0 => Role::Fresh,
            1 => Role::Active,
            2 => Role::Passive,
            _ => Role::Late,
        };
        State { role, busy: entry.flags & BUSY != 0, epoll: entry.flags >> EPOLL_SHIFT }
    }

    pub fn entry(self) -> Entry {
        let busy = if self.busy { BUSY } else { 0 };
        Entry { kind: Kind::Pending, flags: self.role as u32 | busy | self.epoll << EPOLL_SHIFT, inner: -1 }
    }

    pub fn with(self, role: Role) -> State {
        State { role, ..self }
    }

    pub fn busy(self, busy: bool) -> State {
        State { busy, ..self }
    }

    /// A number that is too large is not kept: the socket is then not handed over when it becomes
    /// an rsocket.
    pub fn in_epoll(self, epfd: c_int) -> State {
        let epoll = u32::try_from(epfd).map_or(0, |number| number.saturating_add(1));
        State { epoll: if epoll > EPOLL_MAX { 0 } else { epoll }, ..self }
    }

    pub fn epoll(self) -> Option<c_int> {
        c_int::try_from(self.epoll).ok().filter(|&number| number > 0).map(|number| number - 1)
    }
}
