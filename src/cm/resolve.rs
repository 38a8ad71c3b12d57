//! Binding and resolving: which device, which addresses, which path.

use std::ffi::c_int;
use std::mem::size_of;
use std::ptr::{self, NonNull};
use std::time::Duration;

use libc::{sockaddr, sockaddr_storage};

use super::device;
use super::id::Id;
use super::library::library;
use super::route;
use crate::acm;
use crate::errno::{Errno, Result};
use crate::sys::alloc::try_push;
use crate::sys::sockaddr::{AF_IB, SockAddr, SockaddrIb};
use crate::sys::uapi::{__kernel_sockaddr_storage, rdma_ucm_query_route_resp};
use crate::sys::ucma;
use crate::sys::verbs::{IBV_TRANSPORT_IB, ibv_gid, path_rec_from_kernel};

/// rdma_bind_addr(3).
///
/// # Safety
/// An address as long as its family says.
pub unsafe fn bind_addr(id: &Id, addr: NonNull<sockaddr>) -> Result<()> {
    // SAFETY: an address as long as its family says: guaranteed by the caller.
    let addr = unsafe { SockAddr::from_c(addr)? };
    let af_ib = library()?.af_ib()?;
    if af_ib {
        ucma::bind(id.fd(), id.handle(), &addr)?;
    } else if addr.family() == AF_IB {
        return Err(Errno::EINVAL);
    } else {
        ucma::bind_ip(id.fd(), id.handle(), &addr)?;
    }
    if !af_ib {
        return query_route(id);
    }
    query_addr(id)?;
    query_gid(id)
}

/// rdma_resolve_addr(3); the time-out in milliseconds.
///
/// # Safety
/// Addresses as long as their families say; `src` may be NULL.
pub unsafe fn resolve_addr(id: &Id, src: *const sockaddr, dst: NonNull<sockaddr>, timeout_ms: c_int) -> Result<()> {
    // SAFETY: addresses as long as their families say; `src` may be NULL: guaranteed by the caller.
    let (src, dst) = unsafe { (SockAddr::from_nullable(src)?, SockAddr::from_c(dst)?) };
    resolve(id, src.as_ref(), &dst, timeout_ms)
}

/// See [`resolve_addr`].
pub(super) fn resolve(id: &Id, src: Option<&SockAddr>, dst: &SockAddr, timeout_ms: c_int) -> Result<()> {
    let operation = id.operation();
    // SAFETY: the destination of a live id's route. It is written first, for once the kernel has started the id is in the
    // hands of whoever reads its events.
    let before = unsafe {
        let destination = &raw mut (*id.addr()).dst.dst_storage;
        let before = *destination;
        store(destination, dst.bytes());
        before
    };
    start_resolving(id, src, dst, timeout_ms as u32).inspect_err(|_| {
        // SAFETY: as above; nothing was started.
        unsafe { (*id.addr()).dst.dst_storage = before };
    })?;
    operation.complete()
}

fn start_resolving(id: &Id, src: Option<&SockAddr>, dst: &SockAddr, timeout_ms: u32) -> Result<()> {
    if library()?.af_ib()? {
        ucma::resolve_addr(id.fd(), id.handle(), src, dst, timeout_ms)
    } else if dst.family() == AF_IB || src.is_some_and(|src| src.family() == AF_IB) {
        Err(Errno::EINVAL)
    } else {
        ucma::resolve_ip(id.fd(), id.handle(), src, dst, timeout_ms)
    }
}

/// rdma_resolve_route(3); the time-out in milliseconds.
pub fn resolve_route(id: &Id, timeout_ms: c_int) -> Result<()> {
    resolve_route_within(id, timeout_ms, acm::PATIENCE)
}

/// As [`resolve_route`], for threads that have other things to do than wait for an ibacm that has to find out first.
pub fn resolve_route_soon(id: &Id, timeout_ms: c_int) -> Result<()> {
    resolve_route_within(id, timeout_ms, acm::HASTE)
}

fn resolve_route_within(id: &Id, timeout_ms: c_int, patience: Duration) -> Result<()> {
    let operation = id.operation();
    // For InfiniBand and RoCE a running ibacm may know the path already; the kernel then reports it as resolved.
    let known = id.transport() == Some(IBV_TRANSPORT_IB) && route::from_acm(id, patience).is_ok();
    if !known {
        ucma::resolve_route(id.fd(), id.handle(), timeout_ms as u32)?;
    }
    operation.complete()
}

/// After listening: what the kernel knows of the addresses now.
pub(super) fn after_listen(id: &Id) -> Result<()> {
    if library()?.af_ib()? { query_addr(id) } else { query_route(id) }
}

/// After ADDR_RESOLVED. `ENODEV` when the address led to no device, `EPERM` when the device cannot
/// be opened (docs/quirks.md).
pub(super) fn after_addr(id: &Id) -> Result<()> {
    let closed = |error| if error == Errno::ENODEV { Errno::EPERM } else { error };
    query_resolved(id).map_err(closed)?;
    if id.verbs().is_null() { Err(Errno::ENODEV) } else { Ok(()) }
}

