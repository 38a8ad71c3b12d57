//! The search of an id that rdma_resolve_addrinfo() started: one at a time, its result handed over once.

use std::ffi::CStr;

use crate::errno::{Errno, Result};
use crate::ffi::{RAI_DNS, RAI_SA};

use super::list::List;

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The name service: done within the call.
    Dns,
    /// The subnet administrator: done when the kernel says so.
    Sa,
}

impl Way {
    /// Whom the flags choose. `ENOTSUP` for both at once and for a node with RAI_SA, `EINVAL` for RAI_SA without
    /// service.
    pub fn choose(flags: u32, node: Option<&CStr>, service: Option<&CStr>) -> Result<Way> {
        if flags & RAI_SA == 0 {
            return Ok(Way::Dns);
        }
        if flags & RAI_DNS != 0 || node.is_some() {
            return Err(Errno::ENOTSUP);
        }
        if service.is_none() {
            return Err(Errno::EINVAL);
        }
        Ok(Way::Sa)
    }
}

/// Where an id's search stands.
#[derive(Debug, Default)]
pub enum Pending {
    /// There is none.
    #[default]
    Idle,
    /// The answer is waited for.
    Asked,
    /// The program has not fetched the result.
    Ready(List),
}

impl Pending {
    /// A search begins; `EBUSY` while another is under way or its result not fetched.
    pub fn begin(&mut self) -> Result<()> {
        match self {
            Pending::Idle => {
                *self = Pending::Asked;
                Ok(())
            }
            Pending::Asked | Pending::Ready(_) => Err(Errno::EBUSY),
        }
    }

    /// The search found something. Without a search the result is nobody's and is freed.
    pub fn finish(&mut self, list: List) {
        if matches!(self, Pending::Asked) {
            *self = Pending::Ready(list);
        }
    }

    /// The search failed; another may begin.
    pub fn fail(&mut self) {
        *self = Pending::Idle;
    }

    /// Whether an answer is waited for.
    pub fn is_asked(&self) -> bool {
        matches!(self, Pending::Asked)
    }

    /// Hands the result over; `ENOENT` when there is none.
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
    fn result_is_handed_over_once() {
        let mut pending = Pending::default();
        pending.begin().unwrap();
        assert_eq!(pending.take().err(), Some(Errno::ENOENT));
        assert!(matches!(pending, Pending::Asked));
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
    fn failure_makes_room() {
        let mut pending = Pending::default();
        pending.begin().unwrap();
        pending.fail();
        assert_eq!(pending.take().err(), Some(Errno::ENOENT));
        pending.begin().unwrap();
    }

    #[test]
    fn late_result_is_nobodys() {
        let mut pending = Pending::default();
        pending.finish(list());
        assert_eq!(pending.take().err(), Some(Errno::ENOENT));
    }

    #[test]
    fn ways() {
        let choose = Way::choose;
        let (node, service) = (Some(c"node"), Some(c"1"));
        assert_eq!(choose(0, node, service), Ok(Way::Dns));
        assert_eq!(choose(RAI_DNS, None, None), Ok(Way::Dns));
        assert_eq!(choose(RAI_SA, None, service), Ok(Way::Sa));
        assert_eq!(choose(RAI_SA, None, None), Err(Errno::EINVAL));
        assert_eq!(choose(RAI_SA, node, None), Err(Errno::ENOTSUP));
        assert_eq!(choose(RAI_SA | RAI_DNS, None, None), Err(Errno::ENOTSUP));
        assert_eq!(choose(RAI_SA | RAI_DNS, node, service), Err(Errno::ENOTSUP));
    }
}
