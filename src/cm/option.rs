//! Options and ports of ids.

use std::ffi::c_int;

use super::id::Id;
use crate::errno::{Errno, Result};
use crate::os::sockaddr;
use crate::ucm;

/// Implements rdma_set_option(3). The kernel checks levels, names and lengths, and reads the value.
///
/// # Errors
/// Fails with `EFAULT` if the memory of the value is not readable.
pub fn set_option(id: &Id, level: c_int, name: c_int, value: *const [u8]) -> Result<()> {
    let len = u32::try_from(value.len()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the value is readable, or the kernel rejects its address.
    unsafe { ucm::set_option(id.fd(), id.handle(), level as u32, name as u32, value.cast(), len) }
}

/// Implements rdma_get_src_port(3): network byte order, 0 before the id is bound.
pub fn get_src_port(id: &Id) -> u16 {
    sockaddr::port(&id.source())
}

/// Implements rdma_get_dst_port(3): network byte order, 0 before the id has a destination.
pub fn get_dst_port(id: &Id) -> u16 {
    sockaddr::port(&id.destination())
}
