//! Diagnosis: a line for each failure where the variable RDMACM_LOG asks for it (docs/diagnosis.md), and probes for tracers.
//!
//! Nothing here runs while calls succeed, but for the probes' one instruction. A line is made on the stack and written by system
//! calls of its own, without locks and without memory of the heap: r* calls are made in signal handlers, after fork(), and under
//! librspreload, whose functions the C library's would lead to. errno is the caller's again afterwards.

mod facts;
mod line;
pub mod probes;
mod reason;
mod sink;
mod switch;

use std::ffi::c_int;
use std::fmt;
use std::ptr::NonNull;

use libc::{sockaddr, socklen_t};

use crate::cm::{Id, event_str};
use crate::errno::Errno;
use crate::ffi::{rdma_cm_event, rdma_cm_event_type, rdma_cm_id};
use crate::rsocket::calls;
use crate::sys::verbs::IBV_TRANSPORT_IWARP;

use facts::Facts;
pub use facts::Place;
use line::Line;

/// A call of the program: its name, and what it is about.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    name: &'static str,
    about: About,
    /// The address that it was given, and the length that goes with it.
    address: Option<(*const sockaddr, socklen_t)>,
}

/// Length of an address that is as long as its family says.
pub const WHOLE: socklen_t = socklen_t::MAX;

#[derive(Clone, Copy, Debug)]
enum About {
    Nothing,
    /// Live, or NULL.
    Id(*const rdma_cm_id),
    /// Perhaps gone: its number only.
    Gone(*const rdma_cm_id),
    Socket(c_int),
    /// As that; the address is a datagram's.
    Sending(c_int),
}

impl Call {
    /// About nothing that has a name yet.
    #[inline]
    pub const fn new(name: &'static str) -> Call {
        Call { name, about: About::Nothing, address: None }
    }

    /// About an id: NULL, or live after the call, as the C contract has it for calls that fail.
    #[inline]
    pub const fn id(name: &'static str, id: *mut rdma_cm_id) -> Call {
        Call { name, about: About::Id(id), address: None }
    }

    /// About an id that may have gone with the call.
    #[inline]
    pub const fn gone(name: &'static str, id: *mut rdma_cm_id) -> Call {
        Call { name, about: About::Gone(id), address: None }
    }

    /// About the rsocket of a number, if there is one.
    #[inline]
    pub const fn socket(name: &'static str, fd: c_int) -> Call {
        Call { name, about: About::Socket(fd), address: None }
    }

    /// With an address, of which so many bytes are readable unless it is NULL.
    ///
    /// # Safety
    /// As it says, when the call fails.
    #[inline]
    pub const unsafe fn with(self, address: *const sockaddr, len: socklen_t) -> Call {
        Call { address: Some((address, len)), ..self }
    }

    /// With where a datagram is to go. Of streams it is not looked at: programs give what is no address.
    ///
    /// # Safety
    /// As for [`Call::with`], if the rsocket is one for datagrams.
    #[inline]
    pub const unsafe fn to(self, address: *const sockaddr, len: socklen_t) -> Call {
        match self.about {
            About::Socket(fd) if !address.is_null() => {
                Call { about: About::Sending(fd), address: Some((address, len)), ..self }
            }
            _ => self,
        }
    }

    /// The id or rsocket's addresses and device, and the address that the call was given where those have none.
    fn place(&self) -> Option<Place> {
        let mut place = match self.about {
            About::Nothing | About::Gone(_) => None,
            // SAFETY: the maker of the call vouched for it.
            About::Id(id) => unsafe { Id::from_c(id.cast_mut()).ok().map(Place::of) },
            About::Sending(fd) if !calls::is_datagram(fd) => return calls::place(fd),
            About::Socket(fd) | About::Sending(fd) => calls::place(fd),
        };
        if let Some((address, len)) = self.address
            // SAFETY: the maker's word.
            && let Ok(address) = unsafe { crate::rsocket::address(address, len) }
        {
            let place = place.get_or_insert(Place::NONE);
            match self.about {
                // Wherever it is connected to.
                About::Sending(_) => place.dst = *address.storage(),
                _ => place.add(address.storage(), matches!(self.name, "rdma_bind_addr" | "rbind")),
            }
        }
        place
    }
}

/// A call failed.
#[inline]
pub fn failed(call: &Call, error: Errno) {
    if switch::is_on() {
        say_failed(call, error);
    }
}

