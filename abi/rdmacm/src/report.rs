//! Reports the result of a call to its C caller: the value, `errno`, and a log line if the call
//! failed.

use std::cell::Cell;
use std::ffi::c_int;

use libc::{sockaddr, socklen_t};
use rdmacm_core::cm::{self, Id};
use rdmacm_core::diag::{self, Endpoints, Subject};
use rdmacm_core::ffi::rdma_cm_id;
use rdmacm_core::os::cancel;
use rdmacm_core::os::mark::Mark;
use rdmacm_core::rsocket::calls;
use rdmacm_core::{Errno, Result};

use crate::args;

/// A call of the program: its name, and the object that it concerns.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    name: &'static str,
    about: About,
    /// The address argument, with its length.
    address: Option<(*const sockaddr, socklen_t)>,
}

/// Length for an address argument without a length: the address is complete for its family.
pub const WHOLE: socklen_t = socklen_t::MAX;

#[derive(Clone, Copy, Debug)]
enum About {
    Nothing,
    /// A live id, or NULL.
    Id(*const rdma_cm_id),
    /// An id that may have been destroyed: only the pointer's value is used.
    Gone(*const rdma_cm_id),
    Socket(c_int),
    /// Like `Socket`, but for a datagram socket the address is the destination.
    Sending(c_int),
}

impl Call {
    /// Creates a call that concerns no existing id or rsocket.
    #[inline]
    pub const fn new(name: &'static str) -> Call {
        Call { name, about: About::Nothing, address: None }
    }

    /// Creates a call that concerns an id. The id is NULL, or still live if the call fails, as the
    /// C contract requires.
    #[inline]
    pub const fn id(name: &'static str, id: *mut rdma_cm_id) -> Call {
        Call { name, about: About::Id(id), address: None }
    }

    /// Creates a call that concerns an id, and that may destroy the id.
    #[inline]
    pub const fn gone(name: &'static str, id: *mut rdma_cm_id) -> Call {
        Call { name, about: About::Gone(id), address: None }
    }

    /// Creates a call that concerns the rsocket of a descriptor, if there is one.
    #[inline]
    pub const fn socket(name: &'static str, fd: c_int) -> Call {
        Call { name, about: About::Socket(fd), address: None }
    }

    /// Adds the address argument.
    ///
    /// # Safety
    /// When the call fails, `address` is NULL, readable for `len` bytes, or complete for its family
    /// if `len` is [`WHOLE`].
    #[inline]
    pub const unsafe fn with(self, address: *const sockaddr, len: socklen_t) -> Call {
        Call { address: Some((address, len)), ..self }
    }

    /// Adds the destination of a datagram. For a stream the address is ignored, because programs
    /// pass invalid addresses.
    ///
    /// # Safety
    /// When the call fails on a datagram socket, `len` bytes at `address` are readable, unless it
    /// is NULL.
    #[inline]
    pub const unsafe fn to(self, address: *const sockaddr, len: socklen_t) -> Call {
        match self.about {
            About::Socket(fd) if !address.is_null() => {
                Call { about: About::Sending(fd), address: Some((address, len)), ..self }
            }
            _ => self,
        }
    }

    fn subject(&self) -> Subject {
        match self.about {
            About::Nothing => Subject::Nothing,
            About::Id(id) | About::Gone(id) => Subject::Id(id),
            About::Socket(fd) | About::Sending(fd) => Subject::Socket(fd),
        }
    }

    /// Returns the addresses and device of the id or rsocket; `None` if nothing is known. The
    /// address argument replaces an unknown address, and for a datagram the peer's address.
    fn endpoints(&self) -> Option<Endpoints> {
        let mut endpoints = match self.about {
            About::Nothing | About::Gone(_) => None,
            // SAFETY: the id is NULL or live: guaranteed by the shim that made the `Call`.
            About::Id(id) => unsafe { Id::from_c(id.cast_mut()).ok().map(cm::log::endpoints) },
            About::Sending(fd) if !calls::is_datagram(fd) => return calls::endpoints(fd),
            About::Socket(fd) | About::Sending(fd) => calls::endpoints(fd),
        };
        if let Some((address, len)) = self.address
            // SAFETY: the address is NULL or readable: guaranteed by the shim that made the `Call`.
            && let Ok(address) = unsafe { args::sized_address(address, len) }
        {
            let endpoints = endpoints.get_or_insert(Endpoints::NONE);
            match self.about {
                // The destination replaces the peer to which the socket is connected.
                About::Sending(_) => endpoints.dst = *address.storage(),
                _ => endpoints.add(address.storage(), matches!(self.name, "rdma_bind_addr" | "rbind")),
            }
        }
        endpoints
    }
}

/// Runs a call for its C caller. Returns the result of `run` with `errno` unchanged; on failure
/// `failed`, with `errno` set. `call` describes the failed call in the log. Fails with `EAGAIN` in
/// a signal handler that has interrupted another call.
pub fn report<T>(call: Call, failed: T, run: impl FnOnce() -> Result<T>) -> T {
    report_quick(call, failed, || cancel::in_call(run))
}

/// Like [`report`], for a call that may wait, and is therefore a cancellation point.
pub fn report_waiting<T>(call: Call, failed: T, run: impl FnOnce() -> Result<T>) -> T {
    report_quick(call, failed, || cancel::in_waiting_call(run))
}

/// Like [`report`], for a quick call: `run` itself uses [`cancel::in_call`] or
/// [`cancel::in_waiting_call`] around cancellation points.
pub fn report_quick<T>(call: Call, failed: T, run: impl FnOnce() -> Result<T>) -> T {
    let mark = Mark::set();
    finish(call, failed, || if mark.is_some() { run() } else { Err(Errno::EAGAIN) })
}

/// Like [`report`], for options that librspreload uses at any time: succeeds even in the middle of
/// another call.
pub fn report_unmarked<T>(call: Call, failed: T, run: impl FnOnce() -> Result<T>) -> T {
    finish(call, failed, || cancel::disabled(run))
}

fn finish<T>(call: Call, failed: T, run: impl FnOnce() -> Result<T>) -> T {
    let errno = errno();
    let before = errno.get();
    match run() {
        Ok(value) => {
            errno.set(before);
            value
        }
        Err(error) => {
            log(call, error);
            errno.set(error.get());
            failed
        }
    }
}

/// Returns -1 with `errno` set to `EAGAIN`: a short path for the usual failure in an event loop. A
/// cancellation point.
#[inline(never)]
pub fn would_block() -> c_int {
    cancel::test();
    errno().set(libc::EAGAIN);
    -1
}

/// Returns the thread's `errno`.
fn errno() -> &'static Cell<c_int> {
    // SAFETY: the address is valid until the thread ends, and a reference to a `Cell` stays in its
    // thread.
    unsafe { &*libc::__errno_location().cast() }
}

#[cold]
#[inline(never)]
fn log(call: Call, error: Errno) {
    diag::call_failed(call.name, call.subject(), error, || call.endpoints());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_leaves_errno_alone() {
        errno().set(77);
        let value = report(Call::new("test"), -1, || {
            errno().set(5);
            Ok(3)
        });
        assert_eq!((value, errno().get()), (3, 77));
    }

    #[test]
    fn failure_sets_errno() {
        assert_eq!(report(Call::new("test"), -1, || Err(Errno::EBUSY)), -1);
        assert_eq!(Errno::last(), Errno::EBUSY);
    }
}
