//! Placeholders, and the references of the program's numbers to what is behind them.

use core::ffi::{c_int, c_void};
use core::mem;

use libc::{EBADF, F_GETFL, F_SETFL, O_CLOEXEC, O_NONBLOCK, O_RDWR, socklen_t};

use crate::table::{self, Entry, Kind};
use crate::{config, epoll, errno, fork, process, r, real};

/// Opens the number that the program is to see, the lowest that is free, as socket(2) does.
pub fn placeholder(cloexec: bool, nonblock: bool) -> Result<c_int, c_int> {
    let mut flags = O_RDWR;
    if cloexec {
        flags |= O_CLOEXEC;
    }
    if nonblock {
        flags |= O_NONBLOCK;
    }
    // SAFETY: a string, and no mode where nothing is created.
    let fd = unsafe { libc::open(c"/dev/null".as_ptr(), flags) };
    if fd < 0 { Err(errno::get()) } else { Ok(born(fd)) }
}

/// RLIMIT_NOFILE: one more than the highest number that the process may have now; none if the kernel does not tell.
pub fn limit() -> Option<libc::rlim_t> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a structure of ours.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    known.then_some(limit.rlim_cur)
}

/// One more than the highest number that the program has, but at least FD_SETSIZE.
///
/// The kernel looks at select(2)'s sets up to the end of the process's table of descriptors, whatever larger count it is told
/// (getdtablesize(3), by old custom), and librdmacm's numbers make the table larger than the program's sets may be.
#[cold]
pub fn programs_count() -> c_int {
    let highest = errno::keeping(|| open_numbers(|fd| table::get(fd).is_some() || !is_library(fd)));
    highest.max(libc::FD_SETSIZE as c_int - 1) + 1
}

/// The highest open number that `counts`, -1 for none. Without memory: select(2) may be called by signal handlers.
fn open_numbers(counts: impl Fn(c_int) -> bool) -> c_int {
    const NAME: usize = mem::offset_of!(libc::dirent64, d_name);
    const LENGTH: usize = mem::offset_of!(libc::dirent64, d_reclen);
    let mut highest = -1;
    // SAFETY: a string, and no mode where nothing is created.
    let folder = unsafe { libc::open(c"/proc/self/fd".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | O_CLOEXEC) };
    if folder < 0 {
        return highest;
    }
    let mut buffer = [0_u8; 4096];
    loop {
        // SAFETY: room for so many bytes.
        let count = unsafe { libc::syscall(libc::SYS_getdents64, folder, buffer.as_mut_ptr(), buffer.len()) };
        let Some(mut rest) = usize::try_from(count).ok().and_then(|count| buffer.get(..count)) else { break };
        if rest.is_empty() {
            break;
        }
        while let Some(&[low, high]) = rest.get(LENGTH..LENGTH + 2) {
            let (entry, following) =
                rest.split_at(usize::from(u16::from_ne_bytes([low, high])).clamp(NAME, rest.len()));
            let name = entry[NAME..].split(|&byte| byte == 0).next().unwrap_or(&[]);
            let number = core::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
            highest = number.filter(|&fd| fd > highest && fd != folder && counts(fd)).unwrap_or(highest);
            rest = following;
        }
    }
    // SAFETY: this function's own.
    unsafe { real::close(folder) };
    highest
}

/// Lets `fd` stand for the rsocket `inner`. On failure neither is closed.
pub fn adopt(fd: c_int, inner: c_int) -> Result<(), c_int> {
    table::prepare(fd)?;
    table::first(inner)?;
    put(fd, Entry::rsocket(inner, 0));
    Ok(())
}

/// Gives the new number `fd` its entry.
pub fn put(fd: c_int, entry: Entry) {
    if let Some(before) = table::swap(fd, Some(entry))
        && before.inner != entry.inner
    {
        forget(before);
    }
}

/// `fd` is the kernel's alone, and new: returns it.
#[inline(always)]
pub fn born(fd: c_int) -> c_int {
    if table::get(fd).is_some() {
        at_birth(fd);
    }
    fd
}

