//! `rdma/rdma_cma.h`: addresses, routes, connections.

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use rdmacm_core::acm::ANSWER_TIMEOUT;
use rdmacm_core::cm::{self, Id};
use rdmacm_core::ffi::{rdma_cm_id, rdma_conn_param};
use rdmacm_core::os::sockaddr::SockAddr;

use crate::args::{bytes, put};
use crate::report::{Call, WHOLE};
use crate::{args, for_id, quick_for_id, quick_status};

/// Binds an id to a local address, and to its device unless the address is a wildcard.
///
/// Port 0 stands for any free port. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe {
        let call = Call::id("rdma_bind_addr", id).with(addr, WHOLE);
        quick_status(call, || cm::bind_addr(Id::from_c(id)?, &args::address(addr)?))
    }
}

/// Resolves a remote address: finds the device, and the transport's addresses of both ends.
///
/// src_addr: local address to use, or NULL. timeout_ms: in milliseconds. Ends in
/// RDMA_CM_EVENT_ADDR_RESOLVED or RDMA_CM_EVENT_ADDR_ERROR. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    src_addr: *mut sockaddr,
    dst_addr: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    quick_status(unsafe { Call::id("rdma_resolve_addr", id).with(dst_addr, WHOLE) }, || {
        // SAFETY: the C contract (crate documentation).
        let (id, src, dst) = unsafe { (Id::from_c(id)?, SockAddr::from_nullable(src_addr)?, args::address(dst_addr)?) };
        cm::resolve_addr(id, src.as_ref(), &dst, timeout_ms)
    })
}

/// Resolves the route to the address that rdma_resolve_addr() has resolved.
///
/// timeout_ms: in milliseconds. Ends in RDMA_CM_EVENT_ROUTE_RESOLVED or RDMA_CM_EVENT_ROUTE_ERROR.
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { quick_for_id("rdma_resolve_route", id, |id| cm::resolve_route(id, timeout_ms, ANSWER_TIMEOUT)) }
}

/// Requests a connection, or for datagrams the number and Q_Key of the peer's QP. The route must be
/// resolved.
///
/// conn_param: NULL, for RDMA_PS_TCP ids with a QP only, stands for the device's maximum of RDMA
/// reads and 7 retries. Ends in RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED,
/// RDMA_CM_EVENT_UNREACHABLE or RDMA_CM_EVENT_CONNECT_ERROR; without a QP on the id,
/// RDMA_CM_EVENT_CONNECT_RESPONSE comes first. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { quick_for_id("rdma_connect", id, |id| cm::connect(id, args::conn_param(conn_param))) }
}

/// Completes a connection after RDMA_CM_EVENT_CONNECT_RESPONSE, for programs that create QPs
/// themselves. The QP must be in the state RTS. Returns 0, or -1 and errno: EINVAL when the id has
/// a QP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { quick_for_id("rdma_establish", id, cm::establish) }
}

/// Listens for connection requests on the address to which the id is bound.
///
/// backlog: maximum number of pending requests. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { quick_for_id("rdma_listen", id, |id| cm::listen(id, backlog)) }
}

/// Waits for the next connection request on a synchronous listening id.
///
/// id: receives a new synchronous id, to be accepted or rejected. It has a QP if the listener was
/// created by rdma_create_ep() with QP attributes. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { for_id("rdma_get_request", listen, |listen| put(id, || Ok(cm::get_request(listen)?.into_c()))) }
}

/// Accepts a connection request.
///
/// id: the id of the request, not the listener. conn_param: NULL for the values that both sides
/// support. Ends in RDMA_CM_EVENT_ESTABLISHED or an error event, except for datagrams. Returns 0,
/// or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { for_id("rdma_accept", id, |id| cm::accept(id, args::conn_param(conn_param))) }
}

/// Rejects a connection request. The peer gets RDMA_CM_EVENT_REJECTED with private_data_len bytes
/// of private_data.
///
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { quick_for_id("rdma_reject", id, |id| cm::reject(id, bytes(private_data, private_data_len.into()))) }
}

/// Like rdma_reject(), with the reason that the enhanced connection establishment options are not
/// acceptable.
///
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe {
        quick_for_id("rdma_reject_ece", id, |id| cm::reject_ece(id, bytes(private_data, private_data_len.into())))
    }
}

/// Ends a connection: the QP moves to the error state, posted work requests are flushed, and both
/// sides get RDMA_CM_EVENT_DISCONNECTED.
///
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { quick_for_id("rdma_disconnect", id, cm::disconnect) }
}
