//! The commands of ABI 3 and 4, including those for AF_IB.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::os::fd::RawFd;

use super::super::sockaddr::SockAddr;
use super::super::uapi::*;
use super::{issue, issue_and_wait, response};
use crate::errno::Result;
use crate::sys::{cancel, race_detector};

/// Value of `ibdev_index` on kernels that do not support it.
const NO_INDEX: u32 = u32::MAX;
/// Maximum number of path records in an answer.
pub const MAX_PATHS: usize = 6;

/// CREATE_ID. Returns the kernel's id; `uid` identifies it in events.
pub fn create_id(fd: RawFd, uid: u64, ps: u16, qp_type: u8) -> Result<u32> {
    let mut answer = rdma_ucm_create_id_resp::default();
    let body = rdma_ucm_create_id { uid, response: response(&raw mut answer), ps, qp_type, ..Default::default() };
    // SAFETY: the answer outlives the call.
    unsafe { issue(fd, RDMA_USER_CM_CMD_CREATE_ID, body, size_of_val(&answer))? };
    Ok(answer.id)
}

/// DESTROY_ID. Returns the number of events that the kernel has reported for the id.
pub fn destroy_id(fd: RawFd, id: u32) -> Result<u32> {
    let mut answer = rdma_ucm_destroy_id_resp::default();
    let body = rdma_ucm_destroy_id { response: response(&raw mut answer), id, ..Default::default() };
    // SAFETY: the answer outlives the call.
    unsafe { issue(fd, RDMA_USER_CM_CMD_DESTROY_ID, body, size_of_val(&answer))? };
    Ok(answer.events_reported)
}

/// BIND, for any family. Kernels before 3.12 only support [`bind_ip`].
pub fn bind(fd: RawFd, id: u32, addr: &SockAddr) -> Result<()> {
    let body = rdma_ucm_bind { id, addr_size: addr.len(), addr: storage(Some(addr)), ..Default::default() };
    // SAFETY: no addresses in it.
    unsafe { issue(fd, RDMA_USER_CM_CMD_BIND, body, 0) }
}

/// BIND_IP.
pub fn bind_ip(fd: RawFd, id: u32, addr: &SockAddr) -> Result<()> {
    let body = rdma_ucm_bind_ip { addr: inet(Some(addr)), id, ..Default::default() };
    // SAFETY: `response` is 0 and so is `out`.
    unsafe { issue(fd, RDMA_USER_CM_CMD_BIND_IP, body, 0) }
}

/// RESOLVE_ADDR, for any family; time-out in milliseconds.
pub fn resolve_addr(fd: RawFd, id: u32, src: Option<&SockAddr>, dst: &SockAddr, timeout_ms: u32) -> Result<()> {
    let body = rdma_ucm_resolve_addr {
        id,
        timeout_ms,
        src_size: src.map_or(0, SockAddr::len),
        dst_size: dst.len(),
        src_addr: storage(src),
        dst_addr: storage(Some(dst)),
        ..Default::default()
    };
    // SAFETY: no addresses of memory in it.
    unsafe { issue(fd, RDMA_USER_CM_CMD_RESOLVE_ADDR, body, 0) }
}

/// RESOLVE_IP; time-out in milliseconds.
pub fn resolve_ip(fd: RawFd, id: u32, src: Option<&SockAddr>, dst: &SockAddr, timeout_ms: u32) -> Result<()> {
    let body = rdma_ucm_resolve_ip { src_addr: inet(src), dst_addr: inet(Some(dst)), id, timeout_ms };
    // SAFETY: no addresses of memory in it.
    unsafe { issue(fd, RDMA_USER_CM_CMD_RESOLVE_IP, body, 0) }
}

/// RESOLVE_ROUTE; time-out in milliseconds.
pub fn resolve_route(fd: RawFd, id: u32, timeout_ms: u32) -> Result<()> {
    // SAFETY: no addresses in it.
    unsafe { issue(fd, RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_resolve_route { id, timeout_ms }, 0) }
}

/// QUERY_ROUTE: queries the addresses and at most two path records, on kernels without
/// [`query_addr`].
pub fn query_route(fd: RawFd, id: u32) -> Result<rdma_ucm_query_route_resp> {
    let mut answer = rdma_ucm_query_route_resp { ibdev_index: NO_INDEX, ..Default::default() };
    let body = rdma_ucm_query { response: response(&raw mut answer), id, ..Default::default() };
    // SAFETY: the answer outlives the call.
    unsafe { issue(fd, RDMA_USER_CM_CMD_QUERY_ROUTE, body, size_of_val(&answer))? };
    Ok(answer)
}

/// QUERY of the IP or AF_IB addresses, the device and its port.
pub fn query_addr(fd: RawFd, id: u32) -> Result<rdma_ucm_query_addr_resp> {
    query_addr_like(fd, id, RDMA_USER_CM_QUERY_ADDR)
}

/// QUERY of the GIDs, as AF_IB addresses.
pub fn query_gid(fd: RawFd, id: u32) -> Result<rdma_ucm_query_addr_resp> {
    query_addr_like(fd, id, RDMA_USER_CM_QUERY_GID)
}

