//! Binds ids and resolves their addresses and routes: finds the device, the addresses and the path.
//!
//! Path records come from the kernel, the program or ibacm in the subnet administrator's wire
//! format. [`unpack`] converts the records that programs see to libibverbs' structure.

use std::ffi::c_int;
use std::mem::{offset_of, size_of};
use std::ptr;
use std::time::Duration;

use libc::sockaddr_storage;

use super::device_registry;
use super::id::Id;
use super::library::library;
use super::option::set_option;
use crate::acm::{self, wire::unpack};
use crate::errno::{Errno, Result};
use crate::ffi::{RDMA_OPTION_IB, RDMA_OPTION_IB_PATH};
use crate::os::sockaddr::{AF_IB, SockAddr, SockaddrIb};
use crate::os::uapi::{__kernel_sockaddr_storage, sockaddr_in6};
use crate::ucm;
use crate::verbs::{IBV_TRANSPORT_IB, path_rec_from_kernel};

/// Implements rdma_bind_addr(3): binds, then queries the address and the device.
pub fn bind_addr(id: &Id, addr: &SockAddr) -> Result<()> {
    let bind = if takes_any_family([addr])? { ucm::bind } else { ucm::bind_ip };
    bind(id.fd(), id.handle(), addr)?;
    ask(id, &[query_addr, query_gid])
}

/// Implements rdma_resolve_addr(3). The timeout is in milliseconds.
pub fn resolve_addr(id: &Id, src: Option<&SockAddr>, dst: &SockAddr, timeout_ms: c_int) -> Result<()> {
    let operation = id.operation();
    // Write the destination first: once the kernel has started to resolve it, the id belongs to the
    // thread that reads the id's events.
    let before = id.destination();
    id.write_destination(dst.bytes());
    // A failed command has started no operation, so the id still belongs to the caller.
    start_resolving(id, src, dst, timeout_ms as u32).inspect_err(|_| id.write_destination(bytes_of(&before)))?;
    operation.complete()
}

fn start_resolving(id: &Id, src: Option<&SockAddr>, dst: &SockAddr, timeout_ms: u32) -> Result<()> {
    let any = takes_any_family([dst].into_iter().chain(src))?;
    let resolve = if any { ucm::resolve_addr } else { ucm::resolve_ip };
    resolve(id.fd(), id.handle(), src, dst, timeout_ms)
}

/// Returns whether the kernel has the commands for addresses of any family. Without these commands,
/// fails with `EINVAL` for an AF_IB address.
fn takes_any_family<'a>(addresses: impl IntoIterator<Item = &'a SockAddr>) -> Result<bool> {
    check_families(library()?.af_ib()?, addresses)
}

fn check_families<'a>(af_ib: bool, addresses: impl IntoIterator<Item = &'a SockAddr>) -> Result<bool> {
    let is_unknown = !af_ib && addresses.into_iter().any(|address| address.family() == AF_IB);
    if is_unknown { Err(Errno::EINVAL) } else { Ok(af_ib) }
}

/// Implements rdma_resolve_route(3). The timeout is in milliseconds. `acm_timeout` is
/// [`acm::ANSWER_TIMEOUT`], or [`acm::CACHED_ANSWER_TIMEOUT`] for threads that must not wait long:
/// the shorter time suffices only if ibacm answers from its cache.
pub fn resolve_route(id: &Id, timeout_ms: c_int, acm_timeout: Duration) -> Result<()> {
    let operation = id.operation();
    // On InfiniBand and RoCE, ibacm may know the path. `from_acm` gives the path to the kernel,
    // which then reports ROUTE_RESOLVED.
    let known = id.transport() == Some(IBV_TRANSPORT_IB) && from_acm(id, acm_timeout).is_ok();
    if !known {
        ucm::resolve_route(id.fd(), id.handle(), timeout_ms as u32)?;
    }
    operation.complete()
}

/// Updates the addresses of a listener from the kernel.
pub(super) fn update_addresses(id: &Id) -> Result<()> {
    ask(id, &[query_addr])
}

