//! QPs of ids: creation with everything that is missing, and their way through the states.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::{self, NonNull};

use super::cq;
use super::device;
use super::ece;
use super::id::Id;
use super::library::library;
use crate::errno::{Errno, Result};
use crate::ffi::{RDMA_MAX_RESP_RES, RDMA_UDP_QKEY};
use crate::sys::ucma;
use crate::sys::verbs::{
    self, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_XRCD, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_qp_state, ibv_qp_type,
};

/// Bits 21 to 24 of the attribute mask: the kernel reports nonsense there for InfiniBand ports.
const STRAY_BITS: c_int = 0xf << 21;

/// rdma_create_qp(3). The capacities that the device granted, and the CQs and SRQ used, are written back.
///
/// # Safety
/// `pd` is NULL or live, `attr` as ibv_create_qp(3) wants it, CQs and SRQ in it NULL or live.
pub unsafe fn create_qp(id: &Id, pd: *mut ibv_pd, attr: NonNull<ibv_qp_init_attr>) -> Result<()> {
    // SAFETY: `pd` is NULL or live, `attr` as ibv_create_qp(3) wants it, CQs and SRQ in it NULL or
    // live: guaranteed by the caller; all zeros are a value of the extended structure.
    let (given, mut extended) = unsafe { (&mut *attr.as_ptr(), zeroed::<ibv_qp_init_attr_ex>()) };
    extended.qp_context = given.qp_context;
    extended.send_cq = given.send_cq;
    extended.recv_cq = given.recv_cq;
    extended.srq = given.srq;
    extended.cap = given.cap;
    extended.qp_type = given.qp_type;
    extended.sq_sig_all = given.sq_sig_all;
    extended.comp_mask = IBV_QP_INIT_ATTR_PD;
    extended.pd = if pd.is_null() { id.pd() } else { pd };
    // SAFETY: `pd` is NULL or live, `attr` as ibv_create_qp(3) wants it, CQs and SRQ in it NULL or
    // live: guaranteed by the caller.
    unsafe { create_qp_ex(id, NonNull::from(&mut extended))? };
    given.send_cq = extended.send_cq;
    given.recv_cq = extended.recv_cq;
    given.srq = extended.srq;
    given.cap = extended.cap;
    Ok(())
}

/// rdma_create_qp_ex(3).
///
/// # Safety
/// As [`create_qp`], for ibv_create_qp_ex(3).
pub unsafe fn create_qp_ex(id: &Id, attr: NonNull<ibv_qp_init_attr_ex>) -> Result<()> {
    // SAFETY: as [`create_qp`], for ibv_create_qp_ex(3): guaranteed by the caller.
    let attr = unsafe { &mut *attr.as_ptr() };
    if !id.qp().is_null() {
        return Err(Errno::EINVAL);
    }
    let context = NonNull::new(id.verbs()).ok_or(Errno::EINVAL)?;
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = id.pd();
    // SAFETY: a live PD: guaranteed by the caller.
    } else if unsafe { (*attr.pd).context } != context.as_ptr() {
        return Err(Errno::EINVAL);
    }
    let differs =
        |own: *mut verbs::ibv_cq, given: *mut verbs::ibv_cq| !own.is_null() && !given.is_null() && own != given;
    if differs(id.send_cq(), attr.send_cq) || differs(id.recv_cq(), attr.recv_cq) {
        return Err(Errno::EINVAL);
    }
    if attr.qp_type == ibv_qp_type::IBV_QPT_XRC_RECV
        && (attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null())
    {
        let bound = id.state().bound.ok_or(Errno::EINVAL)?;
        attr.xrcd = device::xrcd(&bound).map_err(|_| Errno::EINVAL)?.as_ptr();
        attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    }
    // SAFETY: the context is open and the attributes are complete but for the CQs.
    unsafe { create_with_cqs(id, context, attr) }
}

/// # Safety
/// As [`create_qp_ex`], with PD and XRCD in place.
unsafe fn create_with_cqs(id: &Id, context: NonNull<verbs::ibv_context>, attr: &mut ibv_qp_init_attr_ex) -> Result<()> {
    let given = (attr.send_cq, attr.recv_cq, attr.srq);
    let send = if attr.send_cq.is_null() { attr.cap.max_send_wr } else { 0 };
    let recv = if attr.recv_cq.is_null() { attr.cap.max_recv_wr } else { 0 };
    let made = cq::create_missing(id, send, recv)?;
    if attr.send_cq.is_null() {
        attr.send_cq = id.send_cq();
    }
    if attr.recv_cq.is_null() {
        attr.recv_cq = id.recv_cq();
    }
    if attr.srq.is_null() {
        attr.srq = id.srq();
    }
    if lacks_cq(attr) {
        // libibverbs would follow the NULL.
        cq::destroy(id, made);
        (attr.send_cq, attr.recv_cq, attr.srq) = given;
        return Err(Errno::EINVAL);
    }
    // SAFETY: as [`create_qp_ex`], with PD and XRCD in place: guaranteed by the caller; the CQs are
    // in place.
    let created = unsafe { verbs::create_qp_ex(context, attr) }.and_then(|qp| {
        // SAFETY: the QP is new and nobody else has it.
        unsafe { start(id, qp).inspect_err(|_| verbs::destroy_qp(qp))? };
        Ok(qp)
    });
    match created {
        Ok(qp) => {
            // SAFETY: a live QP.
            id.set_pd(unsafe { (*qp.as_ptr()).pd });
            id.set_qp(qp.as_ptr());
            Ok(())
        }
        Err(error) => {
            // The program's structure must not name what is gone.
            cq::destroy(id, made);
            (attr.send_cq, attr.recv_cq, attr.srq) = given;
            Err(error)
        }
    }
}

