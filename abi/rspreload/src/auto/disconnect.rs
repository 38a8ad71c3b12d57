//! connect(2) with AF_UNSPEC, which ends a connection, an attempt or a listener of TCP and leaves
//! the socket to be used anew.

use core::ffi::c_int;

use libc::{AF_UNSPEC, sa_family_t, sockaddr, socklen_t};

use super::entry::{is_auto, is_number_of};
use super::{listeners, release_rsocket, slots};
use crate::epoll::members;
use crate::table::{self, Entry, Kind};
use crate::{errno, process, rsocket};

/// Whether an address of connect(2) has the family AF_UNSPEC.
///
/// # Safety
/// As for connect(2).
pub unsafe fn is_asked(addr: *const sockaddr, len: socklen_t) -> bool {
    // SAFETY: `addr` has `len` bytes: guaranteed by the caller.
    !addr.is_null()
        && len as usize >= size_of::<sa_family_t>()
        && c_int::from(unsafe { (&raw const (*addr).sa_family).read_unaligned() }) == AF_UNSPEC
}

/// Makes a number of automatic mode a socket of the kernel's, without its rsockets.
pub fn leave_rdma(fd: c_int, entry: Entry) {
    if process::is_guest() {
        return;
    }
    match entry.kind {
        Kind::Socket if is_auto(entry) => errno::keeping(|| reset(entry.inner)),
        Kind::Connecting if table::replace(fd, Some(entry), None) => errno::keeping(|| slots::abandon(entry)),
        Kind::Listener => errno::keeping(|| listeners::stop(entry)),
        Kind::Forwarded => {
            table::replace(fd, Some(entry), None);
        }
        _ => {}
    }
}

/// Closes the rsocket of all its numbers, as TCP does: the peer sees a reset.
fn reset(inner: c_int) {
    rsocket::reset_when_closed(inner);
    table::each(|number, entry| {
        if is_number_of(inner, entry) && table::replace(number, Some(entry), None) {
            members::begin(number);
            release_rsocket(entry);
        }
    });
}
