//! Connection parameters and private data, from the program's structures to the kernel's.

use super::id::Id;
use crate::errno::{Errno, Result};
use crate::os::uapi::rdma_ucm_conn_param;

/// Retry counts of a connection without parameters. 7 receiver-not-ready retries mean no limit.
const RETRIES: u8 = 7;

/// `struct rdma_conn_param`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnParam<'a> {
    /// At most 255 bytes.
    pub private_data: &'a [u8],
    /// RDMA reads and atomics that may be outstanding from the peer.
    pub responder_resources: u8,
    /// RDMA reads and atomics that may be outstanding to the peer.
    pub initiator_depth: u8,
    /// Whether hardware flow control is available.
    pub flow_control: u8,
    /// Retransmissions after an error, 0 to 7.
    pub retry_count: u8,
    /// Retransmissions if the peer has posted no receive, 0 to 7; 7 means no limit.
    pub rnr_retry_count: u8,
    /// Whether the QP uses an SRQ; ignored if the id has a QP.
    pub srq: u8,
    /// Number of the QP; ignored if the id has a QP.
    pub qp_num: u32,
}

/// The private data to send is the endpoint's `own`, and behind it the program's. Fails with
/// `EINVAL` if that is too long.
pub(super) fn check_length(own: &[u8], param: Option<ConnParam<'_>>) -> Result<()> {
    let len = own.len() + param.map_or(0, |param| param.private_data.len());
    if len > usize::from(u8::MAX) { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Fills in everything but the RDMA read resources. [`check_length`] has not failed.
pub(super) fn fill(kernel: &mut rdma_ucm_conn_param, id: &Id, own: &[u8], param: Option<ConnParam<'_>>) {
    let (first, rest) = kernel.private_data.split_at_mut(own.len());
    first.copy_from_slice(own);
    kernel.private_data_len = own.len() as u8;
    kernel.valid = 1;
    match param {
        Some(param) => {
            rest[..param.private_data.len()].copy_from_slice(param.private_data);
            kernel.private_data_len += param.private_data.len() as u8;
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
    // SAFETY: the QP of an id is live until rdma_destroy_qp(3), which clears the field.
    if let Some(qp) = unsafe { id.qp().as_ref() } {
        kernel.qp_num = qp.qp_num;
        kernel.srq = u8::from(!qp.srq.is_null());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_has_an_eight_bit_length() {
        let param = ConnParam { private_data: &[1; 100], ..ConnParam::default() };
        assert_eq!(check_length(&[2; 155], Some(param)), Ok(()));
        assert_eq!(check_length(&[2; 156], Some(param)), Err(Errno::EINVAL));
    }
}
