//! `rdma/rdma_cma.h`: queue pairs.

use std::ffi::c_int;

use rdmacm_core::cm::{self, Id};
use rdmacm_core::ffi::rdma_cm_id;
use rdmacm_core::ffi::verbs::{ibv_pd, ibv_qp_init_attr, ibv_qp_init_attr_ex};

use crate::report::{Call, report};
use crate::{nn, status};

/// Creates the QP of an id that is bound to a device, ready for posted receives; connecting and accepting move it on.
///
/// pd: NULL for the library's own, shared by the ids of the device. CQs missing in qp_init_attr are created and left,
/// with their completion channels, in the id. qp_init_attr->cap receives what the QP really can.
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_create_qp", id), || unsafe { cm::create_qp(Id::from_c(id)?, pd, nn(qp_init_attr)?) })
}

/// Like rdma_create_qp(), with the extended attributes of ibv_create_qp_ex(). Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_create_qp_ex", id), || unsafe { cm::create_qp_ex(Id::from_c(id)?, nn(qp_init_attr)?) })
}

/// Destroys the QP of an id, and the CQs and completion channels that the library created for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    // SAFETY: the C contract (crate documentation).
    report(Call::id("rdma_destroy_qp", id), (), || unsafe {
        cm::destroy_qp(Id::from_c(id)?);
        Ok(())
    });
}
