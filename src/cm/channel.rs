//! Event channels, each of which is an open file of the `rdma_cm` device. rdma_migrate_id(3) moves
//! an id to another channel.

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

/// A reference to an event channel, `struct rdma_event_channel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventChannel(NonNull<rdma_event_channel>);

impl EventChannel {
    /// Returns the channel behind a program's pointer, or `None` for NULL.
    ///
    /// # Safety
    /// `channel` is NULL, or from [`create_event_channel`] and outlives the value and the ids on
    /// it.
    pub unsafe fn from_c(channel: *mut rdma_event_channel) -> Option<EventChannel> {
        NonNull::new(channel).map(EventChannel)
    }

    /// Returns the pointer by which programs know the channel.
    pub(super) fn as_c(self) -> *mut rdma_event_channel {
        self.0.as_ptr()
    }

    /// Returns the channel's descriptor.
    pub(super) fn fd(self) -> c_int {
        // SAFETY: the channel outlives the value (`from_c`).
        unsafe { (*self.as_c()).fd }
    }
}

/// An event channel that nothing else uses. Dropping the value implements
/// rdma_destroy_event_channel(3).
#[derive(Debug)]
pub struct OwnedChannel(NonNull<rdma_event_channel>);

impl OwnedChannel {
    /// Takes back a channel from [`into_c`](Self::into_c). Returns `None` for NULL.
    ///
    /// # Safety
    /// `channel` is NULL, or no ids are on it and nothing else uses it from now on.
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
        // SAFETY: closing a descriptor is harmless to memory; the channel owned it.
        disabled(|| unsafe { libc::close(channel.fd) });
    }
}

/// Implements rdma_create_event_channel(3).
///
/// # Errors
/// Fails with `ENODEV` if there are no RDMA devices.
pub fn create_event_channel() -> Result<OwnedChannel> {
    create_with(RdmaCm::open)
}

/// Like [`create_event_channel`], for a process that has a channel: does not wait for udev to
/// create the device's node.
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

/// Implements rdma_migrate_id(3). `None` makes the id synchronous, on a channel of its own. Waits
/// until the events that were reported on the old channel are acknowledged. Events that were not
/// read yet move to the new channel.
pub fn migrate_id(id: &Id, channel: Option<EventChannel>) -> Result<()> {
    let was_sync = id.is_sync();
    if was_sync && channel.is_none() {
        return Err(Errno::EINVAL);
    }
    let (target, own) = match channel {
        Some(channel) => (channel, false),
        None => (EventChannel(create_event_channel()?.into_c()), true),
    };
    // Change the channel in the id first, then in the kernel, so that a thread that reads events
    // from the new channel finds the new channel in the id. If the id owned the old channel,
    // destroy it last, so that no thread finds the id with a closed descriptor.
    let (old, old_fd) = (id.channel(), id.fd());
    id.set_channel(target.as_c());
    id.set_sync(own);
    let reported = match ucm::migrate_id(target.fd(), id.handle(), old_fd) {
        Ok(reported) => reported,
        Err(error) => {
            id.set_channel(old);
            id.set_sync(was_sync);
            if own {
                // SAFETY: the id has left the new channel, which nobody else has seen.
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
        // SAFETY: the synchronous id owned its old channel, and has left it.
        drop(unsafe { OwnedChannel::from_c(old) });
    }
    Ok(())
}

/// Moves an asynchronous id in the kernel to a new file, which the caller puts in place of the
/// channel's file. This works even if the process has changed its user since it opened the channel,
/// so that other commands on the channel fail with `EACCES`: here the kernel only checks who opened
/// the new file. Unread events move to the new file, but the ids of unread connection requests stay
/// on the former file. So the former file is kept until [`forget_former`], and reading a connection
/// request moves its id to the new file.
pub fn move_to_new_file(id: &Id) -> Result<OwnedFd> {
    let new = library()?.node.try_open()?;
    let former = OwnFd::duplicate(id.fd())?;
    id.state().former.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    let reported = ucm::migrate_id(new.as_raw_fd(), id.handle(), id.fd())?;
    id.completed.wait_for(reported);
    id.state().former.push(former);
    Ok(new)
}

/// Moves the id of a connection request from a former file to the listener's file.
pub(super) fn fetch_from_former(listener: &Id, handle: u32) {
    // The lock is not held during calls to the kernel.
    let former = mem::take(&mut listener.state().former);
    for file in &former {
        // Fails for every file other than the one on which the request arrived.
        let _ = ucm::migrate_id(listener.fd(), handle, file.as_raw_fd());
    }
    listener.state().former = former;
}

/// Closes the former files. The caller has read all events that arrived before the id was moved.
pub fn forget_former(id: &Id) {
    let former = mem::take(&mut id.state().former);
    drop(former);
}
