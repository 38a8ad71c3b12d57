//! Log lines about ids: collects the properties that [`diag`] reports.

use std::ffi::CStr;
use std::ptr::NonNull;
use std::slice;

use super::event::event_str;
use super::id::Id;
use crate::diag::{self, BadEvent, Cause, Endpoints, Path, probes};
use crate::errno::Errno;
use crate::ffi::rdma_cm_event_type::{self, *};
use crate::ffi::{ibv_sa_path_rec, rdma_cm_event};
use crate::verbs::IBV_TRANSPORT_IWARP;

/// Returns the addresses and the device of an id.
pub fn endpoints(id: &Id) -> Endpoints {
    // SAFETY: the context of an id is NULL, or open as long as the id is bound.
    let device: &[u8] = match unsafe { id.verbs().as_ref() } {
        // SAFETY: an open context has a device, whose name is a C string.
        Some(context) => unsafe { CStr::from_ptr((*context.device).name.as_ptr()) }.to_bytes(),
        None => &[],
    };
    Endpoints::new(id.source(), id.destination(), device, id.port_num())
}

/// Logs a failure on an rsocket's id that occurred outside of the program's calls.
#[cold]
pub fn background(id: &Id, error: Errno, cause: Cause) {
    // SAFETY: the channel of an id is NULL or outlives the id.
    let fd = unsafe { id.channel().as_ref() }.map(|channel| channel.fd);
    diag::background(fd, &endpoints(id), error, cause);
}

/// Logs an event if it reports a failure, a reject or the removal of a device. If connections are
/// logged, also logs all other events except USER.
#[inline]
pub(super) fn event(id: &Id, event: &rdma_cm_event) {
    const REMOVAL: u32 = RDMA_CM_EVENT_DEVICE_REMOVAL as u32;
    const REJECTED: u32 = RDMA_CM_EVENT_REJECTED as u32;
    probes::cm_event(id.as_c(), event.event, event.status);
    if event.status != 0 || matches!(event.event, REMOVAL | REJECTED) {
        bad_event(id, event, event.event == REJECTED);
    } else if diag::shows_connections() {
        good_event(id, event);
    }
}

#[cold]
#[inline(never)]
fn good_event(id: &Id, event: &rdma_cm_event) {
    let path = match rdma_cm_event_type::from_number(event.event) {
        Some(RDMA_CM_EVENT_USER) => return,
        // These are the first events with a path: at the connecting end, and at the accepting end.
        Some(RDMA_CM_EVENT_ROUTE_RESOLVED | RDMA_CM_EVENT_CONNECT_REQUEST) => Some(path(id)),
        _ => None,
    };
    let name = event_str(event.event).to_str().unwrap_or_default();
    diag::good_event(id.as_c(), name, path, &endpoints(id));
}

fn path(id: &Id) -> Path {
    // SAFETY: the addresses are plain fields of a live structure, and any bytes are a value of
    // `ibaddr`.
    let ib = unsafe { (*id.addr()).addr.ibaddr };
    // The MTU is an enum ibv_mtu: 1 is 256 bytes.
    let mtu = |path: ibv_sa_path_rec| 128_u32 << path.mtu.min(5);
    // SAFETY: any bytes are a value of the GIDs.
    let gids = unsafe { [ib.sgid.raw, ib.dgid.raw] };
    let record = id.first_path();
    let pkey = record.map_or(ib.pkey, |path| path.pkey);
    Path { gids, pkey: u16::from_be(pkey), mtu_and_sl: record.map(|path| (mtu(path), path.sl)) }
}

#[cold]
#[inline(never)]
fn bad_event(id: &Id, event: &rdma_cm_event, rejected: bool) {
    // The events of rdma_write_cm_event(3) may have any status.
    if !diag::is_on() || event.event == RDMA_CM_EVENT_USER as u32 {
        return;
    }
    let private_data = (rejected && !id.is_ud()).then(|| {
        // SAFETY: an event of a connected id has `conn` parameters, and private data of the length
        // in them.
        unsafe {
            let conn = &event.param.conn;
            NonNull::new(conn.private_data.cast_mut().cast::<u8>())
                .map(|data| slice::from_raw_parts(data.as_ptr(), usize::from(conn.private_data_len)))
        }
    });
    let bad = BadEvent {
        id: id.as_c(),
        kind: event.event,
        name: event_str(event.event).to_str().unwrap_or_default(),
        status: event.status,
        iwarp: id.transport() == Some(IBV_TRANSPORT_IWARP),
        private_data: private_data.flatten().unwrap_or_default(),
    };
    diag::bad_event(&bad, &endpoints(id));
}
