//! Endpoints: synchronous ids made from an address in one call.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use super::id::{self, Id};
use super::resolve;
use super::{option, qp, srq};
use crate::errno::{Errno, Result};
use crate::ffi::{RAI_PASSIVE, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, rdma_addrinfo, rdma_cm_id};
use crate::sys::alloc::try_copy;
use crate::sys::cancel;
use crate::sys::verbs::{ibv_pd, ibv_qp_init_attr};

/// How long an active endpoint waits for address and route, in milliseconds.
const TIMEOUT: c_int = 2000;

/// How a passive endpoint makes the QPs of its connections.
#[derive(Clone, Copy)]
pub(super) struct Template(ibv_qp_init_attr);

/// rdma_create_ep(3): listening (RAI_PASSIVE) or with address, route and QP ready to connect.
///
/// # Safety
/// `id` writable, `res` as rdma_getaddrinfo(3) made it, `pd` and `attr` NULL or live.
pub unsafe fn create_ep(
    id: NonNull<*mut rdma_cm_id>,
    res: NonNull<rdma_addrinfo>,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> Result<()> {
    // SAFETY: `id` writable, `res` as rdma_getaddrinfo(3) made it, `pd` and `attr` NULL or live:
    // guaranteed by the caller; NULL makes the id synchronous.
    let (res, new) = unsafe {
        let res = res.as_ref();
        (res, id::create(ptr::null_mut(), ptr::null_mut(), res.ai_port_space as u32, res.ai_qp_type as u32)?)
    };
    // SAFETY: `id` writable, `res` as rdma_getaddrinfo(3) made it, `pd` and `attr` NULL or live:
    // guaranteed by the caller.
    let prepare = || unsafe {
        if res.ai_flags as u32 & RAI_PASSIVE != 0 { passive(new, res, pd, attr) } else { active(new, res, pd, attr) }
    };
    // SAFETY: nobody has seen it.
    let prepared = cancel::with_cleanup(|| unsafe { destroy_ep(new) }, prepare);
    match prepared {
        Ok(()) => {
            // SAFETY: `id` writable, `res` as rdma_getaddrinfo(3) made it, `pd` and `attr` NULL or
            // live: guaranteed by the caller.
            unsafe { id.write(new.as_c()) };
            Ok(())
        }
        Err(error) => {
            // SAFETY: nobody has seen it.
            unsafe { destroy_ep(new) };
            Err(error)
        }
    }
}

unsafe fn passive(id: &Id, res: &rdma_addrinfo, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> Result<()> {
    let source = NonNull::new(res.ai_src_addr).ok_or(Errno::EINVAL)?;
    // SAFETY: addresses as long as their families say, `attr` NULL or readable, here and below:
    // guaranteed by the caller.
    unsafe { resolve::bind_addr(id, source)? };
    if !pd.is_null() {
        id.set_pd(pd);
    }
    // SAFETY: as above.
    if let Some(attr) = unsafe { attr.as_ref() } {
        // The program's own stay as they are: nothing is created from them here, and they may be
        // constant.
        id.state().template = Some(Template(ibv_qp_init_attr { qp_type: res.ai_qp_type as u32, ..*attr }));
    }
    Ok(())
}

unsafe fn active(id: &Id, res: &rdma_addrinfo, pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> Result<()> {
    let destination = NonNull::new(res.ai_dst_addr).ok_or(Errno::EINVAL)?;
    // SAFETY: addresses as long as their families say, `attr` NULL or readable, here and below:
    // guaranteed by the caller.
    unsafe {
        resolve::resolve_addr(id, res.ai_src_addr, destination, TIMEOUT)?;
        if res.ai_route_len > 0 {
            let operation = id.operation();
            option::set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, res.ai_route, res.ai_route_len)?;
            operation.complete()?;
        } else {
            resolve::resolve_route(id, TIMEOUT)?;
        }
        if res.ai_connect_len > 0 && !res.ai_connect.is_null() {
            let data = std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len);
            id.state().connect_data = try_copy(data)?;
        }
        if let Some(attr) = NonNull::new(attr) {
            (*attr.as_ptr()).qp_type = res.ai_qp_type as u32;
            qp::create_qp(id, pd, attr)?;
        }
    }
    Ok(())
}

/// For the id of a connection request: the QP that its endpoint's attributes describe, on the listener's PD.
pub(super) fn equip(listen: &Id, new: &Id) -> Result<()> {
    let Some(Template(mut attr)) = listen.state().template else { return Ok(()) };
    // SAFETY: the attributes were valid when the endpoint was made, and what they name must outlive it.
    unsafe { qp::create_qp(new, listen.pd(), NonNull::from(&mut attr)) }
}

/// rdma_destroy_ep(3): the id with its QP and SRQ.
///
/// # Safety
/// Not used afterwards.
pub unsafe fn destroy_ep(id: &Id) {
    // SAFETY: not used afterwards: guaranteed by the caller. There is nobody to tell of a failure.
    unsafe {
        qp::destroy_qp(id);
        srq::destroy_srq(id);
        let _ = id::destroy_id(id);
    }
}
