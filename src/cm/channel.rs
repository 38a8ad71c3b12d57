//! Event channels: an open `rdma_cm` device each. Ids move to another one by rdma_migrate_id(3).

use std::ffi::c_int;
use std::mem::{self, ManuallyDrop};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::ptr::NonNull;

use super::id::Id;
use super::library::library;
use crate::errno::{Errno, Result};
use crate::ffi::rdma_event_channel;
use crate::os::alloc::try_box;
use crate::os::cancel::{disabled, in_call};
use crate::os::library_fds::OwnFd;
use crate::ucm;
use crate::ucm::chardev::RdmaCm;

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

/// rdma_migrate_id(3): NULL makes the id synchronous, on a channel of its own. Waits until the
/// events that were reported on the old channel are acknowledged; those that still wait move along.
pub fn migrate_id(id: &Id, channel: Option<EventChannel>) -> Result<()> {
    let was_sync = id.is_sync();
    if was_sync && channel.is_none() {
        return Err(Errno::EINVAL);
    }
    let (target, own) = match channel {
        Some(channel) => (channel, false),
        None => (create_own_channel()?, true),
    };
    // Change the id first, then the kernel, so that a thread that reads from the new channel finds
    // the id there at once. An old channel of its own is destroyed last, so that no thread finds
    // the id with a closed descriptor.
    let (old, old_fd) = (id.channel(), id.fd());
    id.set_channel(target.as_c());
    id.set_sync(own);
    let reported = match ucm::migrate_id(target.fd(), id.handle(), old_fd) {
        Ok(reported) => reported,
        Err(error) => {
            id.set_channel(old);
            id.set_sync(was_sync);
            if own {
                // SAFETY: the id has left it again, and nobody else has seen it.
                drop(unsafe { OwnedChannel::from_c(target.as_c()) });
            }
            return Err(error);
        }
    };
    if was_sync {
        id.drop_event();
    }
    id.completed.wait_for(reported);
    if was_sync && old != target.as_c() {
        // SAFETY: a synchronous id owned it, and has left it.
        drop(unsafe { OwnedChannel::from_c(old) });
    }
    Ok(())
}

/// Creates a channel that an id will own.
fn create_own_channel() -> Result<EventChannel> {
    let channel = create_event_channel()?.into_c();
    // SAFETY: the channel lives as long as the id that will own it.
    unsafe { EventChannel::from_c(channel.as_ptr()) }.ok_or(Errno::ENOMEM)
}

/// Moves an asynchronous id in the kernel to a new file, which the caller puts in place of the
/// channel's file. This works for a process that has changed its user since it opened the channel,
/// whose other commands fail with `EACCES`: the kernel only checks who opened the file that the id
/// is moved to. Unread events move along, but not the ids of the connection requests among them. So
/// the former file is kept until [`forget_former`], and reading such an event moves its id.
pub fn move_to_new_file(id: &Id) -> Result<OwnedFd> {
    let new = library()?.node.try_open()?;
    let former = OwnFd::duplicate(id.fd())?;
    id.state().former.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    let reported = ucm::migrate_id(new.as_raw_fd(), id.handle(), id.fd())?;
    id.completed.wait_for(reported);
    id.state().former.push(former);
    Ok(new)
}

/// Moves the id of a connection request from a former file to that of its listener.
pub(super) fn fetch_from_former(listener: &Id, handle: u32) {
    // The lock is not held during calls to the kernel.
    let former = mem::take(&mut listener.state().former);
    for file in &former {
        // Fails for all files but the one that the request arrived at.
        let _ = ucm::migrate_id(listener.fd(), handle, file.as_raw_fd());
    }
    listener.state().former = former;
}

/// Closes the former files. The caller has read all events that arrived before the id was moved.
pub fn forget_former(id: &Id) {
    let former = mem::take(&mut id.state().former);
    drop(former);
}
