//! The commands of ABI 3 and 4, including those for AF_IB.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::os::fd::RawFd;
use std::ptr;

use super::{after_event, ask, issue, issue_and_wait, issue_filled, response};
use crate::errno::{Errno, Result};
use crate::os::cancel;
use crate::os::sockaddr::SockAddr;
use crate::os::uapi::*;

/// Value of `ibdev_index` on kernels that do not support it.
const NO_INDEX: u32 = u32::MAX;
/// Maximum number of path records in an answer.
pub const MAX_PATHS: usize = 6;

/// CREATE_ID. Returns the kernel's handle of the new id. `uid` identifies the id in events.
pub fn create_id(fd: RawFd, uid: u64, ps: u16, qp_type: u8) -> Result<u32> {
    let body = |response| rdma_ucm_create_id { uid, response, ps, qp_type, ..Default::default() };
    let mut answer = rdma_ucm_create_id_resp::default();
    // SAFETY: the body and the answer fit the command.
    unsafe { ask(fd, RDMA_USER_CM_CMD_CREATE_ID, &mut answer, body)? };
    Ok(answer.id)
}

/// DESTROY_ID. Returns the number of events that the kernel has reported for the id.
pub fn destroy_id(fd: RawFd, id: u32) -> Result<u32> {
    // SAFETY: the command has the structures of DESTROY_ID.
    unsafe { end(fd, RDMA_USER_CM_CMD_DESTROY_ID, id) }
}

/// # Safety
/// `cmd` has the structures of DESTROY_ID.
unsafe fn end(fd: RawFd, cmd: u32, id: u32) -> Result<u32> {
    let body = |response| rdma_ucm_destroy_id { response, id, ..Default::default() };
    let mut answer = rdma_ucm_destroy_id_resp::default();
    // SAFETY: the body and the answer fit the command: guaranteed by the caller.
    unsafe { ask(fd, cmd, &mut answer, body)? };
    Ok(answer.events_reported)
}

/// BIND, for any family. Kernels before 3.12 only support [`bind_ip`].
pub fn bind(fd: RawFd, id: u32, addr: &SockAddr) -> Result<()> {
    let fill = |body: &mut rdma_ucm_bind| {
        (body.id, body.addr_size) = (id, addr.len());
        put(&mut body.addr, addr);
    };
    // SAFETY: the body fits the command, and contains no addresses.
    unsafe { issue_filled(fd, RDMA_USER_CM_CMD_BIND, 0, fill) }
}

/// BIND_IP, for IP addresses only.
pub fn bind_ip(fd: RawFd, id: u32, addr: &SockAddr) -> Result<()> {
    let fill = |body: &mut rdma_ucm_bind_ip| {
        body.id = id;
        put(&mut body.addr, addr);
    };
    // SAFETY: the body fits the command, and both `response` and `out` are 0.
    unsafe { issue_filled(fd, RDMA_USER_CM_CMD_BIND_IP, 0, fill) }
}

/// RESOLVE_ADDR, for any family. The timeout is in milliseconds.
pub fn resolve_addr(fd: RawFd, id: u32, src: Option<&SockAddr>, dst: &SockAddr, timeout_ms: u32) -> Result<()> {
    let fill = |body: &mut rdma_ucm_resolve_addr| {
        (body.id, body.timeout_ms, body.dst_size) = (id, timeout_ms, dst.len());
        put(&mut body.dst_addr, dst);
        if let Some(src) = src {
            body.src_size = src.len();
            put(&mut body.src_addr, src);
        }
    };
    // SAFETY: the body fits the command, and contains no addresses.
    unsafe { issue_filled(fd, RDMA_USER_CM_CMD_RESOLVE_ADDR, 0, fill) }
}

