//! Both ends of the handshake.
//!
//! The accepting end listens as an rsocket at the local address of the TCP connection, sends the
//! word, and accepts the peer's rsocket. The connecting end reads the word and connects an rsocket.
//!
//! Anyone can connect an rsocket while a process listens. Our connecting end uses the address and
//! the port of the TCP connection. rdma-core's connecting end uses any port, and so does ours if
//! that port is taken: in these cases only the host must match. The peer shuts down the TCP
//! connection once its rsocket is connected, and the accepting end waits for this, too.

use core::ffi::c_int;

use libc::{EADDRINUSE, EAGAIN, F_SETFL, O_NONBLOCK, POLLIN, POLLRDHUP, pollfd};

use super::{Outcome, Role};
use crate::process::Deadline;
use crate::sockets::{SockAddr, is_ready, kernel, rdma};
use crate::transition::Intent;
use crate::{errno, rsocket, rsocket_abi, tcp};

/// Maximum wait for the other end by calls that would not wait over TCP, in milliseconds.
const HANDSHAKE_TIMEOUT: c_int = 10_000;

/// The word: four zero bytes, which the accepting end sends when it listens as an rsocket.
pub const WORD: [u8; 4] = [0; 4];

/// Decides what a connected socket becomes.
pub fn find_word(tcp: c_int, role: Role, intent: Intent) -> Outcome {
    if intent.sends() {
        return find_word_to_send(tcp, role);
    }
    match hears_word(tcp) {
        Err(error) => Outcome::Later(error),
        Ok(false) => Outcome::Tcp,
        Ok(true) => take_word(tcp, role),
    }
}

fn find_word_to_send(tcp: c_int, role: Role) -> Outcome {
    // Not ready: a non-blocking connect(2) is in progress.
    if !is_ready(tcp, libc::POLLOUT) {
        return Outcome::Later(EAGAIN);
    }
    // A peer that is no server in fork mode may send nothing until it has received data.
    let mut fds = [pollfd { fd: tcp, events: POLLIN | POLLRDHUP, revents: 0 }];
    if !tcp::poll(&mut fds, &Deadline::after(0)) {
        if !has_rdma(tcp) {
            return if peer_may_have_rdma(tcp) { Outcome::Late } else { Outcome::Tcp };
        }
        if !tcp::poll(&mut fds, &Deadline::after(HANDSHAKE_TIMEOUT)) {
            return Outcome::Late;
        }
    }
    if fds[0].revents & (libc::POLLERR | libc::POLLNVAL) != 0 {
        // Leave the error to the program's call: recv(2) here would consume it.
        return Outcome::Tcp;
    }
    if hears_word(tcp) == Ok(true) { take_word(tcp, role) } else { Outcome::Tcp }
}

/// Whether rsockets can share ports with TCP at this end's address.
fn has_rdma(tcp: c_int) -> bool {
    kernel::own(tcp).is_some_and(|own| tcp::shares_port(&own) == Some(true))
}

/// The same of the other end, as far as this end knows: it may be on another host.
fn peer_may_have_rdma(tcp: c_int) -> bool {
    kernel::peer(tcp).is_some_and(|peer| tcp::shares_port(&peer) != Some(false))
}

/// Decides what a socket becomes where four zero bytes have come: data, or the word.
fn take_word(tcp: c_int, role: Role) -> Outcome {
    match has_rdma(tcp) {
        false if !peer_may_have_rdma(tcp) => Outcome::Tcp,
        true if role != Role::Late => connect(tcp),
        // This end has committed the socket to TCP: it cannot use RDMA, has sent data, or the
        // descriptor was copied. The other end uses TCP once it has data, or has waited in vain.
        _ => drop_word(tcp),
    }
}

/// Whether the word has arrived, in place of data or the end of the connection. Fails with the
/// errno of recv(2) if nothing has arrived. The word arrives in one piece, because it is sent whole
/// and first.
fn hears_word(tcp: c_int) -> Result<bool, c_int> {
    let mut bytes = [1; WORD.len()];
    tcp::peek(tcp, &mut bytes, libc::MSG_DONTWAIT).map(|_| bytes == WORD)
}

fn connect(tcp: c_int) -> Outcome {
    let (Some(peer), Some(own)) = (kernel::peer(tcp), kernel::own(tcp)) else { return Outcome::Tcp };
    let rsocket = tcp::make_rsocket(&peer, |rsocket| {
        // Bind to the TCP connection's address and port, by which the other end recognizes the
        // rsocket. If the port is taken, bind to another port of the address, so that the host
        // still matches. If this fails, too, the route chooses the address.
        let _ = rdma::bind(rsocket, &own) == 0 || rdma::bind(rsocket, &own.with_port(0)) == 0;
        rdma::connect(rsocket, &peer) == 0
    });
    match rsocket {
        Some(rsocket) => Outcome::Rsocket(rsocket),
        None => drop_word(tcp),
    }
}

