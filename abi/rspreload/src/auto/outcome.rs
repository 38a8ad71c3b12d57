//! What follows from an attempt: the number becomes the rsocket, or TCP is connected.

use core::ffi::c_int;

use libc::{AF_INET, AF_INET6, F_GETFL, F_SETFL, O_NONBLOCK};

use super::entry;
use crate::table::{self, Entry};
use crate::tcp::name::{self, Name};
use crate::tcp::{self, make_rsocket};
use crate::{errno, next_symbol};

/// Makes the number stand for the connected rsocket `inner`, with the options of the TCP socket,
/// if it has the entry `before`. `copy` is the number or a duplicate of it.
pub fn become_rsocket(fd: c_int, copy: c_int, before: Option<Entry>, inner: c_int) -> bool {
    // Also makes it a blocking one, if the TCP socket is.
    make_rsocket::copy_connected_options(copy, inner);
    let family = tcp::family(copy).unwrap_or(AF_INET);
    let mapped = family == AF_INET6 && name::rsocket_peer(inner).is_some_and(|peer| peer.family() == AF_INET);
    if table::prepare(fd).is_err() || table::first(inner).is_err() {
        return false;
    }
    let entry = Entry::rsocket(inner, table::DECIDED | entry::flags(mapped));
    let done = table::replace(fd, before, Some(entry));
    if !done {
        table::drop(inner);
    }
    done
}

/// Begins to connect the TCP socket, for the program that waits for it.
pub fn connect_tcp(copy: c_int, to: &Name) {
    let family = tcp::family(copy).unwrap_or(AF_INET);
    let to = to.in_family(family);
    // SAFETY: an address and its length; flags are a number.
    errno::keeping(|| unsafe {
        let flags = next_symbol::fcntl_int(copy, F_GETFL, 0);
        // The program may have changed it meanwhile.
        next_symbol::fcntl_int(copy, F_SETFL, flags | O_NONBLOCK);
        next_symbol::connect(copy, to.as_ptr(), to.len);
        if flags & O_NONBLOCK == 0 {
            next_symbol::fcntl_int(copy, F_SETFL, flags);
        }
    });
}