/// RESOLVE_IP, for IP addresses only. The timeout is in milliseconds.
pub fn resolve_ip(fd: RawFd, id: u32, src: Option<&SockAddr>, dst: &SockAddr, timeout_ms: u32) -> Result<()> {
    let fill = |body: &mut rdma_ucm_resolve_ip| {
        (body.id, body.timeout_ms) = (id, timeout_ms);
        put(&mut body.dst_addr, dst);
        src.into_iter().for_each(|src| put(&mut body.src_addr, src));
    };
    // SAFETY: the body fits the command, and contains no addresses.
    unsafe { issue_filled(fd, RDMA_USER_CM_CMD_RESOLVE_IP, 0, fill) }
}

/// RESOLVE_ROUTE. The timeout is in milliseconds.
pub fn resolve_route(fd: RawFd, id: u32, timeout_ms: u32) -> Result<()> {
    // SAFETY: the body fits the command, and contains no addresses.
    unsafe { issue(fd, RDMA_USER_CM_CMD_RESOLVE_ROUTE, rdma_ucm_resolve_route { id, timeout_ms }, 0) }
}

/// QUERY_ROUTE: writes the addresses and at most two path records to `answer`, which is all zeros,
/// on kernels without [`query_addr`].
pub fn query_route(fd: RawFd, id: u32, answer: &mut rdma_ucm_query_route_resp) -> Result<()> {
    answer.ibdev_index = NO_INDEX;
    // SAFETY: the body and the answer fit the command.
    unsafe { ask(fd, RDMA_USER_CM_CMD_QUERY_ROUTE, answer, |response| rdma_ucm_query { response, id, option: 0 }) }
}

/// QUERY: writes the IP or AF_IB addresses, the device and its port to `answer`, which is all zeros.
pub fn query_addr(fd: RawFd, id: u32, answer: &mut rdma_ucm_query_addr_resp) -> Result<()> {
    answer.ibdev_index = NO_INDEX;
    // SAFETY: the kernel's answer to this option is such a structure.
    unsafe { query(fd, id, RDMA_USER_CM_QUERY_ADDR, answer) }
}

/// QUERY: writes the GIDs, as AF_IB addresses, to `answer`, which is all zeros.
pub fn query_gid(fd: RawFd, id: u32, answer: &mut rdma_ucm_query_addr_resp) -> Result<()> {
    // SAFETY: the kernel's answer to this option is such a structure.
    unsafe { query(fd, id, RDMA_USER_CM_QUERY_GID, answer) }
}

/// # Safety
/// The kernel's answer to `option` is a `T`, which consists of numbers.
unsafe fn query<T>(fd: RawFd, id: u32, option: u32, answer: &mut T) -> Result<()> {
    // SAFETY: the body fits the command, and `T` the option: guaranteed by the caller.
    unsafe { ask(fd, RDMA_USER_CM_CMD_QUERY, answer, |response| rdma_ucm_query { response, id, option }) }
}

/// The answer to a path query.
#[repr(C)]
#[derive(Default)]
pub struct Paths {
    count: u32,
    reserved: u32,
    records: [ibv_path_data; MAX_PATHS],
}

impl Paths {
    /// Returns the records, at most [`MAX_PATHS`].
    pub fn records(&self) -> &[ibv_path_data] {
        &self.records[..MAX_PATHS.min(self.count as usize)]
    }
}

/// QUERY: writes the path records to `answer`, which is all zeros.
pub fn query_path(fd: RawFd, id: u32, answer: &mut Paths) -> Result<()> {
    const _: () = assert!(size_of::<ibv_path_data>() == size_of::<ib_path_rec_data>());
    const _: () = assert!(offset_of!(Paths, records) == offset_of!(rdma_ucm_query_path_resp, path_data));
    // SAFETY: the kernel's answer to this option begins like `Paths`, as asserted above.
    unsafe { query(fd, id, RDMA_USER_CM_QUERY_PATH, answer) }
}

/// CONNECT. `fill` sets the parameters and the vendor options.
pub fn connect(fd: RawFd, id: u32, fill: impl FnOnce(&mut rdma_ucm_connect)) -> Result<()> {
    let fill = |body: &mut rdma_ucm_connect| {
        body.id = id;
        fill(body);
    };
    // SAFETY: the body fits the command, and contains no addresses.
    unsafe { issue_filled(fd, RDMA_USER_CM_CMD_CONNECT, 0, fill) }
}

