//! Name and service look-ups for this machine: rdma_getaddrinfo(3), and rdma_resolve_addrinfo(3) with its result.

use std::ffi::{c_char, c_int};
use std::ptr::{self, NonNull};
use std::time::Duration;

use super::addrinfo::list::List;
use super::addrinfo::pending::{Pending, Way};
use super::addrinfo::service::{self, Common};
use super::addrinfo::{self, Env, Found, GaiError, hints::Hints};
use super::device;
use super::id::{self, Id};
use super::library::{Library, library, need_devices};
use crate::acm::addr::Gid;
use crate::acm::{self, addr::Addr, wire::Paths};
use crate::errno::{Errno, Result};
use crate::ffi::{rdma_addrinfo, rdma_cm_event_type, rdma_port_space};
use crate::sys::sockaddr::SockAddr;
use crate::sys::ucma::{self, Service};
use crate::sys::verbs::{self, IBV_LINK_LAYER_INFINIBAND, ibv_context, ibv_port_state, ibv_qp_type};

/// The kernel and the devices of this machine.
struct Machine;

impl Env for Machine {
    fn need_devices(&self) -> Result<()> {
        need_devices()
    }

    fn af_ib(&self) -> bool {
        library().and_then(Library::af_ib).unwrap_or(false)
    }

    fn ask_sa(&self, service: &Service, found: &mut Found<'_>) -> Result<()> {
        let contexts = device::hold_all()?;
        let asked = contexts.iter().try_for_each(|&context| ask_ports(context, service, found));
        contexts.iter().for_each(|&context| device::let_go(context));
        asked
    }
}

/// Asks the subnet administrator behind each InfiniBand port that is up; ports that fail are passed over.
fn ask_ports(context: NonNull<ibv_context>, service: &Service, found: &mut Found<'_>) -> Result<()> {
    // SAFETY: the context is held.
    let Ok(device) = (unsafe { verbs::query_device(context) }) else { return Ok(()) };
    for port in 1..=device.phys_port_cnt {
        // SAFETY: as above.
        let Ok(attr) = (unsafe { verbs::query_port(context, port) }) else { continue };
        let usable =
            u32::from(attr.link_layer) == IBV_LINK_LAYER_INFINIBAND && attr.state == ibv_port_state::IBV_PORT_ACTIVE;
        // SAFETY: as above, and a GID is 16 bytes in each of its forms.
        let gid = if usable { unsafe { verbs::query_gid(context, port, 0).map(|gid| gid.raw) } } else { continue };
        let Ok(gid) = gid else { continue };
        if let Ok(records) = ask_port(gid, service) {
            found(gid, &records)?;
        }
    }
    Ok(())
}

fn ask_port(gid: Gid, service: &Service) -> Result<Vec<ucma::ServiceRecord>> {
    let (ps, qp_type) = (rdma_port_space::RDMA_PS_IB as u32, ibv_qp_type::IBV_QPT_RC);
    // SAFETY: NULL makes the id synchronous.
    let id = unsafe { id::create(ptr::null_mut(), ptr::null_mut(), ps, qp_type)? };
    let records = bind_and_ask(id, gid, service);
    // SAFETY: nobody else has seen it. A failure leaves nothing to do.
    let _ = unsafe { id::destroy_id(id) };
    records
}

fn bind_and_ask(id: &Id, gid: Gid, service: &Service) -> Result<Vec<ucma::ServiceRecord>> {
    let port = service::port_address(gid).to_bytes();
    // SAFETY: a whole sockaddr_ib.
    let addr = unsafe { SockAddr::from_c(NonNull::from(&port).cast())? };
    ucma::bind(id.fd(), id.handle(), &addr)?;
    let operation = id.operation();
    ucma::resolve_ib_service(id.fd(), id.handle(), service)?;
    operation.complete()?;
    ucma::query_ib_service(id.fd(), id.handle())
}

/// rdma_getaddrinfo(3).
///
/// # Safety
/// `node` and `service` are C strings or NULL, `hints` is NULL or readable with what it points at, `res` writable.
pub unsafe fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: NonNull<*mut rdma_addrinfo>,
) -> std::result::Result<(), GaiError> {
    // SAFETY: `node` and `service` are C strings or NULL, `hints` is NULL or readable with what it
    // points at, `res` writable: guaranteed by the caller.
    unsafe { addrinfo::getaddrinfo(&Machine, node, service, hints, res) }
}

