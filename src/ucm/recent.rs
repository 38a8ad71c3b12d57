//! Commands of Linux 7.x (`rdma_user_cm.h`), which are newer than the kernel headers with which
//! this library must build.
//!
//! Older kernels reject these commands with `EINVAL`.

use std::mem::size_of;
use std::os::fd::RawFd;

use super::{issue, response};
use crate::errno::{Errno, Result};
use crate::os::uapi::{RDMA_USER_CM_CMD_QUERY, rdma_ucm_query, rdma_ucm_ud_param};

const RESOLVE_IB_SERVICE: u32 = 23;
const WRITE_CM_EVENT: u32 = 24;
const QUERY_IB_SERVICE: u32 = 3;
/// Size of a service name with its NUL.
pub const SERVICE_NAME: usize = 64;

/// The service for which the subnet administrator is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Service id, host byte order.
    Id(u64),
    /// Service name, NUL-terminated.
    Name([u8; SERVICE_NAME]),
}

#[repr(C)]
struct ResolveIbService {
    id: u32,
    reserved: u32,
    service_id: u64,
    service_name: [u8; SERVICE_NAME],
    flags: u32,
    reserved2: u32,
}

/// RESOLVE_IB_SERVICE: starts the search, which ends with an ADDRINFO_RESOLVED or _ERROR event.
pub fn resolve_ib_service(fd: RawFd, id: u32, service: &Service) -> Result<()> {
    let (service_id, service_name, flags) = match *service {
        Service::Id(number) => (number, [0; SERVICE_NAME], 1),
        Service::Name(name) => (0, name, 2),
    };
    let body = ResolveIbService { id, reserved: 0, service_id, service_name, flags, reserved2: 0 };
    // SAFETY: the body fits the command, and contains no addresses.
    unsafe { issue(fd, RESOLVE_IB_SERVICE, body, 0) }
}

/// `struct ib_user_service_rec`; numbers in network byte order.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ServiceRecord {
    /// Service id.
    pub id: u64,
    /// GID of the service.
    pub gid: [u8; 16],
    /// Partition key.
    pub pkey: u16,
    /// Padding.
    pub reserved: [u8; 2],
    /// Lifetime of the record in seconds.
    pub lease: u32,
    /// Service key.
    pub key: [u8; 16],
    /// Service name.
    pub name: [u8; SERVICE_NAME],
    /// Service data.
    pub data: [u8; 64],
}

const RECORDS_HEADER: usize = 8;
/// Number of records that fit into the largest answer, whose length has 16 bits.
const MAX_RECORDS: usize = (u16::MAX as usize - RECORDS_HEADER) / size_of::<ServiceRecord>();
const _: () = assert!(size_of::<ServiceRecord>() == 176);

/// QUERY: returns the service records that were found.
///
/// # Errors
/// Fails with `EOVERFLOW` if the records do not fit into the largest answer.
pub fn query_ib_service(fd: RawFd, id: u32) -> Result<Vec<ServiceRecord>> {
    // The buffer consists of 64-bit words, because the header and the records need this alignment.
    const WORDS: usize = (RECORDS_HEADER + MAX_RECORDS * size_of::<ServiceRecord>()) / size_of::<u64>();
    let mut buffer: Vec<u64> = Vec::new();
    buffer.try_reserve_exact(WORDS).map_err(|_| Errno::ENOMEM)?;
    buffer.resize(WORDS, 0);
    let body = rdma_ucm_query { response: response(buffer.as_mut_ptr()), id, option: QUERY_IB_SERVICE };
    // SAFETY: the buffer is writable for this size and outlives the call.
    unsafe { issue(fd, RDMA_USER_CM_CMD_QUERY, body, WORDS * size_of::<u64>())? };
    // SAFETY: the first word holds the count, a u32.
    let count = unsafe { buffer.as_ptr().cast::<u32>().read() } as usize;
    if count > MAX_RECORDS {
        return Err(Errno::new(libc::EOVERFLOW));
    }
    // SAFETY: `count` records follow the header.
    crate::os::alloc::try_copy(unsafe { std::slice::from_raw_parts(buffer.as_ptr().add(1).cast(), count) })
}

/// Number of 64-bit words in the parameters of an event.
const EVENT_PARAM: usize = size_of::<rdma_ucm_ud_param>() / size_of::<u64>();

#[repr(C)]
struct WriteCmEvent {
    id: u32,
    reserved: u32,
    event: u32,
    status: u32,
    /// The kernel's union, whose largest member is `rdma_ucm_ud_param`.
    param: [u64; EVENT_PARAM],
}

/// WRITE_CM_EVENT: queues an event with the program's value `arg` on the id's channel.
pub fn write_cm_event(fd: RawFd, id: u32, event: u32, status: u32, arg: u64) -> Result<()> {
    let mut body = WriteCmEvent { id, reserved: 0, event, status, param: [0; EVENT_PARAM] };
    body.param[0] = arg;
    // SAFETY: the body fits the command, and contains no addresses.
    unsafe { issue(fd, WRITE_CM_EVENT, body, 0) }
}
