//! The process's table of rsockets in shared memory, which rsstat(8) reads without a call of this
//! process (`rdmacm_private::socket_table`).
//!
//! The first connection or listener creates it: a memory file, mapped once and never unmapped. It
//! takes one descriptor, and one page for each fifteen rsockets. A process that cannot have it goes
//! without. A child of fork() begins with a table of its own.

use std::ffi::{c_int, c_uint};
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use libc::sockaddr_storage;
use rdmacm_private::socket_table::{self as layout, ENTRIES, Header};

pub use layout::{CLOSING, CONNECTED, Counters, DATAGRAM, LISTENING};

use crate::cm::{self, Id};
use crate::sys::library_fds::{self, OwnFd};
use crate::sys::owner::Owner;

/// MFD_NOEXEC_SEAL, which kernels before 6.3 reject.
const NOEXEC_SEAL: c_uint = 8;
/// An entry that is being written.
const RESERVED: u32 = u32::MAX;

/// The table; NULL until it is needed.
static TABLE: AtomicPtr<Header> = AtomicPtr::new(ptr::null_mut());
/// Where the search for a free entry begins.
static NEXT: AtomicU32 = AtomicU32::new(0);
/// In place of the table of a process that could not have one.
const NONE: *mut Header = ptr::dangling_mut();

/// A child of fork() has none of its parent's rsockets.
pub fn in_child() {
    TABLE.store(ptr::null_mut(), Relaxed);
    NEXT.store(0, Relaxed);
}

/// Returns the table, which the first call creates.
fn table() -> Option<&'static Header> {
    let mut table = TABLE.load(Acquire);
    if table.is_null() {
        let new = Mapped::new();
        let start = new.as_ref().map_or(NONE, |new| new.start);
        // Of two threads, the second one drops its table.
        table = match TABLE.compare_exchange(ptr::null_mut(), start, Release, Acquire) {
            Ok(_) => {
                new.into_iter().for_each(Mapped::keep);
                start
            }
            Err(first) => first,
        };
    }
    // SAFETY: a mapping that is never unmapped; all fields are atomic.
    (table != NONE).then(|| unsafe { &*table })
}

/// A memory file and its mapping, which are dropped together unless they are kept for ever.
struct Mapped {
    start: *mut Header,
    fd: OwnFd,
}

impl Mapped {
    fn new() -> Option<Mapped> {
        let fd = memory_file()?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice, which the sparse file backs.
        let start = unsafe {
            if libc::ftruncate(fd.as_raw_fd(), layout::SIZE as libc::off_t) != 0 {
                return None;
            }
            libc::mmap(ptr::null_mut(), layout::SIZE, protection, flags, fd.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        let start = start.cast::<Header>();
        // SAFETY: the new mapping has space for the header and is page-aligned.
        let header = unsafe { &*start };
        header.version.store(layout::VERSION, Relaxed);
        header.pid.store(std::process::id(), Relaxed);
        header.magic.store(layout::MAGIC, Release);
        Some(Mapped { start, fd })
    }

    /// Keeps both. The descriptor stays open, so that rsstat finds the file.
    fn keep(self) {
        library_fds::set_table(self.fd.as_raw_fd());
        mem::forget(self);
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nobody else knows the mapping.
        unsafe { libc::munmap(self.start.cast(), layout::SIZE) };
    }
}

/// Creates a memory file.
fn memory_file() -> Option<OwnFd> {
    // SAFETY: the name is a C string.
    let create = |flags| OwnFd::new(unsafe { libc::memfd_create(layout::NAME.as_ptr(), flags) });
    create(libc::MFD_CLOEXEC | NOEXEC_SEAL).or_else(|_| create(libc::MFD_CLOEXEC)).ok()
}

/// Returns the entry with an index below [`ENTRIES`].
fn entry(header: &'static Header, index: u32) -> &'static layout::Entry {
    // SAFETY: the table has `ENTRIES` entries after its header; all fields are atomic.
    unsafe { &*ptr::from_ref(header).add(1).cast::<layout::Entry>().add(index as usize) }
}

/// The entry of an rsocket, free again when this is dropped.
#[derive(Debug)]
pub struct Entry {
    entry: &'static layout::Entry,
    index: u32,
    owner: Owner,
}

impl Entry {
    /// Lists an rsocket with the descriptor `fd` and the addresses and device of `id`. Returns
    /// `None` without a table or a free entry.
    pub fn new(state: u32, fd: c_int, id: &Id, qp_number: u32, backlog: u32) -> Option<Entry> {
        let header = table()?;
        let Some(index) = reserve(header) else {
            header.unlisted.fetch_add(1, Relaxed);
            return None;
        };
        let entry = entry(header, index);
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
        entry.generation.fetch_add(1, Relaxed);
        entry.state.store(state, Release);
        Some(Entry { entry, index, owner: Owner::this_process() })
    }

    /// Returns the counters, which one thread at a time changes as long as the entry exists.
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
        // A child of fork() shares its parent's table.
        if self.owner.is_this_process() {
            self.entry.state.store(layout::FREE, Release);
            // Low entries first: fewer pages are in use.
            NEXT.fetch_min(self.index, Relaxed);
        }
    }
}

/// Takes a free entry and clears its counters. Returns its index.
fn reserve(header: &'static Header) -> Option<u32> {
    let start = NEXT.load(Relaxed);
    let indexes = (0..ENTRIES as u32).map(|step| (start + step) % ENTRIES as u32);
    for index in indexes {
        let entry = entry(header, index);
        if entry.state.load(Relaxed) == layout::FREE
            && entry.state.compare_exchange(layout::FREE, RESERVED, Acquire, Relaxed).is_ok()
        {
            NEXT.store((index + 1) % ENTRIES as u32, Relaxed);
            header.end.fetch_max(index + 1, Relaxed);
            clear(&entry.counters);
            return Some(index);
        }
    }
    None
}

fn clear(counters: &Counters) {
    let Counters { sent_bytes, sent_messages, received_bytes, received_messages, read_bytes, send_waits, .. } =
        counters;
    for counter in [sent_bytes, sent_messages, received_bytes, received_messages, read_bytes, send_waits] {
        counter.store(0, Relaxed);
    }
    for counter in [&counters.credits, &counters.send_queued, &counters.send_buffer, &counters.receive_buffer] {
        counter.store(0, Relaxed);
    }
}

/// Returns the first bytes of an address, which hold all of it.
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

/// Adds to a counter that one thread at a time changes: cheaper than an atomic addition.
#[inline]
pub fn add(counter: &AtomicU64, number: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(number), Relaxed);
}
