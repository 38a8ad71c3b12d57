//! Events: reading them from a channel, converting the kernel's structure, updating their ids,
//! acknowledging them; their names. The operations of synchronous ids end with their event.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, NonNull};

use super::channel::EventChannel;
use super::id::{Completed, Id};
use super::log;
use super::owned_id::{self, OwnedId};
use crate::errno::{Errno, Result};
use crate::ffi::rdma_cm_event_type::{self, *};
use crate::ffi::{rdma_cm_event, rdma_cm_event_param, rdma_conn_param, rdma_ud_param};
use crate::os::alloc::try_uninit;
use crate::os::uapi::{RDMA_MAX_PRIVATE_DATA, rdma_ucm_conn_param, rdma_ucm_event_resp, rdma_ucm_ud_param};
use crate::ucm;
use crate::verbs::fill_ah_attr;

mod deliver;

/// An event: `struct rdma_cm_event`, with what acknowledging it needs, and the kernel's structure
/// with the private data to which it points.
#[repr(C)]
struct Event {
    public: rdma_cm_event,
    /// Where it counts: the id (the listener, for a connection request), and the multicast group if
    /// it is about one.
    counts: [Option<NonNull<Completed>>; 2],
    raw: rdma_ucm_event_resp,
}

/// An event that is not acknowledged yet. It stays so if the value is dropped.
#[derive(Debug)]
#[must_use]
pub struct OwnedEvent(NonNull<Event>);

impl OwnedEvent {
    /// Takes an event back from [`into_c`](Self::into_c); `EINVAL` for NULL.
    ///
    /// # Safety
    /// NULL, or an event that is not acknowledged yet, and that nothing uses from now on.
    pub unsafe fn from_c(event: *mut rdma_cm_event) -> Result<OwnedEvent> {
        // The public structure is the beginning of an `Event`.
        NonNull::new(event.cast::<Event>()).map(OwnedEvent).ok_or(Errno::EINVAL)
    }

    /// Hands the event over to the program, or to the id that keeps it.
    pub fn into_c(self) -> *mut rdma_cm_event {
        self.0.as_ptr().cast()
    }

    /// What the program sees.
    pub fn public(&self) -> &rdma_cm_event {
        // SAFETY: only acknowledging it, which takes `self`, frees an event.
        unsafe { &(*self.0.as_ptr()).public }
    }

    /// The id of the event: of the connection, for a connection request.
    pub(super) fn id(&self) -> Option<&Id> {
        // SAFETY: an id is not destroyed before its events are acknowledged.
        unsafe { Id::from_c(self.public().id).ok() }
    }
}

/// What [`deliver`](deliver::deliver) made of an event.
enum Outcome {
    /// The program gets it.
    Show,
    /// It counts as acknowledged already; wait for the next one.
    Skip,
}

/// rdma_get_cm_event(3). Fails with `EAGAIN` if no event waits on a channel whose descriptor is
/// `O_NONBLOCK`.
pub fn get_cm_event(channel: EventChannel) -> Result<OwnedEvent> {
    // Allocated before the kernel is asked, so that a lack of memory loses no event.
    let mut room = Some(try_uninit::<Event>()?);
    let shown = loop {
        // It was there before the wait, and only a thread that is cancelled takes it.
        let event = room.as_mut().ok_or(Errno::ENOMEM)?.as_mut_ptr();
        // SAFETY: there is room for an event, of whose numbers and pointers zeros are values. The
        // kernel returns the `uid` of ids and groups, which are its owner's until the kernel has
        // ended them.
        let outcome = unsafe {
            event.write_bytes(0, 1);
            let raw = &raw mut (*event).raw;
            let cancelled = |is_lost| {
                lose(&mut *event, is_lost);
                drop(room.take());
            };
            ucm::get_event(channel.fd(), raw, cancelled)?;
            deliver::deliver(&mut *event)
        };
        if let Outcome::Show = outcome
            && let Some(new) = room.take()
        {
            break OwnedEvent(NonNull::from(Box::leak(new)).cast());
        }
    };
    if let Some(id) = shown.id() {
        log::event(id, shown.public());
    }
    Ok(shown)
}

