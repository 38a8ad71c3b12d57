//! Copies of a pending socket's number (dup): what one of them becomes, all become.
//!
//! They are found by what the kernel says is the same socket. That is a walk over all numbers, made only by processes
//! that have copied pending sockets. Copies that a program makes for one that it executes (inetd) are none of its own
//! uses, and stay what they are.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use super::share;
use super::state::{Role, State};
use crate::table::{self, Entry, Kind};
use crate::{fds, real};

/// Whether there has ever been a copy.
static ANY: AtomicBool = AtomicBool::new(false);

/// Numbers that are walked over: those that programs have.
const MOST: u64 = 1 << 20;

/// Whether a thread decides, by socket: copies of one must not be decided at a time. Two sockets that share a place, by
/// bad luck, take turns as well.
static TURNS: [AtomicBool; 1 << PLACES] = [const { AtomicBool::new(false) }; 1 << PLACES];
const PLACES: u32 = 12;

/// A decision is on; it may be in a process without copies, which needs no turns.
pub struct Turn {
    place: Option<&'static AtomicBool>,
}

/// Begins a decision; `None` if another one is on that it might disturb.
pub fn take_turn(fd: c_int) -> Option<Turn> {
    let place = if ANY.load(Ordering::SeqCst) { turns(fd) } else { None };
    let free = place.is_none_or(|place| !place.swap(true, Ordering::SeqCst));
    free.then(|| Turn { place })
}

/// Ends a decision that has lasted too long to be one: its thread was one of the parent's, from before a fork().
pub fn end_turn(fd: c_int) {
    drop(Turn { place: turns(fd) });
}

fn turns(fd: c_int) -> Option<&'static AtomicBool> {
    // The kernel counts sockets per processor: multiplied by the golden ratio, near numbers and far ones are spread.
    let spread = identity(fd)?.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    TURNS.get((spread >> (u64::BITS - PLACES)) as usize)
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.store(false, Ordering::SeqCst);
        }
    }
}

/// A pending socket is being copied.
pub fn made() {
    ANY.store(true, Ordering::SeqCst);
}

/// Gives the copies of `tcp` the rsocket that one of them has become. A copy that is made meanwhile finds it itself
/// ([`find`]).
pub fn share(tcp: c_int, inner: c_int, mut joined: impl FnMut(c_int, State)) {
    let give = |fd: c_int, entry: Entry| {
        let state = State::of(entry);
        if state.busy || state.has_ticket() {
            return;
        }
        let decided = Entry::rsocket(inner, share::DECIDED);
        let Some(rsocket) = fds::hold(decided) else { return };
        if table::replace(fd, Some(entry), Some(rsocket)) {
            joined(fd, state);
        } else {
            fds::release(rsocket);
        }
    };
    each_copy(tcp, Kind::Pending, give);
}

/// The rsocket that a copy of `tcp` has become, with a reference for the caller.
pub fn find(tcp: c_int) -> Option<Entry> {
    let mut found = None;
    each_copy(tcp, Kind::Socket, |_, entry| {
        if found.is_none() {
            found = fds::hold(entry);
        }
    });
    found
}

/// `tcp` stays a TCP socket: so do its copies, whose handshakes would come too late.
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

/// One more than the highest number that there may be.
pub fn numbers() -> c_int {
    fds::limit().unwrap_or(0).min(MOST) as c_int
}

/// What tells one socket of the kernel from all others.
pub fn identity(fd: c_int) -> Option<u64> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: a number of eight bytes, and its size.
    let result =
        unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut cookie).cast(), &raw mut len) };
    (result == 0).then_some(cookie)
}
