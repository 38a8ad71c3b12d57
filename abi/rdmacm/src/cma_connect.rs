//! `rdma/rdma_cma.h`: addresses, routes, connections.

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use rdmacm_core::cm::{self, Id};
use rdmacm_core::ffi::{rdma_cm_id, rdma_conn_param};

use crate::report::{Call, WHOLE};
use crate::{nn, status};

/// Binds an id to a local address, and to the device that has it unless the address is a wildcard.
///
/// Port 0 stands for any free port. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(unsafe { Call::id("rdma_bind_addr", id).with(addr, WHOLE) }, || unsafe {
        cm::bind_addr(Id::from_c(id)?, nn(addr)?)
    })
}

/// Finds the device and the transport's addresses for the way to a remote address.
///
/// src_addr: local address to use, or NULL. timeout_ms: in milliseconds. Ends in RDMA_CM_EVENT_ADDR_RESOLVED or
/// RDMA_CM_EVENT_ADDR_ERROR. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(unsafe { Call::id("rdma_resolve_addr", id).with(dst_addr, WHOLE) }, || unsafe {
        cm::resolve_addr(Id::from_c(id)?, src_addr, nn(dst_addr)?, timeout_ms)
    })
}

/// Finds the route to the address that rdma_resolve_addr() resolved.
///
/// timeout_ms: in milliseconds. Ends in RDMA_CM_EVENT_ROUTE_RESOLVED or RDMA_CM_EVENT_ROUTE_ERROR.
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_resolve_route", id), || unsafe { cm::resolve_route(Id::from_c(id)?, timeout_ms) })
}

/// Asks the peer for a connection, or (datagrams) for its QP's number and Q_Key. The route must be resolved.
///
/// conn_param: may be NULL for RDMA_PS_TCP ids with a QP: as many RDMA reads as the device can, 7 retries. Ends in
/// RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_UNREACHABLE or RDMA_CM_EVENT_CONNECT_ERROR; without
/// a QP on the id, RDMA_CM_EVENT_CONNECT_RESPONSE comes first. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_connect", id), || unsafe { cm::connect(Id::from_c(id)?, conn_param) })
}

/// Completes a connection after RDMA_CM_EVENT_CONNECT_RESPONSE, for programs that create QPs themselves: the QP must be
/// able to send. Returns 0, or -1 and errno: EINVAL when the id has a QP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_establish", id), || unsafe { cm::establish(Id::from_c(id)?) })
}

/// Listens for connection requests on the address to which the id is bound.
///
/// backlog: how many requests may wait. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_listen", id), || unsafe { cm::listen(Id::from_c(id)?, backlog) })
}

/// Waits for the next connection request on a synchronous listening id.
///
/// id: receives a new synchronous id, to be accepted or rejected, with a QP when the listener came from
/// rdma_create_ep() with QP attributes. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_get_request", listen), || unsafe { cm::get_request(Id::from_c(listen)?, nn(id)?) })
}

/// Accepts a connection request.
///
/// id: that of the request, not the listener. conn_param: NULL for what both sides can do. Ends in
/// RDMA_CM_EVENT_ESTABLISHED or an error event, except for datagrams. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_accept", id), || unsafe { cm::accept(Id::from_c(id)?, conn_param) })
}

/// Refuses a connection request; the peer gets RDMA_CM_EVENT_REJECTED with private_data_len bytes of private_data.
///
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_reject", id), || unsafe { cm::reject(Id::from_c(id)?, private_data, private_data_len) })
}

/// Like rdma_reject(), with the reason that the enhanced connection establishment options don't fit.
///
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_reject_ece", id), || unsafe {
        cm::reject_ece(Id::from_c(id)?, private_data, private_data_len)
    })
}

/// Closes a connection: the QP stops, posted work requests are flushed, both sides get RDMA_CM_EVENT_DISCONNECTED.
///
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_disconnect", id), || unsafe { cm::disconnect(Id::from_c(id)?) })
}
