//! Connection parameters and private data, from the program's structures to the kernel's.

use super::id::Id;
use crate::errno::{Errno, Result};
use crate::sys::uapi::rdma_ucm_conn_param;

/// Retry counts of a connection without parameters. 7 receiver-not-ready retries mean no limit.
const RETRIES: u8 = 7;
/// Maximum length of the private data of a command, which has an 8-bit length field.
const MAX_PRIVATE_DATA: usize = 255;

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

/// Fills in everything but the RDMA read resources. Fails with `EINVAL` if the private data does
/// not fit behind that of the endpoint.
pub(super) fn fill(kernel: &mut rdma_ucm_conn_param, id: &Id, param: Option<ConnParam<'_>>) -> Result<()> {
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
    // SAFETY: the QP of an id is live until rdma_destroy_qp(3), which clears the field.
    if let Some(qp) = unsafe { id.qp().as_ref() } {
        kernel.qp_num = qp.qp_num;
        kernel.srq = u8::from(!qp.srq.is_null());
    }
    let state = id.state();
    let own = state.connect_data.as_slice();
    let user = param.map_or(&[][..], |param| param.private_data);
    let len = own.len() + user.len();
    if len > MAX_PRIVATE_DATA {
        return Err(Errno::EINVAL);
    }
    kernel.private_data[..own.len()].copy_from_slice(own);
    kernel.private_data[own.len()..len].copy_from_slice(user);
    kernel.private_data_len = len as u8;
    Ok(())
}

/// Private data of a command that carries nothing else. Fails with `EINVAL` if it is too long.
pub(super) fn checked(private_data: &[u8]) -> Result<&[u8]> {
    if private_data.len() > MAX_PRIVATE_DATA { Err(Errno::EINVAL) } else { Ok(private_data) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_has_an_eight_bit_length() {
        assert_eq!(checked(&[1; 255]).map(<[u8]>::len), Ok(255));
        assert_eq!(checked(&[1; 256]), Err(Errno::EINVAL));
    }
}
