//! The end that accepted: it listens as an rsocket where the TCP connection came in, and says so.

use core::ffi::c_int;

use libc::{EADDRINUSE, EAGAIN, EINTR, F_SETFL, O_NONBLOCK, POLLIN, POLLRDHUP, pollfd};

use super::active::WORD;
use super::decide::{self, Outcome, PATIENCE};
use super::semaphore::Turn;
use super::{name, place};
use crate::epoll::Deadline;
use crate::{errno, r, real};

/// Decides for a socket that was accepted.
pub fn decide(tcp: c_int) -> Outcome {
    let Some(own) = name::own(tcp) else { return Outcome::Tcp };
    if !place::is_shared(&own) {
        return Outcome::Tcp;
    }
    let Some(peer) = name::peer(tcp) else { return Outcome::Tcp };
    let end = Deadline::after(PATIENCE);
    // What speaks first has not waited for the word: it is not in fork mode, or has given up.
    // Processes with connections to one address take turns.
    let Some(turn) = Turn::take_while(&end, || decide::is_silent(tcp)) else { return Outcome::Tcp };
    let retries = Deadline::after(end.left().min(3 * TURN));
    let listener = loop {
        let listener = decide::rsocket_for((&own.storage, own.len), |inner| listen(inner, &own));
        if listener.is_some() || errno::get() != EADDRINUSE || !pause_while_silent(tcp, &retries) {
            break listener;
        }
    };
    let Some(listener) = listener else { return Outcome::Tcp };
    let accepted = if say_word(tcp) { accept(listener, tcp, &peer, turn) } else { None };
    // SAFETY: nobody else knows it.
    unsafe { r::rclose(listener) };
    accepted.map_or(Outcome::Tcp, Outcome::Rsocket)
}

/// Another process listens at the address although it is not its turn any more ([`TURN`]): whether
/// to try again, after a pause.
fn pause_while_silent(tcp: c_int, end: &Deadline) -> bool {
    let mut fds = [pollfd { fd: tcp, events: POLLIN | POLLRDHUP, revents: 0 }];
    !decide::poll(&mut fds, &Deadline::after(PAUSE)) && end.left() > 0
}

/// More than one: a stranger's half-made connection must not keep the peer out.
const BACKLOG: c_int = 16;

/// How long a silent peer may keep other servers from their turns, in milliseconds. One that waits
/// for the word answers at once.
const TURN: c_int = 1_000;

/// Between two attempts to listen, in milliseconds.
const PAUSE: c_int = 50;

fn listen(inner: c_int, own: &name::Name) -> bool {
    let one: c_int = 1;
    // SAFETY: an int and its size; an address and its length. Non-blocking: a connection may be gone before accept.
    unsafe {
        let len = size_of::<c_int>() as libc::socklen_t;
        r::rsetsockopt(inner, libc::SOL_SOCKET, libc::SO_REUSEADDR, (&raw const one).cast(), len);
        r::rbind(inner, decide::address(&own.storage), own.len) == 0
            && r::rlisten(inner, BACKLOG) == 0
            && r::rfcntl(inner, F_SETFL, O_NONBLOCK) == 0
    }
}

fn say_word(tcp: c_int) -> bool {
    // SAFETY: the array is this long.
    unsafe { real::send(tcp, WORD.as_ptr().cast(), WORD.len(), libc::MSG_NOSIGNAL) == WORD.len() as isize }
}

/// How long the rsocket may take to show when the other end has done with TCP, in milliseconds.
const GRACE: c_int = 1_000;

/// Whether an rsocket comes from the host of the TCP connection: anyone may connect while there is
/// a listener.
fn is_from(inner: c_int, peer: &name::Name) -> bool {
    name::rsocket_peer(inner).is_some_and(|from| name::same_host(&from, peer))
}

/// Whether the TCP connection is ended, as it is by the one that has connected an rsocket in its
/// stead. The rsocket may be another one's of that host, whom nobody waits for any longer: data
/// must not get to the wrong end.
fn has_ended(tcp: c_int, end: &Deadline) -> bool {
    decide::poll(&mut [pollfd { fd: tcp, events: POLLIN | POLLRDHUP, revents: 0 }], end)
        && !matches!(decide::peek(tcp, &mut [0], libc::MSG_DONTWAIT), Ok(count) if count > 0)
}

/// Waits for the other end, and gives the turn back when it takes long. One that goes on over TCP
/// does not come. One that ends TCP has either left, or has connected: it may see that before this
/// end does.
fn accept(listener: c_int, tcp: c_int, peer: &name::Name, turn: Turn) -> Option<c_int> {
    let mut fds = [
        pollfd { fd: listener, events: POLLIN, revents: 0 },
        pollfd { fd: tcp, events: POLLIN | POLLRDHUP, revents: 0 },
    ];
    let quick = decide::poll(&mut fds, &Deadline::after(TURN));
    let _turn = quick.then_some(turn);
    let mut end = Deadline::after(PATIENCE);
    while decide::poll(&mut fds, &end) {
        if fds[0].revents != 0 {
            match take(listener, tcp, peer, &end) {
                Taken::Peer(inner) => return Some(inner),
                Taken::Nobody => {}
                Taken::GiveUp => return None,
            }
        }
        if fds[1].revents != 0 {
            if matches!(decide::peek(tcp, &mut [0], libc::MSG_DONTWAIT), Ok(count) if count > 0) {
                return None;
            }
            fds[1] = pollfd { fd: -1, events: 0, revents: 0 };
            end = Deadline::after(GRACE);
        }
    }
    None
}

/// What came of one connection to the listener.
enum Taken {
    /// The other end's rsocket.
    Peer(c_int),
    /// A stranger's, which was closed, or one that has gone.
    Nobody,
    /// The other end does not come any more.
    GiveUp,
}

fn take(listener: c_int, tcp: c_int, peer: &name::Name, end: &Deadline) -> Taken {
    // SAFETY: NULL: nobody wants to know the address here.
    let inner = unsafe { r::raccept(listener, core::ptr::null_mut(), core::ptr::null_mut()) };
    if inner < 0 {
        let passing = matches!(errno::get(), EAGAIN | EINTR | libc::ECONNABORTED);
        return if passing { Taken::Nobody } else { Taken::GiveUp };
    }
    let is_from_host = is_from(inner, peer);
    if is_from_host && has_ended(tcp, end) {
        return Taken::Peer(inner);
    }
    // SAFETY: nobody else knows it.
    unsafe { r::rclose(inner) };
    if !is_from_host || decide::is_silent(tcp) { Taken::Nobody } else { Taken::GiveUp }
}
