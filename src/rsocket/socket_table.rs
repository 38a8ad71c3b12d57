//! The process's table of rsockets in shared memory, which rsstat(8) reads without the help of this
//! process (`base::socket_table`).
//!
//! The first rsocket to be listed creates the table: a memory file, mapped once and never unmapped.
//! It takes one descriptor, and one page per 16 rsockets. If it cannot be created, the process
//! works without it. A child of fork() begins with a table of its own.

use std::ffi::{c_int, c_uint};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use base::socket_table::{self as layout, Table};
use libc::sockaddr_storage;

pub use layout::{CLOSING, CONNECTED, Counters, DATAGRAM, LISTENING};

use crate::cm::{self, Id};
use crate::os::fork::Owner;
use crate::os::library_fds::{self, OwnFd};

/// MFD_NOEXEC_SEAL, which kernels before 6.3 reject.
const NOEXEC_SEAL: c_uint = 8;
/// State of an entry that is being written.
const RESERVED: u32 = u32::MAX;

/// The table; NULL until it is needed.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());
/// Index of the entry where the search for a free entry begins.
static NEXT: AtomicU32 = AtomicU32::new(0);
/// Bytes of the table.
const SIZE: usize = size_of::<Table>();
/// Stored in [`TABLE`] if the table could not be created.
const NONE: *mut Table = ptr::dangling_mut();

/// Starts without a table in a child of fork(), which has none of its parent's rsockets.
pub fn in_child() {
    TABLE.store(ptr::null_mut(), Relaxed);
    NEXT.store(0, Relaxed);
}

/// Returns the table, which the first call creates, or `None` if the table could not be created.
fn table() -> Option<&'static Table> {
    let mut table = TABLE.load(Acquire);
    if table.is_null() {
        let (new, fd) = create().map_or((NONE, None), |(start, fd)| (start, Some(fd)));
        table = match TABLE.compare_exchange(ptr::null_mut(), new, Release, Acquire) {
            Ok(_) => {
                // The descriptor stays open, so that rsstat finds the file.
                fd.into_iter().for_each(|fd| library_fds::set_table(fd.into_fd()));
                new
            }
            // Another thread was faster.
            Err(first) => {
                if new != NONE {
                    // SAFETY: the mapping was never published, so nothing else uses it.
                    unsafe { libc::munmap(new.cast(), SIZE) };
                }
                first
            }
        };
    }
    // SAFETY: `table` is a mapping that is never unmapped; all fields are atomic.
    (table != NONE).then(|| unsafe { &*table })
}

/// Creates a table: a memory file and its mapping.
fn create() -> Option<(*mut Table, OwnFd)> {
    // SAFETY: the name is a C string.
    let file = |flags| OwnFd::new(unsafe { libc::memfd_create(layout::NAME.as_ptr(), flags) });
    let fd = file(libc::MFD_CLOEXEC | NOEXEC_SEAL).or_else(|_| file(libc::MFD_CLOEXEC)).ok()?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice, which the sparse file backs.
    let start = unsafe {
        if libc::ftruncate(fd.as_raw_fd(), SIZE as libc::off_t) != 0 {
            return None;
        }
        libc::mmap(ptr::null_mut(), SIZE, protection, flags, fd.as_raw_fd(), 0)
    };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = start.cast::<Table>();
    // SAFETY: the new mapping is a table of zeros, and page-aligned.
    let header = unsafe { &(*start).header };
    header.version.store(layout::VERSION, Relaxed);
    header.pid.store(std::process::id(), Relaxed);
    header.magic.store(layout::MAGIC, Release);
    Some((start, fd))
}

/// The entry of an rsocket. Dropping it frees the entry in the table.
#[derive(Debug)]
pub struct Entry {
    entry: &'static layout::Entry,
    index: u32,
    owner: Owner,
}

