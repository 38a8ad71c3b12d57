//! Delivery of the kernel's events, with ids that no kernel knows.

use std::mem::zeroed;
use std::ptr::NonNull;

use super::*;
use crate::os::uapi::rdma_ucm_ece;
use crate::verbs::ibv_qp_type;

/// An id. If `handle` is not 0, the program has not accepted the connection of the id yet.
struct Fixture {
    id: Box<Id>,
    handle: u32,
}

impl Fixture {
    fn new(handle: u32) -> Fixture {
        let id = Box::new(Id::new(ptr::null_mut(), 0, ibv_qp_type::IBV_QPT_RC));
        if handle != 0 {
            id::insert_handle(handle, NonNull::from(&*id)).unwrap();
        }
        Fixture { id, handle }
    }

    fn raw(&self, kind: rdma_cm_event_type) -> rdma_ucm_event_resp {
        let uid = if self.handle == 0 { self.id.uid() } else { 0 };
        rdma_ucm_event_resp { uid, id: self.handle, event: kind as u32, ..Default::default() }
    }

    /// Returns number and status of the event that the program sees, if it sees one.
    fn shown(&self, raw: &rdma_ucm_event_resp) -> Option<(u32, c_int)> {
        // SAFETY: zeros are a value of this structure.
        let mut event = Event { raw: *raw, ..unsafe { zeroed() } };
        // SAFETY: the address of the live id, or 0.
        let outcome = unsafe { deliver(&mut event) };
        match outcome {
            // The event does not delay the destruction of its id.
            Outcome::Skip => assert!(self.id.completed.is_done()),
            Outcome::Show => {
                assert!(!self.id.completed.is_done() && event.public.id == self.id.as_c());
                let is_internal = raw.event == RDMA_CM_EVENT_INTERNAL as u32;
                // SAFETY: `decode` wrote this member for an internal event.
                assert!(!is_internal || unsafe { event.public.param.arg } == 0);
                event.complete();
            }
        }
        matches!(outcome, Outcome::Show).then_some((event.public.event, event.public.status))
    }

    fn shown_kind(&self, kind: rdma_cm_event_type) -> Option<u32> {
        self.shown(&self.raw(kind)).map(|(kind, _)| kind)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        id::remove_handle(self.handle, NonNull::from(&*self.id));
    }
}

#[test]
fn before_the_program_accepts_only_established_is_shown() {
    let request = Fixture::new(0x7e57_0001);
    for kind in [
        RDMA_CM_EVENT_CONNECT_ERROR,
        RDMA_CM_EVENT_UNREACHABLE,
        RDMA_CM_EVENT_REJECTED,
        RDMA_CM_EVENT_DISCONNECTED,
        RDMA_CM_EVENT_DEVICE_REMOVAL,
        RDMA_CM_EVENT_TIMEWAIT_EXIT,
    ] {
        assert_eq!(request.shown_kind(kind), None, "{kind:?}");
        assert_eq!(Fixture::new(0).shown_kind(kind), Some(kind as u32), "{kind:?}, accepted");
    }
    assert_eq!(request.shown_kind(RDMA_CM_EVENT_ESTABLISHED), Some(RDMA_CM_EVENT_ESTABLISHED as u32));
}

#[test]
fn unknown_events_are_shown_and_unknown_ids_are_not() {
    let id = Fixture::new(0);
    let raw = rdma_ucm_event_resp { event: 77, status: (-5_i32) as u32, ..id.raw(RDMA_CM_EVENT_USER) };
    assert_eq!(id.shown(&raw), Some((77, -5)));
    let raw = rdma_ucm_event_resp { id: 0x7e57_0002, uid: 0, ..id.raw(RDMA_CM_EVENT_ESTABLISHED) };
    assert_eq!(id.shown(&raw), None);
}

#[test]
fn after_a_failure_that_was_shown_its_consequences_are_not() {
    let id = Fixture::new(0);
    for (has_failed, shown) in [(false, true), (true, false)] {
        id.id.state().connect_failed = has_failed;
        for kind in [RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_DISCONNECTED] {
            assert_eq!(id.shown_kind(kind), shown.then_some(kind as u32));
        }
        assert!(id.shown_kind(RDMA_CM_EVENT_TIMEWAIT_EXIT).is_some());
    }
}

#[test]
fn a_response_without_a_qp_is_the_programs_to_complete() {
    let id = Fixture::new(0);
    id.id.state().local_ece = rdma_ucm_ece { vendor_id: 0x15b3, attr_mod: 1 };
    let mut raw = id.raw(RDMA_CM_EVENT_CONNECT_RESPONSE);
    raw.ece = rdma_ucm_ece { vendor_id: 0x8086, attr_mod: 9 };
    assert_eq!(id.shown(&raw), Some((RDMA_CM_EVENT_CONNECT_RESPONSE as u32, 0)));
    let remote = id.id.state().remote_ece;
    assert_eq!((remote.vendor_id, remote.attr_mod), (0x15b3, 9));
}

#[test]
fn a_message_of_the_library_becomes_its_event() {
    let id = Fixture::new(0);
    let mut raw = id.raw(RDMA_CM_EVENT_INTERNAL);
    for (word, shown) in [
        (RDMA_CM_EVENT_ADDRINFO_RESOLVED as u64, Some(RDMA_CM_EVENT_ADDRINFO_RESOLVED as u32)),
        (RDMA_CM_EVENT_ADDRINFO_ERROR as u64, None),
        (u64::MAX, None),
    ] {
        // SAFETY: the parameters are at least a word long.
        unsafe { (&raw mut raw.param).cast::<u64>().write_unaligned(word) };
        assert_eq!(id.shown(&raw).map(|(kind, _)| kind), shown);
    }
}
