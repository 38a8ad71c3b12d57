//! Shared receive queues: the functions that `rdma/rdma_verbs.h`, a header written by hand,
//! declares.

use std::ffi::c_int;

use rdmacm_core::cm::{self, Id, InitAttr, Pd};
use rdmacm_core::ffi::{ibv_pd, ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_cm_id};

use crate::for_id;
use crate::report::{Call, report};

/// Creates the SRQ of an id. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int {
    // SAFETY: `id` and `pd` are NULL or live, and `attr` is NULL or a structure that nothing else
    // uses (crate documentation).
    unsafe { for_id("rdma_create_srq", id, |id| cm::create_srq(id, Pd::from_c(pd), &mut InitAttr::from_c(attr)?)) }
}

/// Creates the SRQ of an id from extended attributes. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int {
    // SAFETY: `id` is NULL or live, and `attr` is NULL or a structure that nothing else uses and
    // whose objects are live (crate documentation).
    unsafe { for_id("rdma_create_srq_ex", id, |id| cm::create_srq_ex(id, &mut InitAttr::from_c(attr)?)) }
}

/// Destroys the SRQ of an id, and the CQs and completion channels that the library created for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    report(Call::id("rdma_destroy_srq", id), (), || {
        // SAFETY: `id` is NULL or live (crate documentation).
        cm::destroy_srq(unsafe { Id::from_c(id) }?);
        Ok(())
    });
}
