//! The program's descriptors: what each one is, where a call on it goes, and how opening, copying
//! and closing it change the table and its reference counts.

use core::ffi::c_int;

use crate::epoll::members;
use crate::table::{self, Entry, Kind};
use crate::transition::{Intent, Target};
use crate::{auto, epoll, errno, fork, next_symbol, open_fds, process, rsocket};

/// What a descriptor of the program is.
#[derive(Clone, Copy)]
pub enum Fd {
    /// A descriptor of the kernel without an entry in the table.
    Kernel,
    /// A placeholder for an rsocket.
    Rsocket(Entry),
    /// A TCP socket of fork mode that may become an rsocket.
    Pending(Entry),
    /// A kernel epoll instance with an instance of librdmacm as a member ([`crate::epoll`]).
    Epoll,
    /// A TCP socket for which an rsocket connects, in automatic mode.
    Connecting(Entry),
    /// A kernel descriptor that automatic mode tracks: a listener, or a socket whose data is
    /// forwarded.
    Tracked(Entry),
}

impl Fd {
    /// Returns what `fd` is. Costs one load while [`table::any`] is false, and one table look-up
    /// afterwards.
    #[inline(always)]
    pub fn of(fd: c_int) -> Fd {
        table::get(fd).map_or(Fd::Kernel, Fd::from)
    }
}

impl From<Entry> for Fd {
    #[inline(always)]
    fn from(entry: Entry) -> Fd {
        match entry.kind {
            Kind::Socket => Fd::Rsocket(entry),
            Kind::Pending => Fd::Pending(entry),
            Kind::Epoll => Fd::Epoll,
            Kind::Connecting => Fd::Connecting(entry),
            Kind::Listener | Kind::Forwarded => Fd::Tracked(entry),
        }
    }
}

/// Returns where a call that moves data goes, or `None` if one table look-up does not tell.
#[inline(always)]
pub fn data_at_once(fd: c_int) -> Option<Target> {
    match Fd::of(fd) {
        Fd::Kernel => Some(Ok(None)),
        Fd::Rsocket(entry) if entry.is_settled() => Some(Ok(Some(entry.handle))),
        _ => None,
    }
}

/// Returns where a call that moves data or shuts down goes. Decides what a pending socket becomes.
#[inline(always)]
pub fn data(fd: c_int, intent: Intent) -> Target {
    data_at_once(fd).unwrap_or_else(|| decide(fd, intent))
}

#[cold]
#[inline(never)]
fn decide(fd: c_int, intent: Intent) -> Target {
    match Fd::of(fd) {
        Fd::Kernel | Fd::Epoll => Ok(None),
        Fd::Tracked(entry) => {
            auto::before_use(entry, intent);
            Ok(None)
        }
        Fd::Connecting(entry) => {
            auto::resolve_attempt(fd, entry, intent)?;
            data(fd, intent)
        }
        Fd::Rsocket(entry) => Ok(check_rsocket(fd, entry).then_some(entry.handle)),
        Fd::Pending(entry) => fork::resolve_pending(fd, entry, intent),
    }
}

/// Opens a placeholder at the lowest free descriptor, the one that socket(2) would return: a kernel
/// socket, with SOCK_CLOEXEC and SOCK_NONBLOCK as in `flags`. The placeholder serves the calls that
/// this library does not intercept, such as fstat(2). Fails with the errno of socket(2).
pub fn open_placeholder(flags: c_int) -> Result<c_int, c_int> {
    let fd = on_new_fd(next_symbol::socket(libc::AF_INET, libc::SOCK_STREAM | flags, 0));
    if fd < 0 { Err(errno::get()) } else { Ok(fd) }
}

/// Stores the entry of the new descriptor `fd`, and drops its stale entry, if any. The caller has
/// called [`table::prepare`].
pub fn put(fd: c_int, entry: Entry) {
    if let Some(before) = table::swap(fd, Some(entry))
        && before.handle != entry.handle
    {
        drop_stale(before);
    }
}

/// Drops the stale entry and the stale epoll record of `fd`, if any. `fd` is the result of a call
/// that creates a kernel descriptor, or -1. Returns `fd`.
#[inline(always)]
pub fn on_new_fd(fd: c_int) -> c_int {
    if table::get(fd).is_some() {
        clear_entry(fd);
    }
    members::forget(fd);
    fd
}

#[cold]
fn clear_entry(fd: c_int) {
    // A child of vfork(2) has descriptors of its own, but uses its parent's table.
    if !process::is_guest()
        && let Some(before) = table::swap(fd, None)
    {
        drop_stale(before);
    }
}

