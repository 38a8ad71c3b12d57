//! Memory from malloc(3) that the program frees with free(3). Allocation fails with `ENOMEM`.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::slice;

use crate::errno::{Errno, Result};

/// At least one byte from malloc(3).
#[derive(Debug)]
pub struct CBytes {
    ptr: NonNull<u8>,
    len: usize,
}

impl CBytes {
    /// Copies `bytes`. Returns `None` if `bytes` is empty.
    pub fn copy(bytes: &[u8]) -> Result<Option<CBytes>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        // SAFETY: malloc() takes any size.
        let ptr = NonNull::new(unsafe { libc::malloc(bytes.len()) }.cast::<u8>()).ok_or(Errno::ENOMEM)?;
        // SAFETY: fresh memory of that length.
        unsafe { ptr.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Ok(Some(CBytes { ptr, len: bytes.len() }))
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated and filled by copy().
        unsafe { slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// Returns the address and length of memory that the caller frees with free(3); NULL and 0 for
    /// `None`.
    pub fn into_raw(this: Option<CBytes>) -> (*mut c_void, usize) {
        match this {
            None => (std::ptr::null_mut(), 0),
            Some(bytes) => {
                let bytes = std::mem::ManuallyDrop::new(bytes);
                (bytes.ptr.as_ptr().cast(), bytes.len)
            }
        }
    }

    /// Returns a C string that the caller frees with free(3); NULL for `None`.
    pub fn name_into_raw(this: Option<CName>) -> *mut c_char {
        CBytes::into_raw(this.map(|name| name.0)).0.cast()
    }
}

impl Drop for CBytes {
    fn drop(&mut self) {
        // SAFETY: from malloc(), and freed once: into_raw() prevents the drop.
        unsafe { libc::free(self.ptr.as_ptr().cast()) }
    }
}

// SAFETY: owns plain bytes.
unsafe impl Send for CBytes {}

/// A C string from malloc(3).
#[derive(Debug)]
pub struct CName(CBytes);

impl CName {
    /// Returns a copy of `name`.
    pub fn copy(name: &CStr) -> Result<CName> {
        // A C string has its terminator at least.
        CBytes::copy(name.to_bytes_with_nul())?.map(CName).ok_or(Errno::EINVAL)
    }

    /// Returns the string.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_with_nul(self.0.as_slice()).unwrap_or_default()
    }
}

/// Allocates a C structure with calloc(3); the caller frees it with free(3).
///
/// # Safety
/// All zero bits are a valid `T`.
pub unsafe fn zeroed<T>() -> Result<NonNull<T>> {
    // SAFETY: calloc() takes any size.
    NonNull::new(unsafe { libc::calloc(1, size_of::<T>()) }.cast()).ok_or(Errno::ENOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_and_handed_over() {
        let bytes = CBytes::copy(&[1, 2, 3]).unwrap().unwrap();
        assert_eq!(bytes.as_slice(), [1, 2, 3]);
        let (ptr, len) = CBytes::into_raw(Some(bytes));
        assert_eq!(len, 3);
        // SAFETY: `into_raw` has returned it.
        unsafe {
            assert_eq!(*ptr.cast::<[u8; 3]>(), [1, 2, 3]);
            libc::free(ptr);
        }
    }

    #[test]
    fn nothing_is_null() {
        assert!(CBytes::copy(&[]).unwrap().is_none());
        assert_eq!(CBytes::into_raw(None), (std::ptr::null_mut(), 0));
    }

    #[test]
    fn names_keep_their_end() {
        assert_eq!(CName::copy(c"host").unwrap().as_c_str(), c"host");
        assert_eq!(CName::copy(c"").unwrap().as_c_str(), c"");
    }

    #[test]
    fn out_of_memory_is_an_error() {
        // Otherwise the optimizer may assume that an unused allocation succeeds.
        // SAFETY: the allocation fails, so there is no memory to free.
        let result = std::hint::black_box(unsafe { zeroed::<[u8; 1 << 60]>() });
        assert_eq!(result.err(), Some(Errno::ENOMEM));
    }
}