#[cold]
#[inline(never)]
fn say_failed(call: &Call, error: Errno) {
    if is_usual(error) && !switch::wants_all() {
        return;
    }
    let before = errno::errno();
    let place = call.place();
    let null = matches!(call.about, About::Id(id) | About::Gone(id) if id.is_null());
    let facts = Facts { null, ..Facts::gather(call.name, error, place.as_ref()) };
    let words = reason::of_call(call.name, error, &facts);
    let mut line = Line::begin(call.name);
    match call.about {
        About::Nothing => {}
        About::Id(id) | About::Gone(id) if id.is_null() => line.push(format_args!(": id NULL")),
        About::Id(id) | About::Gone(id) => line.push(format_args!(": id {id:p}")),
        About::Socket(fd) | About::Sending(fd) => line.push(format_args!(": socket {fd}")),
    }
    line.place(place.as_ref());
    line.push(format_args!(": {error:?}: {words}"));
    sink::write(line.finish());
    errno::set_errno(before);
}

/// A name was not found: `EAI_*` of getaddrinfo(3).
#[cold]
#[inline(never)]
pub fn not_found(name: &'static str, code: c_int) {
    if !switch::is_on() {
        return;
    }
    let before = errno::errno();
    let mut line = Line::begin(name);
    let (code, words) = reason::of_name(code);
    line.push(format_args!(": {code}: {words}"));
    sink::write(line.finish());
    errno::set_errno(before);
}

/// What calls that must not wait return all the time.
fn is_usual(error: Errno) -> bool {
    matches!(error, Errno::EAGAIN | Errno::EINPROGRESS | Errno::EALREADY | Errno::EINTR)
}

/// An event that a program (or an rsocket) has just taken.
#[inline]
pub(crate) fn event(id: &Id, event: &rdma_cm_event) {
    const REMOVAL: u32 = rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL as u32;
    probes::cm_event(id, event.event, event.status);
    if event.status != 0 || event.event == REMOVAL || event.event == rdma_cm_event_type::RDMA_CM_EVENT_REJECTED as u32 {
        event_of(id, event);
    }
}

#[cold]
#[inline(never)]
fn event_of(id: &Id, event: &rdma_cm_event) {
    // A program's own events may carry any status.
    if !switch::is_on() || event.event == rdma_cm_event_type::RDMA_CM_EVENT_USER as u32 {
        return;
    }
    let before = errno::errno();
    let place = Place::of(id);
    let iwarp = id.transport() == Some(IBV_TRANSPORT_IWARP);
    let facts = Facts::of_place(Some(&place));
    let mut line = Line::begin("event");
    line.push(format_args!(": id {:p}", id.as_c()));
    line.place(Some(&place));
    line.push(format_args!(": {}", event_str(event.event).to_str().unwrap_or_default()));
    match event.status {
        0 => {}
        status if status < 0 => line.push(format_args!(" {:?}", Errno::new(status.saturating_neg()))),
        status => line.push(format_args!(" status {status}")),
    }
    line.push(format_args!(": {}", reason::of_event(event.event, event.status, iwarp, &facts)));
    if event.event == rdma_cm_event_type::RDMA_CM_EVENT_REJECTED as u32 && !id.is_ud() {
        // SAFETY: the parameters of an event of a connection, whose private data is as long as they say.
        let said = unsafe {
            let conn = &event.param.conn;
            NonNull::new(conn.private_data.cast_mut().cast::<u8>())
                .map(|data| std::slice::from_raw_parts(data.as_ptr(), usize::from(conn.private_data_len)))
        };
        line.quote("; the peer says", said.unwrap_or_default());
    }
    sink::write(line.finish());
    errno::set_errno(before);
}

/// Something failed in an rsocket while no call was under way, or in one that reports it later.
#[cold]
#[inline(never)]
pub(crate) fn background(id: &Id, error: Errno, why: Why) {
    if !switch::is_on() {
        return;
    }
    let before = errno::errno();
    let place = Place::of(id);
    let facts = Facts::of_place(Some(&place));
    let mut line = Line::begin("rsocket");
    // SAFETY: an id's channel outlives it; its descriptor is the rsocket's.
    if let Some(channel) = unsafe { id.channel().as_ref() } {
        line.push(format_args!(": socket {}", channel.fd));
    }
    line.place(Some(&place));
    line.push(format_args!(": {error:?}: {why}"));
    if let Why::Connecting | Why::Answering = why {
        line.push(format_args!("{}", reason::of_call("rconnect", error, &facts)));
    }
    sink::write(line.finish());
    errno::set_errno(before);
}

/// What an rsocket failed of in the background.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Why {
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
