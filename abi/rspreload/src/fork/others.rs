//! The other connections of a process that waits for the word of one.
//!
//! A server's processes take turns to say theirs, in any order, and each waits for its client. If that is this process,
//! waiting in the order that it likes best, both would wait in vain. So whoever waits for a word also follows the words
//! of the same peer that come on other connections.

use core::ffi::c_int;

use libc::{POLLIN, POLLRDHUP, pollfd};

use super::decide;
use super::name::{self, Name};
use super::state::{Role, State};
use super::{Way, copy};
use crate::epoll::Deadline;
use crate::scratch;
use crate::table::{self, Entry, Kind};

/// Waits until something has come on `tcp`; false when it has not by the end.
pub fn wait(tcp: c_int, end: &Deadline) -> bool {
    loop {
        let mut more = 0;
        each(tcp, |_, _| more += 1);
        let waited = scratch::with::<pollfd, _>(1 + more, |fds| wait_for_all(tcp, fds, end));
        match waited {
            Ok(Some(came)) => return came,
            Ok(None) => {}
            // No memory for the list: then without the others.
            Err(_) => return decide::poll(&mut [asked(tcp)], end),
        }
    }
}

/// Whether there are any.
pub fn exist(tcp: c_int) -> bool {
    let mut any = false;
    each(tcp, |_, _| any = true);
    any
}

/// `None` when others have been served: some may be left.
fn wait_for_all(tcp: c_int, fds: &mut [pollfd], end: &Deadline) -> Option<bool> {
    fds.fill(pollfd { fd: -1, events: 0, revents: 0 });
    let mut room = fds.iter_mut();
    *room.next()? = asked(tcp);
    each(tcp, |fd, _| {
        if let Some(place) = room.next() {
            *place = asked(fd);
        }
    });
    if !decide::poll(fds, end) {
        return Some(false);
    }
    if fds[0].revents != 0 {
        return Some(true);
    }
    for fd in fds.iter().filter(|fd| fd.revents != 0) {
        if let Some(entry) = table::get(fd.fd).filter(is_waiting) {
            // It has an outcome, as something is there. What that is the program's next call finds.
            let _ = decide::settle(fd.fd, entry, Way::ReceiveNow);
        }
    }
    None
}

fn asked(fd: c_int) -> pollfd {
    pollfd { fd, events: POLLIN | POLLRDHUP, revents: 0 }
}

/// Calls `call` with each connection that waits for a word of `tcp`'s peer.
fn each(tcp: c_int, mut call: impl FnMut(c_int, Entry)) {
    let mut peer: Option<Name> = None;
    for fd in 0..copy::numbers() {
        let Some(entry) = table::get(fd).filter(|entry| fd != tcp && is_waiting(entry)) else { continue };
        if peer.is_none() {
            peer = name::peer(tcp);
        }
        if let (Some(peer), Some(other)) = (&peer, name::peer(fd))
            && name::same_host(peer, &other)
        {
            call(fd, entry);
        }
    }
}

/// Connected, not used, and nobody else is at it.
fn is_waiting(entry: &Entry) -> bool {
    entry.kind == Kind::Pending && matches!(State::of(*entry), State { role: Role::Active, busy: false, .. })
}
