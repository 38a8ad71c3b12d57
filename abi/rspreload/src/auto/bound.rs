//! The sockets that this process has bound since it last forked. Others (inherited, passed on, or
//! bound before a fork) may be meant for several processes that accept connections. If one of them
//! listens later, the others do not know its tokens.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::tcp::{self, name};

/// By the kernel's identifiers, which are numbers in a row. One that has lost its place to another
/// counts as bound by another process.
static BOUND: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

static ANY: AtomicBool = AtomicBool::new(false);

fn place(identity: u64) -> &'static AtomicU64 {
    &BOUND[(identity % BOUND.len() as u64) as usize]
}

/// bind(2) has succeeded.
pub fn remember(fd: c_int) {
    if let Some(identity) = tcp::identity(fd) {
        place(identity).store(identity, Relaxed);
        ANY.store(true, Relaxed);
    }
}

/// The process is about to fork.
pub fn forget() {
    if ANY.swap(false, Relaxed) {
        BOUND.iter().for_each(|place| place.store(0, Relaxed));
    }
}

/// Whether a socket that has a port was bound here.
fn is_remembered(fd: c_int) -> bool {
    tcp::identity(fd).is_some_and(|identity| place(identity).load(Relaxed) == identity)
}

/// Where a socket has come from on which listen(2) is called. Another process may accept the tokens
/// of one that is not this process's own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    Own,
    /// It listens already.
    Listened,
    /// It has a port, which it did not get here.
    Bound,
}

impl Origin {
    pub fn of(fd: c_int) -> Origin {
        if tcp::is_listening(fd) {
            Origin::Listened
        } else if name::own(fd).is_some_and(|own| own.number() != 0) && !is_remembered(fd) {
            Origin::Bound
        } else {
            Origin::Own
        }
    }
}