/// Whether a CQ is missing that a QP of this type needs: XRC senders receive nothing, XRC receivers complete elsewhere.
fn lacks_cq(attr: &ibv_qp_init_attr_ex) -> bool {
    let receives = attr.qp_type != ibv_qp_type::IBV_QPT_XRC_SEND && attr.qp_type != ibv_qp_type::IBV_QPT_XRC_RECV;
    let sends = attr.qp_type != ibv_qp_type::IBV_QPT_XRC_RECV;
    (sends && attr.send_cq.is_null()) || (receives && attr.recv_cq.is_null())
}

/// Brings a new QP to where its kind starts: INIT, or RTS for datagrams.
///
/// # Safety
/// A live QP that nobody else has.
unsafe fn start(id: &Id, qp: NonNull<ibv_qp>) -> Result<()> {
    // SAFETY: a live QP that nobody else has: guaranteed by the caller.
    unsafe {
        ece::of_new_qp(id, qp)?;
        if id.is_ud() { start_datagrams(id, qp) } else { start_connected(id, qp) }
    }
}

unsafe fn start_connected(id: &Id, qp: NonNull<ibv_qp>) -> Result<()> {
    if kernel_knows_init()? {
        // SAFETY: a live QP that nobody else has: guaranteed by the caller.
        return unsafe { to_init(id, qp) };
    }
    let (mut attr, mask) = own_attributes(id, ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS)?;
    // SAFETY: a live QP that nobody else has: guaranteed by the caller.
    unsafe { verbs::modify_qp(qp, &mut attr, mask) }
}

unsafe fn to_init(id: &Id, qp: NonNull<ibv_qp>) -> Result<()> {
    let (mut attr, mask) = attributes(id, ibv_qp_state::IBV_QPS_INIT)?;
    // SAFETY: a live QP that nobody else has: guaranteed by the caller.
    unsafe { verbs::modify_qp(qp, &mut attr, mask) }
}

/// Kernels of ABI 3 have no attributes for INIT until a connection is under way.
fn kernel_knows_init() -> Result<bool> {
    Ok(library()?.node.abi != 3)
}

unsafe fn start_datagrams(id: &Id, qp: NonNull<ibv_qp>) -> Result<()> {
    let (mut attr, mask) = if kernel_knows_init()? {
        attributes(id, ibv_qp_state::IBV_QPS_INIT)?
    } else {
        own_attributes(id, ibv_qp_attr_mask::IBV_QP_QKEY)?
    };
    // SAFETY: a live QP that nobody else has, here and below: guaranteed by the caller.
    unsafe { verbs::modify_qp(qp, &mut attr, mask)? };
    let mut attr = state_only(ibv_qp_state::IBV_QPS_RTR);
    // SAFETY: as above.
    unsafe { verbs::modify_qp(qp, &mut attr, ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int)? };
    let mut attr = state_only(ibv_qp_state::IBV_QPS_RTS);
    let mask = ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_SQ_PSN;
    // SAFETY: as above.
    unsafe { verbs::modify_qp(qp, &mut attr, mask.0 as c_int) }
}

/// The attributes for INIT where the kernel does not tell; `kind` is the one that the QP's kind has beside the rest.
fn own_attributes(id: &Id, kind: ibv_qp_attr_mask) -> Result<(ibv_qp_attr, c_int)> {
    let context = NonNull::new(id.verbs()).ok_or(Errno::EINVAL)?;
    // SAFETY: the route of a live id.
    let pkey = unsafe { (*id.addr()).addr.ibaddr.pkey };
    let mut attr = state_only(ibv_qp_state::IBV_QPS_INIT);
    // SAFETY: the context is open.
    attr.pkey_index = unsafe { verbs::pkey_index(context, id.port_num(), pkey) }.map_err(|_| Errno::EINVAL)?;
    attr.port_num = id.port_num();
    attr.qkey = RDMA_UDP_QKEY;
    let mask =
        ibv_qp_attr_mask::IBV_QP_STATE | ibv_qp_attr_mask::IBV_QP_PKEY_INDEX | ibv_qp_attr_mask::IBV_QP_PORT | kind;
    Ok((attr, mask.0 as c_int))
}

