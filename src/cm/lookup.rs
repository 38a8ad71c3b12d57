//! Name and service look-ups on this machine: rdma_getaddrinfo(3), rdma_resolve_addrinfo(3) and
//! rdma_query_addrinfo(3).

use std::cell::Cell;
use std::ffi::CStr;
use std::ptr::NonNull;

use super::addrinfo::list::List;
use super::addrinfo::{self, Env, Found, GaiError, Hints, service, service_of_sa};
use super::device_registry::{self, may_pass};
use super::id::Id;
use super::library::{Library, library, need_devices};
use super::owned_id::{self, OwnedId};
use crate::acm::addr::{DEFAULT_PKEY, Gid, ib};
use crate::errno::{Errno, Result};
use crate::ffi::rdma_cm_event_type;
use crate::os::cancel;
use crate::os::sockaddr::SockAddr;
use crate::ucm::{self, Service};
use crate::verbs::{self, IBV_LINK_LAYER_INFINIBAND, ibv_context, ibv_port_state};

/// The environment of a real look-up: the kernel and the devices of this machine.
struct Machine;

impl Env for Machine {
    fn need_devices(&self) -> Result<()> {
        need_devices()
    }

    fn af_ib(&self) -> bool {
        library().and_then(Library::af_ib).unwrap_or(false)
    }

    fn ask_sa(&self, service: &Service, found: &mut Found<'_>) -> Result<()> {
        let contexts = Cell::new(device_registry::hold_all(may_pass)?);
        let context = |index| {
            let all = contexts.take();
            let context = all.get(index).copied();
            contexts.set(all);
            context
        };
        let release = || contexts.take().into_iter().for_each(device_registry::release_held);
        let asked = cancel::with_cleanup(release, || {
            (0..).map_while(context).try_for_each(|context| ask_ports(context, service, found))
        });
        release();
        asked
    }
}

/// Asks the subnet administrator through each active InfiniBand port of the device.
fn ask_ports(context: NonNull<ibv_context>, service: &Service, found: &mut Found<'_>) -> Result<()> {
    // SAFETY: the device is held open during the call.
    let Ok(device) = (unsafe { verbs::query_device(context) }) else { return Ok(()) };
    for port in 1..=device.phys_port_cnt {
        // SAFETY: the device is held open during the call.
        let Ok(attr) = (unsafe { verbs::query_port(context, port) }) else { continue };
        let usable =
            u32::from(attr.link_layer) == IBV_LINK_LAYER_INFINIBAND && attr.state == ibv_port_state::IBV_PORT_ACTIVE;
        // SAFETY: the device is held open during the call, and any 16 bytes are a GID.
        let gid = if usable { unsafe { verbs::query_gid(context, port, 0).map(|gid| gid.raw) } } else { continue };
        let Ok(gid) = gid else { continue };
        match ask_port(gid, service) {
            Ok(records) => found(gid, &records)?,
            // Any other error concerns this port only: skip the port.
            Err(error) if may_pass(error) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(())
}

fn ask_port(gid: Gid, service: &Service) -> Result<Vec<ucm::ServiceRecord>> {
    let id = owned_id::create_internal()?;
    let destroy = || {
        // SAFETY: `destroy` is called once, by the thread's cancellation or below, and nothing uses
        // the id afterwards. A failure cannot be handled here.
        let _ = owned_id::destroy_id(unsafe { OwnedId::from_ref(&id) });
    };
    let records = cancel::with_cleanup(destroy, || bind_and_ask(&id, gid, service));
    destroy();
    records
}

fn bind_and_ask(id: &Id, gid: Gid, service: &Service) -> Result<Vec<ucm::ServiceRecord>> {
    ucm::bind(id.fd(), id.handle(), &SockAddr::from_ib(&ib(gid, DEFAULT_PKEY)))?;
    let operation = id.operation();
    ucm::resolve_ib_service(id.fd(), id.handle(), service)?;
    operation.complete()?;
    ucm::query_ib_service(id.fd(), id.handle())
}

/// Implements rdma_getaddrinfo(3) with the kernel and the devices of this machine.
pub fn getaddrinfo(
    node: Option<&CStr>,
    service: Option<&CStr>,
    hints: Option<&Hints<'_>>,
) -> std::result::Result<List, GaiError> {
    addrinfo::getaddrinfo(&Machine, node, service, hints)
}

/// Implements rdma_resolve_addrinfo(3), which ends with ADDRINFO_RESOLVED or ADDRINFO_ERROR.
pub fn resolve_addrinfo(id: &Id, node: Option<&CStr>, service: Option<&CStr>, hints: Option<&Hints<'_>>) -> Result<()> {
    let sought = service_of_sa(hints.map_or(0, |hints| hints.flags), node, service)?;
    id.state().search.begin()?;
    let operation = id.operation();
    let started = match sought {
        Some(service) => {
            service::parse(service).and_then(|service| ucm::resolve_ib_service(id.fd(), id.handle(), &service))
        }
        None => getaddrinfo(node, service, hints).map_err(GaiError::to_errno).and_then(|list| announce(id, list)),
    };
    started.inspect_err(|_| service_failed(id))?;
    operation.complete()
}

/// Stores a result and reports it with an event. The event goes through the kernel, which queues it
/// behind the unread events.
fn announce(id: &Id, list: List) -> Result<()> {
    const INTERNAL: u32 = rdma_cm_event_type::RDMA_CM_EVENT_INTERNAL as u32;
    id.state().search.finish(list);
    ucm::write_cm_event(id.fd(), id.handle(), INTERNAL, 0, rdma_cm_event_type::RDMA_CM_EVENT_ADDRINFO_RESOLVED as u64)
}

/// Handles ADDRINFO_RESOLVED from the kernel: fetches the service records.
pub(super) fn service_resolved(id: &Id) -> Result<()> {
    if !id.state().search.is_started() {
        // `ask_port` has created this id, and fetches the records itself.
        return Ok(());
    }
    let list = fetch(id).inspect_err(|_| service_failed(id))?;
    id.state().search.finish(list);
    Ok(())
}

fn fetch(id: &Id) -> Result<List> {
    let records = ucm::query_ib_service(id.fd(), id.handle())?;
    let mut list = List::default();
    service::append(&mut list, &records, None)?;
    if list.is_empty() { Err(Errno::ENOENT) } else { Ok(list) }
}

/// Ends a look-up that failed, in the kernel (ADDRINFO_ERROR) or in the library: another look-up
/// may start.
pub(super) fn service_failed(id: &Id) {
    id.state().search.fail();
}

/// Implements rdma_query_addrinfo(3): takes the result.
///
/// # Errors
/// Fails with `ENOENT` if there is no result.
pub fn query_addrinfo(id: &Id) -> Result<List> {
    id.state().search.take()
}
