//! rdma_getaddrinfo(3): addresses, routes and connection data from names.
//!
//! Names are resolved by getaddrinfo(3) ([`dns`]), and ibacm is asked for a path to the address
//! ([`path`]). With RAI_SA, the subnet administrator is asked for a service instead ([`service`]).
//! Kernel, devices and ibacm are behind [`Env`].

use std::cell::Cell;
use std::ffi::{CStr, c_int};

use hints::Hints;
use list::{Entry, List};
use pending::Source;

use crate::acm;
use crate::acm::addr::Gid;
use crate::acm::wire::{Answer, Query};
use crate::errno::{Errno, Result};
use crate::ffi::RAI_PASSIVE;
use crate::os::c_alloc::CBytes;
use crate::os::cancel;
use crate::ucm::{Service, ServiceRecord};

mod dns;
pub mod hints;
pub mod list;
mod path;
pub mod pending;
pub mod service;
#[cfg(test)]
mod tests;

/// Why rdma_getaddrinfo() failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GaiError {
    /// -1 with this errno.
    Errno(Errno),
    /// The EAI_* code of getaddrinfo(3), which is returned unchanged. `errno` is set for
    /// EAI_SYSTEM.
    Gai(c_int),
}

impl From<Errno> for GaiError {
    fn from(errno: Errno) -> GaiError {
        GaiError::Errno(errno)
    }
}

impl GaiError {
    /// The closest errno, for rdma_resolve_addrinfo(), which cannot return EAI_* codes.
    pub fn to_errno(self) -> Errno {
        match self {
            GaiError::Errno(errno) => errno,
            GaiError::Gai(libc::EAI_SYSTEM) => Errno::last(),
            GaiError::Gai(libc::EAI_AGAIN) => Errno::EAGAIN,
            GaiError::Gai(libc::EAI_MEMORY) => Errno::ENOMEM,
            GaiError::Gai(libc::EAI_FAIL) => Errno::EIO,
            GaiError::Gai(libc::EAI_NONAME | libc::EAI_NODATA) => Errno::ENOENT,
            GaiError::Gai(_) => Errno::EINVAL,
        }
    }
}

/// Receives the subnet administrator's answer through a port: the port's GID and the records.
pub type Found<'a> = dyn FnMut(Gid, &[ServiceRecord]) -> Result<()> + 'a;

/// Kernel, devices and ibacm, as rdma_getaddrinfo() uses them.
pub trait Env {
    /// Fails with `ENODEV` if there are no RDMA devices.
    fn need_devices(&self) -> Result<()>;

    /// Whether the kernel supports AF_IB.
    fn af_ib(&self) -> bool;

    /// Asks ibacm.
    fn ask_acm(&self, query: &Query) -> Option<Answer> {
        acm::client().ask(query)
    }

    /// Asks the subnet administrator for a service through every port (see [`service`]). Fails with
    /// the error of `found`, with `EINTR` when a signal ends the wait, and without resources.
    fn ask_sa(&self, service: &Service, found: &mut Found<'_>) -> Result<()>;
}

/// rdma_getaddrinfo(3). The list is not empty. Fails with `EINVAL` without node, service and hints,
/// and with `ENODEV` without devices.
pub fn getaddrinfo(
    env: &dyn Env,
    node: Option<&CStr>,
    service: Option<&CStr>,
    hints: Option<&Hints<'_>>,
) -> std::result::Result<List, GaiError> {
    if node.is_none() && service.is_none() && hints.is_none() {
        return Err(Errno::EINVAL.into());
    }
    env.need_devices()?;
    if let Some(hints) = hints
        && Source::choose(hints.flags, node, service)? == Source::SubnetAdministrator
    {
        return Ok(by_sa(env, service)?);
    }
    let mut entry = match (node, service, hints) {
        (None, None, Some(hints)) => from_hints(hints)?,
        _ => dns::entry(node, service, hints)?,
    };
    if let (None, Some(hints)) = (&entry.src, hints) {
        entry.src = CBytes::copy(hints.src?)?;
    }
    Ok(with_path(env, entry, hints)?)
}

/// An entry with the values of the hints.
fn from_hints(hints: &Hints<'_>) -> Result<Entry> {
    Ok(Entry {
        flags: hints.flags as c_int,
        family: hints.family,
        qp_type: hints.qp_type,
        port_space: hints.port_space,
        dst: CBytes::copy(hints.dst?)?,
        ..Entry::default()
    })
}

/// Asks ibacm for a path if the entry is for the active side. Returns a list of one or two entries.
fn with_path(env: &dyn Env, mut entry: Entry, hints: Option<&Hints<'_>>) -> Result<List> {
    let flags = hints.map_or(0, |hints| hints.flags);
    let mut list = List::new();
    if flags & RAI_PASSIVE == 0 {
        let query = path::query(&entry, flags, hints.and_then(|hints| hints.path()));
        if let Some(answer) = env.ask_acm(&query)
            && let Some(front) = path::apply(&mut entry, &answer, flags, env.af_ib())?
        {
            list.push(front)?;
        }
    }
    list.push(entry)?;
    Ok(list)
}

/// RAI_SA: asks for a service. Fails with `ENOENT` if it is found through no port.
fn by_sa(env: &dyn Env, service: Option<&CStr>) -> Result<List> {
    let service = service::parse(service.ok_or(Errno::EINVAL)?)?;
    let list = Cell::new(List::new());
    let mut found = |gid, records: &[ServiceRecord]| {
        let mut all = list.take();
        let appended = service::append(&mut all, records, Some(gid));
        list.set(all);
        appended
    };
    cancel::with_cleanup(|| drop(list.take()), || env.ask_sa(&service, &mut found))?;
    let list = list.into_inner();
    if list.is_empty() { Err(Errno::ENOENT) } else { Ok(list) }
}
