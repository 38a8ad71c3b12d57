//! Connection parameters, private data, and the vendor options of enhanced connection establishment
//! (ECE): converts them between the program's and the kernel's structures.

use super::id::Id;
use super::objects::Qp;
use crate::errno::{Errno, Result};
use crate::os::uapi::{rdma_ucm_conn_param, rdma_ucm_ece};
use crate::verbs::ibv_ece;

/// Implements rdma_set_local_ece(3).
///
/// # Errors
/// Fails with `EINVAL` if the id has a QP (the QP's options are used then), if the vendor id is 0,
/// or if `comp_mask` is not 0.
pub fn set_local_ece(id: &Id, ece: &ibv_ece) -> Result<()> {
    if !id.qp().is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
        return Err(Errno::EINVAL);
    }
    id.state().local_ece = rdma_ucm_ece { vendor_id: ece.vendor_id, attr_mod: ece.options };
    Ok(())
}

/// Implements rdma_get_remote_ece(3): returns the options that came with the peer's message.
///
/// # Errors
/// Fails with `EINVAL` if the id has a QP.
pub fn get_remote_ece(id: &Id) -> Result<ibv_ece> {
    if !id.qp().is_null() {
        return Err(Errno::EINVAL);
    }
    let remote = id.state().remote_ece;
    Ok(ibv_ece { vendor_id: remote.vendor_id, options: remote.attr_mod, comp_mask: 0 })
}

/// Negotiates the ECE options of a new QP that is not connected yet. The id takes the QP's options.
/// If the peer has offered options, the QP takes the options that [`options_for`] returns.
pub(super) fn of_new_qp(id: &Id, qp: &Qp) -> Result<()> {
    let local = match qp.query_ece() {
        Ok(local) => local,
        Err(error) if error.get() == libc::EOPNOTSUPP => {
            // The device does not support ECE: do not offer the options that the program has set.
            id.state().local_ece = rdma_ucm_ece::default();
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    id.state().local_ece = rdma_ucm_ece { vendor_id: local.vendor_id, attr_mod: local.options };
    let remote = id.state().remote_ece;
    if remote.vendor_id == 0 {
        return Ok(());
    }
    agree(id, qp, local.vendor_id, remote)
}

/// Keeps the options of the reply, on the active side. If the id has no QP, the program sees them
/// as options of the vendor that was offered (docs/compatibility.md). Returns the id of the offered
/// vendor.
pub(super) fn keep_reply(id: &Id, reply: rdma_ucm_ece) -> u32 {
    let mut state = id.state();
    let vendor_id = state.local_ece.vendor_id;
    state.remote_ece = rdma_ucm_ece { vendor_id, attr_mod: reply.attr_mod };
    vendor_id
}

/// Takes the reply on the active side. If the id has a QP, the reply determines the options that
/// both ends use.
pub(super) fn take_reply(id: &Id, reply: rdma_ucm_ece) -> Result<()> {
    match (keep_reply(id, reply), id.own_qp()) {
        (0, _) | (_, None) => Ok(()),
        (vendor_id, Some(qp)) => agree(id, &qp, vendor_id, reply),
    }
}

/// Sets the peer's ECE options in the QP, and stores those that the device accepted in the id.
fn agree(id: &Id, qp: &Qp, vendor_id: u32, remote: rdma_ucm_ece) -> Result<()> {
    qp.set_ece(vendor_id, options_for(vendor_id, remote))?;
    let agreed = qp.query_ece()?;
    id.state().local_ece = rdma_ucm_ece { vendor_id: agreed.vendor_id, attr_mod: agreed.options };
    Ok(())
}

/// Returns the peer's options for a device of a vendor, or 0 if they are another vendor's.
fn options_for(vendor_id: u32, remote: rdma_ucm_ece) -> u32 {
    if remote.vendor_id == vendor_id { remote.attr_mod } else { 0 }
}

/// Retry counts of a connection without parameters. 7 receiver-not-ready retries mean no limit.
const RETRIES: u8 = 7;

/// The content of a `struct rdma_conn_param`, which describes the fields.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "crate::ffi::rdma_conn_param describes them")]
pub struct ConnParam<'a> {
    /// At most 255 bytes.
    pub private_data: &'a [u8],
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// Fails with `EINVAL` if the private data to send is too long. The data consists of the endpoint's
/// data `own` and the program's data.
pub(super) fn check_length(own: &[u8], param: Option<ConnParam<'_>>) -> Result<()> {
    let len = own.len() + param.map_or(0, |param| param.private_data.len());
    if len > usize::from(u8::MAX) { Err(Errno::EINVAL) } else { Ok(()) }
}

/// Fills in all parameters except the RDMA read resources. The caller has called [`check_length`].
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
    use std::ptr;

    use super::*;

    #[test]
    fn options_of_another_vendor_are_not_used() {
        let remote = |vendor_id| rdma_ucm_ece { vendor_id, attr_mod: 0x1234 };
        assert_eq!(options_for(0x15b3, remote(0x15b3)), 0x1234);
        assert_eq!((options_for(0x15b3, remote(0x8086)), options_for(0x15b3, remote(0))), (0, 0));
    }

    #[test]
    fn what_is_offered_and_what_the_reply_shows() {
        let id = Id::new(ptr::null_mut(), 0, 0);
        let set = |vendor_id, comp_mask| set_local_ece(&id, &ibv_ece { vendor_id, options: 7, comp_mask });
        assert_eq!([set(0, 0), set(0x15b3, 1)], [Err(Errno::EINVAL); 2]);
        let offer = || id.state().local_ece;
        assert_eq!((offer().vendor_id, set(0x15b3, 0), offer().attr_mod), (0, Ok(()), 7));
        keep_reply(&id, rdma_ucm_ece { vendor_id: 0x8086, attr_mod: 3 });
        let shown = get_remote_ece(&id).unwrap();
        assert_eq!((shown.vendor_id, shown.options, shown.comp_mask), (0x15b3, 3, 0));
        id.set_qp(ptr::without_provenance_mut(8));
        assert_eq!(set(0x15b3, 0), Err(Errno::EINVAL));
        assert!(matches!(get_remote_ece(&id), Err(Errno::EINVAL)));
    }

    #[test]
    fn private_data_has_an_eight_bit_length() {
        let param = ConnParam { private_data: &[1; 100], ..ConnParam::default() };
        assert_eq!(check_length(&[2; 155], Some(param)), Ok(()));
        assert_eq!(check_length(&[2; 156], Some(param)), Err(Errno::EINVAL));
    }
}
