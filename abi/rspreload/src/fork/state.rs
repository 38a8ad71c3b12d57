//! The state of a pending socket, in the flags of its table entry.

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
