//! Diagnosis: a log line for each failure if RDMACM_LOG is set (docs/troubleshooting.md), and
//! probes for tracers.
//!
//! This is a low layer: callers pass plain data, and the modules know neither the connection
//! manager nor rsockets. Calls that succeed only run the nop instructions of the probes; reading an
//! event and closing a stream also check whether to log. A line is built on the stack and written
//! by direct system calls, without locks and without the heap, because programs make rsocket calls
//! in signal handlers, after fork(), and under librspreload, which intercepts the C library's
//! functions. errno is preserved.

mod facts;
mod line;
pub mod probes;
mod reason;
mod switch;

use std::ffi::c_int;
use std::fmt;

use crate::errno::Errno;
use crate::ffi::rdma_cm_id;

pub use facts::Endpoints;
use facts::Facts;
use line::Line;
pub use switch::{is_on, read_settings, shows_connections};

/// The object of a failed call.
#[derive(Clone, Copy, Debug)]
pub enum Subject {
    /// No id or rsocket.
    Nothing,
    /// The address of an id, which is never dereferenced; NULL if the program passed NULL.
    Id(*const rdma_cm_id),
    /// The rsocket of a descriptor.
    Socket(c_int),
}

/// Logs a failed call. Expected errors are logged only at the level `all`. `endpoints` is called
/// only if a line is written.
#[inline]
pub fn call_failed(name: &'static str, subject: Subject, error: Errno, endpoints: impl FnOnce() -> Option<Endpoints>) {
    if is_on() && (!is_expected(error) || switch::is_verbose()) {
        base::errno::keeping(|| write_call_failed(name, subject, error, endpoints().as_ref()));
    }
}

#[cold]
#[inline(never)]
fn write_call_failed(name: &'static str, subject: Subject, error: Errno, endpoints: Option<&Endpoints>) {
    let null = matches!(subject, Subject::Id(id) if id.is_null());
    let facts = Facts { null, ..Facts::gather(name, error, endpoints) };
    let reason = reason::of_call(name, error, &facts);
    let mut line = Line::begin(name);
    match subject {
        Subject::Nothing => {}
        Subject::Id(id) if id.is_null() => line.push(format_args!(": id NULL")),
        Subject::Id(id) => line.push(format_args!(": id {id:p}")),
        Subject::Socket(fd) => line.push(format_args!(": socket {fd}")),
    }
    line.push_endpoints(endpoints);
    line.push(format_args!(": {error:?}: {reason}"));
    line.write();
}

/// Writes a line that begins with `name`, and preserves errno.
fn log(name: &str, fill: impl FnOnce(&mut Line)) {
    base::errno::keeping(|| {
        let mut line = Line::begin(name);
        fill(&mut line);
        line.write();
    });
}

/// Logs a text from librspreload. A text that is not UTF-8 is logged as an empty text.
#[cold]
#[inline(never)]
pub fn note(name: &'static str, text: &[u8]) {
    if is_on() {
        log(name, |line| line.push(format_args!(": {}", str::from_utf8(text).unwrap_or_default())));
    }
}

/// Logs that name resolution failed with an `EAI_*` code of getaddrinfo(3).
#[cold]
#[inline(never)]
pub fn not_found(name: &'static str, code: c_int) {
    if is_on() {
        let (code, meaning) = reason::of_eai(code);
        log(name, |line| line.push(format_args!(": {code}: {meaning}")));
    }
}

/// Returns whether calls fail with this error in normal operation.
fn is_expected(error: Errno) -> bool {
    matches!(error, Errno::EAGAIN | Errno::EINPROGRESS | Errno::EALREADY | Errno::EINTR)
}

/// Reports an invalid word in RDMACM_LOG in a line on standard error. Called when the library is
/// loaded.
#[cold]
#[inline(never)]
fn unknown_value(word: &[u8]) {
    let word = str::from_utf8(word).unwrap_or_default();
    log("RDMACM_LOG", |line| {
        line.push(format_args!(
            ": \"{word}\" is none of 0, 1, stderr, 2, all, connections, time, syslog and an absolute path: nothing is logged",
        ));
    });
}

/// The path of a connection.
#[derive(Clone, Copy)]
pub struct Path {
    /// GIDs of this end and of the peer.
    pub gids: [[u8; 16]; 2],
    /// Partition key.
    pub pkey: u16,
    /// The path's MTU in bytes and its service level, if there is a path record.
    pub mtu_and_sl: Option<(u32, u8)>,
}

