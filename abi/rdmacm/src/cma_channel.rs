//! `rdma/rdma_cma.h`: event channels and events, devices.

use std::ffi::{c_char, c_int};
use std::ptr::NonNull;

use rdmacm_core::cm;
use rdmacm_core::ffi::verbs::ibv_context;
use rdmacm_core::ffi::{rdma_cm_event, rdma_cm_event_type_t, rdma_event_channel};

use crate::report::{Call, report};
use crate::{nn, pointer, status};

/// Opens an event channel: the descriptor on which the events of the ids created with it are reported.
///
/// Returns NULL and errno on failure: ENODEV without RDMA devices, EPERM when the kernel's interface version is not one
/// that the library knows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(Call::new("rdma_create_event_channel"), cm::create_event_channel)
}

/// Closes an event channel. All its ids must be destroyed or migrated, and all its events acknowledged, before.
/// NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if let Some(channel) = NonNull::new(channel) {
        // SAFETY: the C contract (crate documentation).
        report(Call::new("rdma_destroy_event_channel"), (), || unsafe {
            cm::destroy_event_channel(channel);
            Ok(())
        });
    }
}

/// Takes the next event from a channel, waiting for one unless the channel's descriptor is O_NONBLOCK (EAGAIN).
///
/// Every event must be given back with rdma_ack_cm_event(). Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::new("rdma_get_cm_event"), || unsafe { cm::get_cm_event(nn(channel)?, nn(event)?) })
}

/// Gives an event back and frees it, with the private data that it carries.
///
/// rdma_destroy_id(), rdma_leave_multicast() and rdma_migrate_id() wait until the events of the id are acknowledged.
/// Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: the C contract (crate documentation).
    status(Call::new("rdma_ack_cm_event"), || unsafe { cm::ack_cm_event(nn(event)?) })
}

/// The name of an event, such as "RDMA_CM_EVENT_ESTABLISHED"; "UNKNOWN EVENT" for values without one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_event_str(event: rdma_cm_event_type_t) -> *const c_char {
    cm::event_str(event).as_ptr()
}

/// Lists the RDMA devices, opened, with a NULL behind the last.
///
/// The devices stay open until the list is given to rdma_free_devices(). num_devices, unless NULL, receives their
/// number. Returns NULL and errno on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    // SAFETY: the C contract (crate documentation).
    pointer(Call::new("rdma_get_devices"), || unsafe { cm::get_devices(num_devices) })
}

/// Frees a list that rdma_get_devices() returned. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    if let Some(list) = NonNull::new(list) {
        // SAFETY: the C contract (crate documentation).
        report(Call::new("rdma_free_devices"), (), || unsafe {
            cm::free_devices(list);
            Ok(())
        });
    }
}
