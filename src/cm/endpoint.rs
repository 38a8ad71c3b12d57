//! Endpoints: synchronous ids that are created from an address in one call.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use super::id::Id;
use super::objects::{InitAttr, Pd, Template};
use super::option::OptionValue;
use super::owned_id::{self, OwnedId};
use super::{qp, resolve};
use crate::errno::{Errno, Result};
use crate::ffi::RAI_PASSIVE;
use crate::os::alloc::try_copy;
use crate::os::cancel;
use crate::os::sockaddr::AddrRef;
use crate::verbs::{ibv_pd, ibv_qp_init_attr};

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
    /// An array of `struct ibv_path_data`.
    pub route: OptionValue<'a>,
    /// Put in front of the private data of the connection request.
    pub connect_data: &'a [u8],
}

/// PD and attributes for an active endpoint's QP, or for the QPs of a passive one's connections.
#[derive(Clone, Copy)]
pub struct EndpointQp<'a> {
    pd: *mut ibv_pd,
    attr: Option<NonNull<ibv_qp_init_attr>>,
    objects: PhantomData<&'a mut ibv_qp_init_attr>,
}

impl EndpointQp<'_> {
    /// Takes PD and attributes from a program. A NULL `pd` stands for the library's PD, a NULL
    /// `attr` for no QP.
    ///
    /// # Safety
    /// `attr` is NULL or as ibv_create_qp(3) requires it, and nothing else uses it while the value
    /// exists. PD, CQs and SRQ are NULL or outlive the endpoint and the QPs of its connections.
    pub unsafe fn from_c(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> Self {
        EndpointQp { pd, attr: NonNull::new(attr), objects: PhantomData }
    }

    /// Returns a copy of the attributes, if there are any, with QP type `qp_type`. The program's
    /// structure, which may be constant, is not changed.
    fn template(&self, qp_type: u32) -> Option<Template> {
        // SAFETY: `from_c` requires valid attributes.
        self.attr.map(|attr| Template(ibv_qp_init_attr { qp_type, ..unsafe { attr.read() } }))
    }

    /// Creates the QP of an id if there are attributes for it. Updates the attributes.
    fn create(&self, id: &Id, qp_type: u32) -> Result<()> {
        let Some(attr) = self.attr else { return Ok(()) };
        // SAFETY: `from_c` requires valid attributes with live objects, which nothing else uses.
        let (pd, mut attr) = unsafe {
            (*attr.as_ptr()).qp_type = qp_type;
            (Pd::from_c(self.pd), InitAttr::from_c(attr.as_ptr())?)
        };
        qp::create_qp(id, pd, &mut attr)
    }
}

/// Implements rdma_create_ep(3). Returns an id that is bound (RAI_PASSIVE), or one that has an
/// address, a route and a QP.
pub fn create_ep(info: &EndpointInfo<'_>, qp: EndpointQp<'_>) -> Result<OwnedId> {
    let new = owned_id::create(None, ptr::null_mut(), info.port_space, info.qp_type)?;
    let prepare = || {
        if info.flags & RAI_PASSIVE != 0 { bind_passive(&new, info, qp) } else { resolve_active(&new, info, qp) }
    };
    // SAFETY: the id is new, and nothing uses it after a cancellation.
    let prepared = cancel::with_cleanup(|| destroy_ep(unsafe { OwnedId::from_ref(&new) }), prepare);
    if let Err(error) = prepared {
        destroy_ep(new);
        return Err(error);
    }
    Ok(new)
}

fn bind_passive(id: &Id, info: &EndpointInfo<'_>, qp: EndpointQp<'_>) -> Result<()> {
    let source = info.src.ok_or(Errno::EINVAL)?.read()?;
    resolve::bind_addr(id, &source)?;
    if !qp.pd.is_null() {
        id.set_pd(qp.pd);
    }
    if let Some(template) = qp.template(info.qp_type) {
        id.state().template = Some(template);
    }
    Ok(())
}

fn resolve_active(id: &Id, info: &EndpointInfo<'_>, qp: EndpointQp<'_>) -> Result<()> {
    let destination = info.dst.ok_or(Errno::EINVAL)?;
    let source = info.src.map(AddrRef::read).transpose()?;
    resolve::resolve_addr(id, source.as_ref(), &destination.read()?, TIMEOUT_MS)?;
    if info.route.is_empty() {
        resolve::resolve_route(id, TIMEOUT_MS)?;
    } else {
        let operation = id.operation();
        resolve::set_paths(id, info.route)?;
        operation.complete()?;
    }
    if !info.connect_data.is_empty() {
        id.state().connect_data = try_copy(info.connect_data)?;
    }
    qp.create(id, info.qp_type)
}

/// Creates the QP for the id of a connection request, on the listener's PD, if the listening
/// endpoint has attributes for it.
pub(super) fn attach_qp(listen: &Id, new: &Id) -> Result<()> {
    let Some(Template(mut attr)) = listen.state().template else { return Ok(()) };
    // SAFETY: PD, CQs and SRQ outlive the endpoint, as `EndpointQp::from_c` requires.
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