fn query_addr_like(fd: RawFd, id: u32, option: u32) -> Result<rdma_ucm_query_addr_resp> {
    let mut answer = rdma_ucm_query_addr_resp { ibdev_index: NO_INDEX, ..Default::default() };
    let body = rdma_ucm_query { response: response(&raw mut answer), id, option };
    // SAFETY: the answer outlives the call.
    unsafe { issue(fd, RDMA_USER_CM_CMD_QUERY, body, size_of_val(&answer))? };
    Ok(answer)
}

/// The answer to a path query.
#[repr(C)]
pub struct Paths {
    count: u32,
    reserved: u32,
    records: [ibv_path_data; MAX_PATHS],
}

impl Paths {
    /// Returns the records, at most the number that was requested.
    pub fn records(&self) -> &[ibv_path_data] {
        &self.records[..MAX_PATHS.min(self.count as usize)]
    }
}

/// QUERY of the path records.
pub fn query_path(fd: RawFd, id: u32) -> Result<Paths> {
    const _: () = assert!(size_of::<ibv_path_data>() == size_of::<ib_path_rec_data>());
    const _: () = assert!(offset_of!(Paths, records) == offset_of!(rdma_ucm_query_path_resp, path_data));
    let mut answer = Paths { count: 0, reserved: 0, records: [ibv_path_data::default(); MAX_PATHS] };
    let body = rdma_ucm_query { response: response(&raw mut answer), id, option: RDMA_USER_CM_QUERY_PATH };
    // SAFETY: the answer outlives the call.
    unsafe { issue(fd, RDMA_USER_CM_CMD_QUERY, body, size_of_val(&answer))? };
    Ok(answer)
}

/// CONNECT.
pub fn connect(fd: RawFd, id: u32, conn_param: rdma_ucm_conn_param, ece: rdma_ucm_ece) -> Result<()> {
    let body = rdma_ucm_connect { conn_param, id, ece, ..Default::default() };
    // SAFETY: no addresses in it.
    unsafe { issue(fd, RDMA_USER_CM_CMD_CONNECT, body, 0) }
}

/// LISTEN.
pub fn listen(fd: RawFd, id: u32, backlog: u32) -> Result<()> {
    // SAFETY: no addresses in it.
    unsafe { issue(fd, RDMA_USER_CM_CMD_LISTEN, rdma_ucm_listen { id, backlog }, 0) }
}

/// ACCEPT: accepts a request (`conn_param` is valid, `uid` identifies the id in events) or the
/// peer's reply (all zeros).
pub fn accept(fd: RawFd, id: u32, uid: u64, conn_param: rdma_ucm_conn_param, ece: rdma_ucm_ece) -> Result<()> {
    let body = rdma_ucm_accept { uid, conn_param, id, ece, ..Default::default() };
    // SAFETY: no addresses in it.
    unsafe { issue(fd, RDMA_USER_CM_CMD_ACCEPT, body, 0) }
}

/// REJECT with at most 255 bytes of private data.
pub fn reject(fd: RawFd, id: u32, reason: u8, private_data: &[u8]) -> Result<()> {
    let mut body = rdma_ucm_reject { id, reason, private_data_len: private_data.len() as u8, ..Default::default() };
    body.private_data[..private_data.len()].copy_from_slice(private_data);
    // SAFETY: no addresses in it.
    unsafe { issue(fd, RDMA_USER_CM_CMD_REJECT, body, 0) }
}

/// DISCONNECT.
pub fn disconnect(fd: RawFd, id: u32) -> Result<()> {
    // SAFETY: no addresses in it.
    unsafe { issue(fd, RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect { id }, 0) }
}

/// INIT_QP_ATTR. Returns the attributes for the transition of a QP to `qp_state`.
pub fn init_qp_attr(fd: RawFd, id: u32, qp_state: u32) -> Result<ib_uverbs_qp_attr> {
    let mut answer = ib_uverbs_qp_attr::default();
    let body = rdma_ucm_init_qp_attr { response: response(&raw mut answer), id, qp_state };
    // SAFETY: the answer outlives the call.
    unsafe { issue(fd, RDMA_USER_CM_CMD_INIT_QP_ATTR, body, size_of_val(&answer))? };
    Ok(answer)
}

/// NOTIFY: reports an asynchronous event of the QP.
pub fn notify(fd: RawFd, id: u32, event: u32) -> Result<()> {
    // SAFETY: no addresses in it.
    unsafe { issue(fd, RDMA_USER_CM_CMD_NOTIFY, rdma_ucm_notify { id, event }, 0) }
}

/// JOIN_MCAST. The kernel's handle of the membership goes to `handle`.
///
/// # Safety
/// `handle` is writable until the kernel has written it.
pub unsafe fn join_mcast(
    fd: RawFd,
    id: u32,
    uid: u64,
    addr: &SockAddr,
    join_flags: u16,
    handle: *mut u32,
) -> Result<()> {
    const _: () = assert!(size_of::<rdma_ucm_create_id_resp>() == size_of::<u32>());
    let body = rdma_ucm_join_mcast {
        response: response(handle),
        uid,
        id,
        addr_size: addr.len(),
        join_flags,
        addr: storage(Some(addr)),
    };
    // SAFETY: the kernel writes one number: guaranteed by the caller.
    unsafe { issue(fd, RDMA_USER_CM_CMD_JOIN_MCAST, body, size_of::<u32>()) }
}

