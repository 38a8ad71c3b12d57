//! rdma_getaddrinfo(3): looks up addresses, routes and connection data. [`Pending`] is the state of
//! an id's look-up.
//!
//! Names are resolved by getaddrinfo(3) ([`dns`]). Then ibacm is asked for a path to the address.
//! ibacm's answer adds the route and the local address to the entry, and a second entry of family
//! AF_IB in front of the first. With RAI_SA, the subnet administrator is asked for a service
//! instead ([`service`]). [`Env`] gives access to the kernel, the devices and ibacm.

use std::cell::Cell;
use std::ffi::{CStr, c_int};

use list::{Entry, List};

use crate::acm;
use crate::acm::addr::{Gid, ib, ip_header, with_port};
use crate::acm::wire::{Answer, PATH_RECORD_LEN, Query, unpack};
use crate::errno::{Errno, Result};
use crate::ffi::{RAI_DNS, RAI_NOROUTE, RAI_NUMERICHOST, RAI_PASSIVE, RAI_SA, ibv_sa_path_rec};
use crate::os::alloc::CBytes;
use crate::os::cancel;
use crate::os::sockaddr::{AF_IB, SockAddr, SockaddrIb, port};
use crate::ucm::{Service, ServiceRecord};

mod dns;
pub mod list;
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
    /// Returns the closest errno, for rdma_resolve_addrinfo(), which cannot return EAI_* codes.
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

/// Callback for the subnet administrator's answer through a port: the port's GID and the records.
pub type Found<'a> = dyn FnMut(Gid, &[ServiceRecord]) -> Result<()> + 'a;

/// The kernel, the devices and ibacm, as rdma_getaddrinfo() uses them.
pub trait Env {
    /// Fails with `ENODEV` if there are no RDMA devices.
    fn need_devices(&self) -> Result<()>;

    /// Returns whether the kernel supports AF_IB.
    fn af_ib(&self) -> bool;

    /// Asks ibacm. Returns `None` if there is no ibacm, or if ibacm finds nothing.
    fn ask_acm(&self, query: &Query) -> Option<Answer> {
        acm::client().ask(query)
    }

    /// Asks the subnet administrator for a service through every port (see [`service`]). Fails with
    /// the error of `found`, with `EINTR` when a signal ends the wait, and with the error for a
    /// lack of memory or descriptors.
    fn ask_sa(&self, service: &Service, found: &mut Found<'_>) -> Result<()>;
}

/// Implements rdma_getaddrinfo(3). Returns a list with at least one entry. Fails with `EINVAL` if
/// there are neither node nor service nor hints, and with `ENODEV` if there are no devices.
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
        && let Some(service) = service_of_sa(hints.flags, node, service)?
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

/// Makes an entry with the values of the hints.
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
    let mut list = List::default();
    if flags & RAI_PASSIVE == 0 {
        let path = hints.and_then(|hints| hints.path());
        let no_delay = flags & (RAI_NUMERICHOST | RAI_NOROUTE) != 0;
        let query = Query { src: addr(&entry.src), dst: addr(&entry.dst), path, no_delay };
        if let Some(answer) = env.ask_acm(&query)
            && let Some(front) = apply(&mut entry, &answer, flags, env.af_ib())?
        {
            list.push(front)?;
        }
    }
    list.push(entry)?;
    Ok(list)
}

/// Looks up a service for RAI_SA. Fails with `ENOENT` if the service is not found through any port.
fn by_sa(env: &dyn Env, service: &CStr) -> Result<List> {
    let service = service::parse(service)?;
    let list = Cell::new(List::default());
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

/// The fields of the hints (`struct rdma_addrinfo`) that rdma_getaddrinfo() uses.
#[derive(Clone, Copy, Debug)]
pub struct Hints<'a> {
    /// RAI_* flags.
    pub flags: u32,
    /// Address family.
    pub family: i32,
    /// QP type, 0 for any.
    pub qp_type: i32,
    /// Port space, 0 for any.
    pub port_space: i32,
    /// Local address, empty if there is none. `Err` means an invalid address; the look-up fails
    /// with this error only if it uses the address.
    pub src: Result<&'a [u8]>,
    /// Remote address, in the form of `src`.
    pub dst: Result<&'a [u8]>,
    /// A path, empty if there is none.
    pub route: &'a [u8],
}

impl Default for Hints<'_> {
    fn default() -> Self {
        Hints { flags: 0, family: 0, qp_type: 0, port_space: 0, src: Ok(&[]), dst: Ok(&[]), route: &[] }
    }
}

