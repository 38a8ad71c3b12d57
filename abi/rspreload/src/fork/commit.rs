//! What a decision came to, and its way into the table.

use core::ffi::c_int;

use super::copy;
use super::state::{Role, State};
use crate::epoll::handover;
use crate::table::{self, Entry};
use crate::tcp::make_rsocket;
use crate::{next_symbol, rsocket, rsocket_abi};

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

/// Puts the outcome for a number into the table if the number still has `entry`. `tcp` is the
/// number itself or a copy. Returns the rsocket, `None` for a call that goes to the kernel, or the
/// errno that the call fails with.
pub fn commit(fd: c_int, tcp: c_int, entry: Entry, outcome: Outcome) -> Result<Option<c_int>, c_int> {
    let idle = State::of(entry).busy(false);
    let (next, result) = match outcome {
        Outcome::Rsocket(inner) => return Ok(become_rsocket(fd, tcp, entry, inner)),
        Outcome::Tcp => match copy::find(tcp) {
            // Decided through a copy of the number meanwhile.
            Some(rsocket) => return Ok(take(fd, entry, rsocket)),
            None => (None, Ok(None)),
        },
        Outcome::Late => (Some(idle.with(Role::Late)), Ok(None)),
        Outcome::Later(error) => (Some(idle), Err(error)),
    };
    // With another entry the program has closed the number: the call itself fails then.
    let stays = table::replace(fd, Some(entry), next.map(State::entry));
    if stays && outcome == Outcome::Tcp {
        copy::stay_tcp(tcp);
    }
    result
}

fn become_rsocket(fd: c_int, tcp: c_int, entry: Entry, inner: c_int) -> Option<c_int> {
    make_rsocket::copy_options(tcp, inner);
    if table::first(inner).is_err() {
        // SAFETY: no other thread knows the rsocket. Its peer sees the end of the connection.
        unsafe { rsocket_abi::rclose(inner) };
        table::replace(fd, Some(entry), None);
        return None;
    }
    let now = take(fd, entry, Entry::rsocket(inner, table::DECIDED));
    if now.is_some() {
        copy::share(tcp, inner, hand_over);
        // The peer does the same. Another process with a copy of the TCP socket, a parent perhaps,
        // sees its end.
        // SAFETY: no pointers.
        unsafe { next_symbol::shutdown(tcp, libc::SHUT_RDWR) };
    }
    now
}

/// Puts an rsocket into the table, with the caller's reference. Returns `None` if the program has
/// closed the number.
fn take(fd: c_int, entry: Entry, rsocket: Entry) -> Option<c_int> {
    if table::replace(fd, Some(entry), Some(rsocket)) {
        hand_over(fd, State::of(entry));
        return Some(rsocket.inner);
    }
    rsocket::release(rsocket);
    None
}

fn hand_over(fd: c_int, state: State) {
    if let Some(epfd) = state.epoll() {
        handover::hand_over(epfd, fd);
    }
}
