//! Events: reading them from a channel, updating their ids, acknowledging them; their names.

pub use decode::{Kind, decode};
use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use super::channel::EventChannel;
use super::completed::Completed;
use super::id::Id;
use super::log;
use super::owned_id::{self, OwnedId};
use crate::errno::{Errno, Result};
use crate::ffi::rdma_cm_event;
use crate::ffi::rdma_cm_event_type::{self, *};
use crate::os::alloc::try_uninit;
use crate::os::uapi::rdma_ucm_event_resp;
use crate::ucm;

mod decode;
mod deliver;

/// An event: `struct rdma_cm_event`, with what acknowledging it needs, and the kernel's structure
/// with the private data to which it points.
#[repr(C)]
struct Event {
    public: rdma_cm_event,
    /// Where it counts: the id (the listener, for a connection request), and the multicast group if
    /// it is about one.
    counts: [Option<NonNull<Completed>>; 2],
    raw: rdma_ucm_event_resp,
}

/// An event that is not acknowledged yet. It stays so if the value is dropped.
#[derive(Debug)]
#[must_use]
pub struct OwnedEvent(NonNull<Event>);

impl OwnedEvent {
    /// Takes an event back from [`into_c`](Self::into_c); `EINVAL` for NULL.
    ///
    /// # Safety
    /// NULL, or an event that is not acknowledged yet, and that nothing uses from now on.
    pub unsafe fn from_c(event: *mut rdma_cm_event) -> Result<OwnedEvent> {
        // The public structure is the beginning of an `Event`.
        NonNull::new(event.cast::<Event>()).map(OwnedEvent).ok_or(Errno::EINVAL)
    }

    /// Hands the event over to the program, or to the id that keeps it.
    pub fn into_c(self) -> *mut rdma_cm_event {
        self.0.as_ptr().cast()
    }

    /// What the program sees.
    pub fn public(&self) -> &rdma_cm_event {
        // SAFETY: only acknowledging it, which takes `self`, frees an event.
        unsafe { &(*self.0.as_ptr()).public }
    }

    /// The id of the event: of the connection, for a connection request.
    pub(super) fn id(&self) -> Option<&Id> {
        // SAFETY: an id is not destroyed before its events are acknowledged.
        unsafe { Id::from_c(self.public().id).ok() }
    }
}

/// What [`deliver`](deliver::deliver) made of an event.
enum Outcome {
    /// The program gets it.
    Show,
    /// It counts as acknowledged already; wait for the next one.
    Skip,
}

/// rdma_get_cm_event(3). Fails with `EAGAIN` if no event waits on a channel whose descriptor is
/// `O_NONBLOCK`.
pub fn get_cm_event(channel: EventChannel) -> Result<OwnedEvent> {
    // Allocated before the kernel is asked, so that a lack of memory loses no event.
    let mut room = Some(try_uninit::<Event>()?);
    let shown = loop {
        // It was there before the wait, and only a thread that is cancelled takes it.
        let event = room.as_mut().ok_or(Errno::ENOMEM)?.as_mut_ptr();
        // SAFETY: there is room for an event, of whose numbers and pointers zeros are values. The
        // kernel returns the `uid` of ids and groups, which are its owner's until the kernel has
        // ended them.
        let outcome = unsafe {
            event.write_bytes(0, 1);
            let raw = &raw mut (*event).raw;
            let cancelled = |is_lost| {
                lose(&mut *event, is_lost);
                drop(room.take());
            };
            ucm::get_event(channel.fd(), raw, cancelled)?;
            deliver::deliver(&mut *event)
        };
        if let Outcome::Show = outcome
            && let Some(new) = room.take()
        {
            break OwnedEvent(NonNull::from(Box::leak(new)).cast());
        }
    };
    if let Some(id) = shown.id() {
        log::event(id, shown.public());
    }
    Ok(shown)
}

/// The thread was cancelled. If an event that the kernel had handed over is lost, it counts as
/// acknowledged, or destroying its id would wait for it. A connection request is rejected.
///
/// # Safety
/// As [`deliver`](deliver::deliver).
unsafe fn lose(event: &mut Event, is_lost: bool) {
    // SAFETY: guaranteed by the caller.
    if is_lost && let Outcome::Show = unsafe { deliver::deliver(event) } {
        if event.public.event == rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST as u32 {
            // SAFETY: the new id, which nobody knows.
            unsafe { OwnedId::from_c(event.public.id) }.into_iter().for_each(owned_id::discard);
        }
        event.complete();
    }
}

