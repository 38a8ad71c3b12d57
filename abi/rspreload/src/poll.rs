//! poll: with an rsocket among the numbers, librdmacm's, which takes both kinds.

use core::ffi::{c_int, c_short};
use core::{mem, slice};

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLRDHUP, nfds_t, pollfd};

use crate::fork::remote;
use crate::table::{self, Entry, Kind};
use crate::time::Deadline;
use crate::{errno, fork, r, real, scratch};

/// poll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // The kernel refuses what is no list of numbers.
    if !table::any() || fds.is_null() || count > c_int::MAX as nfds_t {
        // SAFETY: the C contract.
        return unsafe { real::poll(fds, count, timeout) };
    }
    // SAFETY: the C contract: so many structures, which nobody else changes meanwhile.
    unsafe {
        let list = slice::from_raw_parts_mut(fds, count as usize);
        if list.iter().any(|fd| concerns(fd.fd)) {
            let result = scratch::with::<pollfd, _>(list.len(), |inner| poll_both(list, inner, timeout));
            return result.unwrap_or_else(errno::fail);
        }
        real::poll(fds, count, timeout)
    }
}

/// What is asked of the TCP connection of an undecided socket.
const UNDECIDED: c_short = POLLIN | POLLRDHUP;

/// Whether `fd` is or may become an rsocket.
pub fn concerns(fd: c_int) -> bool {
    table::get(fd).is_some_and(|entry| entry.kind != Kind::Epoll)
}

/// The number that librdmacm polls for the program's `fd`, itself for what isn't an rsocket.
pub fn polled(fd: c_int, events: c_short) -> c_int {
    match table::get(fd) {
        Some(entry) if entry.kind == Kind::Socket => entry.inner,
        // SAFETY: nothing but the number and what the table has for it.
        Some(entry) if entry.kind == Kind::Pending => unsafe { fork::settle_for_poll(fd, entry, events).unwrap_or(fd) },
        Some(entry) if entry.kind == Kind::Relayed => {
            remote::ask(entry.inner, events);
            entry.inner
        }
        _ => fd,
    }
}

/// What librdmacm is to poll for `fd`. Of one that is undecided the TCP connection, which shows
/// when that may have changed.
fn asked(fd: &pollfd, pieces: &mut Pieces) -> pollfd {
    let mut events = fd.events;
    if let Some(Entry { kind: Kind::Relayed, inner, .. }) = table::get(fd.fd) {
        remote::enter(inner, events);
        events = POLLIN;
    }
    let number = polled(fd.fd, fd.events);
    if number == fd.fd && fork::is_undecided(fd.fd) {
        return pollfd { fd: if pieces.watch() { number } else { -1 }, events: UNDECIDED, revents: 0 };
    }
    pollfd { fd: number, events, revents: 0 }
}

/// What is told of `fd` when librdmacm tells `revents`.
fn told(fd: &pollfd, revents: c_short) -> c_short {
    match table::get(fd.fd) {
        Some(entry) if entry.kind == Kind::Relayed && revents != 0 => {
            remote::told(entry.inner) & (fd.events | POLLERR | POLLHUP)
        }
        // One that was undecided was asked for other events.
        _ => revents & (fd.events | POLLERR | POLLHUP | POLLNVAL),
    }
}

/// How polls and selects wait for undecided sockets, which become ready by what another thread
/// does: in short pieces, and until something happens on the TCP connections.
pub struct Pieces {
    /// There is an undecided one in this round.
    needed: bool,
    longest: c_int,
    /// Not any more when a TCP connection was ready and its socket still undecided, as it would be
    /// ready all the time.
    watched: bool,
}

impl Pieces {
    pub fn new() -> Pieces {
        Pieces { needed: false, longest: LONGEST_PIECE, watched: true }
    }

    /// An undecided socket is waited for. Returns whether its TCP connection is to be polled.
    pub fn watch(&mut self) -> bool {
        self.needed = true;
        self.watched
    }

    /// The piece of a time-out of `left` milliseconds that is waited next, and whether it is one.
    pub fn next(&mut self, left: c_int) -> (c_int, bool) {
        if !mem::take(&mut self.needed) {
            return (left, false);
        }
        let piece = self.longest;
        self.longest = (2 * piece).min(LONGEST_PIECE);
        (if left < 0 { piece } else { left.min(piece) }, true)
    }

    /// The TCP connection of `fd` was ready. If it is decided by now that is no reason to wait.
    fn woken_by(&mut self, fd: c_int) {
        if fork::is_undecided(fd) {
            (self.longest, self.watched) = (1, false);
        }
    }
}

/// In milliseconds.
const LONGEST_PIECE: c_int = 50;

/// Whether `fd` is an rsocket of another process: what is told of it comes as a message.
pub fn relayed(fd: c_int) -> bool {
    table::get(fd).is_some_and(|entry| entry.kind == Kind::Relayed)
}

/// Polls what `inner` has room for in place of `list`.
fn poll_both(list: &mut [pollfd], inner: &mut [pollfd], timeout: c_int) -> c_int {
    let deadline = Deadline::after(timeout);
    let mut left = timeout;
    let mut pieces = Pieces::new();
    loop {
        for (inner, fd) in inner.iter_mut().zip(&*list) {
            *inner = asked(fd, &mut pieces);
        }
        let (piece, undecided) = pieces.next(left);
        // SAFETY: a list and its length.
        let result = unsafe { r::rpoll(inner.as_mut_ptr(), inner.len() as nfds_t, piece) };
        let again = result > 0 && changed(list, inner, &mut pieces);
        let mut count = 0;
        for (fd, inner) in list.iter_mut().zip(&*inner) {
            if result >= 0 && !again {
                fd.revents = told(fd, inner.revents);
                count += c_int::from(fd.revents != 0);
            }
            if relayed(fd.fd) {
                remote::leave(inner.fd, fd.events);
            }
        }
        left = deadline.left();
        let ended = result == 0 && (left == 0 || !undecided);
        // What is told of another process's rsocket may have been asked for by another thread.
        if result < 0 || ended || result > 0 && !again && (count > 0 || left == 0) {
            return if result < 0 { result } else { count };
        }
    }
}

/// Whether what was told concerns sockets in fork mode that have become something else by it.
fn changed(list: &[pollfd], inner: &[pollfd], pieces: &mut Pieces) -> bool {
    let told = list.iter().zip(inner).filter(|(_, inner)| inner.revents != 0);
    told.fold(false, |changed, (fd, inner)| settled(fd.fd, inner.fd, inner.revents, pieces) || changed)
}

/// Whether `fd`, for which `revents` of `number` was told, was in fork mode and has become
/// something else by it, or while it was waited for.
pub fn settled(fd: c_int, number: c_int, revents: c_short, pieces: &mut Pieces) -> bool {
    match table::get(fd) {
        Some(entry) if entry.kind == Kind::Socket => number == fd,
        Some(entry) if entry.kind == Kind::Pending && fork::is_undecided(fd) => {
            pieces.woken_by(fd);
            true
        }
        // SAFETY: numbers only.
        Some(entry) if entry.kind == Kind::Pending => unsafe { fork::after_poll(fd, revents) },
        _ => false,
    }
}
