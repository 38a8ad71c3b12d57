//! `rdma/rdma_cma.h`: event channels and events, devices.

use std::ffi::{c_char, c_int};
use std::ptr::NonNull;

use rdmacm_core::Errno;
use rdmacm_core::cm::{self, DeviceContexts, EventChannel, OwnedChannel, OwnedEvent};
use rdmacm_core::ffi::{ibv_context, rdma_cm_event, rdma_cm_event_type_t, rdma_event_channel};

use crate::args::put;
use crate::report::Call;
use crate::{free, pointer, quick_status};

/// Creates an event channel, which reports the events of the ids created with it.
///
/// Returns NULL and errno on failure: ENODEV without RDMA devices, EPERM if the library does not
/// support the kernel's interface version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(Call::new("rdma_create_event_channel"), || Ok(cm::create_event_channel()?.into_c()))
}

/// Destroys an event channel. Its ids must have been destroyed or migrated, and its events
/// acknowledged. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: the C contract (crate documentation).
    free("rdma_destroy_event_channel", || unsafe { OwnedChannel::from_c(channel) });
}

/// Returns the next event of a channel. Waits for one, or fails with EAGAIN if the channel's
/// descriptor is O_NONBLOCK.
///
/// Every event must be acknowledged with rdma_ack_cm_event(). Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int {
    // SAFETY: the C contract (crate documentation).
    quick_status(Call::new("rdma_get_cm_event"), || unsafe {
        let channel = EventChannel::from_c(channel).ok_or(Errno::EINVAL)?;
        put(event, || Ok(cm::get_cm_event(channel)?.into_c()))
    })
}

/// Acknowledges and frees an event with its private data.
///
/// rdma_destroy_id(), rdma_leave_multicast() and rdma_migrate_id() wait until the events of the id
/// are acknowledged. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    quick_status(Call::new("rdma_ack_cm_event"), || {
        // SAFETY: the C contract (crate documentation).
        unsafe { OwnedEvent::from_c(event) }.map(cm::ack_cm_event)
    })
}

/// Returns the name of an event, such as "RDMA_CM_EVENT_ESTABLISHED", or "UNKNOWN EVENT".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_event_str(event: rdma_cm_event_type_t) -> *const c_char {
    cm::event_str(event).as_ptr()
}

/// Opens the RDMA devices. Returns a NULL-terminated array of their contexts.
///
/// The devices stay open until rdma_free_devices() is called. num_devices, unless NULL, receives
/// their number. Returns NULL and errno on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    pointer(Call::new("rdma_get_devices"), || {
        let devices = cm::get_devices();
        if let Some(count) = NonNull::new(num_devices) {
            // SAFETY: the C contract (crate documentation).
            unsafe { count.write(devices.as_ref().map_or(0, DeviceContexts::count) as c_int) };
        }
        Ok(devices?.into_c())
    })
}

/// Frees an array that rdma_get_devices() returned. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the C contract (crate documentation).
    free("rdma_free_devices", || unsafe { DeviceContexts::from_c(list) });
}
