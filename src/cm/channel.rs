//! Event channels: an open `rdma_cm` device each.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;

use super::library::library;
use crate::errno::Result;
use crate::ffi::rdma_event_channel;
use crate::sys::alloc::try_box;
use crate::sys::chardev::RdmaCm;

/// rdma_create_event_channel(3). `ENODEV` without RDMA devices.
pub fn create_event_channel() -> Result<NonNull<rdma_event_channel>> {
    create_with(RdmaCm::open)
}

/// As [`create_event_channel`], for a process that has one: never waits for the device's node.
pub fn create_another_channel() -> Result<NonNull<rdma_event_channel>> {
    create_with(RdmaCm::try_open)
}

fn create_with(open: fn(&RdmaCm) -> Result<OwnedFd>) -> Result<NonNull<rdma_event_channel>> {
    let library = library()?;
    let mut channel = try_box(rdma_event_channel { fd: -1 })?;
    let fd = open(&library.node)?;
    library.find_af_ib(fd.as_raw_fd())?;
    channel.fd = fd.into_raw_fd();
    Ok(NonNull::from(Box::leak(channel)))
}

/// rdma_destroy_event_channel(3).
///
/// # Safety
/// From [`create_event_channel`], without ids on it, and not used afterwards.
pub unsafe fn destroy_event_channel(channel: NonNull<rdma_event_channel>) {
    // SAFETY: from [`create_event_channel`], without ids on it, and not used afterwards: guaranteed
    // by the caller.
    let channel = unsafe { Box::from_raw(channel.as_ptr()) };
    close(channel.fd);
}

/// Closes a channel's descriptor.
pub(super) fn close(fd: c_int) {
    // SAFETY: closing a number is harmless to memory; the channel owned it.
    unsafe { libc::close(fd) };
}