/// LISTEN for connection requests.
pub fn listen(fd: RawFd, id: u32, backlog: u32) -> Result<()> {
    // SAFETY: the body fits the command, and contains no addresses.
    unsafe { issue(fd, RDMA_USER_CM_CMD_LISTEN, rdma_ucm_listen { id, backlog }, 0) }
}

/// ACCEPT. For a connection request, `fill` sets parameters, vendor options and `uid`, which
/// identifies the id in events. For the peer's reply, `fill` leaves the structure zero.
pub fn accept(fd: RawFd, id: u32, fill: impl FnOnce(&mut rdma_ucm_accept)) -> Result<()> {
    let fill = |body: &mut rdma_ucm_accept| {
        body.id = id;
        fill(body);
    };
    // SAFETY: the body fits the command, and contains no addresses.
    unsafe { issue_filled(fd, RDMA_USER_CM_CMD_ACCEPT, 0, fill) }
}

/// REJECT.
///
/// # Errors
/// Fails with `EINVAL` for more than 255 bytes of private data.
pub fn reject(fd: RawFd, id: u32, reason: u8, private_data: &[u8]) -> Result<()> {
    let len = u8::try_from(private_data.len()).map_err(|_| Errno::EINVAL)?;
    let fill = |body: &mut rdma_ucm_reject| {
        (body.id, body.reason, body.private_data_len) = (id, reason, len);
        body.private_data[..private_data.len()].copy_from_slice(private_data);
    };
    // SAFETY: the body fits the command, and contains no addresses.
    unsafe { issue_filled(fd, RDMA_USER_CM_CMD_REJECT, 0, fill) }
}

/// DISCONNECT from the peer.
pub fn disconnect(fd: RawFd, id: u32) -> Result<()> {
    // SAFETY: the body fits the command, and contains no addresses.
    unsafe { issue(fd, RDMA_USER_CM_CMD_DISCONNECT, rdma_ucm_disconnect { id }, 0) }
}

/// INIT_QP_ATTR: writes the attributes for a QP's transition to `qp_state` to `answer`, which is all
/// zeros.
pub fn init_qp_attr(fd: RawFd, id: u32, qp_state: u32, answer: &mut ib_uverbs_qp_attr) -> Result<()> {
    let body = |response| rdma_ucm_init_qp_attr { response, id, qp_state };
    // SAFETY: the body and the answer fit the command.
    unsafe { ask(fd, RDMA_USER_CM_CMD_INIT_QP_ATTR, answer, body) }
}

/// NOTIFY: reports an asynchronous event of the QP.
pub fn notify(fd: RawFd, id: u32, event: u32) -> Result<()> {
    // SAFETY: the body fits the command, and contains no addresses.
    unsafe { issue(fd, RDMA_USER_CM_CMD_NOTIFY, rdma_ucm_notify { id, event }, 0) }
}

/// JOIN_MCAST. The kernel writes its handle of the membership to `handle`.
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
    let fill = |body: &mut rdma_ucm_join_mcast| {
        (body.response, body.uid, body.id) = (response(handle), uid, id);
        (body.addr_size, body.join_flags) = (addr.len(), join_flags);
        put(&mut body.addr, addr);
    };
    // SAFETY: the body fits the command, and `handle` is writable: guaranteed by the caller.
    unsafe { issue_filled(fd, RDMA_USER_CM_CMD_JOIN_MCAST, size_of::<u32>(), fill) }
}

/// JOIN_IP_MCAST: joins as a full member, on kernels without JOIN_MCAST.
///
/// # Safety
/// `handle` is writable until the kernel has written it.
pub unsafe fn join_ip_mcast(fd: RawFd, id: u32, uid: u64, addr: &SockAddr, handle: *mut u32) -> Result<()> {
    let fill = |body: &mut rdma_ucm_join_ip_mcast| {
        (body.response, body.uid, body.id) = (response(handle), uid, id);
        put(&mut body.addr, addr);
    };
    // SAFETY: the body fits the command, and `handle` is writable: guaranteed by the caller.
    unsafe { issue_filled(fd, RDMA_USER_CM_CMD_JOIN_IP_MCAST, size_of::<u32>(), fill) }
}

