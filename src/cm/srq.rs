//! Shared receive queues of ids.

use std::mem::zeroed;
use std::ptr::{self, NonNull};

use super::cq::{self, Created};
use super::device_registry;
use super::id::Id;
use super::objects::{InitAttr, Pd, Srq};
use crate::errno::{Errno, Result};
use crate::verbs::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQT_BASIC,
    IBV_SRQT_XRC, ibv_srq_init_attr, ibv_srq_init_attr_ex,
};

/// rdma_create_srq(3). What the device granted is written back.
pub fn create_srq(id: &Id, pd: Option<Pd>, attr: &mut InitAttr<'_, ibv_srq_init_attr>) -> Result<()> {
    let given = attr.get();
    // SAFETY: all zeros are a value of this structure.
    let mut extended: ibv_srq_init_attr_ex = unsafe { zeroed() };
    extended.srq_context = given.srq_context;
    extended.attr = given.attr;
    extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    extended.srq_type = IBV_SRQT_BASIC;
    extended.pd = pd.map_or(ptr::null_mut(), Pd::as_c);
    // SAFETY: the PD is live, and there are no other objects.
    create_srq_ex(id, &mut unsafe { InitAttr::new(&mut extended) })?;
    given.attr = extended.attr;
    Ok(())
}

/// rdma_create_srq_ex(3).
pub fn create_srq_ex(id: &Id, attributes: &mut InitAttr<'_, ibv_srq_init_attr_ex>) -> Result<()> {
    let attr = attributes.get();
    // From now on the program destroys the SRQ that the id has already (docs/compatibility.md).
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 {
        return Err(Errno::EINVAL);
    }
    let context = id.device_context()?;
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.pd = id.pd();
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
    }
    let given = (attr.cq, attr.comp_mask);
    let created = if attr.srq_type == IBV_SRQT_XRC { add_xrc_objects(id, attr)? } else { Created::default() };
    match Srq::create(context, attributes) {
        Ok(srq) => {
            if id.pd().is_null() {
                id.set_pd(attributes.get().pd);
            }
            id.set_srq(srq.as_c());
            Ok(())
        }
        Err(error) => {
            cq::destroy(id, created);
            // The program's structure must not name what is destroyed.
            let attr = attributes.get();
            (attr.cq, attr.comp_mask) = given;
            Err(error)
        }
    }
}

/// Adds the XRC domain and the CQ that an XRC SRQ needs, unless the program brings them.
fn add_xrc_objects(id: &Id, attr: &mut ibv_srq_init_attr_ex) -> Result<Created> {
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
        let bound = id.state().bound.ok_or(Errno::EINVAL)?;
        attr.xrcd = device_registry::xrcd(&bound)?.as_ptr();
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
    }
    let mut created = Created::default();
    if attr.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || attr.cq.is_null() {
        created = cq::create_missing(id, 0, attr.attr.max_wr)?;
        attr.cq = NonNull::new(id.recv_cq()).ok_or(Errno::EINVAL)?.as_ptr();
        attr.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
    }
    Ok(created)
}

/// rdma_destroy_srq(3), with the CQs that came with it unless a QP still uses them.
pub fn destroy_srq(id: &Id) {
    let Some(srq) = id.own_srq() else { return };
    srq.destroy();
    id.set_srq(ptr::null_mut());
    if id.qp().is_null() {
        cq::destroy(id, Created::ALL);
    }
}
