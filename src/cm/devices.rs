//! rdma_get_devices: the devices as programs list them.

use std::ffi::c_int;
use std::mem::size_of;
use std::ptr::NonNull;

use super::{device, forks};
use crate::errno::{Errno, Result};
use crate::sys::verbs::ibv_context;

/// rdma_get_devices(3): a NULL-terminated array; `num` gets its length, 0 on failure. `ENODEV`
/// without RDMA devices; empty when none can be opened.
///
/// # Safety
/// `num` is NULL or writable.
pub unsafe fn get_devices(num: *mut c_int) -> Result<NonNull<*mut ibv_context>> {
    let list = forks::watched().and_then(|()| device::hold_all()).and_then(|contexts| to_c(&contexts));
    let (count, list) = match list {
        Ok((count, list)) => (count, Ok(list)),
        Err(error) => (0, Err(error)),
    };
    // SAFETY: `num` is NULL or writable: guaranteed by the caller.
    if let Some(num) = unsafe { num.as_mut() } {
        *num = count as c_int;
    }
    list
}

fn to_c(contexts: &[NonNull<ibv_context>]) -> Result<(usize, NonNull<*mut ibv_context>)> {
    // SAFETY: plain allocation; the result is checked.
    let memory = unsafe { libc::calloc(contexts.len() + 1, size_of::<*mut ibv_context>()) };
    let Some(list) = NonNull::new(memory.cast::<*mut ibv_context>()) else {
        contexts.iter().for_each(|&context| device::let_go(context));
        return Err(Errno::ENOMEM);
    };
    for (index, context) in contexts.iter().enumerate() {
        // SAFETY: within the array, which calloc ended with a NULL.
        unsafe { list.add(index).write(context.as_ptr()) };
    }
    Ok((contexts.len(), list))
}

/// rdma_free_devices(3).
///
/// # Safety
/// From [`get_devices`], not used afterwards.
pub unsafe fn free_devices(list: NonNull<*mut ibv_context>) {
    // SAFETY: a list of this library, which ends with a NULL: guaranteed by the caller.
    unsafe {
        let mut entry = list;
        while let Some(context) = NonNull::new(entry.read()) {
            device::let_go(context);
            entry = entry.add(1);
        }
        libc::free(list.as_ptr().cast());
    }
}
