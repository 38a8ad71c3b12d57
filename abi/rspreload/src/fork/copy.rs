//! Copies of a pending socket's number (dup): all become what one of them becomes.
//!
//! The kernel tells which numbers are the same socket (SO_COOKIE). Finding them takes a walk over
//! all numbers, which only processes make that have copied pending sockets. Copies made for a
//! program that is executed (inetd) are not used by this process, and stay what they are.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use super::state::{Role, State};
use crate::table::{self, Entry, Kind};
use crate::tcp::identity;
use crate::{open_fds, rsocket};

/// Whether there has ever been a copy.
static ANY: AtomicBool = AtomicBool::new(false);

/// The most numbers that a walk covers: more than programs have.
const MAX_NUMBERS: u64 = 1 << 20;

/// Whether a thread is deciding, by socket: copies of one socket must not be decided at the same
/// time. Two sockets that happen to share an index take turns as well.
static TURNS: [AtomicBool; 1 << TURNS_BITS] = [const { AtomicBool::new(false) }; 1 << TURNS_BITS];
const TURNS_BITS: u32 = 12;

/// A decision under way. In a process without copies it needs no index.
pub struct Turn {
    turn: Option<&'static AtomicBool>,
}

/// Begins a decision. Returns `None` if another one is under way that it might disturb.
pub fn take_turn(fd: c_int) -> Option<Turn> {
    let turn = if ANY.load(Ordering::SeqCst) { turns(fd) } else { None };
    let free = turn.is_none_or(|turn| !turn.swap(true, Ordering::SeqCst));
    free.then(|| Turn { turn })
}

/// Ends a decision that has lasted too long: its thread was one of the parent's, from before
/// fork(2).
pub fn end_turn(fd: c_int) {
    drop(Turn { turn: turns(fd) });
}

fn turns(fd: c_int) -> Option<&'static AtomicBool> {
    // The kernel counts cookies per processor. Multiplying by the golden ratio spreads near numbers
    // and distant ones.
    let spread = identity(fd)?.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    TURNS.get((spread >> (u64::BITS - TURNS_BITS)) as usize)
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turn) = self.turn {
            turn.store(false, Ordering::SeqCst);
        }
    }
}

/// A pending socket is being copied.
pub fn made() {
    ANY.store(true, Ordering::SeqCst);
}

/// Gives the copies of `tcp` the rsocket that one of them has become. A copy that is made meanwhile
/// finds the rsocket itself ([`find`]).
pub fn share(tcp: c_int, inner: c_int, mut joined: impl FnMut(c_int, State)) {
    let give = |fd: c_int, entry: Entry| {
        let state = State::of(entry);
        if state.busy || state.has_ticket() {
            return;
        }
        let decided = Entry::rsocket(inner, table::DECIDED);
        let Some(rsocket) = rsocket::hold(decided) else { return };
        if table::replace(fd, Some(entry), Some(rsocket)) {
            joined(fd, state);
        } else {
            rsocket::release(rsocket);
        }
    };
    each_copy(tcp, Kind::Pending, give);
}

/// The rsocket that a copy of `tcp` has become, with a reference for the caller.
pub fn find(tcp: c_int) -> Option<Entry> {
    let mut found = None;
    each_copy(tcp, Kind::Socket, |_, entry| {
        if found.is_none() {
            found = rsocket::hold(entry);
        }
    });
    found
}

/// Whether the handshake of a copy of `tcp` is under way.
pub fn has_ticket(tcp: c_int) -> bool {
    let mut any = false;
    each_copy(tcp, Kind::Pending, |_, entry| any |= State::of(entry).has_ticket());
    any
}

/// `tcp` stays a TCP socket, and so do its copies, whose handshakes would come too late.
pub fn stay_tcp(tcp: c_int) {
    each_copy(tcp, Kind::Pending, |fd, entry| {
        let state = State::of(entry);
        if state.role == Role::Passive && !state.has_ticket() {
            table::replace(fd, Some(entry), None);
        }
    });
}

fn each_copy(tcp: c_int, kind: Kind, mut call: impl FnMut(c_int, Entry)) {
    if !ANY.load(Ordering::SeqCst) {
        return;
    }
    let Some(own) = identity(tcp) else { return };
    for fd in 0..numbers() {
        if let Some(entry) = table::get(fd)
            && entry.kind == kind
            && identity(fd) == Some(own)
        {
            call(fd, entry);
        }
    }
}

/// One more than the highest number that the process may have.
pub fn numbers() -> c_int {
    open_fds::limit().unwrap_or(0).min(MAX_NUMBERS) as c_int
}
