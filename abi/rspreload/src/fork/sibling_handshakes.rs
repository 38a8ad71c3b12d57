//! The other connections to the peer whose word a thread waits for.
//!
//! The processes of a server take turns to send their words, in any order, and each waits for its
//! client. A client that waited for one word only, on the connection that it happens to use first,
//! could wait for a process that waits in turn for another one's client. So a thread that waits for
//! a word also answers the words of the same peer on the process's other connections.

use core::ffi::c_int;

use libc::{POLLIN, POLLRDHUP, pollfd};

use super::decide::{Role, State};
use crate::scratch;
use crate::table::{self, Entry, Kind};
use crate::tcp;
use crate::tcp::name::{self, Name};
use crate::time::Deadline;

/// Settles another connection, on which something has arrived.
pub type ResolveSibling = fn(c_int, Entry);

/// Waits until something has arrived on `tcp`, settling other connections meanwhile. Returns false
/// if nothing has arrived by `end`.
pub fn wait(tcp: c_int, end: &Deadline, resolve_sibling: ResolveSibling) -> bool {
    loop {
        let mut more = 0;
        each(tcp, |_, _| more += 1);
        let waited = scratch::with::<pollfd, _>(1 + more, |fds| wait_for_all(tcp, fds, end, resolve_sibling));
        match waited {
            Ok(Some(arrived)) => return arrived,
            Ok(None) => {}
            // No memory for the list: wait for `tcp` only.
            Err(_) => return tcp::poll(&mut [asked(tcp)], end),
        }
    }
}

/// Whether there are other such connections.
pub fn exist(tcp: c_int) -> bool {
    let mut any = false;
    each(tcp, |_, _| any = true);
    any
}

/// Returns `None` after settling others: some of them may be left.
fn wait_for_all(tcp: c_int, fds: &mut [pollfd], end: &Deadline, resolve_sibling: ResolveSibling) -> Option<bool> {
    fds.fill(pollfd { fd: -1, events: 0, revents: 0 });
    let mut room = fds.iter_mut();
    *room.next()? = asked(tcp);
    each(tcp, |fd, _| {
        if let Some(pollfd) = room.next() {
            *pollfd = asked(fd);
        }
    });
    if !tcp::poll(fds, end) {
        return Some(false);
    }
    if fds[0].revents != 0 {
        return Some(true);
    }
    for fd in fds.iter().filter(|fd| fd.revents != 0) {
        if let Some(entry) = table::get(fd.fd).filter(is_waiting) {
            resolve_sibling(fd.fd, entry);
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
    table::each(|fd, entry| {
        if fd == tcp || !is_waiting(&entry) {
            return;
        }
        if peer.is_none() {
            peer = name::peer(tcp);
        }
        if let (Some(peer), Some(other)) = (&peer, name::peer(fd))
            && name::same_host(peer, &other)
        {
            call(fd, entry);
        }
    });
}

/// Connected, not used yet, and no thread is deciding about it.
fn is_waiting(entry: &Entry) -> bool {
    entry.kind == Kind::Pending && matches!(State::of(*entry), State { role: Role::Active, busy: false, .. })
}
