//! Converts arguments of C functions to values of the core: structures, strings, buffers and
//! addresses, and the memory for results. NULL fails with `EINVAL` where a structure is required,
//! and with `EFAULT` for a buffer whose length is not 0.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{self, NonNull};
use std::slice;

use libc::{iovec, size_t, sockaddr, sockaddr_storage, socklen_t};
use rdmacm_core::cm::{ConnParam, EndpointInfo, Hints, JoinAttr};
use rdmacm_core::ffi::{rdma_addrinfo, rdma_cm_join_mc_attr_ex, rdma_conn_param};
use rdmacm_core::os::sockaddr::{AddrRef, SockAddr, len_of_family};
use rdmacm_core::{Errno, Result};

/// Maximum length of an address.
const MAX_ADDR: usize = size_of::<sockaddr_storage>();

/// Copies an address. Fails with `EINVAL` for NULL, and for families other than AF_INET, AF_INET6
/// and AF_IB.
///
/// # Safety
/// `addr` is NULL, or points to an address that is complete for its family.
pub unsafe fn address(addr: *const sockaddr) -> Result<SockAddr> {
    // SAFETY: `addr` is NULL or complete for its family: guaranteed by the caller.
    unsafe { SockAddr::from_nullable(addr) }?.ok_or(Errno::EINVAL)
}

/// Copies an address of `len` bytes. Fails with `EFAULT` for NULL, `EAFNOSUPPORT` for an unknown
/// family, and `EINVAL` if `len` is too small for the family.
///
/// # Safety
/// `addr` is NULL or readable for `len` bytes.
pub unsafe fn sized_address(addr: *const sockaddr, len: socklen_t) -> Result<SockAddr> {
    let start = NonNull::new(addr.cast_mut()).ok_or(Errno::EFAULT)?;
    // SAFETY: `len` bytes are readable: guaranteed by the caller.
    let bytes = unsafe { slice::from_raw_parts(start.as_ptr().cast::<u8>(), len as usize) };
    let family = bytes.first_chunk().ok_or(Errno::EINVAL)?;
    len_of_family(u16::from_ne_bytes(*family).into()).ok_or(Errno::EAFNOSUPPORT)?;
    SockAddr::from_bytes(bytes)
}

/// Returns the length of the address, which depends on the family; for an unknown family, the
/// length of the family field.
fn name_len(name: &sockaddr_storage) -> usize {
    len_of_family(name.ss_family.into()).unwrap_or(size_of::<libc::sa_family_t>())
}

/// Returns the parameters of a connection; `None` for NULL.
///
/// # Safety
/// `param` is NULL, or points to a structure whose private data is readable for its length. Both
/// are unchanged during `'a`.
pub unsafe fn conn_param<'a>(param: *const rdma_conn_param) -> Option<ConnParam<'a>> {
    // SAFETY: `param` is NULL or live: guaranteed by the caller.
    unsafe { param.as_ref() }.map(|param| ConnParam {
        // SAFETY: the private data is readable for its length: guaranteed by the caller.
        private_data: unsafe { bytes(param.private_data, param.private_data_len.into()) },
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq,
        qp_num: param.qp_num,
    })
}

/// Returns the attributes of a multicast membership. Fails with `EINVAL` for NULL.
///
/// # Safety
/// `attr` is NULL, or points to a structure whose address, if it is set, is complete for its
/// family. Both are unchanged during `'a`.
pub unsafe fn join_attr<'a>(attr: *const rdma_cm_join_mc_attr_ex) -> Result<JoinAttr<'a>> {
    // SAFETY: `attr` is NULL or live: guaranteed by the caller.
    let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
    // SAFETY: if the mask says that the address is set, it is complete for its family: guaranteed
    // by the caller. Otherwise the core does not read it.
    let addr = unsafe { AddrRef::from_c(attr.addr) };
    Ok(JoinAttr { comp_mask: attr.comp_mask, join_flags: attr.join_flags, addr })
}

/// Returns a string; `None` for NULL.
///
/// # Safety
/// `string` is NULL, or a C string that is unchanged during `'a`.
pub unsafe fn string<'a>(string: *const c_char) -> Option<&'a CStr> {
    // SAFETY: not NULL, so it is a C string: guaranteed by the caller.
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) })
}