/// LEAVE_MCAST. Returns the number of events that the kernel has reported for the membership.
pub fn leave_mcast(fd: RawFd, handle: u32) -> Result<u32> {
    // SAFETY: the command has the structures of DESTROY_ID.
    unsafe { end(fd, RDMA_USER_CM_CMD_LEAVE_MCAST, handle) }
}

/// GET_EVENT: waits for the next event. The kernel writes it to `answer`, all bytes of which the
/// caller has set to zero. If the thread is cancelled meanwhile, calls `cancelled`, with true if
/// the kernel has already handed over an event ([`cancel`]).
///
/// # Errors
/// Fails with `EAGAIN` if the channel is `O_NONBLOCK` and has no event.
///
/// # Safety
/// `answer` is valid for reads and writes, and nothing else uses it during the call.
pub unsafe fn get_event(fd: RawFd, answer: *mut rdma_ucm_event_resp, mut cancelled: impl FnMut(bool)) -> Result<()> {
    /// A number that no event has.
    const NONE: u32 = u32::MAX;
    // SAFETY: `answer` is valid: guaranteed by the caller.
    let number = unsafe { &raw mut (*answer).event };
    // SAFETY: `answer` is valid: guaranteed by the caller.
    unsafe { number.write(NONE) };
    let body = rdma_ucm_get_event { response: response(answer) };
    let undo = || {
        after_event();
        // SAFETY: `answer` is valid. The kernel has written the answer, or will not write it any
        // more.
        cancelled(unsafe { number.read_volatile() } != NONE);
    };
    // SAFETY: the body fits the command, and the answer is writable during the call.
    cancel::with_cleanup(undo, || unsafe {
        issue_and_wait(fd, RDMA_USER_CM_CMD_GET_EVENT, body, size_of::<rdma_ucm_event_resp>())
    })?;
    after_event();
    Ok(())
}

/// SET_OPTION: sets an option of the id.
///
/// # Safety
/// `value` is readable for `len` bytes, or an address that the kernel rejects.
pub unsafe fn set_option(fd: RawFd, id: u32, level: u32, name: u32, value: *const c_void, len: u32) -> Result<()> {
    let body = rdma_ucm_set_option { optval: response(value.cast_mut()), id, level, optname: name, optlen: len };
    // SAFETY: the body fits the command, and `value` is readable or rejected by the kernel.
    unsafe { issue(fd, RDMA_USER_CM_CMD_SET_OPTION, body, 0) }
}

/// MIGRATE_ID: moves the id from channel `from` to channel `fd`. Returns the number of events that
/// were reported on the old channel.
pub fn migrate_id(fd: RawFd, id: u32, from: RawFd) -> Result<u32> {
    let body = |response| rdma_ucm_migrate_id { response, id, fd: from as u32 };
    let mut answer = rdma_ucm_migrate_resp::default();
    // SAFETY: the body and the answer fit the command.
    unsafe { ask(fd, RDMA_USER_CM_CMD_MIGRATE_ID, &mut answer, body)? };
    Ok(answer.events_reported)
}

/// The structures for addresses in commands.
trait AddressPlace {}
impl AddressPlace for __kernel_sockaddr_storage {}
/// The IP commands have 28 bytes for an address of either family.
impl AddressPlace for sockaddr_in6 {}

/// Copies as much of the address as fits.
fn put<T: AddressPlace>(place: &mut T, addr: &SockAddr) {
    const _: () = assert!(size_of::<__kernel_sockaddr_storage>() == size_of::<libc::sockaddr_storage>());
    let (bytes, space) = (addr.bytes(), size_of::<T>());
    // SAFETY: the length fits both sides, and any bytes are a value of an address structure.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), ptr::from_mut(place).cast(), bytes.len().min(space)) };
}
