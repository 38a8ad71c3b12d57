//! The protection domain of a stream: peers of other streams cannot access the connection's memory.

use super::connection::Unconnected;
use super::{State, Stream};
use crate::cm::Domain;
use crate::errno::{Errno, Result};
use crate::rsocket::growth_budget;
use crate::sys::alloc::try_box;

impl Stream {
    /// Frees the memory that the send buffer has grown by, unless the stream is busy. Never waits:
    /// the caller may hold the lock of another stream.
    pub fn give_memory_back(&self) {
        if self.owner.is_this_process()
            && let Ok(mut state) = self.state.try_lock()
            && let Some(connection) = &mut state.connection
        {
            connection.give_memory_back();
        }
    }
}

impl State {
    /// Returns the stream's PD, which is allocated on first use. Fails with `ENODEV` before the id
    /// has a device.
    pub(super) fn domain(&mut self) -> Result<&Domain> {
        let id = self.id.as_ref().ok_or(Errno::EBADF)?.id();
        if self.domain.as_ref().is_some_and(|domain| !domain.is_of(id)) {
            // The id was replaced: memory regions of the previous id's device cannot be used.
            if self.has_mappings() || self.connection.is_some() || self.unconnected.is_some() {
                return Err(Errno::ENODEV);
            }
            self.domain = None;
        }
        match &mut self.domain {
            Some(domain) => Ok(domain),
            none => Ok(none.insert(Domain::new(id)?)),
        }
    }

    /// Creates a QP with its resources for the stream's id, which has a device.
    pub(super) fn make_unconnected(&mut self) -> Result<Box<Unconnected>> {
        self.domain()?;
        let (id, domain) = self.id.as_ref().zip(self.domain.as_ref()).ok_or(Errno::EBADF)?;
        try_box(growth_budget::with_memory(|| Unconnected::new(id, domain, &self.options))?)
    }
}
