//! Diagnosis: a line for each failure where the variable RDMACM_LOG asks for it (docs/diagnosis.md), and probes for tracers.
//!
//! Low in the layers: callers pass plain data, and nothing of the connection manager or of rsockets
//! is known here. Nothing runs while calls succeed, except for the one instruction of each probe. A
//! line is made on the stack and written by direct system calls, without locks and without the
//! heap: r* calls are made in signal handlers, after fork(), and under librspreload, which the C
//! library's functions would call. errno is preserved.

mod facts;
mod line;
pub mod probes;
mod reason;
mod sink;
mod switch;

use std::ffi::c_int;
use std::fmt;

use crate::errno::Errno;
use crate::ffi::rdma_cm_id;

use facts::Facts;
pub use facts::Place;
use line::Line;

/// What a failed call was about.
#[derive(Clone, Copy, Debug)]
pub enum Subject {
    /// Nothing that has a name yet.
    Nothing,
    /// An id, of which only the address is used; NULL if the program passed that.
    Id(*const rdma_cm_id),
    /// The rsocket of a descriptor.
    Socket(c_int),
}

/// Logs a failed call. `place` is asked for only if a line is written.
#[inline]
pub fn call_failed(name: &'static str, subject: Subject, error: Errno, place: impl FnOnce() -> Option<Place>) {
    if switch::is_on() && (!is_usual(error) || switch::wants_all()) {
        keep_errno(|| write_call_failed(name, subject, error, place().as_ref()));
    }
}

#[cold]
#[inline(never)]
fn write_call_failed(name: &'static str, subject: Subject, error: Errno, place: Option<&Place>) {
    let null = matches!(subject, Subject::Id(id) if id.is_null());
    let facts = Facts { null, ..Facts::gather(name, error, place) };
    let words = reason::of_call(name, error, &facts);
    let mut line = Line::begin(name);
    match subject {
        Subject::Nothing => {}
        Subject::Id(id) if id.is_null() => line.push(format_args!(": id NULL")),
        Subject::Id(id) => line.push(format_args!(": id {id:p}")),
        Subject::Socket(fd) => line.push(format_args!(": socket {fd}")),
    }
    line.place(place);
    line.push(format_args!(": {error:?}: {words}"));
    sink::write(line.finish());
}

/// Runs `log`, and restores errno.
fn keep_errno(log: impl FnOnce()) {
    let before = errno::errno();
    log();
    errno::set_errno(before);
}

/// Logs that a name was not found: `EAI_*` of getaddrinfo(3).
#[cold]
#[inline(never)]
pub fn not_found(name: &'static str, code: c_int) {
    if !switch::is_on() {
        return;
    }
    keep_errno(|| {
        let mut line = Line::begin(name);
        let (code, words) = reason::of_name(code);
        line.push(format_args!(": {code}: {words}"));
        sink::write(line.finish());
    });
}

/// Whether calls that do not wait fail with this error in normal operation.
fn is_usual(error: Errno) -> bool {
    matches!(error, Errno::EAGAIN | Errno::EINPROGRESS | Errno::EALREADY | Errno::EINTR)
}

/// An event that reports a failure, or the removal of the device.
#[derive(Clone, Copy)]
pub struct BadEvent<'a> {
    /// Address of the id.
    pub id: *const rdma_cm_id,
    /// `enum rdma_cm_event_type`, and its name.
    pub kind: u32,
    /// See `kind`.
    pub name: &'a str,
    /// 0, -errno, or the transport's reason.
    pub status: c_int,
    /// Whether the id's device is an iWARP adapter.
    pub iwarp: bool,
    /// Private data of a rejection.
    pub private_data: &'a [u8],
}

/// Whether failures are logged.
#[inline]
pub fn is_on() -> bool {
    switch::is_on()
}

/// Logs an event that a program, or an rsocket, has read.
#[cold]
#[inline(never)]
pub fn bad_event(event: &BadEvent<'_>, place: &Place) {
    keep_errno(|| {
        let facts = Facts::of_place(Some(place));
        let mut line = Line::begin("event");
        line.push(format_args!(": id {:p}", event.id));
        line.place(Some(place));
        line.push(format_args!(": {}", event.name));
        match event.status {
            0 => {}
            status if status < 0 => line.push(format_args!(" {:?}", Errno::new(status.saturating_neg()))),
            status => line.push(format_args!(" status {status}")),
        }
        line.push(format_args!(": {}", reason::of_event(event.kind, event.status, event.iwarp, &facts)));
        line.quote("; the peer says", event.private_data);
        sink::write(line.finish());
    });
}

/// Logs a failure of an rsocket for which no call was under way, or only one that reports it later.
/// `fd`: the rsocket's descriptor, if it is known.
#[cold]
#[inline(never)]
pub fn background(fd: Option<c_int>, place: &Place, error: Errno, why: Why) {
    if !switch::is_on() {
        return;
    }
    keep_errno(|| {
        let facts = Facts::of_place(Some(place));
        let mut line = Line::begin("rsocket");
        if let Some(fd) = fd {
            line.push(format_args!(": socket {fd}"));
        }
        line.place(Some(place));
        line.push(format_args!(": {error:?}: {why}"));
        if let Why::Connecting | Why::Answering = why {
            line.push(format_args!("{}", reason::of_call("rconnect", error, &facts)));
        }
        sink::write(line.finish());
    });
}

/// What an rsocket failed of in the background.
#[derive(Clone, Copy, Debug)]
pub enum Why {
    /// What it accepted with, or asked with, is not the protocol's.
    NoRsockets,
    /// A message that the protocol does not have, or that exceeds what was granted.
    BadMessage,
    /// A work request failed: `enum ibv_wc_status`.
    Completion(u32),
    /// Connecting needed what could not be had here.
    Connecting,
    /// Answering a connection request did.
    Answering,
    /// The peer's table has no entry for memory that was mapped before connecting.
    NoEntry,
    /// The device has no PD left for the connection alone.
    SharedDomain,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Why::NoRsockets => {
                f.write_str("the peer speaks no rsockets, or another version: its private data is not theirs")
            }
            Why::BadMessage => {
                f.write_str("the peer broke the rules of rsockets: a message that is none, or more than it was granted")
            }
            Why::Completion(status) => {
                let (name, words) = reason::of_completion(status);
                write!(f, "work completed with {name} ({status}): {words}")
            }
            Why::NoEntry => f.write_str(
                "the peer's table (RDMA_IOMAPSIZE) has no room for all memory that riomap mapped before connecting",
            ),
            Why::SharedDomain => f.write_str(
                "the device has no more protection domains: the connection shares one, in which peers of other connections \
                 that share it can write into its memory",
            ),
            Why::Connecting => f.write_str("connecting failed: "),
            Why::Answering => f.write_str("a connection request was rejected: "),
        }
    }
}
