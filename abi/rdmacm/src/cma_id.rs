//! `rdma/rdma_cma.h`: ids and endpoints, their options and attributes.

use std::ffi::{c_int, c_void};
use std::ptr;

use libc::size_t;
use rdmacm_core::cm::{self, EventChannel, Id, InitAttr, OwnedId, Pd};
use rdmacm_core::ffi::{
    __be16, ibv_ece, ibv_event_type_t, ibv_pd, ibv_qp_attr, ibv_qp_init_attr, rdma_addrinfo, rdma_cm_event_type_t,
    rdma_cm_id, rdma_event_channel, rdma_port_space_t,
};

use crate::args::{inout, put};
use crate::report::{Call, report};
use crate::{args, for_id, quick_for_id, quick_status, status};

/// Creates an id, the counterpart of a socket.
///
/// channel: where its events are reported; NULL makes the id synchronous: each call waits until its
/// operation is done. context: stored in id->context. ps: RDMA_PS_*. Returns 0, or -1
/// and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space_t,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    quick_status(Call::new("rdma_create_id"), || unsafe {
        put(id, || Ok(cm::create_id(EventChannel::from_c(channel), context, ps)?.into_c()))
    })
}

/// Creates a synchronous id from a result of rdma_getaddrinfo(): bound (RAI_PASSIVE), or with
/// address and route resolved.
///
/// pd, qp_init_attr: NULL, or PD and attributes of the QP. The QP of an active id is created by
/// this call, those of a passive id by rdma_get_request(). Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::new("rdma_create_ep"), || unsafe {
        let (info, pd, attr) = (args::endpoint_info(res)?, Pd::from_c(pd), InitAttr::from_c(qp_init_attr).ok());
        put(id, || Ok(cm::create_ep(&info, pd, attr)?.into_c()))
    })
}

/// Destroys an id with its QP and SRQ.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: the C contract (crate documentation).
    report(Call::gone("rdma_destroy_ep", id), (), || unsafe {
        cm::destroy_ep(OwnedId::from_c(id)?);
        Ok(())
    });
}

/// Destroys an id. Its QP must have been destroyed. Waits until all its events are acknowledged.
///
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the C contract (crate documentation).
    quick_status(Call::gone("rdma_destroy_id", id), || cm::destroy_id(unsafe { OwnedId::from_c(id) }?))
}

/// Moves an id with its unread events to another channel; NULL makes it synchronous.
///
/// Waits until all events of the id are acknowledged. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { for_id("rdma_migrate_id", id, |id| cm::migrate_id(id, EventChannel::from_c(channel))) }
}

/// Sets an option of an id.
///
/// level: RDMA_OPTION_ID or RDMA_OPTION_IB; optname: one of that level; optval: the value, of
/// optlen bytes. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: size_t,
) -> c_int {
    let value = ptr::slice_from_raw_parts(optval.cast(), optlen);
    // SAFETY: the C contract (crate documentation).
    unsafe { quick_for_id("rdma_set_option", id, |id| cm::set_option(id, level, optname, value)) }
}

/// Returns the local port number of an id in network byte order; 0 if it has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: the C contract (crate documentation).
    report(Call::id("rdma_get_src_port", id), 0, || Ok(cm::get_src_port(unsafe { Id::from_c(id) }?)))
}

/// Returns the remote port number of an id in network byte order; 0 if it has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> __be16 {
    // SAFETY: the C contract (crate documentation).
    report(Call::id("rdma_get_dst_port", id), 0, || Ok(cm::get_dst_port(unsafe { Id::from_c(id) }?)))
}

/// Returns the attributes for the transition of the QP of an id to the state qp_attr->qp_state, for
/// programs that create QPs themselves.
///
/// qp_attr and qp_attr_mask: arguments for ibv_modify_qp(). Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe {
        quick_for_id("rdma_init_qp_attr", id, |id| {
            let attr = inout(qp_attr)?;
            put(qp_attr_mask, || cm::init_qp_attr(id, attr))
        })
    }
}

/// Reports an asynchronous event of the id's QP, usually IBV_EVENT_COMM_EST, to the connection
/// manager.
///
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type_t) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { quick_for_id("rdma_notify", id, |id| cm::notify(id, event)) }
}

/// Sets the enhanced connection establishment options to send to the peer, for programs that create
/// QPs themselves.
///
/// Returns 0, or -1 and errno: EINVAL if the id has a QP, the vendor id is 0, or comp_mask is not
/// 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { for_id("rdma_set_local_ece", id, |id| cm::set_local_ece(id, inout(ece)?)) }
}

/// Returns the enhanced connection establishment options that the peer has sent, for programs that
/// create QPs themselves.
///
/// Returns 0, or -1 and errno: EINVAL if the id has a QP.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { for_id("rdma_get_remote_ece", id, |id| put(ece, || cm::get_remote_ece(id))) }
}

/// Queues an event of the program on the id's channel.
///
/// event: RDMA_CM_EVENT_USER; status and arg are its status and param.arg. Returns 0, or
/// -1 and errno; EINVAL for other events and on kernels without user events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type_t,
    status: c_int,
    arg: u64,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { for_id("rdma_write_cm_event", id, |id| cm::write_cm_event(id, event, status, arg)) }
}
