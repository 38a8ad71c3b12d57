//! Protection domains (PDs) that isolate connections from each other.
//!
//! A memory key is valid for every QP of its PD: if connections shared a PD, the peer of one could
//! access the memory of the others.

use std::ptr::NonNull;

use super::device_registry::{self, Bound, Limits};
use super::id::Id;
use super::log;
use crate::diag::Cause;
use crate::errno::{Errno, Result};
use crate::verbs::{self, ibv_context, ibv_pd};

/// The PD of a connection on the device of its id. Keeps the device open.
#[derive(Debug)]
pub struct Domain {
    bound: Bound,
    /// The connection's own PD. Without one, it uses the PD that the ids on the device share.
    own: Option<NonNull<ibv_pd>>,
}

// SAFETY: any thread may use the libibverbs objects that it points at.
unsafe impl Send for Domain {}

impl Domain {
    /// Allocates a PD for a connection of `id`. If the device has no more PDs, the connection uses
    /// the PD of the ids, without isolation from others that do. Fails with `ENODEV` before the id
    /// has a device.
    pub fn new(id: &Id) -> Result<Domain> {
        let bound = id.state().bound.ok_or(Errno::ENODEV)?;
        // Keeps the device open.
        let bound = device_registry::share(&bound)?;
        let mut domain = Domain { bound, own: None };
        // SAFETY: `share` keeps the context open.
        match unsafe { verbs::alloc_pd(domain.bound.context) } {
            Ok(pd) => domain.own = Some(pd),
            Err(error) if is_exhaustion(error) => log::background(id, error, Cause::SharedDomain),
            Err(error) => return Err(error),
        }
        Ok(domain)
    }

    /// The PD, valid as long as `self`.
    pub fn pd(&self) -> NonNull<ibv_pd> {
        self.own.unwrap_or(self.bound.pd)
    }

    /// The device's context, open as long as `self` lives.
    pub fn context(&self) -> NonNull<ibv_context> {
        self.bound.context
    }

    /// The limits of the device.
    pub fn limits(&self) -> &Limits {
        &self.bound.limits
    }

    /// Whether it is on the device of `id`.
    pub fn is_of(&self, id: &Id) -> bool {
        id.verbs() == self.bound.context.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if let Some(pd) = self.own {
            // SAFETY: the owner has destroyed the QPs and memory regions in the PD, and the device
            // is open until `release`.
            unsafe { verbs::dealloc_pd(pd) };
        }
        device_registry::release(self.bound);
    }
}

/// Whether an error of ibv_alloc_pd(3) means that the device has no more PDs, or that the control
/// group has reached its limit. Drivers return different errors: rxe and cxgb4 fail with `EINVAL`.
fn is_exhaustion(error: Errno) -> bool {
    matches!(
        error.get(),
        libc::ENOMEM | libc::ENOSPC | libc::EAGAIN | libc::EBUSY | libc::EOVERFLOW | libc::EDQUOT | libc::EINVAL
    )
}