/// Updates the id after ADDR_RESOLVED. Fails with `ENODEV` if the address has no device, and with
/// `EPERM` if the device cannot be opened (docs/compatibility.md).
pub(super) fn after_addr(id: &Id) -> Result<()> {
    has_device(ask(id, &[query_addr, query_gid_if_any]), id)
}

fn has_device(asked: Result<()>, id: &Id) -> Result<()> {
    asked.map_err(|error| if error == Errno::ENODEV { Errno::EPERM } else { error })?;
    if id.verbs().is_null() { Err(Errno::ENODEV) } else { Ok(()) }
}

/// Updates the paths after ROUTE_RESOLVED.
pub(super) fn after_route(id: &Id) -> Result<()> {
    if has_gids(id) { ask(id, &[query_path]) } else { Ok(()) }
}

/// Lets connection requests of the listener be shown even if there are no descriptors or memory to
/// open their device. The caller opens the device with [`open_request_device`] before it uses the
/// id of a request.
pub fn defer_devices(listener: &Id) {
    listener.state().defers_devices = true;
}

/// Opens the device of a connection request of a listener with [`defer_devices`], unless the device
/// was opened when the request arrived.
pub fn open_request_device(id: &Id) -> Result<()> {
    if id.state().is_incomplete {
        after_request(id)?;
        id.state().is_incomplete = false;
    }
    Ok(())
}

/// Queries addresses, GIDs and paths for the id of a connection request.
pub(super) fn after_request(id: &Id) -> Result<()> {
    ask(id, &[query_addr, query_gid, query_path])
}

/// Sends `queries`, or [`query_route`] to a kernel without AF_IB, which lacks the commands.
fn ask(id: &Id, queries: &[fn(&Id) -> Result<()>]) -> Result<()> {
    if library()?.af_ib()? { queries.iter().try_for_each(|query| query(id)) } else { query_route(id) }
}

fn has_gids(id: &Id) -> bool {
    id.transport() == Some(IBV_TRANSPORT_IB)
}

fn query_addr(id: &Id) -> Result<()> {
    let mut answer = Default::default();
    ucm::query_addr(id.fd(), id.handle(), &mut answer)?;
    id.set_pkey(answer.pkey);
    id.write_source(prefix(&answer.src_addr, answer.src_size));
    id.write_destination(prefix(&answer.dst_addr, answer.dst_size));
    use_device(id, answer.node_guid, answer.ibdev_index, answer.port_num)
}

fn query_gid(id: &Id) -> Result<()> {
    let mut answer = Default::default();
    ucm::query_gid(id.fd(), id.handle(), &mut answer)?;
    id.set_gids(gid_of(&answer.src_addr), gid_of(&answer.dst_addr));
    Ok(())
}

fn query_gid_if_any(id: &Id) -> Result<()> {
    if has_gids(id) { query_gid(id) } else { Ok(()) }
}

/// Returns the GID of an AF_IB address.
fn gid_of(address: &__kernel_sockaddr_storage) -> [u8; 16] {
    bytes_of(address)[offset_of!(SockaddrIb, addr)..].first_chunk().copied().unwrap_or_default()
}

fn query_path(id: &Id) -> Result<()> {
    let mut answer = Default::default();
    ucm::query_path(id.fd(), id.handle(), &mut answer)?;
    id.set_paths(answer.records().iter().map(unpack))
}

/// Queries addresses, device and paths in one command, on kernels without AF_IB.
fn query_route(id: &Id) -> Result<()> {
    let mut answer = Default::default();
    ucm::query_route(id.fd(), id.handle(), &mut answer)?;
    let count = usize::try_from(answer.num_paths).unwrap_or(0).min(answer.ib_route.len());
    if count > 0 {
        id.set_paths(answer.ib_route[..count].iter().map(path_rec_from_kernel))?;
    }
    // The first record has the GIDs and the P_Key even if there is no path.
    let first = &answer.ib_route[0];
    id.set_gids(first.sgid, first.dgid);
    id.set_pkey(first.pkey);
    id.write_source(bytes_of(&answer.src_addr));
    id.write_destination(bytes_of(&answer.dst_addr));
    use_device(id, answer.node_guid, answer.ibdev_index, answer.port_num)
}