/// The thread was cancelled. If an event that the kernel had handed over is lost, it counts as
/// acknowledged, or destroying its id would wait for it. A connection request is rejected.
///
/// # Safety
/// As [`deliver`](deliver::deliver).
unsafe fn lose(event: &mut Event, is_lost: bool) {
    // SAFETY: guaranteed by the caller.
    if is_lost && let Outcome::Show = unsafe { deliver::deliver(event) } {
        if event.public.event == rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST as u32 {
            // SAFETY: the new id, which nobody knows.
            unsafe { OwnedId::from_c(event.public.id) }.into_iter().for_each(owned_id::discard);
        }
        event.complete();
    }
}

/// rdma_ack_cm_event(3): frees the event and lets its id be destroyed.
pub fn ack_cm_event(event: OwnedEvent) {
    // SAFETY: from Box::leak in `get_cm_event`, and nothing else uses the event (`from_c`).
    let event = unsafe { Box::from_raw(event.0.as_ptr()) };
    event.complete();
}

impl Event {
    /// Sets where it counts.
    fn count_for(&mut self, id: &Completed, group: Option<&Completed>) {
        self.counts = [Some(NonNull::from(id)), group.map(NonNull::from)];
        id.give();
    }

    /// Counts it as done. The group comes first: its id may go as soon as the id's count is
    /// complete.
    fn complete(&self) {
        let [id, group] = self.counts;
        // SAFETY: ids and groups wait for their counts before they go.
        unsafe {
            group.inspect(|group| group.as_ref().complete());
            id.inspect(|id| id.as_ref().complete());
        }
    }
}

/// Whether the event that a synchronous id keeps is the failure of the join that counts with
/// `group`. It may be about another group, which was lost in the meantime.
pub(super) fn keeps_failed_join(id: &Id, group: &Completed) -> bool {
    let Some(event) = NonNull::new(id.event().cast::<Event>()) else { return false };
    // SAFETY: the library keeps events of its own in ids, and they are live as long as they are
    // there.
    let event = unsafe { event.as_ref() };
    event.public.event == rdma_cm_event_type::RDMA_CM_EVENT_MULTICAST_ERROR as u32
        && event.counts[1] == Some(NonNull::from(group))
}

/// The event that a synchronous id keeps no longer counts for its multicast group, which is about
/// to be freed.
pub(super) fn forget_group(id: &Id) {
    let Some(event) = NonNull::new(id.event().cast::<Event>()) else { return };
    // SAFETY: as in `keeps_failed_join`; the field is the library's alone.
    unsafe { (*event.as_ptr()).counts[1] = None };
}

/// rdma_write_cm_event(3): queues RDMA_CM_EVENT_USER with a word of the program; `EINVAL` for other
/// events.
pub fn write_cm_event(id: &Id, event: u32, status: c_int, arg: u64) -> Result<()> {
    if event != rdma_cm_event_type::RDMA_CM_EVENT_USER as u32 {
        return Err(Errno::EINVAL);
    }
    ucm::write_cm_event(id.fd(), id.handle(), event, status as u32, arg)
}

macro_rules! names {
    ($($event:ident)*) => {
        /// rdma_event_str(3): the enumerator's name; "UNKNOWN EVENT" for numbers that no program
        /// sees.
        pub fn event_str(event: u32) -> &'static CStr {
            $(
                if event == $event as u32 {
                    const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($event), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    };
                    return NAME;
                }
            )*
            c"UNKNOWN EVENT"
        }
    };
}

// USER and INTERNAL have no name in the reference either.
names! {
    RDMA_CM_EVENT_ADDR_RESOLVED RDMA_CM_EVENT_ADDR_ERROR RDMA_CM_EVENT_ROUTE_RESOLVED RDMA_CM_EVENT_ROUTE_ERROR
    RDMA_CM_EVENT_CONNECT_REQUEST RDMA_CM_EVENT_CONNECT_RESPONSE RDMA_CM_EVENT_CONNECT_ERROR
    RDMA_CM_EVENT_UNREACHABLE RDMA_CM_EVENT_REJECTED RDMA_CM_EVENT_ESTABLISHED RDMA_CM_EVENT_DISCONNECTED
    RDMA_CM_EVENT_DEVICE_REMOVAL RDMA_CM_EVENT_MULTICAST_JOIN RDMA_CM_EVENT_MULTICAST_ERROR RDMA_CM_EVENT_ADDR_CHANGE
    RDMA_CM_EVENT_TIMEWAIT_EXIT RDMA_CM_EVENT_ADDRINFO_RESOLVED RDMA_CM_EVENT_ADDRINFO_ERROR
}

