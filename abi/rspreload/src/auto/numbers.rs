//! What a number of the program becomes by an attempt: the rsocket, or a socket that is connected
//! by TCP. And what the table's entries of automatic mode say.

use core::ffi::c_int;

use libc::{AF_INET, AF_INET6, F_GETFL, F_SETFL, O_NONBLOCK};
use rdmacm_private::auto_config::Mode;

use crate::name::Name;
use crate::sockets::{kernel, rdma};
use crate::table::{Entry, Kind};
use crate::{config, errno, table, tcp};

// Entries of automatic mode in the table.

/// The bit of an entry for rsockets of automatic mode; see also [`table::DECIDED`].
pub const AUTO: u32 = table::DECIDED << 1;

/// The bit of an entry whose program's socket is of IPv6, and whose rsocket is of IPv4.
pub const MAPPED: u32 = AUTO << 1;

/// The bits of a new entry.
pub fn flags(mapped: bool) -> u32 {
    AUTO | if mapped { MAPPED } else { 0 }
}

/// Whether an rsocket is one of automatic mode: its number is a socket of the kernel.
pub fn is_auto(entry: Entry) -> bool {
    entry.flags & AUTO != 0
}

/// Whether an entry is of a number that stands for this rsocket of automatic mode.
pub fn is_number_of(inner: c_int, entry: Entry) -> bool {
    entry.kind == Kind::Socket && entry.inner == inner && is_auto(entry)
}

/// Whether the mode is automatic.
pub fn is_on() -> bool {
    config::mode() == Mode::Auto
}

// What follows from an attempt: the number becomes the rsocket, or TCP is connected.

/// Makes the number stand for the connected rsocket `inner`, with the options of the TCP socket,
/// if it has the entry `before`. `copy` is the number or a duplicate of it.
pub fn become_rsocket(fd: c_int, copy: c_int, before: Option<Entry>, inner: c_int) -> bool {
    // Also makes it a blocking one, if the TCP socket is.
    tcp::copy_connected_options(copy, inner);
    let family = tcp::family(copy).unwrap_or(AF_INET);
    let mapped = family == AF_INET6 && rdma::peer(inner).is_some_and(|peer| peer.family() == AF_INET);
    if table::prepare(fd).is_err() || table::first(inner, 0).is_err() {
        return false;
    }
    let entry = Entry::rsocket(inner, table::DECIDED | flags(mapped));
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
    errno::keeping(|| {
        let flags = kernel::fcntl(copy, F_GETFL, 0);
        // The program may have changed it meanwhile.
        kernel::fcntl(copy, F_SETFL, flags | O_NONBLOCK);
        kernel::connect(copy, &to);
        if flags & O_NONBLOCK == 0 {
            kernel::fcntl(copy, F_SETFL, flags);
        }
    });
}
