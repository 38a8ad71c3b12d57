//! Enhanced connection establishment: vendor options that ride on connection messages.

use std::ptr::NonNull;

use super::id::Id;
use crate::errno::{Errno, Result};
use crate::sys::uapi::rdma_ucm_ece;
use crate::sys::verbs::{self, ibv_ece};

/// rdma_set_local_ece(3): for ids without a QP of their own; ids with one take its options.
///
/// # Safety
/// A readable structure.
pub unsafe fn set_local_ece(id: &Id, ece: NonNull<ibv_ece>) -> Result<()> {
    // SAFETY: a readable structure: guaranteed by the caller.
    let ece = unsafe { ece.as_ref() };
    if !id.qp().is_null() || ece.vendor_id == 0 || ece.comp_mask != 0 {
        return Err(Errno::EINVAL);
    }
    id.state().local_ece = rdma_ucm_ece { vendor_id: ece.vendor_id, attr_mod: ece.options };
    Ok(())
}

/// rdma_get_remote_ece(3): what came with the peer's message.
///
/// # Safety
/// A writable structure.
pub unsafe fn get_remote_ece(id: &Id, ece: NonNull<ibv_ece>) -> Result<()> {
    if !id.qp().is_null() {
        return Err(Errno::EINVAL);
    }
    let remote = id.state().remote_ece;
    // SAFETY: a writable structure: guaranteed by the caller.
    unsafe { ece.write(ibv_ece { vendor_id: remote.vendor_id, options: remote.attr_mod, comp_mask: 0 }) };
    Ok(())
}

/// What to send with a connection message.
pub(super) fn offer(id: &Id) -> rdma_ucm_ece {
    id.state().local_ece
}

/// For a new QP: its options become ours, and those a peer asked for become its own where the vendor is the same.
///
/// # Safety
/// A live QP that is not connected yet.
pub(super) unsafe fn of_new_qp(id: &Id, qp: NonNull<verbs::ibv_qp>) -> Result<()> {
    // SAFETY: a live QP that is not connected yet: guaranteed by the caller.
    let local = match unsafe { verbs::query_ece(qp) } {
        Ok(local) => local,
        Err(error) if error.get() == libc::EOPNOTSUPP => {
            // The device has no such options, so that those the program has set are not offered.
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
    // SAFETY: a live QP that is not connected yet: guaranteed by the caller.
    unsafe { agree(id, qp, local.vendor_id, remote) }
}

/// The active side without a QP of ours: what the program is shown of the reply are its options, as those of the vendor
/// that we offered (docs/quirks.md).
pub(super) fn keep_reply(id: &Id, reply: rdma_ucm_ece) {
    let mut state = id.state();
    state.remote_ece = rdma_ucm_ece { vendor_id: state.local_ece.vendor_id, attr_mod: reply.attr_mod };
}

/// The active side with a QP: the peer's reply sets what both use.
pub(super) fn take_reply(id: &Id, reply: rdma_ucm_ece) -> Result<()> {
    keep_reply(id, reply);
    let local = id.state().local_ece;
    let Some(qp) = NonNull::new(id.qp()) else { return Ok(()) };
    if local.vendor_id == 0 {
        return Ok(());
    }
    // SAFETY: the id's QP is live.
    unsafe { agree(id, qp, local.vendor_id, reply) }
}

/// # Safety
/// A live QP.
unsafe fn agree(id: &Id, qp: NonNull<verbs::ibv_qp>, vendor_id: u32, remote: rdma_ucm_ece) -> Result<()> {
    let options = if remote.vendor_id == vendor_id { remote.attr_mod } else { 0 };
    // SAFETY: a live QP: guaranteed by the caller.
    unsafe { verbs::set_ece(qp, ibv_ece { vendor_id, options, comp_mask: 0 })? };
    // SAFETY: a live QP: guaranteed by the caller.
    let agreed = unsafe { verbs::query_ece(qp)? };
    id.state().local_ece = rdma_ucm_ece { vendor_id: agreed.vendor_id, attr_mod: agreed.options };
    Ok(())
}
