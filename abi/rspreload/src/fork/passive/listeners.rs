//! Listening where TCP connections came in, when it is this process's turn.

use core::ffi::c_int;

use libc::{EADDRINUSE, F_SETFL, O_NONBLOCK};

use super::{BACKLOG, Handshakes, Listener, MAX_LISTENERS, RETRY_DELAY, Stage, TURN_TIMEOUT, close};
use crate::fork::commit::Outcome;
use crate::fork::decide::HANDSHAKE_TIMEOUT;
use crate::fork::semaphore::Turn;
use crate::fork::slots::MAX_HANDSHAKES;
use crate::tcp::name::Name;
use crate::tcp::{bind, make_rsocket};
use crate::time::Deadline;
use crate::{errno, rsocket_abi};

impl Handshakes {
    /// Closes the listeners that no connection needs any more, and returns the turn.
    pub fn close_unused(&mut self) {
        for listener in &mut self.listeners {
            let jobs = || self.jobs.iter().flatten();
            if let Some(unused) = listener.take_if(|listener| !jobs().any(|job| job.is_at(&listener.own))) {
                close(unused.inner);
            }
        }
        let wants_turn = self.listeners.iter().flatten().any(|listener| listener.inner < 0);
        let is_used = self.listeners.iter().any(Option::is_some);
        self.turn.take_if(|(_, end)| !is_used || !wants_turn && end.left() == 0);
        self.patience.take_if(|_| !wants_turn);
    }

    pub fn open_listeners(&mut self) {
        for job in self.jobs.iter().flatten().filter(|job| matches!(job.stage, Stage::New)) {
            if !self.listeners.iter().flatten().any(|listener| job.is_at(&listener.own))
                && let Some(room) = self.listeners.iter_mut().find(|listener| listener.is_none())
            {
                *room = Some(Listener { own: job.own, inner: -1, retries: None });
            }
        }
        for index in 0..MAX_LISTENERS {
            let Some(Listener { inner: -1, own, .. }) = self.listeners[index] else { continue };
            if !self.take_turn() {
                return;
            }
            let opened = make_rsocket::for_address(&own, |inner| listen(inner, &own));
            let in_use = errno::get() == EADDRINUSE;
            let Some(listener) = &mut self.listeners[index] else { continue };
            listener.inner = opened.unwrap_or(-1);
            let retries = listener.retries.get_or_insert_with(|| Deadline::after(3 * TURN_TIMEOUT));
            if opened.is_none() && (!in_use || retries.left() == 0) {
                self.give_up(&own);
            }
        }
    }

    /// Waits for the turn, only shortly because peers may answer meanwhile.
    fn take_turn(&mut self) -> bool {
        if self.turn.is_some() {
            return true;
        }
        let turn = Turn::within(if self.is_listening() { 0 } else { RETRY_DELAY });
        let patience = self.patience.get_or_insert_with(|| Deadline::after(HANDSHAKE_TIMEOUT));
        let turn = turn.or_else(|| (patience.left() == 0).then(Turn::forced));
        if turn.is_some() {
            self.patience = None;
        }
        self.turn = turn.map(|turn| (turn, Deadline::after(TURN_TIMEOUT)));
        self.turn.is_some()
    }

    pub fn is_listening(&self) -> bool {
        self.listeners.iter().flatten().any(|listener| listener.inner >= 0)
    }

    /// Listening at the address is impossible: its connections stay TCP.
    pub fn give_up(&mut self, own: &Name) {
        for index in 0..MAX_HANDSHAKES {
            if self.jobs[index].as_ref().is_some_and(|job| job.is_at(own)) {
                self.finish(index, Outcome::Tcp);
            }
        }
    }
}

fn listen(inner: c_int, own: &Name) -> bool {
    let one: c_int = 1;
    // SAFETY: an int and its size; an address and its length. Non-blocking: a connection may be
    // gone before accept.
    unsafe {
        let len = size_of::<c_int>() as libc::socklen_t;
        rsocket_abi::rsetsockopt(inner, libc::SOL_SOCKET, libc::SO_REUSEADDR, (&raw const one).cast(), len);
        bind::like_tcp(inner, own.as_ptr(), own.len) == 0
            && rsocket_abi::rlisten(inner, BACKLOG as c_int) == 0
            && rsocket_abi::rfcntl(inner, F_SETFL, O_NONBLOCK) == 0
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::os::fd::AsRawFd;

    use super::super::Job;
    use super::*;
    use crate::fork::slots;
    use crate::fork::state::{Role, State};
    use crate::tcp::name;

    #[test]
    fn one_listener_for_an_address_until_no_connection_needs_it() {
        let (_client, server) = crate::test_sockets::connection();
        let at = server.local_addr().unwrap();
        let (own, peer) = (name::own(server.as_raw_fd()).unwrap(), name::peer(server.as_raw_fd()).unwrap());
        let slot = slots::of(State::new(Role::Passive).with_ticket(-2).entry()).unwrap();
        let job = || Some(Job { slot, own, peer, stage: Stage::New, end: Deadline::after(60_000), rsocket: -1 });
        let mut handshakes = Handshakes::new();
        (handshakes.jobs[0], handshakes.jobs[1]) = (job(), job());
        while !handshakes.is_listening() {
            // Another test may have the turn.
            handshakes.open_listeners();
        }
        assert_eq!(handshakes.listeners.iter().flatten().count(), 1);
        for left in [2, 1] {
            handshakes.close_unused();
            assert!(TcpStream::connect(at).is_ok());
            handshakes.jobs[left - 1] = None;
        }
        handshakes.close_unused();
        assert!(handshakes.turn.is_none() && !handshakes.is_listening() && TcpStream::connect(at).is_err());
    }
}
