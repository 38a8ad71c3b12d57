//! What a number of the program is, and where a call on it goes. Every intercepted call asks here.

use core::ffi::c_int;

use crate::fork;
use crate::table::{self, Entry, Kind};
use crate::transition::Way;
use crate::{auto, fds};

/// What a number of the program is.
#[derive(Clone, Copy)]
pub enum Fd {
    /// A descriptor of the kernel's, with nothing of this library behind it.
    Kernel,
    /// A placeholder for an rsocket.
    Rsocket(Entry),
    /// A TCP socket of fork mode that may become an rsocket.
    Pending(Entry),
    /// An epoll instance of the kernel's with a side ([`crate::epoll`]).
    Epoll(Entry),
    /// A TCP socket for which an rsocket connects, in automatic mode.
    Connecting(Entry),
    /// A descriptor of the kernel's that automatic mode knows: a listener, or a socket whose data
    /// is forwarded.
    Known(Entry),
}

impl Fd {
    /// One load while there has never been an rsocket, then one look at the table.
    #[inline(always)]
    pub fn of(fd: c_int) -> Fd {
        table::get(fd).map_or(Fd::Kernel, Fd::from)
    }
}

impl From<Entry> for Fd {
    #[inline(always)]
    fn from(entry: Entry) -> Fd {
        match entry.kind {
            Kind::Socket => Fd::Rsocket(entry),
            Kind::Pending => Fd::Pending(entry),
            Kind::Epoll => Fd::Epoll(entry),
            Kind::Connecting => Fd::Connecting(entry),
            Kind::Listener | Kind::Forwarded => Fd::Known(entry),
        }
    }
}

/// Where a call goes.
pub enum Target {
    /// To the next definition of its name.
    Kernel,
    /// To librdmacm, for this rsocket.
    Rsocket(c_int),
    /// Nowhere: it fails with this errno.
    Fails(c_int),
}

/// The rsocket to which a call goes that leaves a pending socket pending (bind, listen, names,
/// options), or `None` for the kernel.
#[inline(always)]
pub fn setup(fd: c_int) -> Option<c_int> {
    match Fd::of(fd) {
        Fd::Rsocket(entry) => Some(entry.inner),
        Fd::Kernel | Fd::Pending(_) | Fd::Epoll(_) | Fd::Connecting(_) | Fd::Known(_) => None,
    }
}

/// Where a call goes that moves data, if one look at the table tells.
#[inline(always)]
pub fn data_at_once(fd: c_int) -> Option<Target> {
    match Fd::of(fd) {
        Fd::Kernel => Some(Target::Kernel),
        Fd::Rsocket(entry) if entry.is_settled() => Some(Target::Rsocket(entry.inner)),
        _ => None,
    }
}

/// Where a call goes that moves data or shuts down. Such a call decides what a pending socket is.
#[inline(always)]
pub fn data(fd: c_int, way: Way) -> Target {
    match Fd::of(fd) {
        Fd::Kernel => Target::Kernel,
        Fd::Rsocket(entry) if entry.is_settled() => Target::Rsocket(entry.inner),
        Fd::Rsocket(entry) | Fd::Pending(entry) | Fd::Epoll(entry) | Fd::Connecting(entry) | Fd::Known(entry) => {
            decide(fd, entry, way)
        }
    }
}

#[cold]
#[inline(never)]
fn decide(fd: c_int, entry: Entry, way: Way) -> Target {
    match Fd::from(entry) {
        Fd::Kernel | Fd::Epoll(_) => Target::Kernel,
        Fd::Known(entry) => {
            auto::before_use(entry, way);
            Target::Kernel
        }
        Fd::Connecting(entry) => {
            let settled = auto::resolve_attempt(fd, entry, way);
            settled.map_or_else(Target::Fails, |()| data(fd, way))
        }
        Fd::Rsocket(entry) => {
            if fds::check_rsocket(fd, entry) {
                Target::Rsocket(entry.inner)
            } else {
                Target::Kernel
            }
        }
        Fd::Pending(entry) => match fork::resolve_pending(fd, entry, way) {
            Ok(Some(inner)) => Target::Rsocket(inner),
            Ok(None) => Target::Kernel,
            Err(why) => Target::Fails(why),
        },
    }
}
