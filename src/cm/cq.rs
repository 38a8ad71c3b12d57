//! The CQs and completion channels that the library creates for ids whose programs bring none.

use std::ptr::{self, NonNull};

use super::id::Id;
use crate::errno::{Errno, Result};
use crate::verbs::{self, ibv_comp_channel, ibv_cq};

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

/// Destroys the CQs of the id that `which` names, as far as there are any. A program may have put
/// one CQ, or one channel, into both fields: it is destroyed once, the channel after both CQs.
pub(super) fn destroy(id: &Id, which: Created) {
    let recv = if which.recv { take_recv(id) } else { Pair::NONE };
    let mut send = if which.send { take_send(id) } else { Pair::NONE };
    if send.cq == recv.cq {
        send.cq = ptr::null_mut();
    }
    let (recv_gone, mut send_gone) = (recv.destroy_cq(), send.destroy_cq());
    if send.channel == recv.channel {
        send_gone |= recv_gone;
    } else {
        recv.destroy_channel(recv_gone);
    }
    send.destroy_channel(send_gone);
}

/// Takes the receive CQ and its channel out of the id.
fn take_recv(id: &Id) -> Pair {
    let pair = Pair { cq: id.recv_cq(), channel: id.recv_cq_channel() };
    id.set_recv_cq(ptr::null_mut());
    id.set_recv_cq_channel(ptr::null_mut());
    pair
}

/// Takes the send CQ and its channel out of the id.
fn take_send(id: &Id) -> Pair {
    let pair = Pair { cq: id.send_cq(), channel: id.send_cq_channel() };
    id.set_send_cq(ptr::null_mut());
    id.set_send_cq_channel(ptr::null_mut());
    pair
}

/// A CQ of an id and its channel, both NULL or live. An object that the program has put to another
/// use, a CQ for a second QP or a channel for another CQ, is not destroyed.
struct Pair {
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
}

impl Pair {
    const NONE: Pair = Pair { cq: ptr::null_mut(), channel: ptr::null_mut() };

    /// Destroys the CQ. Returns whether that failed because its device is gone. Other errors show
    /// that the program has closed the library's descriptors (closefrom(3)): their numbers may
    /// belong to files of the program.
    fn destroy_cq(&self) -> bool {
        // SAFETY: an id's CQ is live until it leaves its field, and `destroy` has taken it once.
        NonNull::new(self.cq).is_some_and(|cq| unsafe { verbs::destroy_cq(cq) }.is_err_and(|error| error == Errno::EIO))
    }

    /// Destroys the channel, or at least closes its descriptor if the device is `gone`.
    fn destroy_channel(&self, gone: bool) {
        let Some(channel) = NonNull::new(self.channel) else { return };
        // SAFETY: an id's channel is live until it leaves its field, and `destroy` has taken it
        // once.
        unsafe {
            if gone {
                verbs::end_comp_channel(channel);
            } else {
                // Fails with EBUSY for a channel that other CQs use.
                let _ = verbs::destroy_comp_channel(channel);
            }
        }
    }
}
