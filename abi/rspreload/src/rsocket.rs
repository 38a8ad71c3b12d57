//! How this library creates and closes rsockets, and the references of the program's descriptors to
//! them.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use base::private::Marks;
use libc::{F_GETFL, F_SETFL, O_NONBLOCK};

use crate::memory::AnyBytes;
use crate::sockets::{kernel, rdma};
use crate::table::{self, Entry, Kind};
use crate::{config, errno, rsocket_abi};

const SOL_RDMA: c_int = 0x10000;

/// Creates an rsocket with the buffer sizes that the environment asks for. Returns its descriptor,
/// or -1 with `errno`.
pub fn create(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // Keep low descriptors free, because some programs have arrays for low descriptors only. Set
    // close-on-exec: an executed program cannot use the descriptors behind a placeholder.
    let _ = set_library_option(-1, base::private::RESERVE_LOW_FDS);
    let rsocket = rsocket_abi::rsocket(domain, kind | libc::SOCK_CLOEXEC, protocol);
    if rsocket >= 0 {
        // Also needed for an rsocket without a placeholder, such as a probe of automatic mode.
        table::expect_library_fds();
        find_marks();
        // Programs expect SIGPIPE, as from TCP. The option fails for datagram rsockets, which never
        // raise SIGPIPE.
        let _ = set_library_option(rsocket, base::private::SIGPIPE);
        // If librdmacm rejects a size, the default size stays.
        for (name, value) in config::sizes() {
            let _ = rdma::set(rsocket, (SOL_RDMA, name), &value);
        }
    }
    rsocket
}

/// Sets a private option of librdmacm (`rsocket` is -1) or of an rsocket to 1. Fails with the errno
/// of setsockopt(2).
pub fn set_library_option(rsocket: c_int, option: c_int) -> Result<(), c_int> {
    rdma::set(rsocket, (base::private::LEVEL, option), &1)
}

/// Moves `member` from `side`, an epoll instance of librdmacm, to the program's instance `epfd`, as
/// the kernel descriptor `fd` with the same event. Does nothing with rdma-core's librdmacm.
pub fn hand_over(side: c_int, member: c_int, fd: c_int, epfd: c_int) {
    let handover = base::private::Handover { member, fd, epfd };
    let _ = rdma::set(side, (base::private::LEVEL, base::private::HAND_OVER), &handover);
}

/// Address and number of the words of librdmacm's marks ([`base::private::Marks`]). The address is
/// NULL until an rsocket exists, and with rdma-core's librdmacm. The number is stored first.
static MARK_WORDS: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
static MARK_COUNT: AtomicUsize = AtomicUsize::new(0);
static MARKS_USED: AtomicPtr<AtomicUsize> = AtomicPtr::new(ptr::null_mut());

fn find_marks() {
    if !MARK_WORDS.load(Ordering::Relaxed).is_null() {
        return;
    }
    if let Ok(marks) = library_option::<Marks>(-1, base::private::MARKS) {
        MARK_COUNT.store(marks.count, Ordering::Relaxed);
        MARKS_USED.store(marks.used.cast_mut(), Ordering::Relaxed);
        MARK_WORDS.store(marks.words.cast_mut(), Ordering::Release);
    }
}

/// Returns a private option of librdmacm for a descriptor. Fails with the errno of getsockopt(2),
/// such as EAGAIN in a signal handler that has interrupted another call on rsockets, or with EINVAL
/// for a value of another size.
pub fn library_option<T: AnyBytes>(fd: c_int, option: c_int) -> Result<T, c_int> {
    let get = || rdma::get::<T>(fd, (base::private::LEVEL, option)).ok_or_else(errno::get);
    let (value, len) = errno::keeping(get)?;
    if len == size_of::<T>() { Ok(value) } else { Err(libc::EINVAL) }
}

/// Whether librdmacm has marked `fd` as its own; `None` if there are no marks. A mark may be stale:
/// the program may have closed the descriptor without an intercepted call and reused it.
/// Makes no system call.
#[inline]
pub fn has_mark(fd: c_int) -> Option<bool> {
    let words = MARK_WORDS.load(Ordering::Acquire);
    let marks = Marks { words, count: MARK_COUNT.load(Ordering::Relaxed), used: ptr::null() };
    // SAFETY: `words` points to `count` words of librdmacm, which are never freed.
    (!words.is_null()).then(|| unsafe { marks.has(fd) })
}

