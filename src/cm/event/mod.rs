//! Reads events from a channel, converts the kernel's structure, updates the events' ids,
//! acknowledges events, and names them. An operation of a synchronous id waits for its event.

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

/// An event: `struct rdma_cm_event`, the counts that acknowledging the event updates, and the
/// kernel's structure, which contains the private data that `public` points to.
#[repr(C)]
struct Event {
    public: rdma_cm_event,
    /// The counts that include the event: the count of the id (for a connection request, of the
    /// listener), and for a multicast event, the count of the group.
    counts: [Option<NonNull<Completed>>; 2],
    raw: rdma_ucm_event_resp,
}

/// An event that is not acknowledged yet. Dropping the value does not acknowledge the event.
#[derive(Debug)]
#[must_use]
pub struct OwnedEvent(NonNull<Event>);

impl OwnedEvent {
    /// Takes back an event from [`into_c`](Self::into_c).
    ///
    /// # Errors
    /// Fails with `EINVAL` for NULL.
    ///
    /// # Safety
    /// `event` is NULL, or an event that is not acknowledged yet and that nothing uses from now on.
    pub unsafe fn from_c(event: *mut rdma_cm_event) -> Result<OwnedEvent> {
        // The public structure is the beginning of an `Event`.
        NonNull::new(event.cast::<Event>()).map(OwnedEvent).ok_or(Errno::EINVAL)
    }

    /// Hands the event over to the program, or to the id that keeps it.
    pub fn into_c(self) -> *mut rdma_cm_event {
        self.0.as_ptr().cast()
    }

    /// Returns the structure that the program sees.
    pub fn public(&self) -> &rdma_cm_event {
        // SAFETY: only acknowledging the event, which takes `self`, frees it.
        unsafe { &(*self.0.as_ptr()).public }
    }

    /// Returns the id of the event: for a connection request, the id of the connection.
    pub(super) fn id(&self) -> Option<&Id> {
        // SAFETY: an id is not destroyed before its events are acknowledged.
        unsafe { Id::from_c(self.public().id).ok() }
    }
}

/// The result of [`deliver`](deliver::deliver).
enum Outcome {
    /// The program gets the event.
    Show,
    /// The event counts as acknowledged already. Wait for the next event.
    Skip,
}

