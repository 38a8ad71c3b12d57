//! Arguments of C functions as values of the core: structures, strings, buffers and addresses, and
//! the places where results go. NULL where a structure is required is `EINVAL`, for a buffer with a
//! length `EFAULT`.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::slice;

use libc::{iovec, size_t, sockaddr, sockaddr_storage, socklen_t};
use rdmacm_core::cm::{ConnParam, EndpointInfo, Hints, JoinAttr, OptionValue};
use rdmacm_core::ffi::{rdma_addrinfo, rdma_cm_join_mc_attr_ex, rdma_conn_param};
use rdmacm_core::os::sockaddr::{AddrRef, SockAddr};
use rdmacm_core::rsocket::name_len;
use rdmacm_core::{Errno, Result};

/// Maximum length of an address.
const MAX_ADDR: usize = size_of::<sockaddr_storage>();

/// An address. Fails with `EINVAL` for NULL, and for families other than AF_INET, AF_INET6 and
/// AF_IB.
///
/// # Safety
/// NULL, or an address as long as its family says.
pub unsafe fn address(addr: *const sockaddr) -> Result<SockAddr> {
    // SAFETY: this function has the same contract.
    unsafe { SockAddr::from_nullable(addr) }?.ok_or(Errno::EINVAL)
}

/// Parameters of a connection; `None` for NULL.
///
/// # Safety
/// NULL, or a structure whose private data is readable for its length; both are unchanged during
/// `'a`.
pub unsafe fn conn_param<'a>(param: *const rdma_conn_param) -> Option<ConnParam<'a>> {
    // SAFETY: NULL or valid, as the contract of this function says.
    unsafe { param.as_ref() }.map(|param| ConnParam {
        // SAFETY: the private data is readable for its length, as the contract of this function
        // says.
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

/// Attributes of a multicast membership.
///
/// # Safety
/// `attr` is NULL, or points to a structure whose address, if it is set, is complete for its
/// family. Both are unchanged during `'a`.
pub unsafe fn join_attr<'a>(attr: *const rdma_cm_join_mc_attr_ex) -> Result<JoinAttr<'a>> {
    // SAFETY: NULL or valid, as the contract of this function says.
    let attr = unsafe { attr.as_ref() }.ok_or(Errno::EINVAL)?;
    // SAFETY: the core reads the address only if the mask says that it is set.
    let addr = unsafe { AddrRef::from_c(attr.addr) };
    Ok(JoinAttr { comp_mask: attr.comp_mask, join_flags: attr.join_flags, addr })
}

/// A string; `None` for NULL.
///
/// # Safety
/// NULL, or a C string that is unchanged during `'a`.
pub unsafe fn string<'a>(string: *const c_char) -> Option<&'a CStr> {
    // SAFETY: a C string, as the contract of this function says.
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) })
}

/// Hints for a look-up; `None` for NULL.
///
/// # Safety
/// NULL, or a structure whose addresses and route are readable for their lengths; all are unchanged
/// during `'a`.
pub unsafe fn hints<'a>(hints: *const rdma_addrinfo) -> Option<Hints<'a>> {
    // SAFETY: NULL or valid, as the contract of this function says.
    unsafe { hints.as_ref() }.map(|hints| Hints {
        flags: hints.ai_flags as u32,
        family: hints.ai_family,
        qp_type: hints.ai_qp_type,
        port_space: hints.ai_port_space,
        // SAFETY: readable for their lengths, as the contract of this function says.
        src: unsafe { address_of_len(hints.ai_src_addr, hints.ai_src_len) },
        // SAFETY: as for `src`.
        dst: unsafe { address_of_len(hints.ai_dst_addr, hints.ai_dst_len) },
        // SAFETY: as for `src`.
        route: unsafe { bytes(hints.ai_route, hints.ai_route_len) },
    })
}

/// The address of an endpoint.
///
/// # Safety
/// NULL, or a structure from rdma_getaddrinfo(3), or one like it; it is unchanged during `'a`.
pub unsafe fn endpoint_info<'a>(info: *const rdma_addrinfo) -> Result<EndpointInfo<'a>> {
    // SAFETY: NULL or valid, as the contract of this function says.
    let info = unsafe { info.as_ref() }.ok_or(Errno::EINVAL)?;
    Ok(EndpointInfo {
        flags: info.ai_flags as u32,
        port_space: info.ai_port_space as u32,
        qp_type: info.ai_qp_type as u32,
        // SAFETY: rdma_getaddrinfo(3) returns addresses as long as their families say.
        src: unsafe { AddrRef::from_c(info.ai_src_addr) },
        // SAFETY: as for `src`.
        dst: unsafe { AddrRef::from_c(info.ai_dst_addr) },
        route: OptionValue::at(info.ai_route, info.ai_route_len),
        // SAFETY: rdma_getaddrinfo(3) returns data that is readable for its length.
        connect_data: unsafe { bytes(info.ai_connect, info.ai_connect_len) },
    })
}