#[cold]
fn at_birth(fd: c_int) {
    // A guest's numbers are others than those in the table.
    if !process::is_guest()
        && let Some(before) = table::swap(fd, None)
    {
        forget(before);
    }
}

/// What a number stood for that was closed behind our back, by fclose(3) or close_range(2). The descriptors of a parent's
/// rsocket may have gone in the same way, and their numbers be others' by now.
#[cold]
fn forget(before: Entry) {
    if before.kind == Kind::Socket && before.is_inherited() {
        table::leave_index(before.inner, before.index());
        table::drop(before.inner);
    } else {
        errno::keeping(|| release(before));
    }
}

/// One more reference to what is behind a number, for a number that is to stand for the same; none when it is being
/// closed.
pub fn hold(entry: Entry) -> Option<Entry> {
    table::hold(entry.inner).then(|| match entry.kind {
        Kind::Socket => entry.with_index(table::index_of(entry.inner)),
        Kind::Pending => Entry { flags: fork::copy_flags(entry.flags), inner: -1, ..entry },
        Kind::Epoll | Kind::Relayed => entry,
    })
}

/// Ends a number's reference to what was behind it, and with the last one that: 0, or -1 and `errno`.
pub fn release(entry: Entry) -> c_int {
    match entry.kind {
        Kind::Socket => table::leave_index(entry.inner, entry.index()),
        Kind::Pending => fork::abandoned(entry),
        Kind::Epoll | Kind::Relayed => {}
    }
    if !table::drop(entry.inner) {
        return 0;
    }
    match entry.kind {
        // SAFETY: a number only.
        Kind::Socket | Kind::Pending => unsafe { r::rclose(entry.inner) },
        Kind::Epoll => epoll::close_sides(entry.inner),
        Kind::Relayed => fork::remote::release(entry),
    }
}

/// An option of the library's, or of one of its sockets.
fn tell_library(fd: c_int, option: c_int) {
    let on: c_int = 1;
    // SAFETY: a live int and its size; numbers only.
    errno::keeping(|| unsafe {
        r::rsetsockopt(
            fd,
            rdmacm_private::LEVEL,
            option,
            (&raw const on).cast::<c_void>(),
            mem::size_of::<c_int>() as socklen_t,
        )
    });
}

/// Has the rsockets end in order that the program has not closed.
pub fn farewell() {
    tell_library(-1, rdmacm_private::FAREWELL);
}

/// The lowest number for descriptors of the library's own: the program is to have those below.
pub fn lowest_own() -> c_int {
    limit().map_or(0, |limit| (limit / 2).min(libc::FD_SETSIZE as libc::rlim_t) as c_int)
}

/// Makes an rsocket with the sizes that the environment asks for: its number, or -1 and `errno`.
pub fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // The program's numbers are to be those that it would have without us: some have room only for so many. What is
    // behind a placeholder is never for programs that this one executes.
    tell_library(-1, rdmacm_private::KEEP_APART);
    // SAFETY: numbers only.
    let inner = unsafe { r::rsocket(domain, kind | libc::SOCK_CLOEXEC, protocol) };
    if inner >= 0 {
        // The program expects it, as of TCP's sockets. Datagram rsockets have no such thing.
        tell_library(inner, rdmacm_private::SIGPIPE);
        configure(inner);
    }
    inner
}

/// Gives a new rsocket the sizes that the environment asks for. One it doesn't take is left as librdmacm has it.
fn configure(inner: c_int) {
    const SOL_RDMA: c_int = 0x10000;
    for (name, value) in config::sizes() {
        let len = mem::size_of::<c_int>() as socklen_t;
        let value = (&raw const value).cast::<c_void>();
        // SAFETY: a live int and its size.
        errno::keeping(|| unsafe { r::rsetsockopt(inner, SOL_RDMA, name, value, len) });
    }
}