/// Ready to receive; `responder_resources` replaces what the kernel negotiated unless `None` or "as many as possible".
pub(super) fn to_rtr(id: &Id, responder_resources: Option<u8>) -> Result<()> {
    let Some(qp) = NonNull::new(id.qp()) else { return Ok(()) };
    // The attributes of INIT may have changed since the QP was created: the device is certain only now.
    // SAFETY: the id's QP is live.
    unsafe { to_init(id, qp)? };
    let (mut attr, mut mask) = attributes(id, ibv_qp_state::IBV_QPS_RTR)?;
    let bound = id.state().bound.ok_or(Errno::EINVAL)?;
    if device::is_infiniband(&bound, id.port_num())? {
        mask &= !STRAY_BITS;
    }
    if let Some(number) = definite(responder_resources) {
        attr.max_dest_rd_atomic = number;
    }
    // SAFETY: the id's QP is live.
    unsafe { verbs::modify_qp(qp, &mut attr, mask) }
}

/// Ready to send; `initiator_depth` as in [`to_rtr`].
pub(super) fn to_rts(id: &Id, initiator_depth: Option<u8>) -> Result<()> {
    let Some(qp) = NonNull::new(id.qp()) else { return Ok(()) };
    let (mut attr, mask) = attributes(id, ibv_qp_state::IBV_QPS_RTS)?;
    if let Some(number) = definite(initiator_depth) {
        attr.max_rd_atomic = number;
    }
    // SAFETY: the id's QP is live.
    unsafe { verbs::modify_qp(qp, &mut attr, mask) }
}

fn definite(number: Option<u8>) -> Option<u8> {
    number.filter(|&number| u32::from(number) != RDMA_MAX_RESP_RES)
}

/// Stops it: everything queued completes with an error.
pub(super) fn to_error(id: &Id) -> Result<()> {
    to_bare_state(id, ibv_qp_state::IBV_QPS_ERR)
}

/// Send queue drained: what iWARP does before it closes.
pub(super) fn to_sqd(id: &Id) -> Result<()> {
    to_bare_state(id, ibv_qp_state::IBV_QPS_SQD)
}

fn to_bare_state(id: &Id, state: u32) -> Result<()> {
    let Some(qp) = NonNull::new(id.qp()) else { return Ok(()) };
    let mut attr = state_only(state);
    // SAFETY: the id's QP is live.
    unsafe { verbs::modify_qp(qp, &mut attr, ibv_qp_attr_mask::IBV_QP_STATE.0 as c_int) }
}

fn state_only(state: u32) -> ibv_qp_attr {
    // SAFETY: all zeros are a value of this structure of numbers.
    let mut attr: ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = state;
    attr
}

/// INIT_QP_ATTR: what the kernel wants a QP to have in `state`.
fn attributes(id: &Id, state: u32) -> Result<(ibv_qp_attr, c_int)> {
    let mut attr = state_only(state);
    let mask = fill_attributes(id, &mut attr)?;
    Ok((attr, mask))
}

fn fill_attributes(id: &Id, attr: &mut ibv_qp_attr) -> Result<c_int> {
    let kernel = ucma::init_qp_attr(id.fd(), id.handle(), attr.qp_state)?;
    Ok(verbs::qp_attr_from_kernel(&kernel, attr))
}

/// rdma_init_qp_attr(3): for programs that move their QP themselves.
///
/// # Safety
/// `attr` readable (its qp_state) and writable, `mask` writable.
pub unsafe fn init_qp_attr(id: &Id, attr: NonNull<ibv_qp_attr>, mask: NonNull<c_int>) -> Result<()> {
    // SAFETY: `attr` readable (its qp_state) and writable, `mask` writable: guaranteed by the
    // caller.
    unsafe {
        let set = fill_attributes(id, &mut *attr.as_ptr())?;
        mask.write(set);
    }
    Ok(())
}

/// rdma_destroy_qp(3), with the CQs that came with it.
///
/// # Safety
/// The QP is the id's own and nothing else uses it.
pub unsafe fn destroy_qp(id: &Id) {
    let Some(qp) = NonNull::new(id.qp()) else { return };
    // The CQs of an XRC receiver belong to its SRQ.
    // SAFETY: the id's QP is live.
    let keep_cqs = unsafe { (*qp.as_ptr()).qp_type } == ibv_qp_type::IBV_QPT_XRC_RECV && !id.srq().is_null();
    // SAFETY: the QP is the id's own and nothing else uses it: guaranteed by the caller.
    unsafe { verbs::destroy_qp(qp) };
    id.set_qp(ptr::null_mut());
    if !keep_cqs {
        cq::destroy(id, cq::Made::ALL);
    }
}