impl Entry {
    /// Lists an rsocket with the descriptor `fd` and the addresses and device of `id`. Returns
    /// `None` if there is no table or no free entry.
    pub fn new(state: u32, fd: c_int, id: &Id, qp_number: u32, backlog: u32) -> Option<Entry> {
        let table = table()?;
        let index = take(&table.entries, &NEXT)?;
        let entry = table.entries.get(index as usize)?;
        table.header.end.fetch_max(index + 1, Relaxed);
        entry.counters.clear();
        let endpoints = cm::log::endpoints(id);
        let mut device = [0; layout::DEVICE];
        let name = endpoints.device().unwrap_or_default().as_bytes();
        let len = name.len().min(device.len() - 1);
        device[..len].copy_from_slice(&name[..len]);
        store(&entry.device, &device);
        store(&entry.local, &address(&endpoints.src));
        store(&entry.peer, &address(&endpoints.dst));
        entry.fd.store(fd, Relaxed);
        entry.qp_number.store(qp_number, Relaxed);
        entry.port.store(endpoints.port.into(), Relaxed);
        entry.backlog.store(backlog, Relaxed);
        entry.state.store(state, Release);
        Some(Entry { entry, index, owner: Owner::this_process() })
    }

    /// Returns the counters. One thread at a time may change them, as long as the entry exists.
    pub fn counters(&self) -> &'static Counters {
        &self.entry.counters
    }

    /// Changes the state.
    pub fn set_state(&self, state: u32) {
        self.entry.state.store(state, Release);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // A child of fork() shares its parent's table, and must not change it.
        if self.owner.is_this_process() {
            give(self.entry, self.index, &NEXT);
        }
    }
}

/// Reserves a free entry and returns its index. While other threads take and free entries, a search
/// may miss a free one.
fn take(entries: &[layout::Entry], next: &AtomicU32) -> Option<u32> {
    let (start, len) = (next.load(Relaxed), entries.len() as u32);
    for index in (0..len).map(|step| (start + step) % len) {
        let state = &entries.get(index as usize)?.state;
        if state.load(Relaxed) == layout::FREE
            && state.compare_exchange(layout::FREE, RESERVED, Acquire, Relaxed).is_ok()
        {
            next.store((index + 1) % len, Relaxed);
            return Some(index);
        }
    }
    None
}

/// Frees an entry.
fn give(entry: &layout::Entry, index: u32, next: &AtomicU32) {
    entry.state.store(layout::FREE, Release);
    // Use low entries first, so that fewer pages are in use.
    next.fetch_min(index, Relaxed);
}

/// Returns the leading bytes of `from`, enough for the longest address (`sockaddr_ib`).
fn address(from: &sockaddr_storage) -> [u8; layout::ADDRESS] {
    // SAFETY: the structure is longer, and all its bytes are initialised.
    unsafe { ptr::from_ref(from).cast::<[u8; layout::ADDRESS]>().read() }
}

fn store(words: &[AtomicU64], bytes: &[u8]) {
    for (word, chunk) in words.iter().zip(bytes.chunks_exact(8)) {
        let mut value = [0; 8];
        value.copy_from_slice(chunk);
        word.store(u64::from_ne_bytes(value), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::{array, iter, mem};

    use super::*;

    /// Entries of zeros, as in a new table.
    fn entries<const COUNT: usize>() -> [layout::Entry; COUNT] {
        array::from_fn(|_| {
            // SAFETY: all fields are integers, of which all zeros are a value.
            unsafe { mem::zeroed() }
        })
    }

    #[test]
    fn low_entries_are_used_first() {
        let (entries, next) = (entries::<4>(), AtomicU32::new(0));
        assert!((0..3).all(|index| take(&entries, &next) == Some(index)));
        for index in [2, 0] {
            give(&entries[index as usize], index, &next);
        }
        let taken: Vec<_> = iter::from_fn(|| take(&entries, &next)).collect();
        assert_eq!(taken, [0, 2, 3]);
        give(&entries[1], 1, &next);
        assert_eq!((take(&entries, &next), take(&entries, &next)), (Some(1), None));
    }
}
