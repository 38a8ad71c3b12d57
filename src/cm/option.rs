//! Options and ports of ids.

use std::ffi::{c_int, c_void};

use super::id::Id;
use crate::errno::{Errno, Result};
use crate::sys::{sockaddr, ucma};

/// rdma_set_option(3): the kernel knows levels, names and lengths.
///
/// # Safety
/// `value` readable for `len` bytes.
pub unsafe fn set_option(id: &Id, level: c_int, name: c_int, value: *mut c_void, len: usize) -> Result<()> {
    let len = u32::try_from(len).map_err(|_| Errno::EINVAL)?;
    // SAFETY: `value` readable for `len` bytes: guaranteed by the caller.
    unsafe { ucma::set_option(id.fd(), id.handle(), level as u32, name as u32, value, len) }
}

/// rdma_get_src_port(3): in network byte order, 0 before the id is bound.
pub fn get_src_port(id: &Id) -> u16 {
    // SAFETY: the route of a live id.
    sockaddr::port(unsafe { &(*id.addr()).src.src_storage })
}

/// rdma_get_dst_port(3): in network byte order, 0 before the id has a destination.
pub fn get_dst_port(id: &Id) -> u16 {
    // SAFETY: the route of a live id.
    sockaddr::port(unsafe { &(*id.addr()).dst.dst_storage })
}