/// Returns the number of librdmacm's descriptors, as far as it is known.
pub fn own_descriptors() -> usize {
    // SAFETY: the pointer is NULL, or points to a static of librdmacm, which is never unloaded.
    unsafe { MARKS_USED.load(Ordering::Relaxed).as_ref() }.map_or(0, |used| used.load(Ordering::Relaxed))
}

/// Whether `fd` is a descriptor of librdmacm, not of the program.
///
/// Only this project's librdmacm knows the private option. With another librdmacm, every descriptor
/// counts as the program's.
#[inline]
pub fn is_library_fd(fd: c_int) -> bool {
    has_mark(fd) != Some(false) && is_own_of_library(fd)
}

#[cold]
fn is_own_of_library(fd: c_int) -> bool {
    library_option::<c_int>(fd, base::private::IS_OWN) == Ok(1)
}

/// Delivers the data of the rsockets that the program has not closed, and disconnects them.
pub fn flush_on_exit() {
    let _ = set_library_option(-1, base::private::FLUSH_ON_EXIT);
}

/// Makes the rsocket blocking or non-blocking, like its placeholder.
///
/// Programs that use `ioctl(FIONBIO)` (Python does) only change the placeholder, since
/// librspreload.so does not intercept ioctl. So this function is called where the mode matters and
/// a system call costs little: before accept and connect, when the rsocket is added to an epoll
/// instance, and by the first calls that move data. An intercepted F_SETFL changes the rsocket and
/// the placeholder.
pub fn sync_nonblock(fd: c_int, rsocket: c_int) {
    errno::keeping(|| {
        let placeholder_flags = || kernel::fcntl(fd, F_GETFL, 0);
        let mut flags = placeholder_flags();
        while flags >= 0 {
            rdma::fcntl(rsocket, F_SETFL, flags & O_NONBLOCK);
            // Another thread may have changed the mode of both since the flags were read.
            let now = placeholder_flags();
            if now & O_NONBLOCK == flags & O_NONBLOCK {
                break;
            }
            flags = now;
        }
        // A forwarded rsocket is non-blocking: the thread that forwards must not wait for it.
        if table::get(fd).is_some_and(|entry| entry.kind == Kind::Forwarded) {
            rdma::fcntl(rsocket, F_SETFL, O_NONBLOCK);
        }
    });
}

/// Adds a reference to an rsocket. Returns the entry for the descriptor that will hold the
/// reference, or `None` if the rsocket is being closed.
pub fn hold(entry: Entry) -> Option<Entry> {
    table::hold(entry.handle).then(|| entry.with_index(table::index_of(entry.handle)))
}

/// Drops a descriptor's reference to an rsocket, and closes the rsocket if this was the last
/// reference. Returns 0, or -1 with `errno`.
pub fn release(entry: Entry) -> c_int {
    if drop_reference(entry) { rsocket_abi::rclose(entry.handle) } else { 0 }
}

/// Makes a listener ignore new requests. Returns the number of connections that can still be
/// accepted, including those in the handshake; 0 if the option fails.
pub fn last_connections(rsocket: c_int) -> c_int {
    library_option(rsocket, base::private::LAST_CONNECTIONS).unwrap_or(0)
}

/// Closes an rsocket to which no descriptor refers, with a reset to the peer.
pub fn reset(rsocket: c_int) {
    reset_when_closed(rsocket);
    close(rsocket);
}

/// Closes a descriptor of librdmacm to which no entry refers; does nothing for -1. Leaves `errno`
/// alone.
pub fn close(rsocket: c_int) {
    if rsocket >= 0 {
        errno::keeping(|| rsocket_abi::rclose(rsocket));
    }
}

/// Makes a later close of the rsocket send a reset to the peer.
pub fn reset_when_closed(rsocket: c_int) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let _ = rdma::set(rsocket, (libc::SOL_SOCKET, libc::SO_LINGER), &linger);
}

/// Drops a descriptor's reference to an rsocket. Returns true if this was the last reference.
pub fn drop_reference(entry: Entry) -> bool {
    table::leave_index(entry.handle, entry.index());
    table::drop(entry.handle)
}
