//! Event channels: an open `rdma_cm` device each.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;

use super::library::library;
use crate::errno::Result;
use crate::ffi::rdma_event_channel;
use crate::sys::alloc::try_box;
use crate::sys::cancel::{disabled, in_call};
use crate::sys::chardev::RdmaCm;

/// An event channel in use: `struct rdma_event_channel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventChannel(NonNull<rdma_event_channel>);

impl EventChannel {
    /// The channel behind a pointer; `None` for NULL.
    ///
    /// # Safety
    /// The channel is from [`create_event_channel`], and outlives the value and the ids on it.
    pub unsafe fn from_c(channel: *mut rdma_event_channel) -> Option<EventChannel> {
        NonNull::new(channel).map(EventChannel)
    }

    /// The pointer that programs know it by.
    pub(super) fn as_c(self) -> *mut rdma_event_channel {
        self.0.as_ptr()
    }

    /// Its descriptor.
    pub(super) fn fd(self) -> c_int {
        // SAFETY: the channel outlives the value (`from_c`).
        unsafe { (*self.as_c()).fd }
    }
}

/// An event channel that nothing else uses. Closed when dropped.
#[derive(Debug)]
pub struct OwnedChannel(NonNull<rdma_event_channel>);

impl OwnedChannel {
    /// Takes a channel back from [`into_c`](Self::into_c); `None` for NULL.
    ///
    /// # Safety
    /// No ids are on the channel, and nothing else uses it from now on.
    pub unsafe fn from_c(channel: *mut rdma_event_channel) -> Option<OwnedChannel> {
        NonNull::new(channel).map(OwnedChannel)
    }

    /// Hands the channel over: to the program, or to the id that owns it.
    pub fn into_c(self) -> NonNull<rdma_event_channel> {
        ManuallyDrop::new(self).0
    }
}

impl Drop for OwnedChannel {
    fn drop(&mut self) {
        // SAFETY: from Box::leak in `create_with`, and nothing else uses it (`from_c`).
        let channel = unsafe { Box::from_raw(self.0.as_ptr()) };
        // SAFETY: closing a number is harmless to memory; the channel owned it.
        disabled(|| unsafe { libc::close(channel.fd) });
    }
}

/// rdma_create_event_channel(3). `ENODEV` without RDMA devices.
pub fn create_event_channel() -> Result<OwnedChannel> {
    create_with(RdmaCm::open)
}

/// As [`create_event_channel`], for a process that has one: never waits for the device's node.
pub fn create_another_channel() -> Result<OwnedChannel> {
    create_with(RdmaCm::try_open)
}

fn create_with(open: fn(&RdmaCm) -> Result<OwnedFd>) -> Result<OwnedChannel> {
    let library = library()?;
    let mut channel = try_box(rdma_event_channel { fd: -1 })?;
    let fd = in_call(|| open(&library.node))?;
    library.find_af_ib(fd.as_raw_fd())?;
    channel.fd = fd.into_raw_fd();
    Ok(OwnedChannel(NonNull::from(Box::leak(channel))))
}

/// rdma_destroy_event_channel(3).
pub fn destroy_event_channel(channel: OwnedChannel) {
    drop(channel);
}
