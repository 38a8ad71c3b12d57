//! Updates the id of an event before the program sees the event (rdma_get_cm_event(3)).

use std::ffi::c_int;
use std::ptr;

use super::{Event, Outcome};
use crate::cm::event::decode;
use crate::cm::id::{Group, Id};
use crate::cm::{channel, connect, id, lookup, owned_id, params, qp, resolve};
use crate::errno::{Errno, Result};
use crate::ffi::rdma_cm_event_type;
use crate::os::cancel::in_call;
use crate::os::uapi::rdma_ucm_event_resp;

use rdma_cm_event_type::*;

/// Fills `event`, which is zero except for the kernel's structure `event.raw`, and updates the id.
/// Returns whether the program gets the event.
///
/// # Safety
/// `event.raw.uid` is 0, or the address of a live group for a multicast event, or the address of a
/// live id for any other event.
pub(super) unsafe fn deliver(event: &mut Event) -> Outcome {
    let raw = &event.raw;
    let kind = rdma_cm_event_type::from_number(raw.event);
    // SAFETY: `uid` is 0 or the address of a live group or id: guaranteed by the caller.
    let Some((id, group)) = (unsafe { subject(raw, kind) }) else { return Outcome::Skip };
    event.public.id = id.as_c();
    event.public.event = raw.event;
    // The status is signed, although the kernel's structure declares it as unsigned.
    event.public.status = raw.status as c_int;
    decode(raw, id.is_ud(), &mut event.public.param);
    event.count_for(&id.completed, group.map(|group| &group.completed));
    let outcome = match kind {
        // Some kernels report events, without `uid`, of a connection that the program has not
        // accepted yet.
        Some(kind) if event.raw.uid == 0 && kind != RDMA_CM_EVENT_ESTABLISHED => Outcome::Skip,
        Some(kind) => act(kind, id, group, event),
        None => Outcome::Show,
    };
    if let Outcome::Skip = outcome {
        event.complete();
    }
    outcome
}

/// Returns the id of an event, and the multicast group if the event is about a group. Returns
/// `None` if the id is unknown.
///
/// # Safety
/// `raw.uid` is as [`deliver`] requires it.
unsafe fn subject<'a>(
    raw: &rdma_ucm_event_resp,
    kind: Option<rdma_cm_event_type>,
) -> Option<(&'a Id, Option<&'a Group>)> {
    let address = raw.uid as usize;
    if address == 0 {
        // SAFETY: ids leave the table before they are freed.
        return id::find_handle(raw.id).map(|id| (unsafe { id.as_ref() }, None));
    }
    if let Some(RDMA_CM_EVENT_MULTICAST_JOIN | RDMA_CM_EVENT_MULTICAST_ERROR) = kind {
        // SAFETY: these events have the address of a group (`multicast::join`).
        let group = unsafe { &*(address as *const Group) };
        return Some((group.id(), Some(group)));
    }
    // SAFETY: all others have the address of an id (`Id::uid`).
    Some((unsafe { &*(address as *const Id) }, None))
}

fn act(kind: rdma_cm_event_type, id: &Id, group: Option<&Group>, event: &mut Event) -> Outcome {
    match kind {
        RDMA_CM_EVENT_ADDR_RESOLVED => event.fail_on_err(resolve::after_addr(id), RDMA_CM_EVENT_ADDR_ERROR),
        RDMA_CM_EVENT_ROUTE_RESOLVED => event.fail_on_err(resolve::after_route(id), RDMA_CM_EVENT_ROUTE_ERROR),
        RDMA_CM_EVENT_CONNECT_REQUEST => return request(id, event),
        RDMA_CM_EVENT_CONNECT_RESPONSE => response(id, event),
        RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_DISCONNECTED if id.state().connect_failed => return Outcome::Skip,
        // Ignore errors: the QP may be gone or broken, and the event tells the program enough.
        RDMA_CM_EVENT_REJECTED => {
            let _qp = id.keep_qp();
            let _ = qp::to_error(id);
        }
        RDMA_CM_EVENT_MULTICAST_JOIN | RDMA_CM_EVENT_MULTICAST_ERROR => membership(kind, group, event),
        RDMA_CM_EVENT_ADDRINFO_RESOLVED => {
            event.fail_on_err(lookup::service_resolved(id), RDMA_CM_EVENT_ADDRINFO_ERROR);
        }
        RDMA_CM_EVENT_ADDRINFO_ERROR => lookup::service_failed(id),
        RDMA_CM_EVENT_INTERNAL => return internal(event),
        _ => {}
    }
    Outcome::Show
}

