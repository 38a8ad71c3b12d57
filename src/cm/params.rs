//! Connection parameters and private data, from the program's structures to the kernel's.

use std::ffi::c_void;

use super::id::Id;
use crate::errno::{Errno, Result};
use crate::ffi::rdma_conn_param;
use crate::sys::uapi::rdma_ucm_conn_param;

/// What connecting without parameters uses; 7 receiver-not-ready retries are without end.
const RETRIES: u8 = 7;
/// Private data that a command can carry: its length has eight bits.
const PRIVATE_DATA: usize = 255;

/// Fills in all but the RDMA read resources. `EINVAL` for more private data than fits behind the endpoint's own.
///
/// # Safety
/// Private data readable for its length.
pub(super) unsafe fn fill(kernel: &mut rdma_ucm_conn_param, id: &Id, param: Option<&rdma_conn_param>) -> Result<()> {
    kernel.valid = 1;
    match param {
        Some(param) => {
            kernel.flow_control = param.flow_control;
            kernel.retry_count = param.retry_count;
            kernel.rnr_retry_count = param.rnr_retry_count;
            kernel.qp_num = param.qp_num;
            kernel.srq = param.srq;
        }
        None => {
            kernel.retry_count = RETRIES;
            kernel.rnr_retry_count = RETRIES;
        }
    }
    // SAFETY: the id's QP is live.
    if let Some(qp) = unsafe { id.qp().as_ref() } {
        kernel.qp_num = qp.qp_num;
        kernel.srq = u8::from(!qp.srq.is_null());
    }
    let state = id.state();
    let own = state.connect_data.as_slice();
    let user = match param {
        // SAFETY: private data readable for its length: guaranteed by the caller.
        Some(param) => unsafe { private_data(param.private_data, param.private_data_len) },
        None => &[],
    };
    let len = own.len() + user.len();
    if len > PRIVATE_DATA {
        return Err(Errno::EINVAL);
    }
    kernel.private_data[..own.len()].copy_from_slice(own);
    kernel.private_data[own.len()..len].copy_from_slice(user);
    kernel.private_data_len = len as u8;
    Ok(())
}

/// The program's private data; a length without an address is none (docs/quirks.md).
///
/// # Safety
/// Readable for its length.
pub(super) unsafe fn private_data<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: readable for its length: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(data.cast(), usize::from(len)) }
}
