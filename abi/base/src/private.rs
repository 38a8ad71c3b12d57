//! The private interface between librdmacm and librspreload: options of a private level of
//! `rgetsockopt` and `rsetsockopt`. rdma-core's librdmacm rejects this level; librspreload works
//! without the options.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Returns the lowest descriptor that the library uses for itself under these limits
/// (RLIMIT_NOFILE). This is the soft limit, above the program's descriptors, if the soft limit is
/// below 2^19 and at most half of the hard limit. Otherwise the program keeps the lower half of the
/// soft limit, or the 1024 descriptors of select(2) if these are fewer.
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

/// `rsetsockopt`, any descriptor: the library uses high descriptors for itself from now on, so that
/// the program gets the descriptors that it would get without RDMA.
pub const RESERVE_LOW_FDS: i32 = 1;

/// `rgetsockopt`, any descriptor: an int, 1 if the descriptor is the library's own. A program that
/// closes all descriptors must not close it.
pub const IS_OWN: i32 = 0;

/// `rgetsockopt`, any descriptor: a [`Marks`]. [`IS_OWN`] is 0 for descriptors without a mark.
pub const MARKS: i32 = 14;

/// The value of [`MARKS`]: one bit for each descriptor, in words whose address never changes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Marks {
    /// The first word.
    pub words: *const AtomicU64,
    /// Number of words.
    pub count: usize,
    /// Number of marks.
    pub used: *const AtomicUsize,
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

/// `rsetsockopt`, when the process exits: delivers the data that the program has sent on streams,
/// and disconnects the streams.
pub const FLUSH_ON_EXIT: i32 = 2;

/// `rsetsockopt` on a stream: as with TCP, the first send after the peer's close succeeds, and
/// later sends raise SIGPIPE.
pub const SIGPIPE: i32 = 3;

/// `rsetsockopt` on a stream: cancels the stream's attempt to connect. Fails with `EISCONN` if the
/// attempt has succeeded; after a cancelled attempt the peer never reports the connection.
pub const CANCEL: i32 = 6;

/// `rgetsockopt` on an rsocket: an int, the number of bytes that can be received. On a datagram
/// socket, the length of the first datagram.
pub const READABLE_BYTES: i32 = 7;

/// `rgetsockopt` on a stream: an int, the number of bytes that are sent and not acknowledged.
pub const UNSENT_BYTES: i32 = 8;

/// `rgetsockopt` on a listener: stops answering connection requests, for good. An int, the number
/// of connections that raccept may still return. This includes connections in the handshake, whose
/// peers may already have received the acceptance.
pub const LAST_CONNECTIONS: i32 = 9;

/// `rsetsockopt` on an instance of repoll_create: a [`Handover`], which moves one of its members to
/// a kernel epoll instance. Does nothing if there is no such member.
pub const HAND_OVER: i32 = 11;

/// The value of [`HAND_OVER`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Handover {
    /// The member, which is removed from the instance.
    pub member: i32,
    /// The kernel descriptor that is added to `epfd`, with the event of the member.
    pub fd: i32,
    /// The kernel epoll instance.
    pub epfd: i32,
}

/// `rsetsockopt` on a stream: the program's descriptors of the stream refer to other sockets from
/// now on, and only librspreload uses the stream. rpoll reports POLLNVAL for the stream unless
/// [`FORWARDER_EVENT`] is requested, and rselect fails with EAGAIN. Threads that wait are woken.
pub const HANDED_OVER: i32 = 12;

/// A requested event of rpoll: the caller is librspreload, which uses the stream since
/// [`HANDED_OVER`].
pub const FORWARDER_EVENT: i16 = 0x0400;

/// A flag of rrecv: the caller is librspreload, which uses the stream since [`HANDED_OVER`]. A call
/// without the flag stops reading, and fails with EAGAIN if it has read no data. The kernel has no
/// flag of this value.
pub const FORWARDER_FLAG: i32 = 0x0100_0000;

/// `rsetsockopt`, any descriptor: an int, a step of a fork(2) that runs no handlers. Does what
/// librdmacm's handler for this step would do.
pub const FORK: i32 = 13;
/// The step of [`FORK`] before the fork.
pub const FORK_BEFORE: i32 = 0;
/// The step of [`FORK`] in the parent, after the fork.
pub const FORK_IN_PARENT: i32 = 1;
/// The step of [`FORK`] in the child.
pub const FORK_IN_CHILD: i32 = 2;

/// `rsetsockopt`, any descriptor: a line for the log of `RDMACM_LOG`, as text.
pub const LOG: i32 = 5;