/// Returns the hints of an address look-up; `None` for NULL.
///
/// # Safety
/// `hints` is NULL, or points to a structure whose addresses and route are readable for their
/// lengths. All are unchanged during `'a`.
pub unsafe fn hints<'a>(hints: *const rdma_addrinfo) -> Option<Hints<'a>> {
    // SAFETY: `hints` is NULL or live: guaranteed by the caller.
    unsafe { hints.as_ref() }.map(|hints| Hints {
        flags: hints.ai_flags as u32,
        family: hints.ai_family,
        qp_type: hints.ai_qp_type,
        port_space: hints.ai_port_space,
        // SAFETY: the address is NULL or readable for its length: guaranteed by the caller.
        src: unsafe { address_of_len(hints.ai_src_addr, hints.ai_src_len) },
        // SAFETY: the address is NULL or readable for its length: guaranteed by the caller.
        dst: unsafe { address_of_len(hints.ai_dst_addr, hints.ai_dst_len) },
        // SAFETY: the route is NULL or readable for its length: guaranteed by the caller.
        route: unsafe { bytes(hints.ai_route, hints.ai_route_len) },
    })
}

/// Returns the fields that rdma_create_ep(3) uses. Fails with `EINVAL` for NULL.
///
/// # Safety
/// `info` is NULL, or points to a structure from rdma_getaddrinfo(3) or to one with equally valid
/// pointers and lengths. It is unchanged during `'a`.
pub unsafe fn endpoint_info<'a>(info: *const rdma_addrinfo) -> Result<EndpointInfo<'a>> {
    // SAFETY: `info` is NULL or live: guaranteed by the caller.
    let info = unsafe { info.as_ref() }.ok_or(Errno::EINVAL)?;
    Ok(EndpointInfo {
        flags: info.ai_flags as u32,
        port_space: info.ai_port_space as u32,
        qp_type: info.ai_qp_type as u32,
        // SAFETY: NULL or complete for its family, as from rdma_getaddrinfo(3).
        src: unsafe { AddrRef::from_c(info.ai_src_addr) },
        // SAFETY: NULL or complete for its family, as from rdma_getaddrinfo(3).
        dst: unsafe { AddrRef::from_c(info.ai_dst_addr) },
        route: ptr::slice_from_raw_parts(info.ai_route.cast(), info.ai_route_len),
        // SAFETY: NULL or readable for its length, as from rdma_getaddrinfo(3).
        connect_data: unsafe { bytes(info.ai_connect, info.ai_connect_len) },
    })
}

/// Returns `len` bytes; no bytes for NULL, whatever the length (docs/compatibility.md).
///
/// # Safety
/// `start` is NULL, or readable for `len` bytes that are unchanged during `'a`.
pub unsafe fn bytes<'a>(start: *const c_void, len: usize) -> &'a [u8] {
    if start.is_null() {
        return &[];
    }
    // SAFETY: `len` bytes are readable: guaranteed by the caller.
    unsafe { slice::from_raw_parts(start.cast(), len) }
}

/// Returns the `len` bytes of an address; no bytes for NULL. Fails with `EINVAL` if `len` exceeds
/// [`MAX_ADDR`].
///
/// # Safety
/// `addr` is NULL, or readable for `len` bytes, up to [`MAX_ADDR`], that are unchanged during `'a`.
unsafe fn address_of_len<'a>(addr: *const sockaddr, len: socklen_t) -> Result<&'a [u8]> {
    if !addr.is_null() && len as usize > MAX_ADDR {
        return Err(Errno::EINVAL);
    }
    // SAFETY: NULL, or `len` bytes are readable: guaranteed by the caller.
    Ok(unsafe { bytes(addr.cast(), len as usize) })
}

/// Maximum number of buffers of one call (IOV_MAX of limits.h).
const MAX_BUFFERS: usize = 1024;

/// Returns an array of `len` elements. Fails with `EFAULT` if `start` is NULL and `len` is not 0.
pub fn array<T>(start: *const T, len: usize) -> Result<NonNull<[T]>> {
    let start = if len == 0 { Some(NonNull::dangling()) } else { NonNull::new(start.cast_mut()) };
    start.map(|start| NonNull::slice_from_raw_parts(start, len)).ok_or(Errno::EFAULT)
}

/// Returns one buffer. Fails with `EFAULT` if `start` is NULL and `len` is not 0.
pub fn buffer(start: *mut c_void, len: size_t) -> Result<iovec> {
    Ok(iovec { iov_base: array(start.cast::<u8>(), len)?.as_ptr().cast(), iov_len: len })
}

/// Returns the buffers of a vectored call. Fails with `EINVAL` if there are too many, and with
/// `EFAULT` if `list` or a buffer is NULL but its length is not 0.
///
/// # Safety
/// `list` is NULL, or an array of `len` structures that are not changed during `'a`.
pub unsafe fn buffers<'a>(list: *const iovec, len: size_t) -> Result<&'a [iovec]> {
    if len > MAX_BUFFERS {
        return Err(Errno::EINVAL);
    }
    // SAFETY: `list` has `len` structures: guaranteed by the caller.
    let list = unsafe { array(list, len)?.as_ref() };
    if list.iter().any(|buffer| buffer.iov_base.is_null() && buffer.iov_len > 0) {
        return Err(Errno::EFAULT);
    }
    Ok(list)
}

