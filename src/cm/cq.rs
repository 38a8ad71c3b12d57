//! The CQs and completion channels that the library creates for ids whose programs bring none.

use std::ptr::{self, NonNull};

use super::id::Id;
use crate::errno::{Errno, Result};
use crate::sys::verbs::{self, ibv_comp_channel, ibv_cq};

/// Which of an id's CQs the library created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Created {
    send: bool,
    recv: bool,
}

impl Created {
    /// Both.
    pub const ALL: Created = Created { send: true, recv: true };
}

/// Creates a channel and a CQ of each size that is not 0, where the id has none. Returns which CQs
/// were created.
pub(super) fn create_missing(id: &Id, send: u32, recv: u32) -> Result<Created> {
    let mut created = Created::default();
    if recv > 0 && id.recv_cq().is_null() {
        let pair = create(id, recv)?;
        id.set_recv_cq_channel(pair.channel);
        id.set_recv_cq(pair.cq);
        created.recv = true;
    }
    if send > 0 && id.send_cq().is_null() {
        let pair = create(id, send).inspect_err(|_| destroy(id, created))?;
        id.set_send_cq_channel(pair.channel);
        id.set_send_cq(pair.cq);
        created.send = true;
    }
    Ok(created)
}

fn create(id: &Id, entries: u32) -> Result<Pair> {
    let context = id.device_context()?.as_ptr();
    // SAFETY: the context is open; the channel is new, and destroyed if the CQ fails.
    unsafe {
        let channel = verbs::create_comp_channel(context)?;
        let cq = verbs::create_cq(context, entries, id.as_c().cast(), channel, 0)
            .inspect_err(|_| verbs::end_comp_channel(channel))?;
        Ok(Pair { cq: cq.as_ptr(), channel: channel.as_ptr() })
    }
}

/// Destroys the CQs of the id that `which` names, as far as there are any.
pub(super) fn destroy(id: &Id, which: Created) {
    if which.recv {
        Pair { cq: id.recv_cq(), channel: id.recv_cq_channel() }.destroy();
        id.set_recv_cq(ptr::null_mut());
        id.set_recv_cq_channel(ptr::null_mut());
    }
    if which.send {
        Pair { cq: id.send_cq(), channel: id.send_cq_channel() }.destroy();
        id.set_send_cq(ptr::null_mut());
        id.set_send_cq_channel(ptr::null_mut());
    }
}

/// A CQ of an id and its channel, both NULL or live.
struct Pair {
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
}

impl Pair {
    /// Destroys both. An object that the program has put to another use, a CQ for a second QP or a
    /// channel for another CQ, stays.
    fn destroy(self) {
        // SAFETY: an id's CQs and channels are live until their fields are cleared, which the only
        // caller does next.
        unsafe {
            let destroyed = NonNull::new(self.cq).map_or(Ok(()), |cq| verbs::destroy_cq(cq));
            let Some(channel) = NonNull::new(self.channel) else { return };
            match destroyed {
                Ok(()) | Err(Errno::EBUSY) => drop(verbs::destroy_comp_channel(channel)),
                // The device is gone.
                Err(_) => verbs::end_comp_channel(channel),
            }
        }
    }
}
