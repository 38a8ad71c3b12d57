//! Structures that C functions fill in.

use std::mem::MaybeUninit;

use rdmacm_core::{Errno, Result};

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
