//! rdma_getaddrinfo(3): addresses, routes and connection data from names.
//!
//! Names go to getaddrinfo(3) ([`dns`]), the address found to ibacm for a path ([`path`]); with RAI_SA a service is
//! looked up at the subnet administrator instead ([`service`]). The outside comes as an [`Env`].

use std::ffi::{CStr, c_char, c_int};
use std::ptr::NonNull;

use hints::Hints;
use list::{Entry, List};
use pending::Way;

use crate::acm;
use crate::acm::addr::Gid;
use crate::acm::wire::{Answer, Query};
use crate::errno::{Errno, Result};
use crate::ffi::{RAI_PASSIVE, rdma_addrinfo};
use crate::sys::cbox::CBytes;
use crate::sys::ucma::{Service, ServiceRecord};

mod dns;
pub mod hints;
pub mod list;
mod path;
pub mod pending;
pub mod service;
#[cfg(test)]
mod tests;

pub use list::freeaddrinfo;

/// Why rdma_getaddrinfo() failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GaiError {
    /// -1 with this errno.
    Errno(Errno),
    /// getaddrinfo(3)'s EAI_* code, which is returned as it is. With EAI_SYSTEM, `errno` says more.
    Gai(c_int),
}

impl From<Errno> for GaiError {
    fn from(errno: Errno) -> GaiError {
        GaiError::Errno(errno)
    }
}

impl GaiError {
    /// The nearest errno, for calls that have nothing else to say it with: rdma_resolve_addrinfo().
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

/// Takes what the subnet administrator knows, port by port: the GID of the port asked and the records it gave.
pub type Found<'a> = dyn FnMut(Gid, &[ServiceRecord]) -> Result<()> + 'a;

/// What rdma_getaddrinfo() needs of the outside.
pub trait Env {
    /// Makes sure that there are RDMA devices; `ENODEV` otherwise.
    fn need_devices(&self) -> Result<()>;

    /// Whether the kernel knows AF_IB.
    fn af_ib(&self) -> bool;

    /// Asks ibacm.
    fn ask_acm(&self, query: &Query) -> Option<Answer> {
        acm::client().ask(query)
    }

    /// Searches for a service through every port (see [`service`]); an error is one of `found`'s.
    fn ask_sa(&self, service: &Service, found: &mut Found<'_>) -> Result<()>;
}

/// rdma_getaddrinfo(3). `EINVAL` without node, service and hints, `ENODEV` without devices.
///
/// # Safety
/// `node` and `service` are C strings or NULL, `hints` as [`Hints::from_c`] wants them.
pub unsafe fn getaddrinfo(
    env: &dyn Env,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: NonNull<*mut rdma_addrinfo>,
) -> std::result::Result<(), GaiError> {
    // SAFETY: `node` and `service` are C strings or NULL, `hints` as [`Hints::from_c`] wants them:
    // guaranteed by the caller.
    let list = unsafe { resolve(env, text(node), text(service), Hints::from_c(hints).as_ref())? };
    // SAFETY: `node` and `service` are C strings or NULL, `hints` as [`Hints::from_c`] wants them:
    // guaranteed by the caller.
    unsafe { res.write(list.into_raw()) };
    Ok(())
}

/// A C string; `None` for NULL.
///
/// # Safety
/// NULL, or a C string that lives for `'a`.
pub unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    // SAFETY: NULL, or a C string that lives for `'a`: guaranteed by the caller.
    NonNull::new(text.cast_mut()).map(|text| unsafe { CStr::from_ptr(text.as_ptr()) })
}

/// As [`getaddrinfo`], with Rust's types. The list is not empty.
pub fn resolve(
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
        && Way::choose(hints.flags(), node, service)? == Way::Sa
    {
        return Ok(by_sa(env, service, hints)?);
    }
    let mut entry = match (node, service, hints) {
        (None, None, Some(hints)) => from_hints(hints)?,
        _ => dns::entry(node, service, hints)?,
    };
    if let (None, Some(hints)) = (&entry.src, hints) {
        entry.src = CBytes::copy(hints.src()?)?;
    }
    Ok(with_path(env, entry, hints)?)
}

/// An entry that says what the hints say.
fn from_hints(hints: &Hints<'_>) -> Result<Entry> {
    Ok(Entry {
        flags: hints.flags() as c_int,
        family: hints.family(),
        qp_type: hints.qp_type(),
        port_space: hints.port_space(),
        dst: CBytes::copy(hints.dst()?)?,
        ..Entry::default()
    })
}

/// Asks ibacm for the active side; the list of one or two entries.
fn with_path(env: &dyn Env, mut entry: Entry, hints: Option<&Hints<'_>>) -> Result<List> {
    let flags = hints.map_or(0, |hints| hints.flags());
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

/// RAI_SA: `ENOENT` when no port knows the service.
fn by_sa(env: &dyn Env, service: Option<&CStr>, hints: &Hints<'_>) -> Result<List> {
    let service = service::parse(service.ok_or(Errno::EINVAL)?)?;
    let common = service::Common::from_hints(hints);
    let mut list = List::new();
    env.ask_sa(&service, &mut |gid, records| service::append(&mut list, records, Some(gid), common))?;
    if list.is_empty() { Err(Errno::ENOENT) } else { Ok(list) }
}
