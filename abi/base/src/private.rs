//! What librdmacm and librspreload share besides the public interface: options of a private level
//! of `rgetsockopt` and `rsetsockopt`. The reference's library rejects that level; librspreload
//! works without them.

use core::sync::atomic::{AtomicU64, Ordering};

/// Lowest number of the library's descriptors in a process with these limits (RLIMIT_NOFILE).
/// Numbers from the soft limit on are none of the program's. If the hard limit has no room for them
/// the program gets at least half, and needs no more low ones than select(2) uses.
pub const fn lowest_library_fd(soft: u64, hard: u64) -> i32 {
    const SELECT: u64 = 1024;
    const MANY: u64 = 1 << 19;
    if soft <= hard / 2 && soft < MANY {
        soft as i32
    } else if soft / 2 < SELECT {
        (soft / 2) as i32
    } else {
        SELECT as i32
    }
}

/// The private level.
pub const LEVEL: i32 = 0x7273_6f63;

/// `rsetsockopt`, any descriptor: the library's own descriptors get high numbers from now on, so
/// that the program's are those that it would have without RDMA.
pub const RESERVE_LOW_FDS: i32 = 1;

/// `rgetsockopt`, any descriptor: an int, 1 if it is the library's own, which a program that closes
/// all descriptors must not close.
pub const IS_OWN: i32 = 0;

/// `rgetsockopt`, any descriptor: a [`Marks`]. Where it has no mark, [`IS_OWN`] is 0.
pub const MARKS: i32 = 14;

/// The value of [`MARKS`]: one bit for each descriptor, in words that stay where they are.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Marks {
    /// Where the words begin.
    pub words: *const AtomicU64,
    /// Number of words.
    pub count: usize,
}

impl Marks {
    /// Returns whether `fd` has a mark.
    ///
    /// # Safety
    /// `count` words are readable from `words` on.
    pub unsafe fn has(&self, fd: i32) -> bool {
        let Ok(fd) = usize::try_from(fd) else { return false };
        // SAFETY: the word is one of `count`, which are readable: guaranteed by the caller.
        fd / 64 < self.count && unsafe { &*self.words.add(fd / 64) }.load(Ordering::Relaxed) >> (fd % 64) & 1 == 1
    }
}

/// `rsetsockopt`, when the process exits: delivers what its streams have sent, and signals the end
/// to their peers.
pub const FLUSH_ON_EXIT: i32 = 2;

/// `rsetsockopt` on a stream: as with TCP, the first send after the peer's close succeeds, and
/// later ones raise SIGPIPE.
pub const SIGPIPE: i32 = 3;

/// `rgetsockopt`, for tests: microseconds of the reactor's longest turn since this was last asked.
pub const LONGEST_TURN: i32 = 4;

/// `rsetsockopt` on a stream: cancels its attempt to connect. Fails with `EISCONN` if it has
/// succeeded: either the peer never reports the connection, or it is there.
pub const CANCEL: i32 = 6;

/// `rgetsockopt` on an rsocket: an int, the bytes that are there to receive. On a datagram socket,
/// those of the first datagram.
pub const READABLE_BYTES: i32 = 7;

/// `rgetsockopt` on a stream: an int, the bytes that are sent and not acknowledged.
pub const UNSENT_BYTES: i32 = 8;

/// `rgetsockopt` on a listener: makes it answer no more requests, for good. An int, the connections
/// that raccept has not returned, also those in the handshake, whose peers may know that they are
/// accepted.
pub const LAST_CONNECTIONS: i32 = 9;

/// `rsetsockopt` on a repoll instance: a [`Handover`] of one of its members to an epoll instance of
/// the kernel's. Does nothing if there is no such member.
pub const HAND_OVER: i32 = 11;

/// The value of [`HAND_OVER`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Handover {
    /// The member, which is removed.
    pub member: i32,
    /// A descriptor of the kernel's, which `epfd` gets with the event of the member.
    pub fd: i32,
    /// The epoll instance of the kernel.
    pub epfd: i32,
}

/// `rsetsockopt` on a stream: the numbers by which the program knew it are other sockets from now on.
/// rpoll reports POLLNVAL to those that do not ask for [`FORWARDER_EVENT`], and rselect fails with
/// EAGAIN, also for those that wait.
pub const HANDED_OVER: i32 = 12;

/// Among the events that rpoll is asked for: the caller has the stream since [`HANDED_OVER`].
pub const FORWARDER_EVENT: i16 = 0x0400;

/// A flag of rrecv: the caller has the stream since [`HANDED_OVER`]. Others fail with EAGAIN and
/// take nothing. The kernel has no flag of this value.
pub const FORWARDER_FLAG: i32 = 0x0100_0000;

/// `rsetsockopt`, any descriptor: an int, a step of a fork(2) that runs no handlers. Does what
/// librdmacm's handler for this step would do.
pub const FORK: i32 = 13;
/// A step of [`FORK`].
pub const FORK_BEFORE: i32 = 0;
/// A step of [`FORK`].
pub const FORK_IN_PARENT: i32 = 1;
/// A step of [`FORK`].
pub const FORK_IN_CHILD: i32 = 2;

/// `rsetsockopt`, any descriptor: a line for the log of `RDMACM_LOG`, as text.
pub const LOG: i32 = 5;
