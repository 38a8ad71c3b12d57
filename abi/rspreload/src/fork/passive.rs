//! The accepting end: it listens as an rsocket where the TCP connection came in, sends the word,
//! and accepts the peer's rsocket.
//!
//! Anyone can connect an rsocket while a process listens. Our other end connects from the TCP
//! connection's own address and port. The reference's has any port, and so has ours if that port is
//! taken: then the host must be the same. Both ends of the TCP connection tell when it is complete:
//! the peer ends it once its rsocket is connected.

use core::ffi::c_int;
use core::ptr;

use libc::{EADDRINUSE, EAGAIN, F_SETFL, O_NONBLOCK, POLLIN, POLLRDHUP, pollfd};

use super::active::WORD;
use super::decide::{HANDSHAKE_TIMEOUT, Outcome};
use super::semaphore::Turn;
use crate::tcp::name::{self, Name};
use crate::tcp::{self, bind, make_rsocket};
use crate::time::Deadline;
use crate::{errno, next_symbol, rsocket, rsocket_abi};

/// How long the peer may take to answer the word, in milliseconds. One that waits for it answers at
/// once. A silent one keeps the caller, and others from their turns.
const ANSWER_TIMEOUT: c_int = 2_000;

/// How long the rsocket may take to come after the peer has ended TCP, in milliseconds.
const END_TIMEOUT: c_int = 1_000;

/// Between two attempts to listen, in milliseconds.
const RETRY_DELAY: c_int = 50;

/// More than one: a stranger's rsocket must not keep the peer out.
const BACKLOG: c_int = 16;

/// Decides for a socket that was accepted.
pub fn decide(tcp: c_int) -> Outcome {
    let (Some(own), Some(peer)) = (name::own(tcp), name::peer(tcp)) else { return Outcome::Tcp };
    // A peer that speaks first has not waited for the word: it is not in fork mode, or has given
    // up.
    if !tcp::is_silent(tcp) || !bind::shares_port(&own) {
        return Outcome::Tcp;
    }
    let turn = Turn::within(HANDSHAKE_TIMEOUT).unwrap_or_else(Turn::forced);
    let listener = if tcp::is_silent(tcp) { listen(&own) } else { None };
    let Some(listener) = listener else { return Outcome::Tcp };
    let inner = if send_word(tcp) { Arrivals::new(listener, peer).wait(tcp) } else { None };
    close(listener);
    drop(turn);
    inner.map_or(Outcome::Tcp, Outcome::Rsocket)
}

/// Listens at an address, also if another process does so at first although its turn is over.
fn listen(own: &Name) -> Option<c_int> {
    let end = Deadline::after(ANSWER_TIMEOUT);
    loop {
        let listener = make_rsocket::for_address(own, |inner| {
            let _ = rsocket::set_option(inner, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
            // SAFETY: an address and its length; numbers. Non-blocking: a connection may be gone
            // before accept.
            unsafe {
                bind::like_tcp(inner, own.as_ptr(), own.len) == 0
                    && rsocket_abi::rlisten(inner, BACKLOG) == 0
                    && rsocket_abi::rfcntl_int(inner, F_SETFL, O_NONBLOCK) == 0
            }
        });
        if listener.is_some() || errno::get() != EADDRINUSE || end.left() == 0 {
            return listener;
        }
        tcp::poll(&mut [], &Deadline::after(RETRY_DELAY));
    }
}

/// The rsockets that have come to a listener.
struct Arrivals {
    listener: c_int,
    peer: Name,
    /// One from the peer's host, -1 for none.
    inner: c_int,
    /// It comes from the peer's port.
    is_exact: bool,
    /// Others have come from the host, neither of them from the peer's port.
    are_several: bool,
}

impl Arrivals {
    fn new(listener: c_int, peer: Name) -> Arrivals {
        Arrivals { listener, peer, inner: -1, is_exact: false, are_several: false }
    }

    /// Waits for the peer's rsocket, and the end of the TCP connection. Returns `None` if the
    /// connection goes on over TCP.
    fn wait(mut self, tcp: c_int) -> Option<c_int> {
        let asked = |fd| pollfd { fd, events: POLLIN | POLLRDHUP, revents: 0 };
        let mut fds = [asked(self.listener), asked(tcp)];
        let mut end = Deadline::after(ANSWER_TIMEOUT);
        let mut has_ended = false;
        while tcp::poll(&mut fds, &end) {
            if fds[0].revents != 0 {
                self.accept();
            }
            if fds[1].revents != 0 {
                match tcp::peek(tcp, &mut [0], libc::MSG_DONTWAIT) {
                    Err(EAGAIN) => {}
                    Ok(count) if count > 0 => break,
                    // The peer has connected, which this end may see later, or it has left.
                    _ => {
                        has_ended = true;
                        fds[1].fd = -1;
                        end = Deadline::after(END_TIMEOUT);
                    }
                }
            }
            // Data must not reach the wrong end.
            if has_ended && self.inner >= 0 && (self.is_exact || !self.are_several) {
                return Some(self.inner);
            }
        }
        close(self.inner);
        None
    }

    fn accept(&mut self) {
        loop {
            // SAFETY: null for an address that is not wanted.
            let new = unsafe { rsocket_abi::raccept(self.listener, ptr::null_mut(), ptr::null_mut()) };
            if new < 0 {
                return;
            }
            let from = name::rsocket_peer(new);
            let is_exact = from.is_some_and(|from| name::same_end(&from, &self.peer));
            if self.is_exact || !from.is_some_and(|from| name::same_host(&from, &self.peer)) {
                close(new);
            } else {
                self.are_several |= self.inner >= 0;
                self.is_exact = is_exact;
                close(core::mem::replace(&mut self.inner, new));
            }
        }
    }
}

fn close(inner: c_int) {
    if inner >= 0 {
        errno::keeping(|| rsocket_abi::rclose(inner));
    }
}

fn send_word(tcp: c_int) -> bool {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the array is this long.
    unsafe { next_symbol::send(tcp, WORD.as_ptr().cast(), WORD.len(), flags) == WORD.len() as isize }
}
