//! `rdma/rdma_cma.h`: queue pairs, and multicast groups to which queue pairs are attached.

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use rdmacm_core::cm::{self, Id, InitAttr, Pd};
use rdmacm_core::ffi::{ibv_pd, ibv_qp_init_attr, ibv_qp_init_attr_ex, rdma_cm_id, rdma_cm_join_mc_attr_ex};

use crate::report::{Call, report};
use crate::{args, for_id};

/// Creates the QP of an id that is bound to a device, in the state INIT: receives can be posted.
/// Connecting and accepting change its state.
///
/// pd: NULL for the library's PD, which the ids of the device share. CQs that qp_init_attr lacks
/// are created with completion channels, and stored in the id. qp_init_attr->cap receives the
/// actual capabilities. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe {
        for_id("rdma_create_qp", id, |id| cm::create_qp(id, Pd::from_c(pd), &mut InitAttr::from_c(qp_init_attr)?))
    }
}

/// Like rdma_create_qp(), with the extended attributes of ibv_create_qp_ex(). Returns 0, or -1 and
/// errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { for_id("rdma_create_qp_ex", id, |id| cm::create_qp_ex(id, &mut InitAttr::from_c(qp_init_attr)?)) }
}

/// Destroys the QP of an id, and the CQs and completion channels that the library created for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    report(Call::id("rdma_destroy_qp", id), (), || {
        // SAFETY: the C contract (crate documentation).
        cm::destroy_qp(unsafe { Id::from_c(id) }?);
        Ok(())
    });
}

/// Joins a multicast group to send and receive, and attaches the id's QP, if any, to it.
///
/// context: param.ud.private_data of the group's events. Ends in
/// RDMA_CM_EVENT_MULTICAST_JOIN or RDMA_CM_EVENT_MULTICAST_ERROR. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { for_id("rdma_join_multicast", id, |id| cm::join_multicast(id, &args::address(addr)?, context)) }
}

/// Leaves a multicast group; waits until the events of the membership are acknowledged.
///
/// Returns 0, or -1 and errno: EADDRNOTAVAIL when the id is not a member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe { for_id("rdma_leave_multicast", id, |id| cm::leave_multicast(id, &args::address(addr)?)) }
}

/// Like rdma_join_multicast(), with a choice of membership: mc_join_attr->join_flags,
/// RDMA_MC_JOIN_FLAG_*.
///
/// Returns 0, or -1 and errno: ENOTSUP for unknown bits of comp_mask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    unsafe {
        for_id("rdma_join_multicast_ex", id, |id| cm::join_multicast_ex(id, args::join_attr(mc_join_attr)?, context))
    }
}