/// Bytes; none for NULL, whatever the length (docs/compatibility.md).
///
/// # Safety
/// NULL, or readable for `len` bytes and unchanged during `'a`.
pub unsafe fn bytes<'a>(start: *const c_void, len: usize) -> &'a [u8] {
    if start.is_null() {
        return &[];
    }
    // SAFETY: readable for `len` bytes, as the contract of this function says.
    unsafe { slice::from_raw_parts(start.cast(), len) }
}

/// An address of a given length; none for NULL. Fails with `EINVAL` if no address is that long.
///
/// # Safety
/// As [`bytes`], up to the maximum length of an address.
unsafe fn address_of_len<'a>(addr: *const sockaddr, len: socklen_t) -> Result<&'a [u8]> {
    if addr.is_null() {
        return Ok(&[]);
    }
    match len as usize {
        // SAFETY: readable for its length, as the contract of this function says.
        len @ ..=MAX_ADDR => Ok(unsafe { bytes(addr.cast(), len) }),
        _ => Err(Errno::EINVAL),
    }
}

/// Maximum number of buffers of one call (IOV_MAX of limits.h).
const MAX_BUFFERS: usize = 1024;

/// One buffer; `EFAULT` for NULL with a length.
pub fn buffer(start: *mut c_void, len: size_t) -> Result<iovec> {
    match (NonNull::new(start), len) {
        (Some(start), len) => Ok(iovec { iov_base: start.as_ptr(), iov_len: len }),
        (None, 0) => Ok(iovec { iov_base: NonNull::<u8>::dangling().as_ptr().cast(), iov_len: 0 }),
        (None, _) => Err(Errno::EFAULT),
    }
}

/// The buffers of a vectored call. Fails with `EINVAL` for too many, and with `EFAULT` for NULL and
/// for a buffer at NULL with a length.
///
/// # Safety
/// NULL, or an array of `len` structures that is not changed during `'a`.
pub unsafe fn buffers<'a>(list: *const iovec, len: size_t) -> Result<&'a [iovec]> {
    if len == 0 {
        return Ok(&[]);
    }
    if len > MAX_BUFFERS {
        return Err(Errno::EINVAL);
    }
    let list = NonNull::new(list.cast_mut()).ok_or(Errno::EFAULT)?;
    // SAFETY: not NULL, so it has `len` structures.
    let list = unsafe { slice::from_raw_parts(list.as_ptr(), len) };
    if list.iter().any(|buffer| buffer.iov_base.is_null() && buffer.iov_len > 0) {
        return Err(Errno::EFAULT);
    }
    Ok(list)
}

/// Bytes of the program; `EFAULT` for NULL with a length.
///
/// # Safety
/// NULL, or `len` readable bytes that are not changed during `'a`.
pub unsafe fn required_bytes<'a>(start: *const c_void, len: usize) -> Result<&'a [u8]> {
    match (NonNull::new(start.cast_mut()), len) {
        (_, 0) => Ok(&[]),
        // SAFETY: not NULL, so `len` bytes are readable.
        (Some(start), len) => Ok(unsafe { slice::from_raw_parts(start.as_ptr().cast(), len) }),
        (None, _) => Err(Errno::EFAULT),
    }
}

/// Returns an address to the program as accept(2) does: truncated to the buffer, with its whole
/// length; length 0 without an address. Writes nothing if `addr` is NULL.
///
/// # Safety
/// NULL, or a buffer of `*len` bytes that is writable, and so is `len` unless it is NULL.
pub unsafe fn name_out(name: Option<&sockaddr_storage>, addr: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
    if addr.is_null() {
        return Ok(());
    }
    let len = NonNull::new(len).ok_or(Errno::EFAULT)?;
    // SAFETY: neither is NULL: `len` is the size of the buffer at `addr`.
    unsafe {
        let whole = name.map_or(0, name_len);
        if let Some(name) = name {
            ptr::copy_nonoverlapping(ptr::from_ref(name).cast(), addr.cast::<u8>(), whole.min(len.read() as usize));
        }
        len.write(whole as socklen_t);
    }
    Ok(())
}

/// Where a result goes, whatever is there now; `EINVAL` for NULL.
///
/// # Safety
/// NULL, or writable and used by nothing else during `'a`.
pub unsafe fn out<'a, T>(pointer: *mut T) -> Result<&'a mut MaybeUninit<T>> {
    // SAFETY: NULL or writable, as the contract of this function says.
    unsafe { pointer.cast::<MaybeUninit<T>>().as_mut() }.ok_or(Errno::EINVAL)
}

/// A structure that is read and updated; `EINVAL` for NULL.
///
/// # Safety
/// NULL, or valid and used by nothing else during `'a`.
pub unsafe fn inout<'a, T>(pointer: *mut T) -> Result<&'a mut T> {
    // SAFETY: NULL or valid, as the contract of this function says.
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
