//! `rdma/rdma_cma.h`: ids and endpoints, and what is asked of or set on them.

use std::ffi::{c_int, c_void};

use libc::size_t;
use rdmacm_core::cm::{self, Id};
use rdmacm_core::ffi::verbs::{ibv_ece, ibv_event_type_t, ibv_pd, ibv_qp_attr, ibv_qp_init_attr};
use rdmacm_core::ffi::{
    __be16, rdma_addrinfo, rdma_cm_event_type_t, rdma_cm_id, rdma_event_channel, rdma_port_space_t,
};

use crate::report::{Call, report};
use crate::{nn, status};

/// Creates an id, the counterpart of a socket.
///
/// channel: where its events are reported; NULL makes the id synchronous: each call waits until its operation is done.
/// context: left in id->context for the program. ps: RDMA_PS_*. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space_t,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::new("rdma_create_id"), || unsafe { cm::create_id(channel, nn(id)?, context, ps) })
}

/// Creates a synchronous id from what rdma_getaddrinfo() found, bound (RAI_PASSIVE) or with address and route resolved.
///
/// pd, qp_init_attr: NULL, or for the QP: an active id gets its QP at once, a passive one keeps them for the ids that
/// rdma_get_request() returns. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::new("rdma_create_ep"), || unsafe { cm::create_ep(nn(id)?, nn(res)?, pd, qp_init_attr) })
}

/// Destroys an id with the QP and SRQ that belong to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the C contract (crate documentation).
    report(Call::gone("rdma_destroy_ep", id), (), || unsafe {
        cm::destroy_ep(Id::from_c(id)?);
        Ok(())
    });
}

/// Destroys an id. Its QP must be destroyed before; the call waits until all its events are acknowledged.
///
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::gone("rdma_destroy_id", id), || unsafe { cm::destroy_id(Id::from_c(id)?) })
}

/// Moves an id, with the events that wait for it, to another channel; NULL makes it synchronous.
///
/// Waits until all events of the id are acknowledged. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_migrate_id", id), || unsafe { cm::migrate_id(Id::from_c(id)?, channel) })
}

/// Sets an option of an id.
///
/// level: RDMA_OPTION_ID or RDMA_OPTION_IB; optname: one of that level; optval: the value, of optlen bytes.
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: size_t,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_set_option", id), || unsafe {
        cm::set_option(Id::from_c(id)?, level, optname, optval, optlen)
    })
}

/// The local port number of an id, in network byte order; 0 when it has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: the C contract (crate documentation).
    report(Call::id("rdma_get_src_port", id), 0, || unsafe { Ok(cm::get_src_port(Id::from_c(id)?)) })
}

/// The remote port number of an id, in network byte order; 0 when it has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: the C contract (crate documentation).
    report(Call::id("rdma_get_dst_port", id), 0, || unsafe { Ok(cm::get_dst_port(Id::from_c(id)?)) })
}

/// For programs that create QPs themselves: the attributes to move the QP of an id into the state qp_attr->qp_state.
///
/// qp_attr and qp_attr_mask are what ibv_modify_qp() takes. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_init_qp_attr", id), || unsafe {
        cm::init_qp_attr(Id::from_c(id)?, nn(qp_attr)?, nn(qp_attr_mask)?)
    })
}

/// Tells the connection manager of an asynchronous event of the id's QP, above all IBV_EVENT_COMM_EST.
///
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type_t) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_notify", id), || unsafe { cm::notify(Id::from_c(id)?, event) })
}

/// For programs that create QPs themselves: the enhanced connection establishment options to send to the peer.
///
/// Returns 0, or -1 and errno: EINVAL when the id has a QP, the vendor id is 0 or comp_mask is not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_set_local_ece", id), || unsafe { cm::set_local_ece(Id::from_c(id)?, nn(ece)?) })
}

/// For programs that create QPs themselves: the enhanced connection establishment options that the peer sent.
///
/// Returns 0, or -1 and errno: EINVAL when the id has a QP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_get_remote_ece", id), || unsafe { cm::get_remote_ece(Id::from_c(id)?, nn(ece)?) })
}

/// Puts an event of the program's own on the id's channel.
///
/// event: RDMA_CM_EVENT_USER; status and arg come back in its status and param.arg. Returns 0, or -1 and errno; EINVAL
/// for other events and on kernels without user events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type_t,
    status: c_int,
    arg: u64,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    crate::status(Call::id("rdma_write_cm_event", id), || unsafe {
        cm::write_cm_event(Id::from_c(id)?, event, status, arg)
    })
}
