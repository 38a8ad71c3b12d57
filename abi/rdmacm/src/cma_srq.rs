//! The functions that `rdma/rdma_verbs.h`, which is written by hand, declares: shared receive queues.

use std::ffi::c_int;

use rdmacm_core::cm::{self, Id};
use rdmacm_core::ffi::rdma_cm_id;
use rdmacm_core::ffi::verbs::{ibv_pd, ibv_srq_init_attr, ibv_srq_init_attr_ex};

use crate::report::{Call, report};
use crate::{nn, status};

/// Creates the SRQ of an id. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_create_srq", id), || unsafe { cm::create_srq(Id::from_c(id)?, pd, nn(attr)?) })
}

/// Creates the SRQ of an id from extended attributes. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::id("rdma_create_srq_ex", id), || unsafe { cm::create_srq_ex(Id::from_c(id)?, nn(attr)?) })
}

/// Destroys the SRQ of an id, and the CQs and completion channels that the library created for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    // SAFETY: the C contract (crate documentation).
    report(Call::id("rdma_destroy_srq", id), (), || unsafe {
        cm::destroy_srq(Id::from_c(id)?);
        Ok(())
    });
}
