//! The table of a process's rsockets, which rsstat(8) reads.
//!
//! It is shared memory without a name in the file system: rsstat opens `/proc/PID/fd/N`, which the
//! kernel permits to the same user. A process whose table is read does nothing for that. Each number
//! is written by one thread at a time and read by another process at any time: numbers of one entry
//! may be of different instants.

use core::ffi::CStr;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// The name of the memory file, as it appears in `/proc/PID/fd`.
pub const NAME: &CStr = c"rsockets";
/// The first bytes of the table.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rsockets");
/// Changes when the layout changes.
pub const VERSION: u32 = 1;
/// Number of entries.
pub const ENTRIES: usize = 4095;
/// Bytes of an address: those of the longest, `sockaddr_ib`.
pub const ADDRESS: usize = 48;
/// Bytes of a device's name; zeros follow a shorter one.
pub const DEVICE: usize = 24;

/// An unused entry, or one that is being written.
pub const FREE: u32 = 0;
/// States of an rsocket.
pub const LISTENING: u32 = 1;
/// A connected stream.
pub const CONNECTED: u32 = 2;
/// The connection has ended, or the program has closed it and its last data is still being sent.
pub const CLOSING: u32 = 3;
/// A datagram socket.
pub const DATAGRAM: u32 = 4;

/// The table.
#[repr(C)]
#[derive(Debug)]
pub struct Table {
    /// What the file is.
    pub header: Header,
    /// The rsockets.
    pub entries: [Entry; ENTRIES],
}

/// The beginning of the table.
#[repr(C, align(256))]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`], written last.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// The process, by its number in its own PID namespace: a child of fork(2) has its parent's
    /// table as well.
    pub pid: AtomicU32,
    /// The end of the entries that were ever used.
    pub end: AtomicU32,
}

/// An rsocket.
#[repr(C, align(256))]
#[derive(Debug)]
pub struct Entry {
    /// One of the states.
    pub state: AtomicU32,
    /// The program's descriptor.
    pub fd: AtomicI32,
    /// Number of the QP.
    pub qp_number: AtomicU32,
    /// Port of the device.
    pub port: AtomicU32,
    /// Name of the device.
    pub device: [AtomicU64; DEVICE / 8],
    /// The local address.
    pub local: [AtomicU64; ADDRESS / 8],
    /// The peer's address.
    pub peer: [AtomicU64; ADDRESS / 8],
    /// The listen backlog.
    pub backlog: AtomicU32,
    /// What has happened so far.
    pub counters: Counters,
}

/// Numbers of a connection. Bytes and messages are counted from its beginning.
#[repr(C)]
#[derive(Debug)]
pub struct Counters {
    /// Bytes given to the device to send.
    pub sent_bytes: AtomicU64,
    /// Messages that carried them.
    pub sent_messages: AtomicU64,
    /// Bytes that have arrived and were noticed.
    pub received_bytes: AtomicU64,
    /// Messages that carried them.
    pub received_messages: AtomicU64,
    /// Bytes that the program has read.
    pub read_bytes: AtomicU64,
    /// How often a call had to wait before it could send.
    pub send_waits: AtomicU64,
    /// Messages that the peer has receives for.
    pub credits: AtomicU32,
    /// Bytes of the send buffer in use, according to the completions so far.
    pub send_queued: AtomicU32,
    /// Bytes of the send buffer.
    pub send_buffer: AtomicU32,
    /// Bytes of the receive buffer.
    pub receive_buffer: AtomicU32,
}

const _: () = assert!(size_of::<Header>() == 256 && size_of::<Entry>() == 256);

impl Counters {
    /// Counts a message given to the device.
    #[inline]
    pub fn count_sent(&self, bytes: u32) {
        add(&self.sent_bytes, bytes.into());
        add(&self.sent_messages, 1);
    }

    /// Counts a message that has arrived.
    #[inline]
    pub fn count_received(&self, bytes: u32) {
        add(&self.received_bytes, bytes.into());
        add(&self.received_messages, 1);
    }

    /// Counts bytes that the program has read.
    #[inline]
    pub fn count_read(&self, bytes: u64) {
        add(&self.read_bytes, bytes);
    }

    /// Counts a call that has to wait before it can send.
    #[inline]
    pub fn count_send_wait(&self) {
        add(&self.send_waits, 1);
    }

    /// Sets all numbers to 0.
    pub fn clear(&self) {
        let Counters { sent_bytes, sent_messages, received_bytes, received_messages, read_bytes, send_waits, .. } =
            self;
        for counter in [sent_bytes, sent_messages, received_bytes, received_messages, read_bytes, send_waits] {
            counter.store(0, Relaxed);
        }
        for counter in [&self.credits, &self.send_queued, &self.send_buffer, &self.receive_buffer] {
            counter.store(0, Relaxed);
        }
    }
}

/// Adds to a counter that one thread at a time changes: cheaper than an atomic addition.
#[inline]
fn add(counter: &AtomicU64, number: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(number), Relaxed);
}