/// The type of an event's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of a connection.
    Connected,
    /// Of a datagram id, or about a multicast group.
    Datagram,
    /// A number: user and internal events.
    Word,
}

impl Kind {
    /// By the event's number, and whether its id is for datagrams.
    pub fn of(event: u32, datagrams: bool) -> Kind {
        const USER: u32 = rdma_cm_event_type::RDMA_CM_EVENT_USER as u32;
        const INTERNAL: u32 = rdma_cm_event_type::RDMA_CM_EVENT_INTERNAL as u32;
        match event {
            USER | INTERNAL => Kind::Word,
            _ if datagrams => Kind::Datagram,
            _ => Kind::Connected,
        }
    }
}

/// Sets the parameters of `raw` in `param`, all bytes of which are zero. They point to the private
/// data in `raw`.
pub fn decode(raw: &rdma_ucm_event_resp, kind: Kind, param: &mut rdma_cm_event_param) {
    // SAFETY: zeros are a value of `param`, whose members are numbers and pointers, and any bytes
    // are one of `raw.param`, whose members are numbers.
    unsafe {
        match kind {
            Kind::Connected => connected(&raw.param.conn, &mut param.conn),
            Kind::Datagram => datagram(&raw.param.ud, &mut param.ud),
            Kind::Word => param.arg = (&raw const raw.param).cast::<u64>().read_unaligned(),
        }
    }
}

/// The event's status: the kernel's number is signed.
pub fn status(raw: &rdma_ucm_event_resp) -> c_int {
    raw.status as c_int
}

fn connected(kernel: &rdma_ucm_conn_param, param: &mut rdma_conn_param) {
    param.private_data = private_data(&kernel.private_data, kernel.private_data_len);
    param.private_data_len = kernel.private_data_len;
    param.responder_resources = kernel.responder_resources;
    param.initiator_depth = kernel.initiator_depth;
    param.flow_control = kernel.flow_control;
    param.retry_count = kernel.retry_count;
    param.rnr_retry_count = kernel.rnr_retry_count;
    param.srq = kernel.srq;
    param.qp_num = kernel.qp_num;
}

fn datagram(kernel: &rdma_ucm_ud_param, param: &mut rdma_ud_param) {
    param.private_data = private_data(&kernel.private_data, kernel.private_data_len);
    param.private_data_len = kernel.private_data_len;
    fill_ah_attr(&mut param.ah_attr, &kernel.ah_attr);
    param.qp_num = kernel.qp_num;
    param.qkey = kernel.qkey;
}

/// The address of private data; NULL if there is none. Its length has eight bits, and fits.
fn private_data(data: &[u8; RDMA_MAX_PRIVATE_DATA as usize], len: u8) -> *const c_void {
    if len == 0 { ptr::null() } else { data.as_ptr().cast() }
}

impl Id {
    /// A call that is about to start an operation.
    pub(super) fn operation(&self) -> Operation<'_> {
        Operation(self.is_sync().then_some(self))
    }

    /// For synchronous ids: waits for the event, leaves it in `event` and turns its status into an
    /// errno.
    fn wait_for_event(&self) -> Result<()> {
        self.drop_event();
        // SAFETY: a synchronous id owns its channel.
        let channel = unsafe { EventChannel::from_c(self.channel()) }.ok_or(Errno::EINVAL)?;
        let event = get_cm_event(channel)?;
        let result = event_result(event.public());
        self.set_event(event.into_c());
        result
    }

    /// Acknowledges the event of the last synchronous call.
    pub(super) fn drop_event(&self) {
        // SAFETY: the event of a synchronous id is the library's: nobody else acknowledges it.
        if let Ok(event) = unsafe { OwnedEvent::from_c(self.event()) } {
            self.set_event(ptr::null_mut());
            ack_cm_event(event);
        }
    }
}

/// A call that starts an operation in the kernel. Created before the kernel is told: from then on
/// the thread that reads the events of an asynchronous id may destroy the id, which must not be
/// used any more.
#[must_use]
pub(super) struct Operation<'a>(Option<&'a Id>);

