//! Memory that devices read and write: whole pages, zeros at first. The child of a fork() sees
//! zeros instead of a copy of the pages. Also the limit of locked memory, against which the kernel
//! counts memory that is registered with devices.
//!
//! A few areas (of [`AREA`] bytes each) of freed buffers are cleared and kept for the next buffers
//! of streams. If no area is kept, one is prepared while a connection is set up, so that the first
//! data need not wait for memory: mapping 32 new pages takes a fifth of the time of a connection's
//! first 64 KB, and clearing used pages takes a tenth of the time of mapping. Kept areas are
//! registered with no device, so they do not count as locked memory.
//!
//! Areas are kept without a lock: buffers are also allocated and freed by signal handlers and in
//! children of fork(2), in which the kept areas are mapped and contain zeros.

use std::ffi::c_int;
use std::mem::{ManuallyDrop, zeroed};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering, fence};

use crate::errno::{Errno, Result};

/// Pages to which a device may write, zeros at first.
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
        if (LEAST..=AREA).contains(&len)
            && let Some(start) = SPARE.take()
        {
            return Ok(Pages { start, len: AREA });
        }
        Pages::map(len.max(1))
    }

    /// Prepares an area for the next receive ring of `len` bytes, if `len` is [`AREA`] and no area
    /// is kept. If there is no memory, the pages are mapped when the ring is allocated.
    pub fn prepare_ring(len: usize) {
        if len == AREA
            && SPARE.count() == 0
            && let Ok(pages) = Pages::map(len)
        {
            // Drop would clear the new pages, which are zeros already.
            let pages = ManuallyDrop::new(pages);
            if !SPARE.give(pages.start) {
                pages.unmap();
            }
        }
    }

    fn map(len: usize) -> Result<Pages> {
        // MAP_POPULATE maps all pages in one step. Pinning maps them, too, but may leave a page
        // fault to the first access of this process, during a transfer.
        let (access, flags): (c_int, c_int) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        // A child must neither see the pages nor make the kernel copy pages that a device writes.
        // MADV_DONTFORK, for kernels before 4.14, leaves a gap in the child, which on User Mode
        // Linux is not empty: a later mapping there shows the parent's bytes.
        // SAFETY: the mapping was just created.
        let advise = |advice| unsafe { libc::madvise(start, len, advice) };
        if advise(libc::MADV_WIPEONFORK) != 0 {
            // If this fails, too, kernels from 5.12 on leave pinned pages to the parent.
            advise(libc::MADV_DONTFORK);
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::ENOMEM)?;
        Ok(Pages { start, len })
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Unmaps the pages without keeping them, because a device may still write to them.
    pub fn abandon(self) {
        ManuallyDrop::new(self).unmap();
    }

    fn unmap(&self) {
        // SAFETY: the mapping is not used any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }

    /// Clears the pages and keeps them for the next buffer, if they have the size of an area and
    /// there is a free slot. Returns whether they were kept.
    fn keep(&self) -> bool {
        if self.len != AREA || SPARE.count() == AREAS {
            return false;
        }
        // SAFETY: the mapping has `AREA` bytes, and is not used any more.
        unsafe { ptr::write_bytes(self.start.as_ptr(), 0, AREA) };
        SPARE.give(self.start)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if !self.keep() {
            self.unmap();
        }
    }
}

/// Orders earlier reads of memory that a device writes before later reads.
#[inline]
pub fn device_read_barrier() {
    // On arm64, an acquire fence covers only the inner shareable domain, the processors. Devices
    // are in the outer one.
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes neither memory nor registers.
    unsafe {
        std::arch::asm!("dmb oshld", options(nostack, preserves_flags));
    }
    fence(Ordering::Acquire);
}

/// Bytes of an area: the size of a full receive ring by default.
pub const AREA: usize = 1 << 17;
/// The smallest buffer, in bytes, for which an area is used: the buffer of a first message of 64
/// KB.
pub const LEAST: usize = 1 << 16;
/// Number of areas that are kept.
const AREAS: usize = 4;

/// The areas that the process keeps.
pub(super) static SPARE: Spare = Spare::new();

/// Cleared areas of freed buffers, for the next buffers.
pub(super) struct Spare([AtomicPtr<u8>; AREAS]);

impl Spare {
    const fn new() -> Spare {
        Spare([const { AtomicPtr::new(ptr::null_mut()) }; AREAS])
    }

    /// Takes an area of [`AREA`] cleared bytes; `None` if none is kept.
    pub fn take(&self) -> Option<NonNull<u8>> {
        // Acquire: the thread that gave the area has cleared it.
        self.0.iter().find_map(|slot| NonNull::new(slot.swap(ptr::null_mut(), Ordering::Acquire)))
    }

    /// Keeps an area of [`AREA`] cleared bytes, unless all slots are in use. Returns whether it was
    /// kept.
    pub fn give(&self, start: NonNull<u8>) -> bool {
        // Release: the area is cleared before another thread takes it.
        let keep = |slot: &AtomicPtr<u8>| {
            slot.compare_exchange(ptr::null_mut(), start.as_ptr(), Ordering::Release, Ordering::Relaxed).is_ok()
        };
        self.0.iter().any(keep)
    }

    /// Returns the number of areas that are kept.
    fn count(&self) -> usize {
        self.0.iter().filter(|slot| !slot.load(Ordering::Relaxed).is_null()).count()
    }
}

const VERSION_3: u32 = 0x2008_0522;
const CAP_IPC_LOCK: u32 = 14;
/// Inode of /proc/self/ns/user in the first user namespace (`PROC_USER_INIT_INO`): capabilities in
/// other user namespaces do not lift the limit.
const FIRST_NAMESPACE: libc::ino_t = 0xEFFF_FFFD;

/// Returns RLIMIT_MEMLOCK in bytes; `None` if there is no limit, or if this thread has
/// CAP_IPC_LOCK.
pub fn locked_memory_limit() -> Option<u64> {
    memlock().filter(|_| !is_exempt())
}

/// Returns the soft limit RLIMIT_MEMLOCK in bytes; `None` if there is no limit.
pub fn memlock() -> Option<u64> {
    let limit = base::raised_limit::limits_of(libc::RLIMIT_MEMLOCK).rlim_cur;
    (limit != libc::RLIM_INFINITY).then_some(limit)
}

fn is_exempt() -> bool {
    // As in linux/capability.h: the header has the version and the process; each set has effective,
    // permitted and inheritable capabilities, and the first set has the lower 32 capabilities.
    let mut header = [VERSION_3, 0];
    let mut sets = [[0_u32; 3]; 2];
    // SAFETY: `header` and `sets` have the layout of version 3 of the call.
    let result = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
    result == 0 && sets[0][0] & (1 << CAP_IPC_LOCK) != 0 && is_first_namespace()
}

/// Returns whether the process is in the first user namespace. Returns true if the file is missing,
/// as on kernels without user namespaces.
fn is_first_namespace() -> bool {
    // SAFETY: the path is a C string; `about` is writable, and all zeros are a valid value.
    unsafe {
        let mut about: libc::stat = zeroed();
        libc::stat(c"/proc/self/ns/user".as_ptr(), &raw mut about) != 0 || about.st_ino == FIRST_NAMESPACE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether the first `len` bytes are zeros, and fills them.
    fn was_zero(pages: &Pages, len: usize) -> bool {
        // SAFETY: at least `len` bytes, which only this function accesses.
        let bytes = unsafe { std::slice::from_raw_parts_mut(pages.start().as_ptr(), len) };
        let zero = bytes.iter().all(|&byte| byte == 0);
        bytes.fill(0xA5);
        zero
    }

    #[test]
    fn pages_are_zeros_also_when_they_were_used_before() {
        Pages::prepare_ring(AREA);
        for len in [LEAST - 1, LEAST, AREA, AREA + 1, LEAST, AREA, AREA, AREA] {
            let both = [Pages::new(len).unwrap(), Pages::new(AREA).unwrap()];
            assert!(was_zero(&both[0], len) && was_zero(&both[1], AREA));
        }
    }

    #[test]
    fn only_a_few_areas_are_kept() {
        let spare = Spare::new();
        let mut bytes = [0_u8; AREAS + 1];
        assert!(spare.count() == 0 && spare.take().is_none());
        for byte in &mut bytes[..AREAS] {
            assert!(spare.count() < AREAS && spare.give(NonNull::from(byte)));
        }
        assert!(spare.count() == AREAS && !spare.give(NonNull::from(&mut bytes[AREAS])));
        let taken: Vec<_> = std::iter::from_fn(|| spare.take()).collect();
        assert_eq!(taken, bytes[..AREAS].iter_mut().map(NonNull::from).collect::<Vec<_>>());
        assert_eq!(spare.count(), 0);
    }
}
