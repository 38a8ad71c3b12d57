//! Creating and destroying ids.

use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::{self, NonNull};

use super::channel::{EventChannel, OwnedChannel, create_event_channel};
use super::device_registry::{self, Bound};
use super::id;
use super::id::Id;
use super::library::library;
use crate::diag::probes;
use crate::errno::{Errno, Result};
use crate::ffi::{rdma_cm_id, rdma_port_space};
use crate::os::alloc::try_uninit;
use crate::ucm;
use crate::verbs::ibv_qp_type;

/// An id, with the right to destroy it. An id whose value is dropped is kept.
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
    /// Takes an id back from a program; `EINVAL` for NULL.
    ///
    /// # Safety
    /// As [`Id::from_c`]; after its destruction nothing uses the id.
    pub unsafe fn from_c(id: *mut rdma_cm_id) -> Result<OwnedId> {
        // SAFETY: `Id::from_c` has the same contract.
        unsafe { Id::from_c(id).map(|id| OwnedId::from_ref(id)) }
    }

    /// Takes over an id that the library has a reference to.
    ///
    /// # Safety
    /// After its destruction nothing uses the id.
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

    /// Makes a new id known to the kernel; on failure it is freed.
    fn create_in_kernel(self, ps: u32, qp_type: u32) -> Result<OwnedId> {
        match ucm::create_id(self.fd(), self.uid(), ps as u16, qp_type as u8) {
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

    /// Frees the id. The kernel reports nothing for it any more.
    fn free(self) {
        let bound = self.retire();
        // SAFETY: from Box::leak in `allocate`, and nothing uses an id after its destruction.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        if let Some(bound) = bound {
            device_registry::release(bound);
        }
    }

    /// Frees everything that the id holds, but not its memory.
    fn retire(&self) -> Option<Bound> {
        if self.is_request() {
            id::remove_handle(self.handle(), self.0);
        }
        if self.is_sync() {
            // SAFETY: a synchronous id owns its channel, and is the only one on it.
            drop(unsafe { OwnedChannel::from_c(self.channel()) });
        }
        self.state().bound.take()
    }
}

/// rdma_create_id(3): on `channel`, or synchronous with a channel of its own.
pub fn create_id(channel: Option<EventChannel>, context: *mut c_void, ps: u32) -> Result<OwnedId> {
    let datagrams = ps == rdma_port_space::RDMA_PS_UDP as u32 || ps == rdma_port_space::RDMA_PS_IPOIB as u32;
    let qp_type = if datagrams { ibv_qp_type::IBV_QPT_UD } else { ibv_qp_type::IBV_QPT_RC };
    create(channel, context, ps, qp_type)
}

/// As [`create_id`], with the QP type that its QPs will have.
pub(super) fn create(channel: Option<EventChannel>, context: *mut c_void, ps: u32, qp_type: u32) -> Result<OwnedId> {
    library()?;
    // Programs know every failure as ENOMEM (docs/compatibility.md).
    let id = OwnedId::allocate(channel, context, ps, qp_type).map_err(|_| Errno::ENOMEM)?;
    id.create_in_kernel(ps, qp_type)
}

/// A synchronous id that the program does not get to know.
pub(super) fn create_internal(ps: u32, qp_type: u32) -> Result<OwnedId> {
    library()?;
    OwnedId::allocate(None, ptr::null_mut(), ps, qp_type)?.create_in_kernel(ps, qp_type)
}

/// An id for a kernel id that came with a connection request, on the listener's channel. On failure
/// the kernel's id is destroyed, which tells the peer.
pub(super) fn create_for_request(listener: &Id, handle: u32) -> Result<OwnedId> {
    // SAFETY: the channel of a live id is live, and outlives the ids of its connections.
    let channel = unsafe { EventChannel::from_c(listener.channel()) };
    let id = OwnedId::allocate(channel, listener.context(), listener.ps(), listener.qp_type()).inspect_err(|_| {
        // There is no remedy for a failure here.
        let _ = ucm::destroy_id(listener.fd(), handle);
    })?;
    id.set_handle(handle);
    if let Err(error) = id::insert_handle(handle, id.0) {
        discard(id);
        return Err(error);
    }
    id.set_request();
    Ok(id)
}

/// rdma_destroy_id(3). Waits until every event that was reported for the id is acknowledged.
///
/// When the kernel refuses (for example in a child that did not open the channel), an asynchronous
/// id stays as it was; a synchronous one is freed all the same, for closing its channel ends it in
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
                // SAFETY: its channel is its own, and is closed with it.
                unsafe { free_id(id) };
            }
            Err(error)
        }
    }
}

/// Destroys a kernel id together with its id, for a connection request that cannot be shown. The
/// kernel rejects the request.
pub(super) fn discard(id: OwnedId) {
    // There is no remedy for a failure here.
    let _ = ucm::destroy_id(id.fd(), id.handle());
    id.free();
}

/// Frees an id whose kernel id was destroyed with its channel. The id's memory is kept while the
/// program holds events that refer to it, such as a listener's connection requests.
///
/// # Safety
/// The kernel reports no more events for the id.
pub unsafe fn free_id(id: OwnedId) {
    if id.completed.is_done() {
        id.free();
    } else if let Some(bound) = id.retire() {
        device_registry::release(bound);
    }
}
