//! Entries of automatic mode in the table.

use core::ffi::c_int;

use rdmacm_private::auto_config::Mode;

use crate::config;
use crate::table::{self, Entry, Kind};

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