/// rdma_ack_cm_event(3): frees the event and lets its id be destroyed.
pub fn ack_cm_event(event: OwnedEvent) {
    // SAFETY: from Box::leak in `get_cm_event`, and nothing else uses the event (`from_c`).
    let event = unsafe { Box::from_raw(event.0.as_ptr()) };
    event.complete();
}

impl Event {
    /// Sets where it counts.
    fn count_for(&mut self, id: &Completed, group: Option<&Completed>) {
        self.counts = [Some(NonNull::from(id)), group.map(NonNull::from)];
        id.give();
    }

    /// Counts it as done. The group comes first: its id may go as soon as the id's count is
    /// complete.
    fn complete(&self) {
        let [id, group] = self.counts;
        // SAFETY: ids and groups wait for their counts before they go.
        unsafe {
            group.inspect(|group| group.as_ref().complete());
            id.inspect(|id| id.as_ref().complete());
        }
    }
}

/// Whether the event that a synchronous id keeps is the failure of the join that counts with
/// `group`. It may be about another group, which was lost in the meantime.
pub(super) fn keeps_failed_join(id: &Id, group: &Completed) -> bool {
    let Some(event) = NonNull::new(id.event().cast::<Event>()) else { return false };
    // SAFETY: the library keeps events of its own in ids, and they are live as long as they are
    // there.
    let event = unsafe { event.as_ref() };
    event.public.event == rdma_cm_event_type::RDMA_CM_EVENT_MULTICAST_ERROR as u32
        && event.counts[1] == Some(NonNull::from(group))
}

/// The event that a synchronous id keeps no longer counts for its multicast group, which is about
/// to be freed.
pub(super) fn forget_group(id: &Id) {
    let Some(event) = NonNull::new(id.event().cast::<Event>()) else { return };
    // SAFETY: as in `keeps_failed_join`; the field is the library's alone.
    unsafe { (*event.as_ptr()).counts[1] = None };
}

/// rdma_write_cm_event(3): queues RDMA_CM_EVENT_USER with a word of the program; `EINVAL` for other
/// events.
pub fn write_cm_event(id: &Id, event: u32, status: c_int, arg: u64) -> Result<()> {
    if event != rdma_cm_event_type::RDMA_CM_EVENT_USER as u32 {
        return Err(Errno::EINVAL);
    }
    ucm::write_cm_event(id.fd(), id.handle(), event, status as u32, arg)
}

macro_rules! names {
    ($($event:ident)*) => {
        /// rdma_event_str(3): the enumerator's name; "UNKNOWN EVENT" for numbers that no program
        /// sees.
        pub fn event_str(event: u32) -> &'static CStr {
            $(
                if event == $event as u32 {
                    const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($event), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    };
                    return NAME;
                }
            )*
            c"UNKNOWN EVENT"
        }
    };
}

// USER and INTERNAL have no name in the reference either.
names! {
    RDMA_CM_EVENT_ADDR_RESOLVED RDMA_CM_EVENT_ADDR_ERROR RDMA_CM_EVENT_ROUTE_RESOLVED RDMA_CM_EVENT_ROUTE_ERROR
    RDMA_CM_EVENT_CONNECT_REQUEST RDMA_CM_EVENT_CONNECT_RESPONSE RDMA_CM_EVENT_CONNECT_ERROR
    RDMA_CM_EVENT_UNREACHABLE RDMA_CM_EVENT_REJECTED RDMA_CM_EVENT_ESTABLISHED RDMA_CM_EVENT_DISCONNECTED
    RDMA_CM_EVENT_DEVICE_REMOVAL RDMA_CM_EVENT_MULTICAST_JOIN RDMA_CM_EVENT_MULTICAST_ERROR RDMA_CM_EVENT_ADDR_CHANGE
    RDMA_CM_EVENT_TIMEWAIT_EXIT RDMA_CM_EVENT_ADDRINFO_RESOLVED RDMA_CM_EVENT_ADDRINFO_ERROR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_enumerators() {
        assert_eq!(event_str(0), c"RDMA_CM_EVENT_ADDR_RESOLVED");
        assert_eq!(event_str(17), c"RDMA_CM_EVENT_ADDRINFO_ERROR");
        for unknown in [18, 19, 20, u32::MAX] {
            assert_eq!(event_str(unknown), c"UNKNOWN EVENT");
        }
    }
}