impl Hints<'_> {
    /// Returns whether all of `flags` are set.
    pub fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// Returns the requested properties of the path, if there is a route. A route that is neither
    /// one `struct ibv_path_record` nor one `struct ibv_path_data` counts as an empty record, as in
    /// rdma-core, and asks for any path.
    pub fn path(&self) -> Option<[u8; PATH_RECORD_LEN]> {
        if self.route.is_empty() {
            return None;
        }
        Some(Query::path_hint(self.route).unwrap_or([0; PATH_RECORD_LEN]))
    }
}

/// RAI_* flag that rdma-core uses internally: no AF_IB entry is added.
const ROUTE_ONLY: u32 = 0x0100_0000;

/// Adds ibacm's answer to `entry`. Returns the AF_IB entry to put in front of `entry`, if there is
/// a path and the kernel supports AF_IB.
pub fn apply(entry: &mut Entry, answer: &Answer, flags: u32, af_ib: bool) -> Result<Option<Entry>> {
    if let Some(source) = answer.source.filter(|_| entry.src.is_none()) {
        entry.src = CBytes::copy(SockAddr::from_inet(&(source, 0).into()).bytes())?;
    }
    let Some(path) = answer.paths.records().first() else { return Ok(None) };
    entry.route = CBytes::copy(answer.paths.as_bytes())?;
    if !af_ib || flags & ROUTE_ONLY != 0 {
        return Ok(None);
    }
    ib_entry(entry, &unpack(path), answer.paths.as_bytes())
}

/// The bits of a flow label, in network byte order.
const FLOW_LABEL: u32 = 0xF_FFFF_u32.to_be();

/// Builds the AF_IB entry. Returns `None` if the peer is addressed by IP address but `entry` lacks
/// one of the two addresses that the peer expects in the header.
fn ib_entry(entry: &Entry, path: &ibv_sa_path_rec, route: &[u8]) -> Result<Option<Entry>> {
    let (src, dst) = (addr(&entry.src), addr(&entry.dst));
    let header = match (&src, &dst) {
        (_, Some(addr)) | (Some(addr), None) if addr.family() == AF_IB => None,
        (Some(src), Some(dst)) if src.family() == dst.family() => CBytes::copy(&ip_header(src, dst, 0))?,
        _ => return Ok(None),
    };
    let address = |gid: Gid, port_of: Option<SockAddr>| {
        let ib = SockaddrIb { flowinfo: path.flow_label & FLOW_LABEL, ..ib(gid, path.pkey) };
        let port = port_of.map_or(0, |addr| u16::from_be(port(addr.storage())));
        CBytes::copy(SockAddr::from_ib(&with_port(ib, entry.port_space as u16, port)).bytes())
    };
    // SAFETY: any bytes are a value of the GIDs.
    let (sgid, dgid) = unsafe { (path.sgid.raw, path.dgid.raw) };
    Ok(Some(Entry {
        flags: entry.flags,
        family: AF_IB,
        qp_type: entry.qp_type,
        port_space: entry.port_space,
        src: address(sgid, src)?,
        dst: address(dgid, dst)?,
        route: CBytes::copy(route)?,
        connect: header,
    }))
}

fn addr(bytes: &Option<CBytes>) -> Option<SockAddr> {
    SockAddr::from_bytes(bytes.as_ref()?.as_slice()).ok()
}

/// Returns the service for which the subnet administrator is asked; `None` without RAI_SA. Fails
/// with `ENOTSUP` for RAI_SA with RAI_DNS or with a node, and with `EINVAL` for RAI_SA without a
/// service.
pub fn service_of_sa<'a>(flags: u32, node: Option<&CStr>, service: Option<&'a CStr>) -> Result<Option<&'a CStr>> {
    match service {
        _ if flags & RAI_SA == 0 => Ok(None),
        _ if flags & RAI_DNS != 0 || node.is_some() => Err(Errno::ENOTSUP),
        None => Err(Errno::EINVAL),
        service => Ok(service),
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
    /// The look-up has completed. The program has not taken the result.
    Ready(List),
}

impl Pending {
    /// Starts a look-up. Fails with `EBUSY` if a look-up is in progress, or if its result was not
    /// taken.
    pub fn begin(&mut self) -> Result<()> {
        if !matches!(self, Pending::Idle) {
            return Err(Errno::EBUSY);
        }
        *self = Pending::Started;
        Ok(())
    }

    /// Stores the result of the look-up, or frees `list` if no look-up is in progress.
    pub fn finish(&mut self, list: List) {
        if matches!(self, Pending::Started) {
            *self = Pending::Ready(list);
        }
    }

    /// Records that the look-up failed. Another look-up may start.
    pub fn fail(&mut self) {
        *self = Pending::Idle;
    }

    /// Returns whether a look-up is in progress.
    pub fn is_started(&self) -> bool {
        matches!(self, Pending::Started)
    }

    /// Takes the result. Fails with `ENOENT` if there is no result.
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
