//! The protection domain of a stream: its connection's memory is out of reach for the peers of all others.

use super::State;
use super::link::Link;
use crate::cm::Domain;
use crate::errno::{Errno, Result};
use crate::sys::alloc::try_box;

impl State {
    /// The stream's PD, made with its first use; `ENODEV` before its id has a device.
    pub(super) fn domain(&mut self) -> Result<&Domain> {
        let id = self.id.as_ref().ok_or(Errno::EBADF)?.id();
        if self.domain.as_ref().is_some_and(|domain| !domain.is_of(id)) {
            // Another id took the place of the one before. What was registered is of no use on its device.
            if self.has_mappings() || self.link.is_some() {
                return Err(Errno::ENODEV);
            }
            self.domain = None;
        }
        match &mut self.domain {
            Some(domain) => Ok(domain),
            none => Ok(none.insert(Domain::new(id)?)),
        }
    }

    /// A QP with its resources for the stream's id, whose device is known.
    pub(super) fn make_link(&mut self) -> Result<Box<Link>> {
        self.domain()?;
        let (id, domain) = self.id.as_ref().zip(self.domain.as_ref()).ok_or(Errno::EBADF)?;
        try_box(Link::new(id, domain, &self.options)?)
    }
}
