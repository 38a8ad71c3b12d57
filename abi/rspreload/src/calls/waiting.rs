//! What poll and select have in common: which numbers librdmacm polls for the program's, and how
//! long.

use core::ffi::{c_int, c_short};
use core::mem;

use crate::auto;
use crate::dispatch::Fd;
use crate::fork;

/// Whether `fd` is or may become an rsocket.
pub fn concerns(fd: c_int) -> bool {
    match Fd::of(fd) {
        Fd::Rsocket(_) | Fd::Pending(_) | Fd::Connecting(_) => true,
        Fd::Known(entry) => {
            auto::before_wait(entry);
            false
        }
        Fd::Kernel | Fd::Epoll(_) => false,
    }
}

/// The number that librdmacm polls for `fd`, without settling what a pending socket is.
pub fn inner_number(fd: c_int) -> c_int {
    match Fd::of(fd) {
        Fd::Rsocket(entry) => entry.inner,
        Fd::Connecting(entry) => auto::slots::done(entry),
        Fd::Kernel | Fd::Pending(_) | Fd::Epoll(_) | Fd::Known(_) => fd,
    }
}

/// The number that librdmacm polls for `fd`, before a wait for `events`: settles a pending socket.
pub fn begin_wait(fd: c_int, events: c_short) -> c_int {
    match Fd::of(fd) {
        Fd::Rsocket(entry) => entry.inner,
        // SAFETY: `entry` is what the table has for the program's number.
        Fd::Pending(entry) => unsafe { fork::resolve_for_poll(fd, entry, events).unwrap_or(fd) },
        Fd::Connecting(entry) => auto::slots::done(entry),
        Fd::Kernel | Fd::Epoll(_) | Fd::Known(_) => fd,
    }
}

/// Whether `fd`, for which `revents` of `number` was reported, was in fork mode and has become
/// another kind of socket by it, or while it was waited for.
pub fn settled(fd: c_int, number: c_int, revents: c_short, pieces: &mut Pieces) -> bool {
    match Fd::of(fd) {
        // It was a socket whose attempt was under way.
        Fd::Rsocket(entry) if auto::is_auto(entry) => number != entry.inner,
        // The latter has begun to be forwarded.
        Fd::Kernel | Fd::Known(_) if number != fd => true,
        Fd::Connecting(_) => true,
        Fd::Rsocket(_) => number == fd,
        Fd::Pending(_) if fork::is_undecided(fd) => {
            pieces.woken_by(fd);
            true
        }
        // SAFETY: `fd` is a descriptor of the program.
        Fd::Pending(_) => unsafe { fork::after_poll(fd, revents) },
        Fd::Kernel | Fd::Epoll(_) | Fd::Known(_) => false,
    }
}

/// The longest piece of a wait, in milliseconds.
const LONGEST_PIECE: c_int = 50;

/// How poll and select wait for undecided sockets, which another thread makes ready: in short
/// pieces, each of which ends when something happens on the TCP connections.
pub struct Pieces {
    /// There is an undecided socket in this round.
    needed: bool,
    longest: c_int,
    /// False after a TCP connection was ready and its socket still undecided: it would be ready all
    /// the time.
    watched: bool,
}

impl Pieces {
    /// For a new wait.
    pub fn new() -> Pieces {
        Pieces { needed: false, longest: LONGEST_PIECE, watched: true }
    }

    /// An undecided socket is waited for. Returns whether its TCP connection is to be polled.
    pub fn watch(&mut self) -> bool {
        self.needed = true;
        self.watched
    }

    /// The next piece of a time-out of `left` milliseconds, and whether it is only a piece.
    pub fn next(&mut self, left: c_int) -> (c_int, bool) {
        if !mem::take(&mut self.needed) {
            return (left, false);
        }
        let piece = self.longest;
        self.longest = (2 * piece).min(LONGEST_PIECE);
        (if left < 0 { piece } else { left.min(piece) }, true)
    }

    /// The TCP connection of `fd` was ready. If the socket is decided by now that is no reason to
    /// pause.
    fn woken_by(&mut self, fd: c_int) {
        if fork::is_undecided(fd) {
            (self.longest, self.watched) = (1, false);
        }
    }
}
