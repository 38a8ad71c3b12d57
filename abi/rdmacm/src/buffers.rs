//! Buffers and socket addresses of C programs.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::slice;

use libc::{iovec, size_t, sockaddr, sockaddr_storage, socklen_t};
use rdmacm_core::Errno;
use rdmacm_core::errno::Result;
use rdmacm_core::rsocket::name_len;

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
pub unsafe fn bytes<'a>(start: *const c_void, len: usize) -> Result<&'a [u8]> {
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
