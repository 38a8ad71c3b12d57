//! The list of devices of rdma_get_devices(3).

use std::mem::{ManuallyDrop, size_of};
use std::ptr::NonNull;

use super::{device_registry, forks};
use crate::errno::{Errno, Result};
use crate::sys::verbs::ibv_context;

/// The contexts of the devices in an array that ends with a NULL. They are released when it is
/// dropped.
#[derive(Debug)]
pub struct DeviceContexts {
    array: NonNull<*mut ibv_context>,
    len: usize,
}

impl DeviceContexts {
    /// Takes an array back from [`into_c`](Self::into_c); `None` for NULL.
    ///
    /// # Safety
    /// Nothing uses the array from now on, nor the contexts in it on its behalf.
    pub unsafe fn from_c(array: *mut *mut ibv_context) -> Option<DeviceContexts> {
        let array = NonNull::new(array)?;
        let mut len = 0;
        // SAFETY: `new` made the array, and put a NULL behind the last context.
        while !unsafe { array.add(len).read() }.is_null() {
            len += 1;
        }
        Some(DeviceContexts { array, len })
    }

    /// Hands the array over to the program.
    pub fn into_c(self) -> NonNull<*mut ibv_context> {
        ManuallyDrop::new(self).array
    }

    /// Number of devices.
    pub fn count(&self) -> usize {
        self.len
    }

    /// Takes over `contexts`, which the registry holds.
    fn new(contexts: &[NonNull<ibv_context>]) -> Result<DeviceContexts> {
        // SAFETY: calloc() takes any size.
        let memory = unsafe { libc::calloc(contexts.len() + 1, size_of::<*mut ibv_context>()) };
        let Some(array) = NonNull::new(memory.cast::<*mut ibv_context>()) else {
            contexts.iter().for_each(|&context| device_registry::release_held(context));
            return Err(Errno::ENOMEM);
        };
        for (index, context) in contexts.iter().enumerate() {
            // SAFETY: the array has one element more than there are contexts.
            unsafe { array.add(index).write(context.as_ptr()) };
        }
        Ok(DeviceContexts { array, len: contexts.len() })
    }
}

impl Drop for DeviceContexts {
    fn drop(&mut self) {
        for index in 0..self.len {
            // SAFETY: the array has `len` contexts.
            if let Some(context) = NonNull::new(unsafe { self.array.add(index).read() }) {
                device_registry::release_held(context);
            }
        }
        // SAFETY: from calloc() in `new`.
        unsafe { libc::free(self.array.as_ptr().cast()) };
    }
}

/// rdma_get_devices(3). Fails with `ENODEV` without RDMA devices; empty if none can be opened.
pub fn get_devices() -> Result<DeviceContexts> {
    forks::register()?;
    DeviceContexts::new(&device_registry::hold_all(|_| false)?)
}

/// rdma_free_devices(3).
pub fn free_devices(list: DeviceContexts) {
    drop(list);
}
