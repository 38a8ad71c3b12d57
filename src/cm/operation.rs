//! Operations of synchronous ids, which end with their event.

use std::ptr;

use super::channel::EventChannel;
use super::event::{OwnedEvent, ack_cm_event, get_cm_event};
use super::id::Id;
use crate::errno::{Errno, Result};
use crate::ffi::{rdma_cm_event, rdma_cm_event_type};

impl Id {
    /// A call that is about to start an operation.
    pub(super) fn operation(&self) -> Operation<'_> {
        Operation(self.is_sync().then_some(self))
    }

    /// For synchronous ids: waits for the event, leaves it in `event` and turns its status into an
    /// errno.
    fn wait_for_event(&self) -> Result<()> {
        self.drop_event();
        // SAFETY: a synchronous id owns its channel.
        let channel = unsafe { EventChannel::from_c(self.channel()) }.ok_or(Errno::EINVAL)?;
        let event = get_cm_event(channel)?;
        let result = event_result(event.public());
        self.set_event(event.into_c());
        result
    }

    /// Acknowledges the event of the last synchronous call.
    pub(super) fn drop_event(&self) {
        // SAFETY: the event of a synchronous id is the library's: nobody else acknowledges it.
        if let Ok(event) = unsafe { OwnedEvent::from_c(self.event()) } {
            self.set_event(ptr::null_mut());
            ack_cm_event(event);
        }
    }
}

/// A call that starts an operation in the kernel. Created before the kernel is told: from then on
/// the thread that reads the events of an asynchronous id may destroy the id, which must not be
/// used any more.
#[must_use]
pub(super) struct Operation<'a>(Option<&'a Id>);

impl Operation<'_> {
    /// Ends the call: immediately for an asynchronous id, with its event for a synchronous one.
    pub(super) fn complete(self) -> Result<()> {
        self.0.map_or(Ok(()), Id::wait_for_event)
    }

    /// Ends a call after which no event comes.
    pub(super) fn drop_event(self) {
        if let Some(id) = self.0 {
            id.drop_event();
        }
    }
}

/// The result of a synchronous call that ended with `event`.
pub(super) fn event_result(event: &rdma_cm_event) -> Result<()> {
    match event.status {
        _ if event.event == rdma_cm_event_type::RDMA_CM_EVENT_REJECTED as u32 => Err(Errno::ECONNREFUSED),
        0 => Ok(()),
        status => Err(Errno::new(status.saturating_abs())),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::zeroed;

    use super::*;

    #[test]
    fn status_to_errno() {
        // SAFETY: all zeros are a value of this structure.
        let mut event: rdma_cm_event = unsafe { zeroed() };
        assert_eq!(event_result(&event), Ok(()));
        event.status = -libc::ETIMEDOUT;
        assert_eq!(event_result(&event), Err(Errno::ETIMEDOUT));
        event.status = 28;
        assert_eq!(event_result(&event), Err(Errno::new(28)));
        event.event = rdma_cm_event_type::RDMA_CM_EVENT_REJECTED as u32;
        assert_eq!(event_result(&event), Err(Errno::ECONNREFUSED));
    }
}
