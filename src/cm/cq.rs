//! The CQs and completion channels that the library makes for ids whose programs bring none.

use std::ptr::{self, NonNull};

use super::id::Id;
use crate::errno::{Errno, Result};
use crate::sys::verbs::{self, ibv_comp_channel, ibv_cq};

/// Which of an id's CQs are meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Made {
    send: bool,
    recv: bool,
}

impl Made {
    /// Both.
    pub const ALL: Made = Made { send: true, recv: true };
}

/// Makes a channel and a CQ of each size that is not 0, where the id has none; says which it made.
pub(super) fn create_missing(id: &Id, send: u32, recv: u32) -> Result<Made> {
    let mut made = Made::default();
    if recv > 0 && id.recv_cq().is_null() {
        let (channel, cq) = create(id, recv)?;
        id.set_recv_cq_channel(channel.as_ptr());
        id.set_recv_cq(cq.as_ptr());
        made.recv = true;
    }
    if send > 0 && id.send_cq().is_null() {
        let (channel, cq) = create(id, send).inspect_err(|_| destroy(id, made))?;
        id.set_send_cq_channel(channel.as_ptr());
        id.set_send_cq(cq.as_ptr());
        made.send = true;
    }
    Ok(made)
}

fn create(id: &Id, entries: u32) -> Result<(NonNull<ibv_comp_channel>, NonNull<ibv_cq>)> {
    let context = NonNull::new(id.verbs()).ok_or(Errno::EINVAL)?;
    // SAFETY: the context is open; the channel is new and goes if the CQ fails.
    unsafe {
        let channel = verbs::create_comp_channel(context)?;
        let cq = verbs::create_cq(context, entries, id.as_c().cast(), channel, 0)
            .inspect_err(|_| verbs::end_comp_channel(channel))?;
        Ok((channel, cq))
    }
}

/// Destroys the id's CQs that `which` names, as far as there are any.
pub(super) fn destroy(id: &Id, which: Made) {
    if which.recv {
        // SAFETY: the QP and SRQ that used them are gone.
        unsafe { destroy_pair(id.recv_cq(), id.recv_cq_channel()) };
        id.set_recv_cq(ptr::null_mut());
        id.set_recv_cq_channel(ptr::null_mut());
    }
    if which.send {
        // SAFETY: as above.
        unsafe { destroy_pair(id.send_cq(), id.send_cq_channel()) };
        id.set_send_cq(ptr::null_mut());
        id.set_send_cq_channel(ptr::null_mut());
    }
}

/// What a program has put to another use, a CQ for a second QP or a channel for another CQ, goes on.
///
/// # Safety
/// NULL or live.
unsafe fn destroy_pair(cq: *mut ibv_cq, channel: *mut ibv_comp_channel) {
    // SAFETY: NULL or live: guaranteed by the caller.
    unsafe {
        let destroyed = NonNull::new(cq).map_or(Ok(()), |cq| verbs::destroy_cq(cq));
        let Some(channel) = NonNull::new(channel) else { return };
        match destroyed {
            Ok(()) | Err(Errno::EBUSY) => drop(verbs::destroy_comp_channel(channel)),
            // The device is gone.
            Err(_) => verbs::end_comp_channel(channel),
        }
    }
}