/// Implements rdma_get_cm_event(3).
///
/// # Errors
/// Fails with `EAGAIN` if no event is pending on a channel whose descriptor is `O_NONBLOCK`.
pub fn get_cm_event(channel: EventChannel) -> Result<OwnedEvent> {
    // Allocate the event before it is read from the kernel, so that a lack of memory loses no
    // event.
    let mut room = Some(try_uninit::<Event>()?);
    let shown = loop {
        // `room` is not empty here: only the thread's cancellation during the wait empties it.
        let event = room.as_mut().ok_or(Errno::ENOMEM)?.as_mut_ptr();
        // SAFETY: `event` points to room for an event, of whose numbers and pointers zeros are
        // values. `uid` is the address of an id or a group, which is not freed until the kernel has
        // ended it.
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

/// Called when the thread is cancelled. If `is_lost`, the kernel has handed over an event that the
/// program will not get: the event is completed, so that destroying the id does not wait for the
/// event. A lost connection request is rejected.
///
/// # Safety
/// If `is_lost`, `event` is as [`deliver`](deliver::deliver) requires it.
unsafe fn lose(event: &mut Event, is_lost: bool) {
    // SAFETY: `event` is as `deliver` requires it: guaranteed by the caller.
    if is_lost && let Outcome::Show = unsafe { deliver::deliver(event) } {
        if event.public.event == RDMA_CM_EVENT_CONNECT_REQUEST as u32 {
            // SAFETY: the id is new, and nobody knows it.
            unsafe { OwnedId::from_c(event.public.id) }.into_iter().for_each(owned_id::discard);
        }
        event.complete();
    }
}

/// Implements rdma_ack_cm_event(3): frees the event and lets its id be destroyed.
pub fn ack_cm_event(event: OwnedEvent) {
    // SAFETY: from Box::leak in `get_cm_event`, and nothing else uses the event (`from_c`).
    let event = unsafe { Box::from_raw(event.0.as_ptr()) };
    event.complete();
}

impl Event {
    /// Counts the event as read for its id. Remembers the counters of the id and of the group,
    /// which [`complete`](Self::complete) increments.
    fn count_for(&mut self, id: &Completed, group: Option<&Completed>) {
        self.counts = [Some(NonNull::from(id)), group.map(NonNull::from)];
        id.give();
    }

    /// Counts the event as completed. The group's count comes first: as soon as the id's count is
    /// complete, the id and its groups may be freed.
    fn complete(&self) {
        let [id, group] = self.counts;
        // SAFETY: ids and groups wait for their counts before they are freed.
        unsafe {
            group.inspect(|group| group.as_ref().complete());
            id.inspect(|id| id.as_ref().complete());
        }
    }
}

/// Returns whether the event that a synchronous id keeps reports that the join of the group with
/// the count `group` failed. Instead, the kept event may report the loss of another group.
pub(super) fn keeps_failed_join(id: &Id, group: &Completed) -> bool {
    let Some(event) = NonNull::new(id.event().cast::<Event>()) else { return false };
    // SAFETY: the event that an id keeps is from `get_cm_event`, and is live as long as the id
    // keeps it.
    let event = unsafe { event.as_ref() };
    event.public.event == RDMA_CM_EVENT_MULTICAST_ERROR as u32 && event.counts[1] == Some(NonNull::from(group))
}

/// Removes the multicast group, which is about to be freed, from the counts of the event that a
/// synchronous id keeps.
pub(super) fn forget_group(id: &Id) {
    let Some(event) = NonNull::new(id.event().cast::<Event>()) else { return };
    // SAFETY: the event is live as long as the id keeps it, and only the library uses `counts`.
    unsafe { (*event.as_ptr()).counts[1] = None };
}

/// Implements rdma_write_cm_event(3): queues RDMA_CM_EVENT_USER with the program's value `arg`.
///
/// # Errors
/// Fails with `EINVAL` if `event` is not RDMA_CM_EVENT_USER.
pub fn write_cm_event(id: &Id, event: u32, status: c_int, arg: u64) -> Result<()> {
    if event != RDMA_CM_EVENT_USER as u32 {
        return Err(Errno::EINVAL);
    }
    ucm::write_cm_event(id.fd(), id.handle(), event, status as u32, arg)
}

macro_rules! names {
    ($($event:ident)*) => {
        /// Implements rdma_event_str(3). Returns the enumerator's name, or "UNKNOWN EVENT" for a
        /// number that has no name here.
        pub fn event_str(event: u32) -> &'static CStr {
            $(
                if event == $event as u32 {
                    return CStr::from_bytes_with_nul(concat!(stringify!($event), "\0").as_bytes()).unwrap_or_default();
                }
            )*
            c"UNKNOWN EVENT"
        }
    };
}

// rdma-core has no names for USER and INTERNAL either.
names! {
    RDMA_CM_EVENT_ADDR_RESOLVED RDMA_CM_EVENT_ADDR_ERROR RDMA_CM_EVENT_ROUTE_RESOLVED RDMA_CM_EVENT_ROUTE_ERROR
    RDMA_CM_EVENT_CONNECT_REQUEST RDMA_CM_EVENT_CONNECT_RESPONSE RDMA_CM_EVENT_CONNECT_ERROR
    RDMA_CM_EVENT_UNREACHABLE RDMA_CM_EVENT_REJECTED RDMA_CM_EVENT_ESTABLISHED RDMA_CM_EVENT_DISCONNECTED
    RDMA_CM_EVENT_DEVICE_REMOVAL RDMA_CM_EVENT_MULTICAST_JOIN RDMA_CM_EVENT_MULTICAST_ERROR RDMA_CM_EVENT_ADDR_CHANGE
    RDMA_CM_EVENT_TIMEWAIT_EXIT RDMA_CM_EVENT_ADDRINFO_RESOLVED RDMA_CM_EVENT_ADDRINFO_ERROR
}

/// Copies the parameters of `raw` to `param`, all bytes of which are zero: `arg` of a user event or
/// internal event, `ud` if the id of the event is for datagrams, otherwise `conn`. `param` then
/// points to the private data in `raw`.
pub fn decode(raw: &rdma_ucm_event_resp, datagrams: bool, param: &mut rdma_cm_event_param) {
    // SAFETY: zeros are a value of `param`, whose members are numbers and pointers. Any bytes are a
    // value of `raw.param`, whose members are numbers.
    unsafe {
        match rdma_cm_event_type::from_number(raw.event) {
            Some(RDMA_CM_EVENT_USER | RDMA_CM_EVENT_INTERNAL) => {
                param.arg = (&raw const raw.param).cast::<u64>().read_unaligned();
            }
            _ if datagrams => datagram(&raw.param.ud, &mut param.ud),
            _ => connected(&raw.param.conn, &mut param.conn),
        }
    }
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

/// Returns the address of the private data, or NULL if there is none. `len` has eight bits, and so
/// never exceeds the array.
fn private_data(data: &[u8; RDMA_MAX_PRIVATE_DATA as usize], len: u8) -> *const c_void {
    if len == 0 { ptr::null() } else { data.as_ptr().cast() }
}

impl Id {
    /// Prepares a call that is about to start an operation in the kernel.
    pub(super) fn operation(&self) -> Operation<'_> {
        Operation(self.is_sync().then_some(self))
    }

    /// Waits for the event of a synchronous id, keeps it in the field `event`, and converts its
    /// status to an errno.
    fn wait_for_event(&self) -> Result<()> {
        let event = self.next_event()?;
        let result = event_result(event.public());
        self.set_event(event.into_c());
        result
    }

    /// Acknowledges the event that a synchronous id keeps, and waits for the id's next event.
    pub(super) fn next_event(&self) -> Result<OwnedEvent> {
        self.drop_event();
        // SAFETY: a synchronous id owns its channel, which lives as long as the id.
        let channel = unsafe { EventChannel::from_c(self.channel()) }.ok_or(Errno::EINVAL)?;
        get_cm_event(channel)
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

/// A call that starts an operation in the kernel. The value is created before the system call:
/// after the system call, the thread that reads the events of an asynchronous id may destroy the
/// id, so the caller must not use the id any more.
#[must_use]
pub(super) struct Operation<'a>(Option<&'a Id>);

impl Operation<'_> {
    /// Ends the call. For a synchronous id, waits for the event and returns its result.
    pub(super) fn complete(self) -> Result<()> {
        self.0.map_or(Ok(()), Id::wait_for_event)
    }

    /// Ends a call after which no event follows.
    pub(super) fn drop_event(self) {
        if let Some(id) = self.0 {
            id.drop_event();
        }
    }
}

/// Returns the result of a synchronous call that ended with `event`; `ECONNREFUSED` for REJECTED.
pub(super) fn event_result(event: &rdma_cm_event) -> Result<()> {
    match event.status {
        _ if event.event == RDMA_CM_EVENT_REJECTED as u32 => Err(Errno::ECONNREFUSED),
        0 => Ok(()),
        status => Err(Errno::new(status.saturating_abs())),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::zeroed;

    use super::*;

    /// The kernel would accept an internal event.
    #[test]
    fn programs_may_write_user_events_only() {
        let id = Id::new(std::ptr::null_mut(), 0, crate::verbs::ibv_qp_type::IBV_QPT_RC);
        for kind in [0, RDMA_CM_EVENT_INTERNAL as u32, u32::MAX] {
            assert_eq!(write_cm_event(&id, kind, 0, 0), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn names_of_the_enumerators() {
        assert_eq!(event_str(0), c"RDMA_CM_EVENT_ADDR_RESOLVED");
        assert_eq!(event_str(17), c"RDMA_CM_EVENT_ADDRINFO_ERROR");
        for unknown in [18, 19, 20, u32::MAX] {
            assert_eq!(event_str(unknown), c"UNKNOWN EVENT");
        }
    }

    fn raw(event: u32) -> rdma_ucm_event_resp {
        rdma_ucm_event_resp { event, ..Default::default() }
    }

    fn parameters(raw: &rdma_ucm_event_resp, datagrams: bool) -> rdma_cm_event_param {
        // SAFETY: zeros are a value of the union.
        let mut param = unsafe { std::mem::zeroed() };
        decode(raw, datagrams, &mut param);
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
        let param = parameters(&event, false);
        // SAFETY: a connected id's parameters.
        let conn = unsafe { param.conn };
        assert_eq!((conn.private_data_len, conn.responder_resources, conn.initiator_depth, conn.qp_num), (3, 2, 5, 17));
        // SAFETY: the member that was set above.
        assert_eq!(conn.private_data, unsafe { event.param.conn.private_data.as_ptr() }.cast());
    }

    #[test]
    fn no_private_data_is_null() {
        // SAFETY: a connected id's parameters.
        assert!(unsafe { parameters(&raw(9), false).conn }.private_data.is_null());
    }

    #[test]
    fn longest_private_data() {
        let mut event = raw(9);
        event.param.ud = rdma_ucm_ud_param { private_data: [7; 256], private_data_len: 255, ..Default::default() };
        // SAFETY: a datagram id's parameters, which point to `private_data_len` bytes.
        unsafe {
            let ud = parameters(&event, true).ud;
            assert_eq!(std::slice::from_raw_parts(ud.private_data.cast::<u8>(), ud.private_data_len.into()), [7; 255]);
        }
    }

    #[test]
    fn word_of_a_user_event() {
        let mut event = raw(18);
        // SAFETY: the parameters are at least a word long.
        unsafe { (&raw mut event.param).cast::<u64>().write_unaligned(0x0123_4567_89ab_cdef) };
        let param = parameters(&event, true);
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
        event.event = RDMA_CM_EVENT_REJECTED as u32;
        assert_eq!(event_result(&event), Err(Errno::ECONNREFUSED));
    }
}