fn query_resolved(id: &Id) -> Result<()> {
    if library()?.af_ib()? {
        query_addr(id)?;
        if has_gids(id) {
            query_gid(id)?;
        }
    } else {
        query_route(id)?;
    }
    Ok(())
}

/// After ROUTE_RESOLVED.
pub(super) fn after_route(id: &Id) -> Result<()> {
    match (has_gids(id), library()?.af_ib()?) {
        (true, true) => query_path(id),
        (true, false) => query_route(id),
        (false, _) => Ok(()),
    }
}

/// For the id of a connection request: GIDs and paths as far as the transport has them.
pub(super) fn after_request(id: &Id) -> Result<()> {
    if !library()?.af_ib()? {
        return query_route(id);
    }
    query_addr(id)?;
    query_gid(id)?;
    query_path(id)
}

fn has_gids(id: &Id) -> bool {
    id.transport() == Some(IBV_TRANSPORT_IB)
}

fn query_addr(id: &Id) -> Result<()> {
    let answer = ucma::query_addr(id.fd(), id.handle())?;
    // SAFETY: the addresses of a live id's route.
    unsafe {
        let route = id.addr();
        (*route).addr.ibaddr.pkey = answer.pkey;
        store(&raw mut (*route).src.src_storage, part(&answer.src_addr, answer.src_size));
        store(&raw mut (*route).dst.dst_storage, part(&answer.dst_addr, answer.dst_size));
    }
    use_device(id, answer.node_guid, answer.ibdev_index, answer.port_num)
}

fn query_gid(id: &Id) -> Result<()> {
    let answer = ucma::query_gid(id.fd(), id.handle())?;
    // SAFETY: the answer's addresses are sockaddr_ib within 128 bytes; the route is a live id's.
    unsafe {
        let source = &*(&raw const answer.src_addr).cast::<SockaddrIb>();
        let destination = &*(&raw const answer.dst_addr).cast::<SockaddrIb>();
        let transport = &raw mut (*id.addr()).addr.ibaddr;
        (*transport).sgid = ibv_gid { raw: source.addr };
        (*transport).dgid = ibv_gid { raw: destination.addr };
    }
    Ok(())
}

fn query_path(id: &Id) -> Result<()> {
    let answer = ucma::query_path(id.fd(), id.handle())?;
    let mut paths = Vec::new();
    for data in answer.records() {
        try_push(&mut paths, route::unpack(data))?;
    }
    id.set_paths(paths);
    Ok(())
}

/// One answer with everything, from kernels without AF_IB.
fn query_route(id: &Id) -> Result<()> {
    let answer = ucma::query_route(id.fd(), id.handle())?;
    let count = usize::try_from(answer.num_paths).unwrap_or(0).min(answer.ib_route.len());
    let mut paths = Vec::new();
    for record in &answer.ib_route[..count] {
        try_push(&mut paths, path_rec_from_kernel(record))?;
    }
    if count > 0 {
        id.set_paths(paths);
    }
    copy_route(id, &answer);
    use_device(id, answer.node_guid, answer.ibdev_index, answer.port_num)
}

fn copy_route(id: &Id, answer: &rdma_ucm_query_route_resp) {
    // The kernel puts GIDs and P_Key into the first record even while there is no path.
    let first = &answer.ib_route[0];
    // SAFETY: the addresses of a live id's route; the answer's are 28 bytes for either family.
    unsafe {
        let route = id.addr();
        (*route).addr.ibaddr.sgid = ibv_gid { raw: first.sgid };
        (*route).addr.ibaddr.dgid = ibv_gid { raw: first.dgid };
        (*route).addr.ibaddr.pkey = first.pkey;
        store(&raw mut (*route).src.src_storage, bytes_of(&answer.src_addr));
        store(&raw mut (*route).dst.dst_storage, bytes_of(&answer.dst_addr));
    }
}

/// Binds the id to the device that the kernel named, if it did and the id has none.
fn use_device(id: &Id, guid: u64, index: u32, port_num: u8) -> Result<()> {
    if guid == 0 || id.state().bound.is_some() {
        return Ok(());
    }
    let bound = device::acquire(guid, (index != u32::MAX).then_some(index))?;
    id.state().bound = Some(bound);
    id.set_verbs(bound.context.as_ptr());
    id.set_pd(bound.pd.as_ptr());
    id.set_port_num(port_num);
    Ok(())
}

/// # Safety
/// `to` is writable.
unsafe fn store(to: *mut sockaddr_storage, bytes: &[u8]) {
    let len = bytes.len().min(size_of::<sockaddr_storage>());
    // SAFETY: `to` is writable: guaranteed by the caller; any bytes are a value.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast::<u8>(), len) };
}

fn part(storage: &__kernel_sockaddr_storage, size: u16) -> &[u8] {
    &bytes_of(storage)[..usize::from(size).min(size_of::<sockaddr_storage>())]
}

fn bytes_of<T>(address: &T) -> &[u8] {
    // SAFETY: the kernel's address structures are plain bytes without padding.
    unsafe { std::slice::from_raw_parts(ptr::from_ref(address).cast(), size_of::<T>()) }
}
