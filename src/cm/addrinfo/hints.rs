//! What a program hands to rdma_getaddrinfo() as hints.

use std::slice;

use libc::sockaddr;

use crate::acm::wire::{PATH_DATA_LEN, PATH_RECORD_LEN, Query};
use crate::errno::{Errno, Result};
use crate::ffi::rdma_addrinfo;

/// No address is longer than a `struct sockaddr_storage`.
const MAX_ADDR: usize = size_of::<libc::sockaddr_storage>();

/// A program's hints.
#[derive(Clone, Copy)]
pub struct Hints<'a>(&'a rdma_addrinfo);

impl<'a> Hints<'a> {
    /// The hints; `None` for NULL.
    ///
    /// # Safety
    /// NULL, or a structure that lives for `'a`, with addresses and route readable for their lengths.
    pub unsafe fn from_c(hints: *const rdma_addrinfo) -> Option<Hints<'a>> {
        // SAFETY: NULL, or a structure that lives for `'a`, with addresses and route readable for
        // their lengths: guaranteed by the caller.
        unsafe { hints.as_ref() }.map(Hints)
    }

    /// RAI_* flags.
    pub fn flags(&self) -> u32 {
        self.0.ai_flags as u32
    }

    /// Whether all of `flags` are set.
    pub fn has(&self, flags: u32) -> bool {
        self.flags() & flags == flags
    }

    /// Address family.
    pub fn family(&self) -> i32 {
        self.0.ai_family
    }

    /// QP type, 0 when left open.
    pub fn qp_type(&self) -> i32 {
        self.0.ai_qp_type
    }

    /// Port space, 0 when left open.
    pub fn port_space(&self) -> i32 {
        self.0.ai_port_space
    }

    /// Local address, empty when not given; `EINVAL` if it is longer than any.
    pub fn src(&self) -> Result<&'a [u8]> {
        // SAFETY: from_c()'s caller vouches for address and length.
        unsafe { addr(self.0.ai_src_addr, self.0.ai_src_len) }
    }

    /// Remote address, likewise.
    pub fn dst(&self) -> Result<&'a [u8]> {
        // SAFETY: as above.
        unsafe { addr(self.0.ai_dst_addr, self.0.ai_dst_len) }
    }

    /// What the path should be like. Of a route that is neither one `struct ibv_path_record` nor one `struct
    /// ibv_path_data` the reference makes an empty record, which asks for any path.
    pub fn path(&self) -> Option<[u8; PATH_RECORD_LEN]> {
        let len = self.0.ai_route_len;
        if len == 0 || self.0.ai_route.is_null() {
            return None;
        }
        if len != PATH_RECORD_LEN && len != PATH_DATA_LEN {
            return Some([0; PATH_RECORD_LEN]);
        }
        // SAFETY: from_c()'s caller vouches for route and length.
        Query::path_hint(unsafe { slice::from_raw_parts(self.0.ai_route.cast(), len) })
    }
}

/// # Safety
/// NULL, or readable for `len` bytes.
unsafe fn addr<'a>(addr: *const sockaddr, len: libc::socklen_t) -> Result<&'a [u8]> {
    match len as usize {
        0 => Ok(&[]),
        _ if addr.is_null() => Ok(&[]),
        // SAFETY: NULL, or readable for `len` bytes: guaranteed by the caller.
        len @ ..=MAX_ADDR => Ok(unsafe { slice::from_raw_parts(addr.cast(), len) }),
        _ => Err(Errno::EINVAL),
    }
}
