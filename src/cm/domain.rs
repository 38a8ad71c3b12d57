//! Protection domains (PDs) of connections that must not reach into each other.
//!
//! A key names memory to every QP of its PD: peers of connections that share one could write into
//! each other's memory.

use std::ptr::NonNull;

use super::device::{self, Bound, Limits};
use super::id::Id;
use super::log;
use crate::diag::Why;
use crate::errno::{Errno, Result};
use crate::sys::verbs::{self, ibv_context, ibv_pd};

/// The PD of one connection, on the device of its id. The device stays open as long as it lives.
#[derive(Debug)]
pub struct Domain {
    bound: Bound,
    /// Its own; without one it is the PD that the ids on the device share.
    own: Option<NonNull<ibv_pd>>,
}

// SAFETY: libibverbs objects, which any thread may use.
unsafe impl Send for Domain {}

impl Domain {
    /// A PD for a connection of `id`; `ENODEV` before the id has a device. Where the device has no
    /// more of them, the connection shares that of the ids: the peers of such connections are
    /// trusted as all were before.
    pub fn new(id: &Id) -> Result<Domain> {
        let bound = id.state().bound.ok_or(Errno::ENODEV)?;
        // The device is not closed from here on.
        let bound = device::share(&bound)?;
        let mut domain = Domain { bound, own: None };
        // SAFETY: the context is open.
        match unsafe { verbs::alloc_pd(domain.bound.context) } {
            Ok(pd) => domain.own = Some(pd),
            Err(error) if is_exhaustion(error) => log::background(id, error, Why::SharedDomain),
            Err(error) => return Err(error),
        }
        Ok(domain)
    }

    /// The PD, live as long as `self`.
    pub fn pd(&self) -> NonNull<ibv_pd> {
        self.own.unwrap_or(self.bound.pd)
    }

    /// The device's context, open as long as `self` lives.
    pub fn context(&self) -> NonNull<ibv_context> {
        self.bound.context
    }

    /// What the device can do at most.
    pub fn limits(&self) -> &Limits {
        &self.bound.limits
    }

    /// Whether its device is the id's.
    pub fn is_of(&self, id: &Id) -> bool {
        id.verbs() == self.bound.context.as_ptr()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if let Some(pd) = self.own {
            // SAFETY: its owner drops QPs and registrations before; the device is open still.
            unsafe { verbs::dealloc_pd(pd) };
        }
        device::release(self.bound);
    }
}

/// Whether an error of ibv_alloc_pd(3) says that there are no more PDs, or no more objects for this
/// control group. Drivers don't agree on one: rxe and cxgb4 have `EINVAL`.
fn is_exhaustion(error: Errno) -> bool {
    matches!(
        error.get(),
        libc::ENOMEM | libc::ENOSPC | libc::EAGAIN | libc::EBUSY | libc::EOVERFLOW | libc::EDQUOT | libc::EINVAL
    )
}