/// Handles a connection request: creates the id of the connection.
fn request(listener: &Id, event: &mut Event) -> Outcome {
    event.public.listen_id = listener.as_c();
    event.public.id = ptr::null_mut();
    channel::fetch_from_former(listener, event.raw.id);
    // A request that cannot be shown is rejected by the kernel when its kernel id is destroyed.
    let Ok(new) = owned_id::create_for_request(listener, event.raw.id) else { return Outcome::Skip };
    match prepare_request(listener, &new, event) {
        Ok(()) => {
            event.public.id = new.into_c();
            Outcome::Show
        }
        Err(_) => {
            owned_id::discard(new);
            Outcome::Skip
        }
    }
}

fn prepare_request(listener: &Id, new: &Id, event: &Event) -> Result<()> {
    let mut state = new.state();
    if !listener.is_ud() {
        // SAFETY: `decode` wrote this member for a connected id.
        let conn = unsafe { event.public.param.conn };
        state.initiator_depth = conn.initiator_depth;
        state.responder_resources = conn.responder_resources;
    }
    state.remote_ece = event.raw.ece;
    drop(state);
    if listener.is_sync() {
        channel::migrate_id(new, None)?;
    }
    match resolve::after_request(new) {
        // The owner of the listener opens the device later (`open_request_device`).
        Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) if listener.state().defers_devices => {
            new.state().is_incomplete = true;
            Ok(())
        }
        result => result,
    }
}

/// Handles the peer's reply: completes the connection if the id has a QP.
fn response(id: &Id, event: &mut Event) {
    let _qp = id.keep_qp();
    if id.qp().is_null() {
        params::keep_reply(id, event.raw.ece);
        return;
    }
    match in_call(|| connect::complete_response(id, event.raw.ece)) {
        Ok(()) => event.public.event = RDMA_CM_EVENT_ESTABLISHED as u32,
        Err(error) => {
            id.state().connect_failed = true;
            event.fail(error, RDMA_CM_EVENT_CONNECT_ERROR);
        }
    }
}

/// Handles the join or the loss of a group. Sets `private_data` to the program's context of the
/// join.
fn membership(kind: rdma_cm_event_type, group: Option<&Group>, event: &mut Event) {
    let Some(group) = group else { return };
    // SAFETY: `decode` wrote this member: only datagram ids have groups, because the kernel rejects
    // joins of other ids.
    let ud = unsafe { &mut event.public.param.ud };
    ud.private_data = group.context;
    if kind == RDMA_CM_EVENT_MULTICAST_JOIN {
        let _qp = group.id().keep_qp();
        let joined = group.joined(&ud.ah_attr);
        event.fail_on_err(joined, RDMA_CM_EVENT_MULTICAST_ERROR);
    }
}

/// Handles an event that the library has sent to itself. An event with an unknown word is dropped.
fn internal(event: &mut Event) -> Outcome {
    // SAFETY: `decode` wrote this member for an internal event.
    let word = unsafe { event.public.param.arg };
    if word != RDMA_CM_EVENT_ADDRINFO_RESOLVED as u64 {
        return Outcome::Skip;
    }
    event.public.event = RDMA_CM_EVENT_ADDRINFO_RESOLVED as u32;
    event.public.param.arg = 0;
    Outcome::Show
}

impl Event {
    /// Turns the event into `failure` if `result` is an error: the library failed to handle the
    /// event.
    fn fail_on_err(&mut self, result: Result<()>, failure: rdma_cm_event_type) {
        if let Err(error) = result {
            self.fail(error, failure);
        }
    }

    fn fail(&mut self, error: Errno, failure: rdma_cm_event_type) {
        self.public.event = failure as u32;
        self.public.status = -error.get();
    }
}

#[cfg(test)]
#[path = "deliver_tests.rs"]
mod tests;