/// Binds the id to the device that the kernel named. Does nothing if the kernel named no device, or
/// if the id already has a device. Port 0 means no device: ports are numbered from 1, whereas the
/// node GUID of a virtual function may be 0.
fn use_device(id: &Id, guid: u64, index: u32, port_num: u8) -> Result<()> {
    if port_num == 0 || id.state().bound.is_some() {
        return Ok(());
    }
    let bound = device_registry::acquire(guid, (index != u32::MAX).then_some(index))?;
    id.state().bound = Some(bound);
    id.set_verbs(bound.context.as_ptr());
    id.set_pd(bound.pd.as_ptr());
    id.set_port_num(port_num);
    Ok(())
}

/// Returns the first `size` bytes of an address.
fn prefix(storage: &__kernel_sockaddr_storage, size: u16) -> &[u8] {
    &bytes_of(storage)[..usize::from(size).min(size_of::<sockaddr_storage>())]
}

/// The address structures of the kernel's answers.
trait KernelAddress {}
impl KernelAddress for __kernel_sockaddr_storage {}
impl KernelAddress for sockaddr_in6 {}
impl KernelAddress for sockaddr_storage {}

fn bytes_of<T: KernelAddress>(address: &T) -> &[u8] {
    // SAFETY: the kernel's address structures are plain bytes without padding.
    unsafe { std::slice::from_raw_parts(ptr::from_ref(address).cast(), size_of::<T>()) }
}

/// Asks ibacm for the path and gives it to the kernel, which then reports ROUTE_RESOLVED. Fails
/// with `ENOENT` if ibacm knows no path.
fn from_acm(id: &Id, timeout: Duration) -> Result<()> {
    let [source, destination] = [id.source(), id.destination()].map(|addr| SockAddr::from_storage(&addr).ok());
    let paths = acm::resolve_path(acm::client(), source, destination, timeout).ok_or(Errno::ENOENT)?;
    set_paths(id, paths.as_bytes())
}

/// Gives the kernel an array of `struct ibv_path_data`.
pub(super) fn set_paths(id: &Id, paths: *const [u8]) -> Result<()> {
    set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_kernels_take_ib_addresses() {
        let ip = SockAddr::from_inet(&"10.0.0.1:7471".parse().unwrap());
        let ib = SockAddr::from_ib(&SockaddrIb { family: AF_IB as u16, ..SockaddrIb::default() });
        assert_eq!((check_families(true, [&ip, &ib]), check_families(false, [&ip, &ip])), (Ok(true), Ok(false)));
        for addresses in [[&ip, &ib], [&ib, &ip]] {
            assert_eq!(check_families(false, addresses), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn errors_of_an_address_without_an_open_device() {
        let id = Id::new(ptr::null_mut(), 0, 0);
        assert_eq!(has_device(Err(Errno::ENODEV), &id), Err(Errno::EPERM));
        assert_eq!(has_device(Err(Errno::ENOMEM), &id), Err(Errno::ENOMEM));
        assert_eq!(has_device(Ok(()), &id), Err(Errno::ENODEV));
        id.set_verbs(ptr::without_provenance_mut(8));
        assert_eq!(has_device(Ok(()), &id), Ok(()));
    }

    #[test]
    fn addresses_of_the_kernels_answers() {
        // SAFETY: all zeros are a value of this structure.
        let mut address: __kernel_sockaddr_storage = unsafe { std::mem::zeroed() };
        let size = size_of_val(&address);
        // SAFETY: `size` is the size of the structure, which has no padding.
        let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut address).cast::<u8>(), size) };
        (0..).zip(bytes).for_each(|(index, byte)| *byte = index);
        // Family, P_Key and flow label precede the GID.
        assert_eq!(gid_of(&address).to_vec(), (8..24).collect::<Vec<u8>>());
        assert_eq!(prefix(&address, 28), (0..28).collect::<Vec<u8>>());
        assert_eq!(prefix(&address, u16::MAX).len(), size_of::<sockaddr_storage>());
    }
}