/// Makes the rsocket blocking or non-blocking as its placeholder is.
///
/// Programs that use `ioctl(FIONBIO)` (Python is one) change the placeholder only, since ioctl is no name of this
/// library. So this is called where it matters and a system call costs little: before accepting, connecting, when
/// it is added to an epoll instance, and by the [first calls](look) that move data. What F_SETFL changes is changed at both ends.
pub fn sync_nonblock(fd: c_int, inner: c_int) {
    errno::keeping(|| {
        // SAFETY: numbers only.
        unsafe {
            let flags = real::fcntl(fd, F_GETFL, 0);
            if flags >= 0 {
                r::rfcntl(inner, F_SETFL, flags & O_NONBLOCK);
            }
        }
    });
}

/// For one of the first calls that move data, and every one on a parent's rsocket: whether the number still stands for it.
pub fn look(fd: c_int, entry: Entry) -> bool {
    if entry.inner == table::CLOSING {
        return true;
    }
    if entry.is_inherited() {
        return self::entry(fd).is_some();
    }
    // Another thread may have looked meanwhile.
    table::replace(fd, Some(entry), Some(entry.looked()));
    sync_nonblock(fd, entry.inner);
    true
}

/// What `fd` stands for still.
pub fn entry(fd: c_int) -> Option<Entry> {
    loop {
        let entry = table::get(fd)?;
        if !is_stale(fd, entry) {
            return Some(entry);
        }
        if table::replace(fd, Some(entry), None) {
            forget(entry);
        }
    }
}

/// Whether an rsocket's number is another file's, having been closed behind our back. In fork mode it is not known.
fn is_stale(fd: c_int, entry: Entry) -> bool {
    let mut status = mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for what the kernel writes.
    if entry.kind != Kind::Socket || fork::is_decided(entry) || unsafe { libc::fstat(fd, status.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: written, for it succeeded.
    let status = unsafe { status.assume_init() };
    let is_placeholder = status.st_mode & libc::S_IFMT == libc::S_IFCHR && status.st_rdev == libc::makedev(1, 3);
    !is_placeholder && !process::is_guest()
}

/// Whether librdmacm has `fd` for its own purposes: it must survive programs that close all numbers there are.
///
/// Only our librdmacm knows this option; another one fails, and `fd` is taken for the program's.
#[cold]
pub fn is_library(fd: c_int) -> bool {
    if fork::is_end(fd) {
        return true;
    }
    let mut own: c_int = 0;
    let mut len = mem::size_of::<c_int>() as socklen_t;
    // SAFETY: a live int and its size.
    let known = errno::keeping(|| unsafe {
        r::rgetsockopt(fd, rdmacm_private::LEVEL, rdmacm_private::IS_OWN, (&raw mut own).cast(), &raw mut len)
    });
    known == 0 && own == 1
}

/// close(2). The rsocket goes while the number is still taken, lest another thread gets it and loses its entry.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if table::any() {
        return close_known(fd);
    }
    // SAFETY: the C contract.
    unsafe { real::close(fd) }
}

#[inline(never)]
fn close_known(fd: c_int) -> c_int {
    loop {
        let Some(entry) = entry(fd) else {
            if is_library(fd) {
                return errno::fail(EBADF);
            }
            // SAFETY: the C contract.
            return unsafe { real::close(fd) };
        };
        if process::is_guest() {
            // SAFETY: the C contract.
            return unsafe { real::close(fd) };
        }
        if entry.inner == table::CLOSING {
            return errno::fail(EBADF);
        }
        // Closing an rsocket takes its time, in which calls on the number must not meet the placeholder.
        let meanwhile = (entry.kind == Kind::Socket).then_some(Entry { inner: table::CLOSING, ..entry });
        if table::replace(fd, Some(entry), meanwhile) {
            let released = release(entry);
            let why = errno::get();
            let closed = close_placeholder(fd, meanwhile);
            return if released < 0 { errno::fail(why) } else { closed };
        }
    }
}

/// Closes a placeholder whose entry is `meanwhile`, unless dup2(2) has put something else there.
fn close_placeholder(fd: c_int, meanwhile: Option<Entry>) -> c_int {
    if meanwhile.is_some() && !table::replace(fd, meanwhile, None) {
        return 0;
    }
    // SAFETY: this thread took the entry, so the placeholder is its to close.
    unsafe { real::close(fd) }
}
