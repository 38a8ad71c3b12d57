//! Endpoints: synchronous ids that are created from an address in one call.

use std::ffi::c_int;
use std::ptr;

use super::id::Id;
use super::objects::{InitAttr, Pd};
use super::owned_id::{self, OwnedId};
use super::{qp, resolve};
use crate::acm::ANSWER_TIMEOUT;
use crate::errno::{Errno, Result};
use crate::ffi::RAI_PASSIVE;
use crate::os::alloc::try_copy;
use crate::os::cancel;
use crate::os::sockaddr::AddrRef;
use crate::verbs::ibv_qp_init_attr;

/// Time-out for resolving the address, and for resolving the route, of an active endpoint, in
/// milliseconds.
const TIMEOUT_MS: c_int = 2000;

/// The fields of a `struct rdma_addrinfo` that rdma_create_ep(3) uses.
#[derive(Clone, Copy)]
pub struct EndpointInfo<'a> {
    /// RAI_* flags.
    pub flags: u32,
    /// Port space.
    pub port_space: u32,
    /// QP type.
    pub qp_type: u32,
    /// Local address; `None` for NULL.
    pub src: Option<AddrRef<'a>>,
    /// Remote address; `None` for NULL.
    pub dst: Option<AddrRef<'a>>,
    /// An array of `struct ibv_path_data`, which only the kernel reads.
    pub route: *const [u8],
    /// Data that precedes the private data of the connection request.
    pub connect_data: &'a [u8],
}

/// The attributes for the QPs of an endpoint; `None` if the library creates no QPs.
type QpAttr<'a> = Option<InitAttr<'a, ibv_qp_init_attr>>;

/// Implements rdma_create_ep(3). Returns a bound id for RAI_PASSIVE, otherwise an id with resolved
/// addresses, a route and a QP. `pd` and `attr` are the PD and the attributes of an active
/// endpoint's QP, or of the QPs of a passive endpoint's connections. Without `pd` the library's PD
/// is used; without `attr` no QP is created.
pub fn create_ep(info: &EndpointInfo<'_>, pd: Option<Pd>, attr: QpAttr<'_>) -> Result<OwnedId> {
    let new = owned_id::create(None, ptr::null_mut(), info.port_space, info.qp_type)?;
    let prepare = || {
        let prepare = if info.flags & RAI_PASSIVE != 0 { bind_passive } else { resolve_active };
        prepare(&new, info, pd, attr)
    };
    // SAFETY: the id is new, and nothing uses it after a cancellation.
    let prepared = cancel::with_cleanup(|| destroy_ep(unsafe { OwnedId::from_ref(&new) }), prepare);
    if let Err(error) = prepared {
        destroy_ep(new);
        return Err(error);
    }
    Ok(new)
}

fn bind_passive(id: &Id, info: &EndpointInfo<'_>, pd: Option<Pd>, attr: QpAttr<'_>) -> Result<()> {
    let source = info.src.ok_or(Errno::EINVAL)?.read()?;
    resolve::bind_addr(id, &source)?;
    if let Some(pd) = pd {
        id.set_pd(pd.as_c());
    }
    // The program's structure is not changed.
    id.state().template = attr.map(|mut attr| ibv_qp_init_attr { qp_type: info.qp_type, ..*attr.get() });
    Ok(())
}

fn resolve_active(id: &Id, info: &EndpointInfo<'_>, pd: Option<Pd>, attr: QpAttr<'_>) -> Result<()> {
    let destination = info.dst.ok_or(Errno::EINVAL)?;
    let source = info.src.map(AddrRef::read).transpose()?;
    resolve::resolve_addr(id, source.as_ref(), &destination.read()?, TIMEOUT_MS)?;
    if info.route.is_empty() {
        resolve::resolve_route(id, TIMEOUT_MS, ANSWER_TIMEOUT)?;
    } else {
        let operation = id.operation();
        resolve::set_paths(id, info.route)?;
        operation.complete()?;
    }
    if !info.connect_data.is_empty() {
        id.state().connect_data = try_copy(info.connect_data)?;
    }
    let Some(mut attr) = attr else { return Ok(()) };
    attr.get().qp_type = info.qp_type;
    qp::create_qp(id, pd, &mut attr)
}

/// Creates the QP for the id of a connection request, on the listener's PD, if the listening
/// endpoint has attributes for QPs.
pub(super) fn attach_qp(listen: &Id, new: &Id) -> Result<()> {
    let Some(mut attr) = listen.state().template else { return Ok(()) };
    // SAFETY: PD, CQs and SRQ outlive the endpoint, as `Pd` and `InitAttr` require.
    let (pd, mut attr) = unsafe { (Pd::from_c(listen.pd()), InitAttr::new(&mut attr)) };
    qp::create_qp(new, pd, &mut attr)
}

/// Implements rdma_destroy_ep(3): destroys the id with its QP and SRQ.
pub fn destroy_ep(id: OwnedId) {
    qp::destroy_qp(&id);
    qp::destroy_srq(&id);
    // A failure cannot be reported.
    let _ = owned_id::destroy_id(id);
}
