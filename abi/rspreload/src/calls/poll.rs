//! poll: librdmacm's if there is an rsocket among the numbers. It takes both kinds.

use core::ffi::{c_int, c_short};
use core::slice;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLRDHUP, nfds_t, pollfd};

use super::waiting::{Pieces, begin_wait, concerns, settled};
use crate::dispatch::Fd;
use crate::table;
use crate::time::Deadline;
use crate::{auto, errno, fork, next_symbol, rsocket_abi, scratch};

/// poll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // The kernel rejects what is no list.
    if !table::any() || fds.is_null() || count > c_int::MAX as nfds_t {
        // SAFETY: the C contract.
        return unsafe { next_symbol::poll(fds, count, timeout) };
    }
    // SAFETY: the C contract: `count` structures, which no other thread changes meanwhile.
    unsafe {
        let list = slice::from_raw_parts_mut(fds, count as usize);
        if list.iter().any(|fd| concerns(fd.fd)) {
            let result = scratch::with::<pollfd, _>(list.len(), |inner| poll_both(list, inner, timeout));
            return result.unwrap_or_else(errno::fail);
        }
        next_symbol::poll(fds, count, timeout)
    }
}

/// The events that are polled of the TCP connection of an undecided socket.
const UNDECIDED: c_short = POLLIN | POLLRDHUP;

/// What librdmacm polls for `fd`. For an undecided socket that is the TCP connection, on which
/// something happens when the socket may be decided.
fn asked(fd: &pollfd, pieces: &mut Pieces) -> pollfd {
    while let Fd::Connecting(entry) = Fd::of(fd.fd) {
        let done = auto::slots::done(entry);
        if done >= 0 {
            return pollfd { fd: done, events: POLLIN, revents: 0 };
        }
        // The attempt has ended since its entry was read, and its slot has another one.
    }
    let number = begin_wait(fd.fd, fd.events);
    if number == fd.fd && fork::is_undecided(fd.fd) {
        return pollfd { fd: if pieces.watch() { number } else { -1 }, events: UNDECIDED, revents: 0 };
    }
    pollfd { fd: number, events: fd.events, revents: 0 }
}

/// The events to report for `fd` when librdmacm reports `revents`.
fn program_events(fd: &pollfd, revents: c_short) -> c_short {
    match Fd::of(fd.fd) {
        Fd::Connecting(_) => 0,
        // An undecided socket was polled for other events.
        _ => revents & (fd.events | POLLERR | POLLHUP | POLLNVAL),
    }
}

/// Polls by librdmacm. `inner` has the length of `list`.
fn poll_both(list: &mut [pollfd], inner: &mut [pollfd], timeout: c_int) -> c_int {
    let deadline = Deadline::after(timeout);
    let mut left = timeout;
    let mut pieces = Pieces::new();
    loop {
        for (inner, fd) in inner.iter_mut().zip(&*list) {
            *inner = asked(fd, &mut pieces);
        }
        let (piece, undecided) = pieces.next(left);
        // SAFETY: `inner.len()` structures at `inner` are writable.
        let result = unsafe { rsocket_abi::rpoll(inner.as_mut_ptr(), inner.len() as nfds_t, piece) };
        let again = result > 0 && changed(list, inner, &mut pieces);
        let mut count = 0;
        for (fd, inner) in list.iter_mut().zip(&*inner) {
            if result >= 0 && !again {
                fd.revents = program_events(fd, inner.revents);
                count += c_int::from(fd.revents != 0);
            }
        }
        left = deadline.left();
        let ended = result == 0 && (left == 0 || !undecided);
        if result < 0 || ended || result > 0 && !again && (count > 0 || left == 0) {
            return if result < 0 { result } else { count };
        }
    }
}

/// Whether reported events concern sockets in fork mode that have become another kind by them.
fn changed(list: &[pollfd], inner: &[pollfd], pieces: &mut Pieces) -> bool {
    let ready = list.iter().zip(inner).filter(|(_, inner)| inner.revents != 0);
    ready.fold(false, |changed, (fd, inner)| settled(fd.fd, inner.fd, inner.revents, pieces) || changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What librdmacm polls may be more than what the program asks for, as for undecided sockets.
    #[test]
    fn events_that_nobody_asked_for_are_not_reported() {
        let errors = POLLERR | POLLHUP | POLLNVAL;
        for (events, revents, reported) in [
            (POLLIN, UNDECIDED, POLLIN),
            (libc::POLLOUT, UNDECIDED, 0),
            (0, UNDECIDED | errors, errors),
            (POLLIN | POLLRDHUP, !0, POLLIN | POLLRDHUP | errors),
        ] {
            assert_eq!(program_events(&pollfd { fd: -1, events, revents: 0 }, revents), reported);
        }
    }
}
