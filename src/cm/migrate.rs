//! Moving an id to another event channel.

use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use super::channel::{create_event_channel, destroy_event_channel};
use super::id::Id;
use super::library::library;
use crate::errno::{Errno, Result};
use crate::ffi::rdma_event_channel;
use crate::sys::own::OwnFd;
use crate::sys::ucma;

/// rdma_migrate_id(3): NULL makes the id synchronous, on a channel of its own. Waits until the events that were
/// reported on the old channel are acknowledged; those that still wait move along.
///
/// # Safety
/// NULL or a live channel.
pub unsafe fn migrate_id(id: &Id, channel: *mut rdma_event_channel) -> Result<()> {
    let was_sync = id.is_sync();
    if was_sync && channel.is_null() {
        return Err(Errno::EINVAL);
    }
    let own = if channel.is_null() { Some(create_event_channel()?) } else { None };
    let target = own.map_or(channel, NonNull::as_ptr);
    // SAFETY: just made, or live: guaranteed by the caller.
    let fd = unsafe { (*target).fd };
    // The id first, then the kernel, which has a thread that reads from the new channel find it there at once. The old channel
    // last: nobody may find the id on a descriptor that is closed.
    let (old, old_fd) = (id.channel(), id.fd());
    id.set_channel(target);
    id.set_sync(own.is_some());
    let reported = match ucma::migrate_id(fd, id.handle(), old_fd) {
        Ok(reported) => reported,
        Err(error) => {
            id.set_channel(old);
            id.set_sync(was_sync);
            if let Some(own) = own {
                // SAFETY: nobody else has seen it.
                unsafe { destroy_event_channel(own) };
            }
            return Err(error);
        }
    };
    if was_sync {
        id.drop_event();
    }
    id.completed.wait_for(reported);
    if was_sync
        && old != target
        && let Some(old) = NonNull::new(old)
    {
        // SAFETY: a synchronous id owned it, and has left it.
        unsafe { destroy_event_channel(old) };
    }
    Ok(())
}

/// Moves an asynchronous id in the kernel to a new file, which the caller puts in the place of the channel's. It works for a process
/// that has changed its user since it opened the channel, to which the kernel refuses everything else (`EACCES`): only who opened the
/// file that an id is moved to counts. The events that wait move along, but not the ids of connection requests among them: the former
/// file is kept until [`forget_former`], and delivering such an event moves its id.
pub fn move_to_new_file(id: &Id) -> Result<OwnedFd> {
    let new = library()?.node.try_open()?;
    let former = OwnFd::duplicate(id.fd())?;
    id.state().former.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    let reported = ucma::migrate_id(new.as_raw_fd(), id.handle(), id.fd())?;
    id.completed.wait_for(reported);
    id.state().former.push(former);
    Ok(new)
}

/// The id of a connection request goes where its listener's events are.
pub(super) fn fetch_from_former(listener: &Id, handle: u32) {
    // The lock is not held while the kernel is asked.
    let former = mem::take(&mut listener.state().former);
    for file in &former {
        // It fails for all but the one that the request came to.
        let _ = ucma::migrate_id(listener.fd(), handle, file.as_raw_fd());
    }
    listener.state().former = former;
}

/// No event waits that came before the id was moved to a new file.
pub fn forget_former(id: &Id) {
    let former = mem::take(&mut id.state().former);
    drop(former);
}