/// Stores an address for the program as accept(2) does: truncated to `*len` bytes, with the full
/// length in `*len` (0 if `name` is `None`). Writes nothing if `addr` is NULL. Fails with `EFAULT`
/// if only `len` is NULL.
///
/// # Safety
/// `len` is NULL, or valid for reads and writes. `addr` is NULL, or writable for `*len` bytes.
pub unsafe fn name_out(name: Option<&sockaddr_storage>, addr: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
    if addr.is_null() {
        return Ok(());
    }
    let len = NonNull::new(len).ok_or(Errno::EFAULT)?;
    // SAFETY: neither pointer is NULL, so `len` is valid and `*len` bytes at `addr` are writable:
    // guaranteed by the caller.
    unsafe {
        let whole = name.map_or(0, name_len);
        if let Some(name) = name {
            ptr::copy_nonoverlapping(ptr::from_ref(name).cast(), addr.cast::<u8>(), whole.min(len.read() as usize));
        }
        len.write(whole as socklen_t);
    }
    Ok(())
}

/// Calls `make` and stores its result at `pointer`. Fails with `EINVAL` if `pointer` is NULL,
/// before `make` is called.
///
/// # Safety
/// `pointer` is NULL or writable.
pub unsafe fn put<T>(pointer: *mut T, make: impl FnOnce() -> Result<T>) -> Result<()> {
    let pointer = NonNull::new(pointer).ok_or(Errno::EINVAL)?;
    // SAFETY: not NULL, so it is writable: guaranteed by the caller.
    unsafe { pointer.write(make()?) };
    Ok(())
}

/// Returns a structure that the call reads and updates. Fails with `EINVAL` for NULL.
///
/// # Safety
/// `pointer` is NULL, or valid and used by nothing else during `'a`.
pub unsafe fn inout<'a, T>(pointer: *mut T) -> Result<&'a mut T> {
    // SAFETY: `pointer` is NULL or valid: guaranteed by the caller.
    unsafe { pointer.as_mut() }.ok_or(Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use std::mem::zeroed;
    use std::ptr;

    use super::*;

    #[test]
    fn null_structures() {
        // SAFETY: NULL is allowed.
        unsafe {
            assert_eq!(address(ptr::null()).err(), Some(Errno::EINVAL));
            assert!(conn_param(ptr::null()).is_none());
            assert_eq!(join_attr(ptr::null()).err(), Some(Errno::EINVAL));
            assert!(string(ptr::null()).is_none());
            assert!(hints(ptr::null()).is_none());
            assert_eq!(endpoint_info(ptr::null()).err(), Some(Errno::EINVAL));
        }
    }

    #[test]
    fn null_private_data_is_empty_whatever_its_length() {
        // SAFETY: all zeros are a value of this structure.
        let mut param: rdma_conn_param = unsafe { zeroed() };
        (param.private_data_len, param.qp_num, param.retry_count) = (4, 7, 3);
        // SAFETY: NULL is allowed as private data.
        let copied = unsafe { conn_param(&raw const param) }.unwrap();
        assert_eq!((copied.private_data, copied.qp_num, copied.retry_count), (&[][..], 7, 3));
        param.private_data = c"data".as_ptr().cast();
        // SAFETY: the private data has four bytes.
        assert_eq!(unsafe { conn_param(&raw const param) }.unwrap().private_data, b"data");
    }

    #[test]
    fn addresses_of_hints_have_a_maximum_length() {
        let addr = [1; MAX_ADDR];
        // SAFETY: all zeros are a value of this structure.
        let mut info: rdma_addrinfo = unsafe { zeroed() };
        (info.ai_src_addr, info.ai_src_len, info.ai_dst_len) = (addr.as_ptr().cast_mut().cast(), MAX_ADDR as u32, 9);
        // SAFETY: the address has the maximum length.
        let valid = unsafe { hints(&raw const info) }.unwrap();
        assert_eq!((valid.src, valid.dst, valid.route), (Ok(&addr[..]), Ok(&[][..]), &[][..]));
        for len in [MAX_ADDR as u32 + 1, u32::MAX] {
            info.ai_src_len = len;
            // SAFETY: an address of this length is not read.
            assert_eq!(unsafe { hints(&raw const info) }.unwrap().src, Err(Errno::EINVAL));
        }
        info.ai_src_len = 0;
        // SAFETY: no bytes are read.
        assert_eq!(unsafe { hints(&raw const info) }.unwrap().src, Ok(&[][..]));
    }
}
