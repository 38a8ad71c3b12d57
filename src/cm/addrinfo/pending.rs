//! The look-up of an id by rdma_resolve_addrinfo(): one at a time, whose result is returned once.

use std::ffi::CStr;

use crate::errno::{Errno, Result};
use crate::ffi::{RAI_DNS, RAI_SA};

use super::list::List;

/// Where a look-up gets its results from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// getaddrinfo(3): completes within the call.
    NameService,
    /// The subnet administrator: completes with an event of the kernel.
    SubnetAdministrator,
}

impl Source {
    /// The source that the flags select. Fails with `ENOTSUP` for RAI_SA with RAI_DNS or with a
    /// node, and with `EINVAL` for RAI_SA without a service.
    pub fn choose(flags: u32, node: Option<&CStr>, service: Option<&CStr>) -> Result<Source> {
        if flags & RAI_SA == 0 {
            return Ok(Source::NameService);
        }
        if flags & RAI_DNS != 0 || node.is_some() {
            return Err(Errno::ENOTSUP);
        }
        if service.is_none() {
            return Err(Errno::EINVAL);
        }
        Ok(Source::SubnetAdministrator)
    }
}

/// The state of an id's look-up.
#[derive(Debug, Default)]
pub enum Pending {
    /// No look-up was started.
    #[default]
    Idle,
    /// The look-up is in progress.
    Started,
    /// The program has not taken the result.
    Ready(List),
}

impl Pending {
    /// Starts a look-up. Fails with `EBUSY` if one is in progress, or its result was not taken.
    pub fn begin(&mut self) -> Result<()> {
        match self {
            Pending::Idle => {
                *self = Pending::Started;
                Ok(())
            }
            Pending::Started | Pending::Ready(_) => Err(Errno::EBUSY),
        }
    }

    /// Stores the result of the look-up, or frees it if none is in progress.
    pub fn finish(&mut self, list: List) {
        if matches!(self, Pending::Started) {
            *self = Pending::Ready(list);
        }
    }

    /// The look-up failed. Another one may start.
    pub fn fail(&mut self) {
        *self = Pending::Idle;
    }

    /// Whether a look-up is in progress.
    pub fn is_started(&self) -> bool {
        matches!(self, Pending::Started)
    }

    /// Takes the result. Fails with `ENOENT` if there is none.
    pub fn take(&mut self) -> Result<List> {
        match std::mem::take(self) {
            Pending::Ready(list) => Ok(list),
            other => {
                *self = other;
                Err(Errno::ENOENT)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::list::Entry;
    use super::*;

    fn list() -> List {
        let mut list = List::new();
        list.push(Entry::default()).unwrap();
        list
    }

    #[test]
    fn result_is_taken_once() {
        let mut pending = Pending::default();
        pending.begin().unwrap();
        assert_eq!(pending.take().err(), Some(Errno::ENOENT));
        assert!(matches!(pending, Pending::Started));
        pending.finish(list());
        assert!(!pending.take().unwrap().is_empty());
        assert_eq!(pending.take().err(), Some(Errno::ENOENT));
        pending.begin().unwrap();
    }

    #[test]
    fn one_at_a_time() {
        let mut pending = Pending::default();
        pending.begin().unwrap();
        assert_eq!(pending.begin(), Err(Errno::EBUSY));
        pending.finish(list());
        assert_eq!(pending.begin(), Err(Errno::EBUSY));
    }

    #[test]
    fn another_look_up_may_follow_a_failure() {
        let mut pending = Pending::default();
        pending.begin().unwrap();
        pending.fail();
        assert_eq!(pending.take().err(), Some(Errno::ENOENT));
        pending.begin().unwrap();
    }

    #[test]
    fn late_result_is_freed() {
        let mut pending = Pending::default();
        pending.finish(list());
        assert_eq!(pending.take().err(), Some(Errno::ENOENT));
    }

    #[test]
    fn sources() {
        let choose = Source::choose;
        let (node, service) = (Some(c"node"), Some(c"1"));
        assert_eq!(choose(0, node, service), Ok(Source::NameService));
        assert_eq!(choose(RAI_DNS, None, None), Ok(Source::NameService));
        assert_eq!(choose(RAI_SA, None, service), Ok(Source::SubnetAdministrator));
        assert_eq!(choose(RAI_SA, None, None), Err(Errno::EINVAL));
        assert_eq!(choose(RAI_SA, node, None), Err(Errno::ENOTSUP));
        assert_eq!(choose(RAI_SA | RAI_DNS, None, None), Err(Errno::ENOTSUP));
        assert_eq!(choose(RAI_SA | RAI_DNS, node, service), Err(Errno::ENOTSUP));
    }
}