/// Consumes the word, which the program must not read, and leaves the connection to TCP.
fn drop_word(tcp: c_int) -> Outcome {
    let _ = kernel::receive(tcp, &mut [0; WORD.len()], libc::MSG_DONTWAIT);
    Outcome::Tcp
}

// The accepting end.

/// Maximum time for the peer to answer the word, in milliseconds. A waiting peer answers at once. A
/// silent peer delays the caller, and other connections that want to listen at the address.
const ANSWER_TIMEOUT: c_int = 2_000;

/// Maximum time for the rsocket to arrive after the peer has shut down TCP, in milliseconds.
const END_TIMEOUT: c_int = 1_000;

/// Time between two attempts to listen, in milliseconds.
const RETRY_DELAY: c_int = 10;

/// The listener's backlog: more than one, so that a stranger's rsocket does not keep the peer out.
const BACKLOG: c_int = 16;

/// Decides what an accepted socket becomes.
pub fn accept(tcp: c_int) -> Outcome {
    let (Some(own), Some(peer)) = (kernel::own(tcp), kernel::peer(tcp)) else { return Outcome::Tcp };
    // A peer that has sent something has not waited for the word: it is not in fork mode, or no
    // longer waits.
    if !tcp::is_silent(tcp) || tcp::shares_port(&own) != Some(true) {
        return Outcome::Tcp;
    }
    let Some(listener) = listen(tcp, &own) else { return Outcome::Tcp };
    let is_heard =
        tcp::is_silent(tcp) && kernel::send(tcp, &WORD, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) == Ok(WORD.len());
    let arrivals = Arrivals { listener, peer, rsocket: -1, is_exact: false, are_several: false };
    let rsocket = if is_heard { arrivals.wait(tcp) } else { None };
    rsocket::close(listener);
    rsocket.map_or(Outcome::Tcp, Outcome::Rsocket)
}

/// Listens at the local address of a connection. Returns the listener, or `None` if listening fails
/// or the peer sends something first. Threads and processes take turns, because an address can have
/// one listener.
fn listen(tcp: c_int, own: &SockAddr) -> Option<c_int> {
    let end = Deadline::after(HANDSHAKE_TIMEOUT);
    loop {
        let listener = tcp::make_rsocket(own, |rsocket| {
            let _ = rdma::set(rsocket, (libc::SOL_SOCKET, libc::SO_REUSEADDR), &1);
            // Non-blocking: a connection may fail between poll and accept.
            tcp::bind(rsocket, own)
                && rsocket_abi::rlisten(rsocket, BACKLOG) == 0
                && rdma::fcntl(rsocket, F_SETFL, O_NONBLOCK) == 0
        });
        if listener.is_some() || errno::get() != EADDRINUSE || end.left() == 0 {
            return listener;
        }
        if tcp::poll(&mut [pollfd { fd: tcp, events: POLLIN, revents: 0 }], &Deadline::after(RETRY_DELAY)) {
            return None;
        }
    }
}

/// The rsockets that have connected to a listener.
struct Arrivals {
    listener: c_int,
    peer: SockAddr,
    /// The latest rsocket from the peer's host, or the one from the peer's port; -1 before the
    /// first.
    rsocket: c_int,
    /// `rsocket` comes from the peer's port.
    is_exact: bool,
    /// Several rsockets have come from the peer's host.
    are_several: bool,
}

impl Arrivals {
    /// Waits for the peer's rsocket, and for the end of the TCP connection. Returns the rsocket, or
    /// `None` if the connection stays TCP.
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
                    // The peer has ended the TCP connection: either its rsocket has connected,
                    // which this end may see later, or the peer is gone.
                    _ => {
                        has_ended = true;
                        fds[1].fd = -1;
                        end = Deadline::after(END_TIMEOUT);
                    }
                }
            }
            // Use no rsocket that may belong to another connection: data must not reach the wrong
            // peer.
            if has_ended && self.rsocket >= 0 && (self.is_exact || !self.are_several) {
                return Some(self.rsocket);
            }
        }
        rsocket::close(self.rsocket);
        None
    }

    fn accept(&mut self) {
        loop {
            let new = rdma::accept(self.listener);
            if new < 0 {
                return;
            }
            let from = rdma::peer(new);
            let is_exact = from.is_some_and(|from| from.is_at(&self.peer));
            if self.is_exact || from.is_none_or(|from| from.address() != self.peer.address()) {
                rsocket::close(new);
            } else {
                self.are_several |= self.rsocket >= 0;
                self.is_exact = is_exact;
                rsocket::close(core::mem::replace(&mut self.rsocket, new));
            }
        }
    }
}
