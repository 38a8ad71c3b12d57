//! The end that connected: it finds the other end's word and connects an rsocket.

use core::ffi::c_int;

use libc::{EAGAIN, POLLIN, POLLRDHUP, pollfd};

use super::Way;
use super::decide::{self, Outcome, PATIENCE};
use super::state::Role;
use super::{name, others, place};
use crate::epoll::Deadline;
use crate::{r, real};

/// "I listen": it is all zeros.
pub const WORD: [u8; 4] = [0; 4];

/// What has come over TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Heard {
    Word,
    /// Data, or the end.
    Other,
    /// Nothing, and recv(2) would say this.
    Nothing(c_int),
}

/// Decides for a socket that was connected.
pub fn decide(tcp: c_int, role: Role, way: Way) -> Outcome {
    if way.sends() {
        return decide_to_send(tcp);
    }
    match listen(tcp) {
        Heard::Nothing(error) => Outcome::Later(error),
        Heard::Other => Outcome::Tcp,
        // The other end waits no longer: it has seen what was sent over TCP.
        Heard::Word if role == Role::Late => drop_word(tcp),
        Heard::Word => connect(tcp),
    }
}

fn decide_to_send(tcp: c_int) -> Outcome {
    if !is_connected(tcp) {
        return Outcome::Later(EAGAIN);
    }
    // The other end may be told by what we send only: if it is no server of fork mode it says nothing.
    let mut fds = [pollfd { fd: tcp, events: POLLIN | POLLRDHUP, revents: 0 }];
    if !decide::poll(&mut fds, &Deadline::after(0)) {
        let can_come = name::own(tcp).is_some_and(|own| place::is_shared(&own));
        if can_come && !others::wait(tcp, &Deadline::after(PATIENCE)) {
            return Outcome::Late;
        }
        if !decide::poll(&mut fds, &Deadline::after(0)) {
            return Outcome::Tcp;
        }
    }
    if fds[0].revents & (libc::POLLERR | libc::POLLNVAL) != 0 {
        // The program's call is to be told, and recv() would take the error.
        return Outcome::Tcp;
    }
    match listen(tcp) {
        Heard::Word => connect(tcp),
        _ => Outcome::Tcp,
    }
}

/// Not while a connect() in the background goes on.
fn is_connected(tcp: c_int) -> bool {
    let mut fds = [pollfd { fd: tcp, events: libc::POLLOUT, revents: 0 }];
    decide::poll(&mut fds, &Deadline::after(0))
}

/// The word comes whole: it is sent in one piece, before anything else.
fn listen(tcp: c_int) -> Heard {
    let mut bytes = [1; WORD.len()];
    match decide::peek(tcp, &mut bytes, libc::MSG_DONTWAIT) {
        Ok(_) if bytes == WORD => Heard::Word,
        Ok(_) => Heard::Other,
        Err(error) => Heard::Nothing(error),
    }
}

fn connect(tcp: c_int) -> Outcome {
    let (Some(peer), Some(own)) = (name::peer(tcp), name::own(tcp)) else { return Outcome::Tcp };
    if !place::is_shared(&own) {
        // Data that looks like it.
        return Outcome::Tcp;
    }
    let inner = decide::rsocket_for((&peer.storage, peer.len), |inner| {
        // From the TCP connection's address and port, by which the other end matches the two. If
        // that port is taken, from another one of the address, by which the other end knows this
        // one from strangers. Otherwise from the address that the routes prefer.
        for from in [own, name::any_port(&own)] {
            // SAFETY: an address of this length.
            if unsafe { r::rbind(inner, decide::address(&from.storage), from.len) } == 0 {
                break;
            }
        }
        // SAFETY: an address of this length.
        unsafe { r::rconnect(inner, decide::address(&peer.storage), peer.len) == 0 }
    });
    match inner {
        Some(inner) => Outcome::Rsocket(inner),
        None => drop_word(tcp),
    }
}

/// It stays TCP, and the word is nothing that the program should read.
fn drop_word(tcp: c_int) -> Outcome {
    let mut bytes = WORD;
    // SAFETY: the array is this long.
    unsafe { real::recv(tcp, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
    Outcome::Tcp
}