impl Operation<'_> {
    /// Ends the call: immediately for an asynchronous id, with its event for a synchronous one.
    pub(super) fn complete(self) -> Result<()> {
        self.0.map_or(Ok(()), Id::wait_for_event)
    }

    /// Ends a call after which no event comes.
    pub(super) fn drop_event(self) {
        if let Some(id) = self.0 {
            id.drop_event();
        }
    }
}

/// The result of a synchronous call that ended with `event`.
pub(super) fn event_result(event: &rdma_cm_event) -> Result<()> {
    match event.status {
        _ if event.event == rdma_cm_event_type::RDMA_CM_EVENT_REJECTED as u32 => Err(Errno::ECONNREFUSED),
        0 => Ok(()),
        status => Err(Errno::new(status.saturating_abs())),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::zeroed;

    use super::*;

    #[test]
    fn names_of_the_enumerators() {
        assert_eq!(event_str(0), c"RDMA_CM_EVENT_ADDR_RESOLVED");
        assert_eq!(event_str(17), c"RDMA_CM_EVENT_ADDRINFO_ERROR");
        for unknown in [18, 19, 20, u32::MAX] {
            assert_eq!(event_str(unknown), c"UNKNOWN EVENT");
        }
    }

    fn raw(event: u32) -> rdma_ucm_event_resp {
        rdma_ucm_event_resp { event, status: (-libc::ETIMEDOUT) as u32, ..Default::default() }
    }

    fn parameters(raw: &rdma_ucm_event_resp, kind: Kind) -> rdma_cm_event_param {
        // SAFETY: zeros are a value of the union.
        let mut param = unsafe { std::mem::zeroed() };
        decode(raw, kind, &mut param);
        param
    }

    #[test]
    fn connection_parameters_with_private_data() {
        let mut event = raw(4);
        event.param.conn = rdma_ucm_conn_param {
            private_data_len: 3,
            responder_resources: 2,
            initiator_depth: 5,
            qp_num: 17,
            ..Default::default()
        };
        // SAFETY: the member that was just set.
        unsafe { event.param.conn.private_data[..4].copy_from_slice(b"abcd") };
        let param = parameters(&event, Kind::of(4, false));
        // SAFETY: a connected id's parameters.
        let conn = unsafe { param.conn };
        assert_eq!((conn.private_data_len, conn.responder_resources, conn.initiator_depth, conn.qp_num), (3, 2, 5, 17));
        // SAFETY: as above.
        assert_eq!(conn.private_data, unsafe { event.param.conn.private_data.as_ptr() }.cast());
        assert_eq!(status(&event), -libc::ETIMEDOUT);
    }

    #[test]
    fn no_private_data_is_null() {
        // SAFETY: a connected id's parameters.
        assert!(unsafe { parameters(&raw(9), Kind::Connected).conn }.private_data.is_null());
    }

    #[test]
    fn longest_private_data() {
        let mut event = raw(9);
        event.param.ud = rdma_ucm_ud_param { private_data: [7; 256], private_data_len: 255, ..Default::default() };
        // SAFETY: a datagram id's parameters, which point to as many bytes.
        unsafe {
            let ud = parameters(&event, Kind::of(9, true)).ud;
            assert_eq!(std::slice::from_raw_parts(ud.private_data.cast::<u8>(), ud.private_data_len.into()), [7; 255]);
        }
    }

    #[test]
    fn word_of_a_user_event() {
        let mut event = raw(18);
        // SAFETY: the parameters are at least a word long.
        unsafe { (&raw mut event.param).cast::<u64>().write_unaligned(0x0123_4567_89ab_cdef) };
        let param = parameters(&event, Kind::of(18, true));
        // SAFETY: a user event's parameters.
        assert_eq!(unsafe { param.arg }, 0x0123_4567_89ab_cdef);
    }

    #[test]
    fn status_to_errno() {
        // SAFETY: all zeros are a value of this structure.
        let mut event: rdma_cm_event = unsafe { zeroed() };
        assert_eq!(event_result(&event), Ok(()));
        event.status = -libc::ETIMEDOUT;
        assert_eq!(event_result(&event), Err(Errno::ETIMEDOUT));
        event.status = 28;
        assert_eq!(event_result(&event), Err(Errno::new(28)));
        event.event = rdma_cm_event_type::RDMA_CM_EVENT_REJECTED as u32;
        assert_eq!(event_result(&event), Err(Errno::ECONNREFUSED));
    }
}
