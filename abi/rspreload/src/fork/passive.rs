//! The end that accepted: it listens as an rsocket where the TCP connection came in, and says so.

use core::ffi::c_int;

use libc::{EAGAIN, EINTR, F_SETFL, O_NONBLOCK, POLLIN, POLLRDHUP, pollfd};

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
    // Processes with connections to one address take turns.
    let turn = Turn::take(PATIENCE);
    // What speaks first has not waited for the word: it is not in fork mode, or has given up.
    if !decide::is_silent(tcp) {
        return Outcome::Tcp;
    }
    let listener = decide::rsocket_for((&own.storage, own.len), |inner| listen(inner, &own));
    let Some(listener) = listener else { return Outcome::Tcp };
    let accepted = if say_word(tcp) { accept(listener, tcp) } else { None };
    // SAFETY: nobody else knows it.
    unsafe { r::rclose(listener) };
    drop(turn);
    accepted.map_or(Outcome::Tcp, Outcome::Rsocket)
}

fn listen(inner: c_int, own: &name::Name) -> bool {
    let one: c_int = 1;
    // SAFETY: an int and its size; an address and its length. Non-blocking: a connection may be gone before accept.
    unsafe {
        let len = size_of::<c_int>() as libc::socklen_t;
        r::rsetsockopt(inner, libc::SOL_SOCKET, libc::SO_REUSEADDR, (&raw const one).cast(), len);
        r::rbind(inner, decide::address(&own.storage), own.len) == 0
            && r::rlisten(inner, 1) == 0
            && r::rfcntl(inner, F_SETFL, O_NONBLOCK) == 0
    }
}

fn say_word(tcp: c_int) -> bool {
    // SAFETY: the array is this long.
    unsafe { real::send(tcp, WORD.as_ptr().cast(), WORD.len(), libc::MSG_NOSIGNAL) == WORD.len() as isize }
}

/// How long the rsocket may take to show when the other end has done with TCP, in milliseconds.
const GRACE: c_int = 1_000;

/// Whether the TCP connection is ended, as it is by the one that has connected an rsocket in its stead. The rsocket may
/// be another one's, whom nobody waits for any longer: data must not get to the wrong end.
fn has_ended(tcp: c_int, end: &Deadline) -> bool {
    decide::poll(&mut [pollfd { fd: tcp, events: POLLIN | POLLRDHUP, revents: 0 }], end)
        && !matches!(decide::peek(tcp, &mut [0], libc::MSG_DONTWAIT), Ok(count) if count > 0)
}

/// Waits for the other end. One that goes on over TCP does not come. One that ends TCP has either left, or has
/// connected: it may see that before this end does.
fn accept(listener: c_int, tcp: c_int) -> Option<c_int> {
    let mut end = Deadline::after(PATIENCE);
    let mut fds = [
        pollfd { fd: listener, events: POLLIN, revents: 0 },
        pollfd { fd: tcp, events: POLLIN | POLLRDHUP, revents: 0 },
    ];
    while decide::poll(&mut fds, &end) {
        if fds[0].revents != 0 {
            // SAFETY: nobody wants to know the address.
            let inner = unsafe { r::raccept(listener, core::ptr::null_mut(), core::ptr::null_mut()) };
            if inner >= 0 {
                if has_ended(tcp, &end) {
                    return Some(inner);
                }
                // SAFETY: nobody else knows it.
                unsafe { r::rclose(inner) };
                if !decide::is_silent(tcp) {
                    return None;
                }
            } else if !matches!(errno::get(), EAGAIN | EINTR | libc::ECONNABORTED) {
                return None;
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
