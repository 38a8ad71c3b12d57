//! `rdma/rdma_cma.h`: multicast groups.

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use rdmacm_core::cm::{self, Id};
use rdmacm_core::ffi::{rdma_cm_id, rdma_cm_join_mc_attr_ex};

use crate::report::Call;
use crate::{args, status};

/// Joins a multicast group to send and receive, and attaches the id's QP, if any, to it.
///
/// context: param.ud.private_data of the group's events. Ends in
/// RDMA_CM_EVENT_MULTICAST_JOIN or RDMA_CM_EVENT_MULTICAST_ERROR. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int {
    status(Call::id("rdma_join_multicast", id), || {
        // SAFETY: the C contract (crate documentation).
        let (id, addr) = unsafe { (Id::from_c(id)?, args::address(addr)?) };
        cm::join_multicast(id, &addr, context)
    })
}

/// Leaves a multicast group; waits until the events of the membership are acknowledged.
///
/// Returns 0, or -1 and errno: EADDRNOTAVAIL when the id is not a member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    status(Call::id("rdma_leave_multicast", id), || {
        // SAFETY: the C contract (crate documentation).
        let (id, addr) = unsafe { (Id::from_c(id)?, args::address(addr)?) };
        cm::leave_multicast(id, &addr)
    })
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
    status(Call::id("rdma_join_multicast_ex", id), || {
        // SAFETY: the C contract (crate documentation).
        let (id, attr) = unsafe { (Id::from_c(id)?, args::join_attr(mc_join_attr)?) };
        cm::join_multicast_ex(id, attr, context)
    })
}