/// Logs an event that reports no failure: a step of setting up a connection, or the end of a
/// connection. `path` is given for the first event of a connection at which the path is known.
#[cold]
#[inline(never)]
pub fn good_event(id: *const rdma_cm_id, name: &str, path: Option<Path>, endpoints: &Endpoints) {
    log("event", |line| {
        line.push(format_args!(": id {id:p}"));
        line.push_endpoints(Some(endpoints));
        line.push(format_args!(": {name}"));
        if let Some(path) = path {
            let [own, peer] = path.gids.map(std::net::Ipv6Addr::from);
            line.push(format_args!(": GID {own} -> {peer}, P_Key {:#06x}", path.pkey));
            if let Some((mtu, sl)) = path.mtu_and_sl {
                line.push(format_args!(", MTU {mtu}, SL {sl}"));
            }
        }
    });
}

/// Logs that the program closes a connected stream, with the numbers of bytes sent and received.
#[cold]
#[inline(never)]
pub fn closed(fd: c_int, endpoints: &Endpoints, sent: u64, received: u64) {
    log("rclose", |line| {
        line.push(format_args!(": socket {fd}"));
        line.push_endpoints(Some(endpoints));
        line.push(format_args!(": sent {sent} bytes, received {received}"));
    });
}

/// An event that reports a failure, or the removal of the device.
#[derive(Clone, Copy)]
pub struct BadEvent<'a> {
    /// Address of the id.
    pub id: *const rdma_cm_id,
    /// A value of `enum rdma_cm_event_type`.
    pub kind: u32,
    /// Name of that value.
    pub name: &'a str,
    /// 0, -errno, or the transport's reject reason.
    pub status: c_int,
    /// Whether the id's device is an iWARP adapter.
    pub iwarp: bool,
    /// Private data of a rejection.
    pub private_data: &'a [u8],
}

/// Logs an event that a program or an rsocket has read, and that reports a failure or the removal
/// of the device.
#[cold]
#[inline(never)]
pub fn bad_event(event: &BadEvent<'_>, endpoints: &Endpoints) {
    log("event", |line| {
        let facts = Facts::of_endpoints(Some(endpoints));
        line.push(format_args!(": id {:p}", event.id));
        line.push_endpoints(Some(endpoints));
        line.push(format_args!(": {}", event.name));
        match event.status {
            0 => {}
            status if status < 0 => line.push(format_args!(" {:?}", Errno::new(status.saturating_neg()))),
            status => line.push(format_args!(" status {status}")),
        }
        line.push(format_args!(": {}", reason::of_event(event.kind, event.status, event.iwarp, &facts)));
        line.push_quoted("; the peer says", event.private_data);
    });
}

/// Logs a failure of an rsocket that no call reports at once. `fd` is the rsocket's descriptor, if
/// it is known.
#[cold]
#[inline(never)]
pub fn background(fd: Option<c_int>, endpoints: &Endpoints, error: Errno, cause: Cause) {
    if !is_on() {
        return;
    }
    log("rsocket", |line| {
        if let Some(fd) = fd {
            line.push(format_args!(": socket {fd}"));
        }
        line.push_endpoints(Some(endpoints));
        line.push(format_args!(": {error:?}: {cause}"));
        if let Cause::Connecting | Cause::Accepting = cause {
            let facts = Facts::of_endpoints(Some(endpoints));
            line.push(format_args!("{}", reason::of_call("rconnect", error, &facts)));
        }
    });
}

/// The cause of a failure of an rsocket in the background.
#[derive(Clone, Copy, Debug)]
pub enum Cause {
    /// The private data of the peer's request or reply does not follow the rsocket protocol.
    BadConnData,
    /// The peer sent a message that is invalid, or exceeds its credits.
    BadMessage,
    /// A work request failed with this `enum ibv_wc_status`.
    Completion(u32),
    /// Creating a connection failed on this side.
    Connecting,
    /// Accepting a connection request failed on this side.
    Accepting,
    /// The peer's iomap has no free entry for memory that was mapped before connecting.
    NoEntry,
    /// The device has no more PDs, so the connection has no PD of its own.
    SharedDomain,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Cause::BadConnData => {
                f.write_str("the peer does not use the rsocket protocol, or uses another version of it")
            }
            Cause::BadMessage => {
                f.write_str("the peer violated the rsocket protocol: an invalid message, or more than it had credits for")
            }
            Cause::Completion(status) => {
                let (name, meaning) = reason::of_completion(status);
                write!(f, "a work request completed with {name} ({status}): {meaning}")
            }
            Cause::NoEntry => f.write_str(
                "the peer's iomap (RDMA_IOMAPSIZE) has too few entries for the memory that riomap mapped before connecting",
            ),
            Cause::SharedDomain => f.write_str(
                "the device has no more protection domains: the connection shares one, and peers of other connections \
                 that share it can write to its memory",
            ),
            Cause::Connecting => f.write_str("connecting failed: "),
            Cause::Accepting => f.write_str("a connection request was rejected: "),
        }
    }
}