/// JOIN_IP_MCAST: as [`join_mcast`], for kernels without that command; full membership only.
///
/// # Safety
/// As [`join_mcast`].
pub unsafe fn join_ip_mcast(fd: RawFd, id: u32, uid: u64, addr: &SockAddr, handle: *mut u32) -> Result<()> {
    let body = rdma_ucm_join_ip_mcast { response: response(handle), uid, addr: inet(Some(addr)), id };
    // SAFETY: the kernel writes one number: guaranteed by the caller.
    unsafe { issue(fd, RDMA_USER_CM_CMD_JOIN_IP_MCAST, body, size_of::<u32>()) }
}

/// LEAVE_MCAST. Returns the number of events that the kernel has reported for the membership.
pub fn leave_mcast(fd: RawFd, handle: u32) -> Result<u32> {
    let mut answer = rdma_ucm_destroy_id_resp::default();
    let body = rdma_ucm_destroy_id { response: response(&raw mut answer), id: handle, ..Default::default() };
    // SAFETY: the answer outlives the call.
    unsafe { issue(fd, RDMA_USER_CM_CMD_LEAVE_MCAST, body, size_of_val(&answer))? };
    Ok(answer.events_reported)
}

/// GET_EVENT. Waits for the next event; fails with `EAGAIN` if the channel is `O_NONBLOCK`.
/// `cancelled` is called if the thread is cancelled meanwhile, with the event if the kernel has
/// already handed it over ([`cancel`]).
pub fn get_event(fd: RawFd, mut cancelled: impl FnMut(Option<&rdma_ucm_event_resp>)) -> Result<rdma_ucm_event_resp> {
    /// No number of an event.
    const NONE: u32 = u32::MAX;
    let mut answer = rdma_ucm_event_resp { event: NONE, ..Default::default() };
    let place = &raw mut answer;
    let body = rdma_ucm_get_event { response: response(place) };
    let undo = || {
        // SAFETY: this frame still exists, and the kernel has written the answer or will not.
        let answer = unsafe { place.read_volatile() };
        cancelled(Some(&answer).filter(|answer| answer.event != NONE));
    };
    // SAFETY: the answer outlives the call.
    cancel::with_cleanup(undo, || unsafe {
        issue_and_wait(fd, RDMA_USER_CM_CMD_GET_EVENT, body, size_of::<rdma_ucm_event_resp>())
    })?;
    race_detector::after_event();
    // SAFETY: all bits are a value of this structure of integers, which the kernel has filled.
    Ok(unsafe { place.read_volatile() })
}

/// SET_OPTION.
///
/// # Safety
/// `value` is readable for `len` bytes, or an address that the kernel rejects.
pub unsafe fn set_option(fd: RawFd, id: u32, level: u32, name: u32, value: *const c_void, len: u32) -> Result<()> {
    let body = rdma_ucm_set_option { optval: response(value.cast_mut()), id, level, optname: name, optlen: len };
    // SAFETY: the kernel checks the address.
    unsafe { issue(fd, RDMA_USER_CM_CMD_SET_OPTION, body, 0) }
}

/// MIGRATE_ID from channel `from` to channel `fd`. Returns the number of events that were reported
/// on the old channel.
pub fn migrate_id(fd: RawFd, id: u32, from: RawFd) -> Result<u32> {
    let mut answer = rdma_ucm_migrate_resp::default();
    let body = rdma_ucm_migrate_id { response: response(&raw mut answer), id, fd: from as u32 };
    // SAFETY: the answer outlives the call.
    unsafe { issue(fd, RDMA_USER_CM_CMD_MIGRATE_ID, body, size_of_val(&answer))? };
    Ok(answer.events_reported)
}

/// Returns the address in the kernel's 128 bytes; zeros for `None`.
fn storage(addr: Option<&SockAddr>) -> __kernel_sockaddr_storage {
    const _: () = assert!(size_of::<__kernel_sockaddr_storage>() == size_of::<libc::sockaddr_storage>());
    let mut out = __kernel_sockaddr_storage::default();
    copy(addr, (&raw mut out).cast(), size_of_val(&out));
    out
}

/// Returns the address in the 28 bytes that the IP commands have for both families.
fn inet(addr: Option<&SockAddr>) -> sockaddr_in6 {
    let mut out = sockaddr_in6::default();
    copy(addr, (&raw mut out).cast(), size_of_val(&out));
    out
}

fn copy(addr: Option<&SockAddr>, out: *mut u8, space: usize) {
    if let Some(bytes) = addr.map(SockAddr::bytes) {
        // SAFETY: `out` is writable for `space` bytes, and any bytes are valid in the callers'
        // structures.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out, bytes.len().min(space)) };
    }
}
