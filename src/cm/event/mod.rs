//! Events: reading them from a channel, what each does to its id, acknowledging them.

mod decode;
mod deliver;
mod text;

pub use decode::{Kind, decode};
pub use text::event_str;

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::NonNull;

use super::completed::Completed;
use super::id::Id;
use super::library::library;
use super::log;
use crate::errno::{Errno, Result};
use crate::ffi::{rdma_cm_event, rdma_cm_event_type, rdma_event_channel};
use crate::sys::alloc::try_box;
use crate::sys::{cancel, ucma};
use decode::PRIVATE_DATA;

/// An event: `struct rdma_cm_event`, with what acknowledging it needs and the private data it points at.
#[repr(C)]
pub(super) struct Event {
    public: rdma_cm_event,
    /// Where it counts: the id (the listener, for a connection request), and the multicast group if it is about one.
    counts: [Option<NonNull<Completed>>; 2],
    private_data: [u8; PRIVATE_DATA],
}

/// What [`deliver`](deliver::deliver) made of an event.
enum Outcome {
    /// The program gets it.
    Show,
    /// It counts as acknowledged already; wait for the next one.
    Skip,
}

/// rdma_get_cm_event(3). `EAGAIN` when nothing waits on a channel whose descriptor is `O_NONBLOCK`.
///
/// # Safety
/// A live channel; `event` is writable.
pub unsafe fn get_cm_event(channel: NonNull<rdma_event_channel>, event: NonNull<*mut rdma_cm_event>) -> Result<()> {
    library()?;
    // SAFETY: a live channel; `event` is writable: guaranteed by the caller.
    let fd: c_int = unsafe { (*channel.as_ptr()).fd };
    // Before the kernel is asked: a lack of memory must not lose an event.
    let mut room = Some(try_box(Event {
        // SAFETY: all zeros are a value of this structure of numbers and pointers.
        public: unsafe { zeroed() },
        counts: [None; 2],
        private_data: [0; PRIVATE_DATA],
    })?);
    let new = loop {
        let raw = cancel::with_cleanup(|| drop(room.take()), || ucma::get_event(fd))?;
        // It was there before the wait, and only a thread that is cancelled takes it.
        let new = room.as_mut().ok_or(Errno::ENOMEM)?;
        // SAFETY: the kernel sends back the addresses this library gave it.
        if let Outcome::Show = unsafe { deliver::deliver(&raw, new) }
            && let Some(new) = room.take()
        {
            break new;
        }
    };
    // SAFETY: events that are shown have a live id.
    if let Ok(id) = unsafe { Id::from_c(new.public.id) } {
        log::event(id, &new.public);
    }
    let shown = NonNull::from(Box::leak(new));
    // SAFETY: a live channel; `event` is writable: guaranteed by the caller; the public structure
    // is the beginning of an Event.
    unsafe { event.write(shown.as_ptr().cast()) };
    Ok(())
}

/// rdma_ack_cm_event(3): frees the event and lets its id be destroyed.
///
/// # Safety
/// From [`get_cm_event`], and not used afterwards.
pub unsafe fn ack_cm_event(event: NonNull<rdma_cm_event>) -> Result<()> {
    // SAFETY: from [`get_cm_event`], and not used afterwards: guaranteed by the caller; the public
    // structure is the beginning of an Event.
    let event = unsafe { Box::from_raw(event.cast::<Event>().as_ptr()) };
    event.complete();
    Ok(())
}

impl Event {
    /// Says where it counts.
    fn count_for(&mut self, id: &Completed, group: Option<&Completed>) {
        self.counts = [Some(NonNull::from(id)), group.map(NonNull::from)];
        id.give();
    }

    /// Counts it as done. The group comes first: its id may go as soon as the id's count is complete.
    fn complete(&self) {
        for count in self.counts.iter().rev().flatten() {
            // SAFETY: ids and groups wait for their counts before they go.
            unsafe { count.as_ref() }.complete();
        }
    }
}

/// Whether the event is about the multicast group that counts with `group`.
///
/// # Safety
/// From [`get_cm_event`], not acknowledged yet.
pub(super) unsafe fn is_about_group(event: NonNull<rdma_cm_event>, group: &Completed) -> bool {
    // SAFETY: from [`get_cm_event`], not acknowledged yet: guaranteed by the caller; the public
    // structure is the beginning of an Event.
    unsafe { (*event.cast::<Event>().as_ptr()).counts[1] == Some(NonNull::from(group)) }
}

/// The event of a failed join no longer counts for its multicast group, which is about to go.
///
/// # Safety
/// From [`get_cm_event`], not acknowledged yet.
pub(super) unsafe fn forget_group(event: NonNull<rdma_cm_event>) {
    // SAFETY: from [`get_cm_event`], not acknowledged yet: guaranteed by the caller; the public
    // structure is the beginning of an Event.
    unsafe { (*event.cast::<Event>().as_ptr()).counts[1] = None };
}

/// rdma_write_cm_event(3): queues RDMA_CM_EVENT_USER with a word of the program's own; `EINVAL` for other events.
pub fn write_cm_event(id: &Id, event: u32, status: c_int, arg: u64) -> Result<()> {
    if event != rdma_cm_event_type::RDMA_CM_EVENT_USER as u32 {
        return Err(Errno::EINVAL);
    }
    ucma::write_cm_event(id.fd(), id.handle(), event, status as u32, arg)
}
