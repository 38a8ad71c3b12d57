//! Wrappers of pointers to libibverbs objects. A pointer is wrapped where it is known to be valid,
//! so that calls on the wrapper are safe.

use std::ffi::c_int;
use std::ptr::NonNull;

use crate::errno::{Errno, Result};
use crate::verbs::{self, ibv_context, ibv_ece, ibv_pd, ibv_qp, ibv_qp_attr};

/// A PD in which a QP or SRQ is created.
#[derive(Clone, Copy, Debug)]
pub struct Pd(NonNull<ibv_pd>);

impl Pd {
    /// Returns the PD behind a pointer, or `None` for NULL.
    ///
    /// # Safety
    /// `pd` is NULL, or the PD outlives the value and the objects that are created in the PD.
    pub unsafe fn from_c(pd: *mut ibv_pd) -> Option<Pd> {
        NonNull::new(pd).map(Pd)
    }

    /// Returns the pointer by which libibverbs knows the PD.
    pub(super) fn as_c(self) -> *mut ibv_pd {
        self.0.as_ptr()
    }

    /// Returns the context of the PD's device.
    pub(super) fn context(self) -> *mut ibv_context {
        // SAFETY: a PD is live as long as its value is used (`from_c`).
        unsafe { (*self.as_c()).context }
    }
}

/// The attributes of a new QP or SRQ, which are updated when the object is created:
/// `ibv_qp_init_attr`, `ibv_qp_init_attr_ex`, `ibv_srq_init_attr` or `ibv_srq_init_attr_ex`.
#[derive(Debug)]
pub struct InitAttr<'a, T>(&'a mut T);

impl<'a, T> InitAttr<'a, T> {
    /// Returns the attributes behind a pointer.
    ///
    /// # Errors
    /// Fails with `EINVAL` for NULL.
    ///
    /// # Safety
    /// `attr` is NULL or points to a structure as [`new`](Self::new) requires it, which nothing
    /// else uses during `'a`.
    pub unsafe fn from_c(attr: *mut T) -> Result<InitAttr<'a, T>> {
        // SAFETY: `attr` is NULL or valid for `'a`: guaranteed by the caller.
        unsafe { attr.as_mut() }.map(InitAttr).ok_or(Errno::EINVAL)
    }

    /// Wraps a structure of attributes.
    ///
    /// # Safety
    /// Each pointer to a libibverbs object that the structure declares valid is NULL, or its object
    /// outlives every QP or SRQ that is created with these attributes, and the endpoint that stores
    /// them.
    pub unsafe fn new(attr: &'a mut T) -> InitAttr<'a, T> {
        InitAttr(attr)
    }

    /// Returns the structure. Callers store only live objects in it.
    pub(super) fn get(&mut self) -> &mut T {
        self.0
    }
}

/// The QP of an id.
pub(super) struct Qp(NonNull<ibv_qp>);

impl Qp {
    /// # Safety
    /// The QP is live until it is destroyed through the value.
    pub unsafe fn new(qp: NonNull<ibv_qp>) -> Qp {
        Qp(qp)
    }

    /// Returns the pointer by which libibverbs knows the QP.
    pub fn as_c(&self) -> *mut ibv_qp {
        self.0.as_ptr()
    }

    /// Returns the PD in which the QP was created.
    pub fn pd(&self) -> *mut ibv_pd {
        // SAFETY: the QP is live until `destroy` (`new`).
        unsafe { (*self.as_c()).pd }
    }

    /// Returns the type, an `enum ibv_qp_type`.
    pub fn qp_type(&self) -> u32 {
        // SAFETY: the QP is live until `destroy` (`new`).
        unsafe { (*self.as_c()).qp_type }
    }

    /// Calls ibv_modify_qp(3).
    pub fn modify(&self, attr: &mut ibv_qp_attr, mask: c_int) -> Result<()> {
        // SAFETY: the QP is live until `destroy` (`new`).
        unsafe { verbs::modify_qp(self.0, attr, mask) }
    }

    /// Calls ibv_query_ece(3).
    pub fn query_ece(&self) -> Result<ibv_ece> {
        // SAFETY: the QP is live until `destroy` (`new`).
        unsafe { verbs::query_ece(self.0) }
    }

    /// Calls ibv_set_ece(3).
    pub fn set_ece(&self, vendor_id: u32, options: u32) -> Result<()> {
        // SAFETY: the QP is live until `destroy` (`new`).
        unsafe { verbs::set_ece(self.0, ibv_ece { vendor_id, options, comp_mask: 0 }) }
    }

    /// Calls ibv_destroy_qp(3).
    pub fn destroy(self) {
        // SAFETY: the QP is live (`new`), and destroyed once: this call takes the value.
        unsafe { verbs::destroy_qp(self.0) };
    }
}
