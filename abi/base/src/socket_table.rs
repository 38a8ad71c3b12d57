//! The table of a process's rsockets, which rsstat(8) reads.
//!
//! The table is shared memory without a name in the file system: rsstat opens `/proc/PID/fd/N`,
//! which the kernel permits to the same user, and reads the table without help from the process.
//! Each number is written by one thread at a time and may be read at any time: the numbers of one
//! entry may be from different instants.

use core::ffi::CStr;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// The name of the memory file, as it appears in `/proc/PID/fd`.
pub const NAME: &CStr = c"rsockets";
/// The first bytes of the table.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rsockets");
/// Version of the table's layout.
pub const VERSION: u32 = 1;
/// Number of entries.
pub const ENTRIES: usize = 4095;
/// Bytes of an address, enough for the longest, `sockaddr_ib`.
pub const ADDRESS: usize = 48;
/// Bytes of a device's name; zeros follow a shorter one.
pub const DEVICE: usize = 24;

/// State of an unused entry. An entry that is being written has a state that is not listed here.
pub const FREE: u32 = 0;
/// State of a listener.
pub const LISTENING: u32 = 1;
/// State of a connected stream.
pub const CONNECTED: u32 = 2;
/// State of a stream whose connection has ended, or that the program has closed while its last data
/// is still being sent.
pub const CLOSING: u32 = 3;
/// State of a datagram socket.
pub const DATAGRAM: u32 = 4;

/// The table.
#[repr(C)]
#[derive(Debug)]
pub struct Table {
    /// Identifies the file and its process.
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
    /// The process that created the table, by its number in its own PID namespace: rsstat ignores
    /// the table in a child of fork(2), which inherits it.
    pub pid: AtomicU32,
    /// One more than the highest index of an entry that was ever used.
    pub end: AtomicU32,
}

/// An rsocket.
#[repr(C, align(256))]
#[derive(Debug)]
pub struct Entry {
    /// [`FREE`], or one of the other states.
    pub state: AtomicU32,
    /// The program's descriptor.
    pub fd: AtomicI32,
    /// Number of the QP; 0 for a listener.
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
    /// Traffic so far, and the sizes of the buffers.
    pub counters: Counters,
}

/// Counters and buffers of a connection or datagram socket. Bytes and messages are counted from the
/// beginning of the connection or socket.
#[repr(C)]
#[derive(Debug)]
pub struct Counters {
    /// Bytes given to the device to send.
    pub sent_bytes: AtomicU64,
    /// Messages that carried the sent bytes.
    pub sent_messages: AtomicU64,
    /// Bytes that have arrived and whose completions were processed.
    pub received_bytes: AtomicU64,
    /// Messages that carried the received bytes.
    pub received_messages: AtomicU64,
    /// Bytes that the program has read.
    pub read_bytes: AtomicU64,
    /// How often a call had to wait before it could send.
    pub send_waits: AtomicU64,
    /// Credits: messages that may be sent, because the peer has posted receives for them.
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

/// Adds to a counter that only one thread at a time changes: cheaper than an atomic addition.
#[inline]
fn add(counter: &AtomicU64, number: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(number), Relaxed);
}
