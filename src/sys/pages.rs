//! Memory in whole pages, for devices to read and write: zeroed, and not copied to children of fork(), which see zeros there.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use crate::errno::{Errno, Result};

/// See the module.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory; who touches which part of it is its owner's care.
unsafe impl Send for Pages {}

impl Pages {
    /// At least `len` bytes, all zero.
    pub fn new(len: usize) -> Result<Pages> {
        // Every page now, and all in one go. Pinning does so too, but may leave this process's own mapping for the first access
        // to complete, which would be in the middle of a transfer.
        let (access, flags): (c_int, c_int) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), len.max(1), access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // SAFETY: our own mapping. A child must neither see it nor make the kernel copy the pages that a device writes; where
        // that can't be had, kernels from 5.12 on leave pinned pages to the parent. Not MADV_DONTFORK: the gap that it leaves in the
        // child is not empty on User Mode Linux, and what is mapped there later shows the parent's bytes.
        unsafe { libc::madvise(start, len.max(1), libc::MADV_WIPEONFORK) };
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::ENOMEM)?;
        Ok(Pages { start, len: len.max(1) })
    }

    /// Where it begins.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own mapping, used by nobody any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
