//! Zeroed memory in whole pages, for devices to read and write. The child of a fork() sees zeros
//! instead of a copy.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};

use crate::errno::{Errno, Result};

/// See the module.
#[derive(Debug)]
pub struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain memory; the owner synchronizes accesses.
unsafe impl Send for Pages {}

impl Pages {
    /// Allocates at least `len` bytes of zeros.
    pub fn new(len: usize) -> Result<Pages> {
        // MAP_POPULATE maps all pages in one step. Pinning maps them, too, but may leave a page
        // fault to the first access of this process, during a transfer.
        let (access, flags): (c_int, c_int) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), len.max(1), access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // A child must neither see the pages nor make the kernel copy pages that a device writes.
        // If the advice fails, kernels from 5.12 on leave pinned pages to the parent. MADV_DONTFORK
        // leaves a gap in the child, which on User Mode Linux is not empty: a later mapping there
        // shows the parent's bytes.
        // SAFETY: the mapping was just created.
        unsafe { libc::madvise(start, len.max(1), libc::MADV_WIPEONFORK) };
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::ENOMEM)?;
        Ok(Pages { start, len: len.max(1) })
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: the length is at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is not used any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Orders earlier reads of memory that a device writes before later ones.
#[inline]
pub fn device_read_barrier() {
    // arm64's acquire fence orders reads as other processors see them. Devices are in the outer
    // shareable domain.
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes neither memory nor registers.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    fence(Ordering::Acquire);
}
