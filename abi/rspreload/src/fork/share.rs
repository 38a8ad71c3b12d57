//! fork(2) with rsockets: the child may use those of its parent, as it may use the kernel's.
//!
//! An rsocket lives in the memory of one process and in its queues. So in fork mode the process that has it does what
//! the child wants done ([`super::relay`]): a pair of sockets for each rsocket, made when the process forks, carries the
//! child's calls there ([`super::remote`]). The child of a child has no rsockets.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use super::parked::Moving;
use super::{copy, relay, remote};
use crate::table::{self, Entry, Kind};
use crate::{errno, fds, real};

/// In the flags of an rsocket's entry: it came out of a pending socket.
pub const DECIDED: u32 = 1;

/// Whether a socket's number is one that was pending, a TCP socket's.
pub fn is_decided(entry: Entry) -> bool {
    entry.flags & DECIDED != 0
}

/// Rsockets that one fork() shares at most: each is a thread of the parent.
pub const MOST: usize = 64;

/// Whether there has ever been an rsocket to share.
static ANY: AtomicBool = AtomicBool::new(false);

/// Held from before a fork() until after it, for what follows.
static FORKING: AtomicBool = AtomicBool::new(false);

/// What is shared.
struct Pair {
    inner: AtomicI32,
    parent: AtomicI32,
    child: AtomicI32,
}

static PAIRS: [Pair; MOST] =
    [const { Pair { inner: AtomicI32::new(-1), parent: AtomicI32::new(-1), child: AtomicI32::new(-1) } }; MOST];
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A pending socket has become an rsocket.
pub fn made() {
    if !ANY.swap(true, Ordering::SeqCst) {
        // SAFETY: functions of this library, which is never unloaded. Without memory for it children have no rsockets.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    }
}

/// Whether `fd` is an end of a pair: programs that close all numbers there are must not close it.
pub fn is_end(fd: c_int) -> bool {
    ANY.load(Ordering::SeqCst) && (relay::is_end(fd) || remote::is_channel(fd))
}

fn pairs() -> &'static [Pair] {
    &PAIRS[..COUNT.load(Ordering::SeqCst) as usize]
}

extern "C" fn before() {
    while FORKING.swap(true, Ordering::Acquire) {
        // Another thread forks: that is soon over.
        // SAFETY: no arguments.
        unsafe { libc::sched_yield() };
    }
    Moving::stop_for_fork();
    COUNT.store(0, Ordering::SeqCst);
    errno::keeping(|| each(add));
}

/// Calls `call` with each number of the program for an rsocket of fork mode.
fn each(mut call: impl FnMut(c_int, Entry)) {
    for fd in 0..copy::numbers() {
        if let Some(entry) = table::get(fd)
            && entry.kind == Kind::Socket
            && is_decided(entry)
        {
            call(fd, entry);
        }
    }
}

/// The pair of an rsocket, and a reference for the thread that is to serve it.
fn add(_fd: c_int, entry: Entry) {
    let count = COUNT.load(Ordering::SeqCst);
    let Some(pair) = PAIRS.get(count as usize) else { return };
    if find(entry.inner).is_some() || !table::hold(entry.inner) {
        return;
    }
    let mut ends = [-1; 2];
    // SAFETY: room for two numbers. It is not one of the names that this library defines.
    if unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) } != 0
    {
        table::drop(entry.inner);
        return;
    }
    pair.inner.store(entry.inner, Ordering::SeqCst);
    pair.parent.store(ends[0], Ordering::SeqCst);
    pair.child.store(ends[1], Ordering::SeqCst);
    COUNT.store(count + 1, Ordering::SeqCst);
}

fn find(inner: c_int) -> Option<&'static Pair> {
    pairs().iter().find(|pair| pair.inner.load(Ordering::SeqCst) == inner)
}

extern "C" fn in_parent() {
    errno::keeping(|| {
        for pair in pairs() {
            let (inner, end) = (pair.inner.load(Ordering::SeqCst), pair.parent.load(Ordering::SeqCst));
            // SAFETY: descriptors that only this library knows.
            unsafe {
                real::close(pair.child.load(Ordering::SeqCst));
                if !relay::serve(end, inner) {
                    real::close(end);
                    // Not the last one, unless another thread closes it just now.
                    fds::release(Entry { kind: Kind::Socket, flags: DECIDED, inner });
                }
            }
        }
    });
    Moving::go_on();
    FORKING.store(false, Ordering::Release);
}

extern "C" fn in_child() {
    errno::keeping(|| {
        relay::forget();
        remote::forget();
        drop_relayed();
        for (place, pair) in pairs().iter().enumerate() {
            remote::add(place, pair.child.load(Ordering::SeqCst));
            // SAFETY: a descriptor that only this library knows.
            unsafe { real::close(pair.parent.load(Ordering::SeqCst)) };
        }
        each(relayed);
    });
    Moving::reset();
    FORKING.store(false, Ordering::Release);
}

/// In the child: from now on by way of the parent.
fn relayed(fd: c_int, entry: Entry) {
    let Some(pair) = find(entry.inner) else { return };
    let channel = pair.child.load(Ordering::SeqCst);
    // The second and later numbers add to the first one's reference.
    if table::hold(channel) || table::first(channel).is_ok() {
        table::swap(fd, Some(Entry { kind: Kind::Relayed, flags: entry.inner as u32, inner: channel }));
    }
}

/// What was the parent's by way of its own parent is nothing here: two processes can not share a channel. The numbers
/// keep the TCP sockets, which are at their end.
fn drop_relayed() {
    for fd in 0..copy::numbers() {
        if let Some(entry @ Entry { kind: Kind::Relayed, .. }) = table::get(fd) {
            table::swap(fd, None);
            if table::drop(entry.inner) {
                // SAFETY: the child's copy of a descriptor that only this library knows.
                unsafe { real::close(entry.inner) };
            }
        }
    }
}
