//! Enhanced connection establishment: vendor options in connection messages.

use super::id::Id;
use super::objects::Qp;
use crate::errno::{Errno, Result};
use crate::os::uapi::rdma_ucm_ece;
use crate::verbs::ibv_ece;

/// rdma_set_local_ece(3): for ids without a QP of their own; ids with one use its options.
pub fn set_local_ece(id: &Id, ece: &ibv_ece) -> Result<()> {
    if !id.qp().is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
        return Err(Errno::EINVAL);
    }
    id.state().local_ece = rdma_ucm_ece { vendor_id: ece.vendor_id, attr_mod: ece.options };
    Ok(())
}

/// rdma_get_remote_ece(3): the options that came with the peer's message.
pub fn get_remote_ece(id: &Id) -> Result<ibv_ece> {
    if !id.qp().is_null() {
        return Err(Errno::EINVAL);
    }
    let remote = id.state().remote_ece;
    Ok(ibv_ece { vendor_id: remote.vendor_id, options: remote.attr_mod, comp_mask: 0 })
}

/// For a new QP that is not connected yet: the id takes its options, and the QP takes those that a
/// peer asked for if the vendor is the same.
pub(super) fn of_new_qp(id: &Id, qp: &Qp) -> Result<()> {
    let local = match qp.query_ece() {
        Ok(local) => local,
        Err(error) if error.get() == libc::EOPNOTSUPP => {
            // The device has no such options, so those that the program has set are not offered.
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

/// The active side without a QP in the id: the program is shown the options of the reply as options
/// of the vendor that was offered (docs/compatibility.md).
/// Returns the number of that vendor.
pub(super) fn keep_reply(id: &Id, reply: rdma_ucm_ece) -> u32 {
    let mut state = id.state();
    let vendor_id = state.local_ece.vendor_id;
    state.remote_ece = rdma_ucm_ece { vendor_id, attr_mod: reply.attr_mod };
    vendor_id
}

/// The active side with a QP: the peer's reply determines the options that both use.
pub(super) fn take_reply(id: &Id, reply: rdma_ucm_ece) -> Result<()> {
    match (keep_reply(id, reply), id.own_qp()) {
        (0, _) | (_, None) => Ok(()),
        (vendor_id, Some(qp)) => agree(id, &qp, vendor_id, reply),
    }
}

/// Sets the peer's options in the QP. The id takes those that the device accepted.
fn agree(id: &Id, qp: &Qp, vendor_id: u32, remote: rdma_ucm_ece) -> Result<()> {
    qp.set_ece(vendor_id, options_for(vendor_id, remote))?;
    let agreed = qp.query_ece()?;
    id.state().local_ece = rdma_ucm_ece { vendor_id: agreed.vendor_id, attr_mod: agreed.options };
    Ok(())
}

/// The peer's options for a device of a vendor. Those of another vendor mean nothing to it.
fn options_for(vendor_id: u32, remote: rdma_ucm_ece) -> u32 {
    if remote.vendor_id == vendor_id { remote.attr_mod } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

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
}
