//! Options and ports of ids.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;

use super::id::Id;
use crate::errno::{Errno, Result};
use crate::os::sockaddr;
use crate::ucm;

/// The value of an option. Only the kernel reads the value, and fails with `EFAULT` if the memory
/// is not readable.
#[derive(Clone, Copy, Debug)]
pub struct OptionValue<'a> {
    start: *const c_void,
    len: usize,
    bytes: PhantomData<&'a [u8]>,
}

impl OptionValue<'_> {
    /// Returns the value of `len` bytes at `start`, which need not be readable.
    pub fn at(start: *const c_void, len: usize) -> Self {
        OptionValue { start, len, bytes: PhantomData }
    }

    /// Returns whether there are no bytes.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<'a> From<&'a [u8]> for OptionValue<'a> {
    fn from(bytes: &'a [u8]) -> OptionValue<'a> {
        OptionValue::at(bytes.as_ptr().cast(), bytes.len())
    }
}

/// Implements rdma_set_option(3). The kernel checks levels, names and lengths.
pub fn set_option(id: &Id, level: c_int, name: c_int, value: OptionValue<'_>) -> Result<()> {
    let len = u32::try_from(value.len).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the value is readable, or the kernel rejects its address.
    unsafe { ucm::set_option(id.fd(), id.handle(), level as u32, name as u32, value.start, len) }
}

/// Implements rdma_get_src_port(3): network byte order, 0 before the id is bound.
pub fn get_src_port(id: &Id) -> u16 {
    sockaddr::port(&id.source())
}

/// Implements rdma_get_dst_port(3): network byte order, 0 before the id has a destination.
pub fn get_dst_port(id: &Id) -> u16 {
    sockaddr::port(&id.destination())
}
