//! poll: librdmacm's if there is an rsocket among the numbers. It takes both kinds.

use core::ffi::c_int;
use core::slice;

use libc::{POLLIN, nfds_t, pollfd};

use super::waiting::{begin_wait, concerns, settled};
use crate::dispatch::Fd;
use crate::table;
use crate::time::Deadline;
use crate::{auto, errno, next_symbol, rsocket_abi, scratch};

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

/// What librdmacm polls for `fd`.
fn asked(fd: &pollfd) -> pollfd {
    while let Fd::Connecting(entry) = Fd::of(fd.fd) {
        let done = auto::slots::done(entry);
        if done >= 0 {
            return pollfd { fd: done, events: POLLIN, revents: 0 };
        }
        // The attempt has ended since its entry was read, and its slot has another one.
    }
    pollfd { fd: begin_wait(fd.fd), events: fd.events, revents: 0 }
}

/// Polls by librdmacm. `inner` has the length of `list`.
fn poll_both(list: &mut [pollfd], inner: &mut [pollfd], timeout: c_int) -> c_int {
    let deadline = Deadline::after(timeout);
    let mut left = timeout;
    loop {
        for (inner, fd) in inner.iter_mut().zip(&*list) {
            *inner = asked(fd);
        }
        // SAFETY: `inner.len()` structures at `inner` are writable.
        let result = unsafe { rsocket_abi::rpoll(inner.as_mut_ptr(), inner.len() as nfds_t, left) };
        if result < 0 {
            return result;
        }
        if result == 0 || !changed(list, inner) {
            let mut count = 0;
            for (fd, inner) in list.iter_mut().zip(&*inner) {
                fd.revents = inner.revents;
                count += c_int::from(fd.revents != 0);
            }
            return count;
        }
        left = deadline.left();
    }
}

/// Whether reported events concern sockets that have become another kind by them.
fn changed(list: &[pollfd], inner: &[pollfd]) -> bool {
    let ready = list.iter().zip(inner).filter(|(_, inner)| inner.revents != 0);
    ready.fold(false, |changed, (fd, inner)| settled(fd.fd, inner.fd, inner.revents) || changed)
}
