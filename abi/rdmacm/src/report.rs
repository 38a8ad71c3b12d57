//! Reports the result of a call to its C caller: the value, `errno`, and a log line if the call
//! failed.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::{null, without_provenance};

use libc::{sockaddr, socklen_t};
use rdmacm_core::cm::{self, Id};
use rdmacm_core::diag::{self, Endpoints, Subject};
use rdmacm_core::ffi::rdma_cm_id;
use rdmacm_core::os::cancel;
use rdmacm_core::os::mark::Mark;
use rdmacm_core::rsocket::calls;
use rdmacm_core::{Errno, Result};

use crate::args;

/// A call of the program: its name, and the object that it concerns. Plain words: they stay in
/// registers until the call fails.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    name: &'static str,
    about: About,
    /// The id, or the descriptor as an address.
    object: *const rdma_cm_id,
    /// The address argument, or NULL.
    address: *const sockaddr,
    len: socklen_t,
}

/// Length for an address argument without a length: the address is complete for its family.
pub const WHOLE: socklen_t = socklen_t::MAX;

#[derive(Clone, Copy, Debug)]
enum About {
    Nothing,
    /// A live id, or NULL.
    Id,
    /// An id that may have been destroyed: only the pointer's value is used.
    Gone,
    Socket,
    /// Like `Socket`, but for a datagram socket the address is the destination.
    Sending,
}

impl Call {
    #[inline]
    const fn about(name: &'static str, about: About, object: *const rdma_cm_id) -> Call {
        Call { name, about, object, address: null(), len: 0 }
    }

    /// Creates a call that concerns no existing id or rsocket.
    #[inline]
    pub const fn new(name: &'static str) -> Call {
        Call::about(name, About::Nothing, null())
    }

    /// Creates a call that concerns an id. The id is NULL, or still live if the call fails, as the
    /// C contract requires.
    #[inline]
    pub const fn id(name: &'static str, id: *mut rdma_cm_id) -> Call {
        Call::about(name, About::Id, id)
    }

    /// Creates a call that concerns an id, and that may destroy the id.
    #[inline]
    pub const fn gone(name: &'static str, id: *mut rdma_cm_id) -> Call {
        Call::about(name, About::Gone, id)
    }

    /// Creates a call that concerns the rsocket of a descriptor, if there is one.
    #[inline]
    pub const fn socket(name: &'static str, fd: c_int) -> Call {
        Call::about(name, About::Socket, without_provenance(fd as usize))
    }

    /// Adds the address argument.
    ///
    /// # Safety
    /// When the call fails, `address` is NULL, readable for `len` bytes, or complete for its family
    /// if `len` is [`WHOLE`].
    #[inline]
    pub const unsafe fn with(self, address: *const sockaddr, len: socklen_t) -> Call {
        Call { address, len, ..self }
    }

    /// Adds the destination of a datagram. For a stream the address is ignored, because programs
    /// pass invalid addresses.
    ///
    /// # Safety
    /// When the call fails on a datagram socket, `len` bytes at `address` are readable, unless it
    /// is NULL.
    #[inline]
    pub const unsafe fn to(self, address: *const sockaddr, len: socklen_t) -> Call {
        if address.is_null() { self } else { Call { about: About::Sending, address, len, ..self } }
    }

    fn fd(&self) -> c_int {
        self.object.addr() as c_int
    }

    fn subject(&self) -> Subject {
        match self.about {
            About::Nothing => Subject::Nothing,
            About::Id | About::Gone => Subject::Id(self.object),
            About::Socket | About::Sending => Subject::Socket(self.fd()),
        }
    }

    /// Returns the addresses and device of the id or rsocket; `None` if nothing is known. The
    /// address argument replaces an unknown address, and for a datagram the peer's address.
    fn endpoints(&self) -> Option<Endpoints> {
        let fd = self.fd();
        let mut endpoints = match self.about {
            About::Nothing | About::Gone => None,
            // SAFETY: the id is NULL or live: guaranteed by the shim that made the `Call`.
            About::Id => unsafe { Id::from_c(self.object.cast_mut()).ok().map(cm::log::endpoints) },
            About::Sending if !calls::is_datagram(fd) => return calls::endpoints(fd),
            About::Socket | About::Sending => calls::endpoints(fd),
        };
        // SAFETY: the address is NULL or readable: guaranteed by the shim that made the `Call`.
        if let Ok(address) = unsafe { args::sized_address(self.address, self.len) } {
            let endpoints = endpoints.get_or_insert(Endpoints::NONE);
            match self.about {
                // The destination replaces the peer to which the socket is connected.
                About::Sending => endpoints.dst = *address.storage(),
                _ => endpoints.add(address.storage(), matches!(self.name, "rdma_bind_addr" | "rbind")),
            }
        }
        endpoints
    }

    /// Logs the failure of the call, sets `errno`, and returns `failed`.
    #[inline]
    fn failed<T>(self, error: Errno, failed: T) -> T {
        fail(self.name, self.about, self.object, self.address, self.len, error);
        failed
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
#[inline]
pub fn report_quick<T>(call: Call, failed: T, run: impl FnOnce() -> Result<T>) -> T {
    let Some(_mark) = Mark::set() else { return call.failed(Errno::EAGAIN, failed) };
    finish(call, failed, run)
}

/// Like [`report`], for options that librspreload uses at any time: succeeds even in the middle of
/// another call.
pub fn report_unmarked<T>(call: Call, failed: T, run: impl FnOnce() -> Result<T>) -> T {
    finish(call, failed, || cancel::in_call(run))
}

#[inline]
fn finish<T>(call: Call, failed: T, run: impl FnOnce() -> Result<T>) -> T {
    let errno = errno();
    let before = errno.get();
    match run() {
        Ok(value) => {
            errno.set(before);
            value
        }
        Err(error) => call.failed(error, failed),
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

/// [`Call::failed`] for the fields of a call, which are passed in registers.
#[cold]
#[inline(never)]
fn fail(
    name: &'static str,
    about: About,
    object: *const rdma_cm_id,
    address: *const sockaddr,
    len: socklen_t,
    error: Errno,
) {
    let call = Call { name, about, object, address, len };
    diag::call_failed(name, call.subject(), error, || call.endpoints());
    errno().set(error.get());
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
