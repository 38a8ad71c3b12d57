//! Log lines about ids: collects what [`diag`] needs to know of them.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::slice;

use super::event::event_str;
use super::id::Id;
use crate::diag::{self, BadEvent, Place, Why, probes};
use crate::errno::Errno;
use crate::ffi::{rdma_cm_event, rdma_cm_event_type};
use crate::sys::verbs::IBV_TRANSPORT_IWARP;

/// Addresses and device of an id.
pub fn place(id: &Id) -> Place {
    // SAFETY: the route of a live id; an open context has a device, whose name is a C string.
    unsafe {
        let addr = &*id.addr();
        let device: &[u8] = match id.verbs().as_ref() {
            Some(context) => CStr::from_ptr((*context.device).name.as_ptr()).to_bytes(),
            None => &[],
        };
        Place::new(addr.src.src_storage, addr.dst.dst_storage, device, id.port_num())
    }
}

/// Logs a failure of an rsocket's id for which no call was under way.
#[cold]
pub fn background(id: &Id, error: Errno, why: Why) {
    // SAFETY: an id's channel outlives it.
    let fd = unsafe { id.channel().as_ref() }.map(|channel| channel.fd);
    diag::background(fd, &place(id), error, why);
}

/// Logs an event that was read, if it reports a failure or a removal.
#[inline]
pub(super) fn event(id: &Id, event: &rdma_cm_event) {
    const REMOVAL: u32 = rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL as u32;
    const REJECTED: u32 = rdma_cm_event_type::RDMA_CM_EVENT_REJECTED as u32;
    probes::cm_event(id.as_c(), event.event, event.status);
    if event.status != 0 || matches!(event.event, REMOVAL | REJECTED) {
        bad_event(id, event, event.event == REJECTED);
    }
}

#[cold]
#[inline(never)]
fn bad_event(id: &Id, event: &rdma_cm_event, rejected: bool) {
    // The program's own events may have any status.
    if !diag::is_on() || event.event == rdma_cm_event_type::RDMA_CM_EVENT_USER as u32 {
        return;
    }
    let private_data = if rejected && !id.is_ud() {
        // SAFETY: an event of a connection has these parameters; its private data is as long as
        // they say.
        unsafe {
            let conn = &event.param.conn;
            NonNull::new(conn.private_data.cast_mut().cast::<u8>())
                .map(|data| slice::from_raw_parts(data.as_ptr(), usize::from(conn.private_data_len)))
        }
    } else {
        None
    };
    let bad = BadEvent {
        id: id.as_c(),
        kind: event.event,
        name: event_str(event.event).to_str().unwrap_or_default(),
        status: event.status,
        iwarp: id.transport() == Some(IBV_TRANSPORT_IWARP),
        private_data: private_data.unwrap_or_default(),
    };
    diag::bad_event(&bad, &place(id));
}
