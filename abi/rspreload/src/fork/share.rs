//! fork(2) with rsockets: the child may use those of its parent, as it may use the kernel's.
//!
//! An rsocket lives in the memory and in the queues of one process. So in fork mode that process
//! makes the child's calls ([`super::relay`]): a pair of sockets for each rsocket, made when the
//! process forks, carries them there ([`super::remote`]). The child of a child has no rsockets.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use super::fork_lock::ForkLock;
use super::moving::Moving;
use super::remote::MAX_CHANNELS;
use super::state::{DECIDED, is_decided};
use super::{copy, relay, remote};
use crate::table::{self, Entry, Kind};
use crate::{errno, next_symbol, process, rsocket};

/// Whether there has ever been an rsocket to share.
static ANY: AtomicBool = AtomicBool::new(false);

/// The lock of what follows, held from before fork(2) until after it. A fork(2) that began before
/// there was anything to share does not hold it.
static FORKING: ForkLock = ForkLock::new();

/// An rsocket, and the pair of sockets that carries a child's calls on it.
struct Pair {
    inner: AtomicI32,
    parent: AtomicI32,
    child: AtomicI32,
}

static PAIRS: [Pair; MAX_CHANNELS] =
    [const { Pair { inner: AtomicI32::new(-1), parent: AtomicI32::new(-1), child: AtomicI32::new(-1) } }; MAX_CHANNELS];
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A pending socket has become an rsocket: from now on fork(2) shares rsockets.
pub fn made() {
    ANY.store(true, Ordering::SeqCst);
}

/// Whether `fd` is an end of a pair, which must survive programs that close every number there is.
pub fn is_end(fd: c_int) -> bool {
    ANY.load(Ordering::SeqCst) && (relay::is_end(fd) || remote::is_channel(fd))
}

fn pairs() -> &'static [Pair] {
    &PAIRS[..COUNT.load(Ordering::SeqCst) as usize]
}

/// Makes a pair for each rsocket of fork mode.
pub fn before_fork() {
    // A child of clone(2) may have the lock of a thread that it does not have, and a child of
    // vfork(2) would change what is its parent's. Neither has rsockets to share. Within another
    // fork(2) of this thread, in the child's handlers, the process is not known yet.
    if !ANY.load(Ordering::SeqCst) || process::is_guest() && !FORKING.is_mine() {
        return;
    }
    // Within another fork(2) of this thread there is nothing to prepare: its pairs are the outer
    // one's child's.
    if FORKING.enter() {
        Moving::stop_for_fork();
        COUNT.store(0, Ordering::SeqCst);
        errno::keeping(|| each(add));
    }
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

/// Makes the pair of an rsocket, and takes a reference for the thread that is to serve it.
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

/// Serves the child's calls.
pub fn in_parent() {
    if FORKING.is_outermost() {
        errno::keeping(serve);
        Moving::go_on();
    }
    if FORKING.is_mine() {
        FORKING.leave();
    }
}

fn serve() {
    for pair in pairs() {
        let (inner, end) = (pair.inner.load(Ordering::SeqCst), pair.parent.load(Ordering::SeqCst));
        // SAFETY: descriptors that only this library knows.
        unsafe {
            next_symbol::close(pair.child.load(Ordering::SeqCst));
            if !relay::serve(end, inner) {
                next_symbol::close(end);
                // Not the last one, unless another thread closes it just now.
                rsocket::release(Entry { kind: Kind::Socket, flags: DECIDED, inner });
            }
        }
    }
}

/// Takes the child's ends of the pairs.
pub fn in_child() {
    if FORKING.is_mine() {
        errno::keeping(|| take_channels(FORKING.is_outermost()));
    } else if ANY.load(Ordering::SeqCst) {
        // Of a child of clone(2), which has prepared nothing: its parent's channels are not shared.
        remote::forget();
        errno::keeping(drop_relayed);
    }
    // Also after a fork(2) that did not hold it: a thread that forked at the same time, and is not
    // in this process, may have.
    FORKING.reset();
}

/// The pairs are this child's, or those of the child of another fork(2) that is not over: two
/// processes can't share a channel.
fn take_channels(are_own: bool) {
    relay::forget();
    remote::forget();
    drop_relayed();
    for (number, pair) in pairs().iter().enumerate() {
        let child = pair.child.load(Ordering::SeqCst);
        if are_own {
            remote::add(number, child);
        } else {
            // SAFETY: the copy of a descriptor that only this library knows.
            unsafe { next_symbol::close(child) };
        }
        // SAFETY: a descriptor that only this library knows.
        unsafe { next_symbol::close(pair.parent.load(Ordering::SeqCst)) };
    }
    if are_own {
        each(relay_by_parent);
    }
}

/// Sends the child's calls on a number to the parent from now on.
fn relay_by_parent(fd: c_int, entry: Entry) {
    let Some(pair) = find(entry.inner) else { return };
    let channel = pair.child.load(Ordering::SeqCst);
    // The second and later numbers add to the first one's reference.
    if table::hold(channel) || table::first(channel).is_ok() {
        table::swap(fd, Some(Entry { kind: Kind::Relayed, flags: entry.inner as u32, inner: channel }));
    }
}

/// Drops what the parent used by way of its own parent: two processes can't share a channel. The
/// numbers keep their TCP sockets, on which reading finds the end.
fn drop_relayed() {
    for fd in 0..copy::numbers() {
        if let Some(entry @ Entry { kind: Kind::Relayed, .. }) = table::get(fd) {
            table::swap(fd, None);
            if table::drop(entry.inner) {
                // SAFETY: the child's copy of a descriptor that only this library knows.
                unsafe { next_symbol::close(entry.inner) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Deadline;

    /// A child that clone(2) makes without handlers, and that prepares a fork(2) of its own.
    fn child_that_forks() -> c_int {
        // SAFETY: the child makes system calls only, and ends.
        unsafe {
            let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as c_int;
            if child == 0 {
                before_fork();
                libc::_exit(0);
            }
            child
        }
    }

    #[test]
    fn a_child_of_clone_waits_for_no_thread_of_its_parent() {
        process::own();
        made();
        FORKING.enter();
        let child = std::thread::spawn(child_that_forks).join();
        FORKING.leave();
        let (child, mut status, end) = (child.unwrap(), -1, Deadline::after(5_000));
        // SAFETY: the child of this test; `status` is writable.
        unsafe {
            while libc::waitpid(child, &raw mut status, libc::WNOHANG) == 0 && end.left() > 0 {
                libc::usleep(1_000);
            }
            if status != 0 {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, core::ptr::null_mut(), 0);
            }
        }
        assert_eq!(status, 0);
    }
}
