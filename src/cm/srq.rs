//! Shared receive queues of ids.

use std::mem::zeroed;
use std::ptr::{self, NonNull};

use super::cq::{self, Made};
use super::device;
use super::id::Id;
use crate::errno::{Errno, Result};
use crate::sys::verbs::{
    self, IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_BASIC,
    IBV_SRQT_XRC, ibv_pd, ibv_srq_init_attr, ibv_srq_init_attr_ex,
};

/// rdma_create_srq(3). What the device granted is written back.
///
/// # Safety
/// `pd` is NULL or live, `attr` as ibv_create_srq(3) wants it.
pub unsafe fn create_srq(id: &Id, pd: *mut ibv_pd, attr: NonNull<ibv_srq_init_attr>) -> Result<()> {
    // SAFETY: `pd` is NULL or live, `attr` as ibv_create_srq(3) wants it: guaranteed by the caller;
    // all zeros are a value of the extended structure.
    let (given, mut extended) = unsafe { (&mut *attr.as_ptr(), zeroed::<ibv_srq_init_attr_ex>()) };
    extended.srq_context = given.srq_context;
    extended.attr = given.attr;
    extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    extended.srq_type = IBV_SRQT_BASIC;
    extended.pd = pd;
    // SAFETY: `pd` is NULL or live, `attr` as ibv_create_srq(3) wants it: guaranteed by the caller.
    unsafe { create_srq_ex(id, NonNull::from(&mut extended))? };
    given.attr = extended.attr;
    Ok(())
}

/// rdma_create_srq_ex(3).
///
/// # Safety
/// As [`create_srq`], for ibv_create_srq_ex(3).
pub unsafe fn create_srq_ex(id: &Id, attr: NonNull<ibv_srq_init_attr_ex>) -> Result<()> {
    // SAFETY: as [`create_srq`], for ibv_create_srq_ex(3): guaranteed by the caller.
    let attr = unsafe { &mut *attr.as_ptr() };
    // An SRQ that the id has already is the program's to destroy from now on (docs/quirks.md).
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
        return Err(Errno::EINVAL);
    }
    let context = NonNull::new(id.verbs()).ok_or(Errno::EINVAL)?;
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.pd = id.pd();
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    let given = (attr.cq, attr.comp_mask);
    let made = if attr.srq_type == IBV_SRQT_XRC { equip_xrc(id, attr)? } else { Made::default() };
    // SAFETY: the context is open, the attributes complete.
    match unsafe { verbs::create_srq_ex(context, attr) } {
        Ok(srq) => {
            if id.pd().is_null() {
                id.set_pd(attr.pd);
            }
            id.set_srq(srq.as_ptr());
            Ok(())
        }
        Err(error) => {
            cq::destroy(id, made);
            // The program's structure must not name what is gone.
            (attr.cq, attr.comp_mask) = given;
            Err(error)
        }
    }
}

/// An XRC SRQ needs a domain and a CQ of its own.
fn equip_xrc(id: &Id, attr: &mut ibv_srq_init_attr_ex) -> Result<Made> {
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
        let bound = id.state().bound.ok_or(Errno::EINVAL)?;
        attr.xrcd = device::xrcd(&bound)?.as_ptr();
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
    }
    let mut made = Made::default();
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
        made = cq::create_missing(id, 0, attr.attr.max_wr)?;
        attr.cq = NonNull::new(id.recv_cq()).ok_or(Errno::EINVAL)?.as_ptr();
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
    }
    Ok(made)
}

/// rdma_destroy_srq(3), with the CQs that came with it unless a QP still uses them.
///
/// # Safety
/// The SRQ is the id's own and nothing else uses it.
pub unsafe fn destroy_srq(id: &Id) {
    let Some(srq) = NonNull::new(id.srq()) else { return };
    // SAFETY: the SRQ is the id's own and nothing else uses it: guaranteed by the caller.
    unsafe { verbs::destroy_srq(srq) };
    id.set_srq(ptr::null_mut());
    if id.qp().is_null() {
        cq::destroy(id, Made::ALL);
    }
}