/// Drops the entry of a descriptor that was closed without an intercepted call (in librspreload.so,
/// fclose(3) and close_range(2)). Does not close an inherited rsocket: librdmacm's descriptors for
/// it may have been closed without an intercepted call, too, and may refer to other files by now.
#[cold]
fn drop_stale(before: Entry) {
    if before.kind == Kind::Socket && before.is_inherited() {
        table::leave_index(before.handle, before.index());
        table::drop(before.handle);
    } else {
        errno::keeping(|| release(before));
    }
}

/// Adds a reference to the object behind a descriptor. Returns the entry for the descriptor that
/// will hold the reference, or `None` if the descriptor is being closed or a connection attempt is
/// under way.
pub fn hold(entry: Entry) -> Option<Entry> {
    match entry.kind {
        Kind::Socket => rsocket::hold(entry),
        Kind::Epoll => table::hold(entry.handle).then_some(entry),
        Kind::Listener => {
            auto::hold(entry);
            Some(entry)
        }
        // The caller must end the attempt first: then the copy has the socket's final kind.
        Kind::Connecting => None,
        Kind::Pending | Kind::Forwarded => Some(entry),
    }
}

/// Drops a descriptor's reference to the object behind the descriptor, and closes the object if it
/// was the last reference. Returns 0, or -1 with `errno`.
pub fn release(entry: Entry) -> c_int {
    match entry.kind {
        Kind::Socket if auto::is_auto(entry) => return auto::release_rsocket(entry),
        Kind::Socket => return rsocket::release(entry),
        Kind::Epoll if table::drop(entry.handle) => epoll::close_sides(entry.handle),
        Kind::Epoll | Kind::Pending | Kind::Forwarded => {}
        Kind::Listener => auto::release(entry),
        Kind::Connecting => auto::connect::abandon(entry),
    }
    0
}

/// Returns whether `fd` still stands for the rsocket `entry`. Called by the first calls that move
/// data, and by every such call on an inherited rsocket. Copies O_NONBLOCK from the placeholder,
/// except to an inherited rsocket.
fn check_rsocket(fd: c_int, entry: Entry) -> bool {
    if entry.handle == table::CLOSING {
        return true;
    }
    if entry.is_inherited() {
        return current_entry(fd).is_some();
    }
    // Fails if another thread has changed the entry meanwhile, which does no harm.
    table::replace(fd, Some(entry), Some(entry.looked()));
    rsocket::sync_nonblock(fd, entry.handle);
    true
}

/// Returns the table's entry for `fd`, after dropping a stale entry.
pub fn current_entry(fd: c_int) -> Option<Entry> {
    loop {
        let entry = table::get(fd)?;
        if !is_stale(fd, entry) {
            return Some(entry);
        }
        if table::replace(fd, Some(entry), None) {
            drop_stale(entry);
        }
    }
}

/// Whether `fd` has the entry of an rsocket, but is no socket: the placeholder was closed without
/// an intercepted call, and the descriptor was reused. A new kernel socket cannot be told from the
/// placeholder.
fn is_stale(fd: c_int, entry: Entry) -> bool {
    let is_other = |status: libc::stat| status.st_mode & libc::S_IFMT != libc::S_IFSOCK;
    entry.kind == Kind::Socket && open_fds::status(fd).is_some_and(is_other) && !process::is_guest()
}

/// Whether `fd` is a descriptor of librdmacm or of this library. Such descriptors must stay open in
/// programs that close all descriptors.
#[inline]
pub fn is_library(fd: c_int) -> bool {
    open_fds::has(fd) || rsocket::is_library_fd(fd)
}

/// Returns one more than the highest descriptor below `count` that belongs to the program, but at
/// least FD_SETSIZE.
///
/// The kernel reads the sets of select(2) up to `count`, but at most to the end of the process's
/// descriptor table. Some programs pass a large count (getdtablesize(3)), and librdmacm's own
/// descriptors may make the table larger than the program's sets are.
#[cold]
pub fn programs_count(count: c_int) -> c_int {
    let mut highest = libc::FD_SETSIZE as c_int - 1;
    errno::keeping(|| {
        open_fds::each(0..count, |fd| {
            if fd > highest && (table::get(fd).is_some() || !is_library(fd)) {
                highest = fd;
            }
        });
    });
    highest + 1
}

#[cfg(test)]
mod tests_of_sets {
    use super::*;

    #[test]
    fn sets_have_fd_setsize_bits_at_least() {
        assert_eq!(programs_count(10), libc::FD_SETSIZE as c_int);
    }
}
