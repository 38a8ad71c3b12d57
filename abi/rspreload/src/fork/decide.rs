//! Deciding what a pending socket becomes: one thread decides, and others that want to use the
//! socket wait.
//!
//! The decision works on a copy of the TCP descriptor, so the program may close its own meanwhile.
//! The table then has another entry than the deciding thread left there, and its result is
//! discarded.

use core::ffi::c_int;

use libc::EAGAIN;

use super::commit::{self, Outcome};
use super::state::{Role, State};
use super::{accepted, active, copy, sibling_handshakes, slots};
use crate::own_fd::OwnFd;
use crate::table::{self, Entry, Kind};
use crate::time::Deadline;
use crate::transition::{self, Way};
use crate::{cancel, tcp};

/// How long either end waits for the other, in milliseconds, where the program has not asked for
/// waiting itself.
pub const HANDSHAKE_TIMEOUT: c_int = 10_000;

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
        if state.role == Role::Passive {
            if let Some(error) = resolve_accepted(fd, entry, way, decisions) {
                return Err(error);
            }
            seen = table::get(fd);
            continue;
        }
        // `seen` may be older than the number of decisions.
        if state.busy && (table::get(fd) != Some(entry) || transition::wait(decisions)) {
            seen = table::get(fd);
            continue;
        }
        if !state.busy && way == Way::Receive {
            wait_for_peer(fd)?;
        }
        match begin(fd, entry, decisions, way) {
            Some(Err(EAGAIN)) if way == Way::Receive => {}
            Some(result) => return result,
            None => {}
        }
        seen = table::get(fd);
    }
}

/// Waits for the handshake of an accepted connection. Returns the errno of a call that can't wait,
/// or `None` when the table's entry is to be read again.
fn resolve_accepted(fd: c_int, entry: Entry, way: Way, decisions: u32) -> Option<c_int> {
    if !State::of(entry).has_ticket() {
        accepted::begin(fd, entry);
    } else if way.waits() && tcp::is_blocking(fd) {
        // `entry` may be older than the number of decisions.
        if table::get(fd) == Some(entry) && !transition::wait(decisions) {
            slots::stay_tcp(fd, entry);
        }
    } else if way == Way::Shutdown {
        // shutdown(2) can't fail with EAGAIN, and a program that shuts down a connection before any
        // other use gives it up.
        slots::stay_tcp(fd, entry);
    } else {
        return Some(EAGAIN);
    }
    None
}

/// Decides if no other thread does. `None` means that the table's entry is to be read again.
fn begin(fd: c_int, entry: Entry, decisions: u32, way: Way) -> Option<Result<Option<c_int>, c_int>> {
    // A cancelled thread would leave the socket busy, and its turns taken. Decisions have a
    // time-out.
    let decided = cancel::disabled(|_| {
        let turn = copy::take_turn(fd)?;
        let busy = State::of(entry).busy(true);
        let result = table::replace(fd, Some(entry), Some(busy.entry())).then(|| decide(fd, busy, way));
        drop(turn);
        transition::announce();
        Some(result)
    });
    if decided.is_none() && !transition::wait(decisions) {
        copy::end_turn(fd);
    }
    decided.flatten()
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
    let tcp = copy.as_ref().map_or(-1, OwnFd::fd);
    let outcome = if tcp < 0 { Outcome::Tcp } else { active::decide(tcp, busy.role, way, resolve_sibling) };
    commit::commit(fd, tcp, busy.entry(), outcome)
}
