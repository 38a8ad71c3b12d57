//! Creating and destroying ids.

use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::{self, NonNull};

use super::channel::{EventChannel, OwnedChannel, create_event_channel};
use super::device_registry;
use super::id;
use super::id::Id;
use super::library::library;
use crate::diag::probes;
use crate::errno::{Errno, Result};
use crate::ffi::{rdma_cm_id, rdma_port_space};
use crate::os::alloc::try_uninit;
use crate::ucm;
use crate::verbs::ibv_qp_type;

/// An id, with the right to destroy it. Dropping the value does not destroy the id.
#[derive(Debug)]
#[must_use]
pub struct OwnedId(NonNull<Id>);

impl Deref for OwnedId {
    type Target = Id;

    fn deref(&self) -> &Id {
        // SAFETY: only the destruction, which takes `self`, frees an id.
        unsafe { self.0.as_ref() }
    }
}

impl OwnedId {
    /// Takes an id back from a program.
    ///
    /// # Errors
    /// Fails with `EINVAL` for NULL.
    ///
    /// # Safety
    /// `id` is as [`Id::from_c`] requires it, and nothing uses the id after its destruction.
    pub unsafe fn from_c(id: *mut rdma_cm_id) -> Result<OwnedId> {
        // SAFETY: `id` is as `Id::from_c` requires it: guaranteed by the caller.
        unsafe { Id::from_c(id).map(|id| OwnedId::from_ref(id)) }
    }

    /// Takes over an id to which the library has a reference.
    ///
    /// # Safety
    /// Nothing uses the id after its destruction.
    pub(super) unsafe fn from_ref(id: &Id) -> OwnedId {
        OwnedId(NonNull::from(id))
    }

    /// Hands the id over to the program.
    pub fn into_c(self) -> *mut rdma_cm_id {
        self.as_c()
    }

    fn allocate(channel: Option<EventChannel>, context: *mut c_void, ps: u32, qp_type: u32) -> Result<OwnedId> {
        let id = Box::write(try_uninit()?, Id::new(context, ps, qp_type));
        match channel {
            Some(channel) => id.set_channel(channel.as_c()),
            None => {
                let own = create_event_channel()?;
                id.set_channel(own.into_c().as_ptr());
                id.set_sync(true);
            }
        }
        Ok(OwnedId(NonNull::from(Box::leak(id))))
    }

    /// Creates the id in the kernel, and stores the kernel's handle. Frees the id on failure.
    fn create_in_kernel(self) -> Result<OwnedId> {
        match ucm::create_id(self.fd(), self.uid(), self.ps() as u16, self.qp_type() as u8) {
            Ok(handle) => {
                self.set_handle(handle);
                Ok(self)
            }
            Err(error) => {
                self.free();
                Err(error)
            }
        }
    }

    /// Frees the id, for which the kernel reports no more events.
    fn free(self) {
        self.retire();
        // SAFETY: from Box::leak in `allocate`, and nothing uses an id after its destruction.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }

    /// Releases the id's entry in the table of handles, its channel and its device, but not its
    /// memory.
    fn retire(&self) {
        id::remove_handle(self.handle(), self.0);
        if self.is_sync() {
            // SAFETY: a synchronous id owns its channel, and is the only one on it.
            drop(unsafe { OwnedChannel::from_c(self.channel()) });
        }
        let bound = self.state().bound.take();
        bound.into_iter().for_each(device_registry::release);
    }
}

/// Implements rdma_create_id(3). Without `channel`, the id is synchronous and has its own channel.
pub fn create_id(channel: Option<EventChannel>, context: *mut c_void, ps: u32) -> Result<OwnedId> {
    let datagrams = ps == rdma_port_space::RDMA_PS_UDP as u32 || ps == rdma_port_space::RDMA_PS_IPOIB as u32;
    let qp_type = if datagrams { ibv_qp_type::IBV_QPT_UD } else { ibv_qp_type::IBV_QPT_RC };
    create(channel, context, ps, qp_type)
}

/// Like [`create_id`], with the type of the QPs that the id will have.
pub(super) fn create(channel: Option<EventChannel>, context: *mut c_void, ps: u32, qp_type: u32) -> Result<OwnedId> {
    library()?;
    // Programs expect ENOMEM for any failure to allocate the id (docs/compatibility.md).
    let id = OwnedId::allocate(channel, context, ps, qp_type).map_err(|_| Errno::ENOMEM)?;
    id.create_in_kernel()
}

/// Creates a synchronous id in RDMA_PS_IB that the program does not see.
pub(super) fn create_internal() -> Result<OwnedId> {
    library()?;
    let (ps, qp_type) = (rdma_port_space::RDMA_PS_IB as u32, ibv_qp_type::IBV_QPT_RC);
    OwnedId::allocate(None, ptr::null_mut(), ps, qp_type)?.create_in_kernel()
}

/// Creates the id for a kernel id that came with a connection request, on the listener's channel.
/// On failure the kernel id is destroyed, which rejects the request.
pub(super) fn create_for_request(listener: &Id, handle: u32) -> Result<OwnedId> {
    // SAFETY: the channel of a live id is live, and outlives the ids of its connections.
    let channel = unsafe { EventChannel::from_c(listener.channel()) };
    let id = OwnedId::allocate(channel, listener.context(), listener.ps(), listener.qp_type()).inspect_err(|_| {
        // A failure cannot be handled here.
        let _ = ucm::destroy_id(listener.fd(), handle);
    })?;
    id.set_handle(handle);
    if let Err(error) = id::insert_handle(handle, id.0) {
        discard(id);
        return Err(error);
    }
    Ok(id)
}

/// Implements rdma_destroy_id(3). Waits until all events reported for the id are acknowledged.
///
/// If the kernel refuses (for example in a child that did not open the channel), an asynchronous id
/// remains valid. A synchronous id is freed nevertheless: closing its channel destroys the id in
/// the kernel, too.
pub fn destroy_id(id: OwnedId) -> Result<()> {
    probes::cm_close(id.as_c());
    match ucm::destroy_id(id.fd(), id.handle()) {
        Ok(reported) => {
            id.drop_event();
            id.completed.wait_for(reported);
            id.free();
            Ok(())
        }
        Err(error) => {
            if id.is_sync() {
                id.drop_event();
                // SAFETY: the id owns its channel, which is closed with it: no more events come.
                unsafe { free_id(id) };
            }
            Err(error)
        }
    }
}

/// Destroys an id and its kernel id, for a connection request that cannot be shown. The kernel
/// rejects the request.
pub(super) fn discard(id: OwnedId) {
    // A failure cannot be handled here.
    let _ = ucm::destroy_id(id.fd(), id.handle());
    id.free();
}

/// Frees an id whose kernel id is destroyed by closing its channel. If the program holds events
/// that refer to the id, such as a listener's connection requests, the id's memory is leaked.
///
/// # Safety
/// The kernel reports no more events for the id.
pub unsafe fn free_id(id: OwnedId) {
    if id.completed.is_done() {
        id.free();
    } else {
        id.retire();
    }
}
