//! Beginning the handshake of an accepted connection, which the thread of [`passive`] makes.

use core::ffi::c_int;
use core::ptr;

use super::commit::{self, Outcome};
use super::slots::Submitted;
use super::{copy, passive, slots};
use crate::table::Entry;
use crate::tcp::{self, bind, name};
use crate::{thread, transition};

/// Begins the handshake of an accepted connection, or decides at once that it stays TCP.
pub fn begin(fd: c_int, entry: Entry) {
    // A peer that speaks first has not waited for the word: it is not in fork mode, or has given
    // up. In the middle of the handshake of a copy it ends TCP because its rsocket is connected.
    let is_in_time = || tcp::is_silent(fd) || copy::has_ticket(fd);
    let possible = name::own(fd).is_some_and(|own| bind::shares_port(&own)) && is_in_time();
    if !possible || !submit(fd, entry) {
        let _ = commit::commit(fd, fd, entry, Outcome::Tcp);
        transition::announce();
    }
}

/// Hands the connection to the thread. Returns false if there is no slot or descriptor left. After
/// true the table's entry is to be read again.
fn submit(fd: c_int, entry: Entry) -> bool {
    let submitted = slots::submit(fd, entry);
    if submitted == Submitted::Ready {
        run_thread();
    }
    submitted != Submitted::NoRoom
}

/// Starts the thread, or wakes it. Without a thread everything stays TCP.
fn run_thread() {
    if slots::may_start() && !thread::start(passive::run, ptr::null_mut()) {
        slots::thread_failed();
    }
}
