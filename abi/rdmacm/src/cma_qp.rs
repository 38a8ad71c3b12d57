//! `rdma/rdma_cma.h`: queue pairs.

use std::ffi::c_int;

use rdmacm_core::cm::{self, Id, InitAttr, Pd};
use rdmacm_core::ffi::rdma_cm_id;
use rdmacm_core::ffi::verbs::{ibv_pd, ibv_qp_init_attr, ibv_qp_init_attr_ex};

use crate::report::{Call, report};
use crate::status;

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
    status(Call::id("rdma_create_qp", id), || {
        // SAFETY: the C contract (crate documentation).
        let (id, pd, mut attr) = unsafe { (Id::from_c(id)?, Pd::from_c(pd), InitAttr::from_c(qp_init_attr)?) };
        cm::create_qp(id, pd, &mut attr)
    })
}

/// Like rdma_create_qp(), with the extended attributes of ibv_create_qp_ex(). Returns 0, or -1 and
/// errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> c_int {
    status(Call::id("rdma_create_qp_ex", id), || {
        // SAFETY: the C contract (crate documentation).
        let (id, mut attr) = unsafe { (Id::from_c(id)?, InitAttr::from_c(qp_init_attr)?) };
        cm::create_qp_ex(id, &mut attr)
    })
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
