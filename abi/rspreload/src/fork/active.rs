//! The connecting end: it finds the other end's word and connects an rsocket.

use core::ffi::c_int;

use libc::{EAGAIN, POLLIN, POLLRDHUP, pollfd};

use super::decide::Role;
use super::decide::{HANDSHAKE_TIMEOUT, Outcome};
use super::sibling_handshakes::{self, ResolveSibling};
use crate::tcp::{self, bind, make_rsocket, name};
use crate::time::Deadline;
use crate::transition::Way;
use crate::{next_symbol, rsocket_abi};

/// The word that the accepting end sends when it listens as an rsocket: zeros.
pub const WORD: [u8; 4] = [0; 4];

/// What has arrived over TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heard {
    Word,
    /// Data, or the end.
    Other,
    /// Nothing. recv(2) would fail with this errno.
    Nothing(c_int),
}

/// Decides for a socket that was connected.
pub fn decide(tcp: c_int, role: Role, way: Way, resolve_sibling: ResolveSibling) -> Outcome {
    if way.sends() {
        return decide_to_send(tcp, resolve_sibling);
    }
    match listen(tcp) {
        Heard::Nothing(error) => Outcome::Later(error),
        Heard::Other => Outcome::Tcp,
        // The other end has seen data over TCP and waits no longer.
        Heard::Word if role == Role::Late => drop_word(tcp),
        Heard::Word => connect(tcp),
    }
}

fn decide_to_send(tcp: c_int, resolve_sibling: ResolveSibling) -> Outcome {
    if !is_connected(tcp) {
        return Outcome::Later(EAGAIN);
    }
    // A peer that is no server in fork mode may wait for data and send nothing.
    let mut fds = [pollfd { fd: tcp, events: POLLIN | POLLRDHUP, revents: 0 }];
    if !tcp::poll(&mut fds, &Deadline::after(0)) {
        let can_come = name::own(tcp).is_some_and(|own| bind::shares_port(&own));
        if can_come && !sibling_handshakes::wait(tcp, &Deadline::after(HANDSHAKE_TIMEOUT), resolve_sibling) {
            return Outcome::Late;
        }
        if !tcp::poll(&mut fds, &Deadline::after(0)) {
            return Outcome::Tcp;
        }
    }
    if fds[0].revents & (libc::POLLERR | libc::POLLNVAL) != 0 {
        // Left for the program's call: recv(2) would consume the error.
        return Outcome::Tcp;
    }
    match listen(tcp) {
        Heard::Word => connect(tcp),
        _ => Outcome::Tcp,
    }
}

/// False while a non-blocking connect(2) is in progress.
fn is_connected(tcp: c_int) -> bool {
    let mut fds = [pollfd { fd: tcp, events: libc::POLLOUT, revents: 0 }];
    tcp::poll(&mut fds, &Deadline::after(0))
}

/// The word arrives in one piece: it is sent whole, before anything else.
fn listen(tcp: c_int) -> Heard {
    let mut bytes = [1; WORD.len()];
    match tcp::peek(tcp, &mut bytes, libc::MSG_DONTWAIT) {
        Ok(_) if bytes == WORD => Heard::Word,
        Ok(_) => Heard::Other,
        Err(error) => Heard::Nothing(error),
    }
}

fn connect(tcp: c_int) -> Outcome {
    let (Some(peer), Some(own)) = (name::peer(tcp), name::own(tcp)) else { return Outcome::Tcp };
    if !bind::shares_port(&own) {
        // Data that looks like the word.
        return Outcome::Tcp;
    }
    let inner = make_rsocket::for_address(&peer, |inner| {
        // Binds to the TCP connection's address and port, by which the other end matches the two.
        // If that port is taken: to another port of the address, which tells this end from
        // strangers. Otherwise the routes choose the address.
        for from in [own, name::any_port(&own)] {
            // SAFETY: an address of this length.
            if unsafe { rsocket_abi::rbind(inner, from.as_ptr(), from.len) } == 0 {
                break;
            }
        }
        // SAFETY: an address of this length.
        unsafe { rsocket_abi::rconnect(inner, peer.as_ptr(), peer.len) == 0 }
    });
    match inner {
        Some(inner) => Outcome::Rsocket(inner),
        None => drop_word(tcp),
    }
}

/// The connection stays TCP. Consumes the word, which the program must not read.
fn drop_word(tcp: c_int) -> Outcome {
    let mut bytes = WORD;
    // SAFETY: the array is this long.
    unsafe { next_symbol::recv(tcp, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
    Outcome::Tcp
}