/// The search of an id.
#[derive(Default)]
pub(super) struct Search {
    pending: Pending,
    /// What its results have in common.
    common: Option<Common>,
}

/// rdma_resolve_addrinfo(3): ends with ADDRINFO_RESOLVED or ADDRINFO_ERROR.
///
/// # Safety
/// As [`getaddrinfo`].
pub unsafe fn resolve_addrinfo(
    id: &Id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<()> {
    // SAFETY: as [`getaddrinfo`]: guaranteed by the caller.
    let (node, service, hints) = unsafe { (addrinfo::text(node), addrinfo::text(service), Hints::from_c(hints)) };
    let way = Way::choose(hints.as_ref().map_or(0, Hints::flags), node, service)?;
    begin(id, hints.as_ref())?;
    let operation = id.operation();
    let started = match (way, service) {
        (Way::Sa, Some(service)) => {
            service::parse(service).and_then(|service| ucma::resolve_ib_service(id.fd(), id.handle(), &service))
        }
        _ => addrinfo::resolve(&Machine, node, service, hints.as_ref())
            .map_err(GaiError::to_errno)
            .and_then(|list| announce(id, list)),
    };
    if started.is_err() {
        id.state().search.pending.fail();
    }
    started?;
    operation.complete()
}

fn begin(id: &Id, hints: Option<&Hints<'_>>) -> Result<()> {
    let mut state = id.state();
    state.search.pending.begin()?;
    state.search.common = hints.map(Common::from_hints);
    Ok(())
}

/// The result is there already: the event that says so goes the kernel's way, behind those that wait.
fn announce(id: &Id, list: List) -> Result<()> {
    const INTERNAL: u32 = rdma_cm_event_type::RDMA_CM_EVENT_INTERNAL as u32;
    id.state().search.pending.finish(list);
    ucma::write_cm_event(id.fd(), id.handle(), INTERNAL, 0, rdma_cm_event_type::RDMA_CM_EVENT_ADDRINFO_RESOLVED as u64)
}

/// ADDRINFO_RESOLVED from the kernel: fetches the service records.
pub(super) fn service_resolved(id: &Id) -> Result<()> {
    if !id.state().search.pending.is_asked() {
        // Not for the program: see ask_port().
        return Ok(());
    }
    let found = fetch(id);
    let mut state = id.state();
    match found {
        Ok(list) => {
            state.search.pending.finish(list);
            Ok(())
        }
        Err(error) => {
            state.search.pending.fail();
            Err(error)
        }
    }
}

fn fetch(id: &Id) -> Result<List> {
    let records = ucma::query_ib_service(id.fd(), id.handle())?;
    let common = id.state().search.common.unwrap_or(Common {
        flags: 0,
        qp_type: 0,
        port_space: rdma_port_space::RDMA_PS_IB as c_int,
    });
    let mut list = List::new();
    service::append(&mut list, &records, None, common)?;
    if list.is_empty() { Err(Errno::ENOENT) } else { Ok(list) }
}

/// ADDRINFO_ERROR from the kernel.
pub(super) fn service_failed(id: &Id) {
    id.state().search.pending.fail();
}

/// rdma_query_addrinfo(3): the result, once; `ENOENT` when there is none.
///
/// # Safety
/// `res` is writable.
pub unsafe fn query_addrinfo(id: &Id, res: NonNull<*mut rdma_addrinfo>) -> Result<()> {
    let list = id.state().search.pending.take()?;
    // SAFETY: `res` is writable: guaranteed by the caller.
    unsafe { res.write(list.into_raw()) };
    Ok(())
}

/// The paths that ibacm knows between the id's addresses.
pub(super) fn acm_paths(id: &Id, patience: Duration) -> Result<Paths> {
    // SAFETY: the route of a live id.
    let (source, destination) = unsafe {
        let route = id.addr();
        (Addr::from_storage(&(*route).src.src_storage), Addr::from_storage(&(*route).dst.dst_storage))
    };
    acm::resolve_path(acm::client(), source, destination, patience).ok_or(Errno::ENOENT)
}
