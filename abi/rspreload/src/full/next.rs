//! The next definitions of the names that only librspreload-full.so defines.

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use core::mem;
use core::sync::atomic::Ordering::Relaxed;

use libc::{
    ENOSYS, FILE, epoll_event, fd_set, iovec, loff_t, mmsghdr, nfds_t, off_t, off64_t, pid_t, pollfd,
    posix_spawn_file_actions_t, posix_spawnattr_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, stat, stat64,
    statx as Statx, timespec,
};

use super::data::Arguments;
use crate::errno;
pub use crate::next_symbol::pread64;
use crate::next_symbol::{Next, next};

next! {
    __fxstat(version: c_int, fd: c_int, status: *mut stat) -> c_int;
    __fxstat64(version: c_int, fd: c_int, status: *mut stat64) -> c_int;
    __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int;
    __ppoll_chk(
        fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t
    ) -> c_int;
    __pread_chk(fd: c_int, buf: *mut c_void, len: size_t, offset: off_t, room: size_t) -> ssize_t;
    __pread64_chk(fd: c_int, buf: *mut c_void, len: size_t, offset: off64_t, room: size_t) -> ssize_t;
    __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t;
    __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t;
    __recvfrom_chk(
        fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int, addr: *mut sockaddr,
        addrlen: *mut socklen_t
    ) -> ssize_t;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: Arguments) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    epoll_pwait(
        epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t
    ) -> c_int;
    epoll_pwait2(
        epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    fclose(file: *mut FILE) -> c_int;
    fstat(fd: c_int, status: *mut stat) -> c_int;
    fstat64(fd: c_int, status: *mut stat64) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    pread(fd: c_int, buf: *mut c_void, len: size_t, offset: off_t) -> ssize_t;
    preadv(fd: c_int, list: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    pidfd_spawn(
        child: *mut c_int, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, environment: *const *mut c_char
    ) -> c_int;
    pidfd_spawnp(
        child: *mut c_int, file: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, environment: *const *mut c_char
    ) -> c_int;
    posix_spawn(
        child: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, environment: *const *mut c_char
    ) -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, old: c_int, new: c_int) -> c_int;
    posix_spawnp(
        child: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *mut c_char, environment: *const *mut c_char
    ) -> c_int;
    preadv2(fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    preadv64(fd: c_int, list: *const iovec, count: c_int, offset: off64_t) -> ssize_t;
    preadv64v2(fd: c_int, list: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    pwrite(fd: c_int, buf: *const c_void, len: size_t, offset: off_t) -> ssize_t;
    pwrite64(fd: c_int, buf: *const c_void, len: size_t, offset: off64_t) -> ssize_t;
    pwritev(fd: c_int, list: *const iovec, count: c_int, offset: off_t) -> ssize_t;
    pwritev2(fd: c_int, list: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev64(fd: c_int, list: *const iovec, count: c_int, offset: off64_t) -> ssize_t;
    pwritev64v2(fd: c_int, list: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    sendmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    splice(
        from: c_int, from_offset: *mut loff_t, to: c_int, to_offset: *mut loff_t, len: size_t, flags: c_uint
    ) -> ssize_t;
    sockatmark(fd: c_int) -> c_int;
    syscall(
        number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long
    ) -> c_long;
    statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, status: *mut Statx) -> c_int;
    system(command: *const c_char) -> c_int;
    vdprintf(fd: c_int, format: *const c_char, list: Arguments) -> c_int;
}

#[allow(non_upper_case_globals)]
static slot_ioctl: Next = Next::new(c"ioctl", None);
#[allow(non_upper_case_globals)]
static slot_fdopen: Next = Next::new(c"fdopen", None);
#[allow(non_upper_case_globals)]
static slot_closefrom: Next = Next::new(c"closefrom", None);
#[allow(non_upper_case_globals)]
static slot_popen: Next = Next::new(c"popen", None);
#[allow(non_upper_case_globals)]
static slot_fork: Next = Next::new(c"_Fork", None);
#[allow(non_upper_case_globals)]
static slot_vfork: Next = Next::new(c"vfork", None);

/// Resolves all names.
#[cfg_attr(test, allow(dead_code, reason = "unit tests are no library that is loaded"))]
pub fn resolve() {
    resolve_names();
    slot_ioctl.get();
    slot_fdopen.get();
    slot_closefrom.get();
    slot_popen.get();
    slot_fork.get();
    slot_vfork.get();
}

/// The program's own ioctl, which is variadic.
///
/// # Safety
/// The C contract of the call.
pub unsafe fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    let found = slot_ioctl.get();
    if found.is_null() {
        return errno::fail(ENOSYS);
    }
    // SAFETY: a function of this name has this type; the arguments are the caller's.
    unsafe {
        let call: unsafe extern "C" fn(c_int, c_ulong, ...) -> c_int = mem::transmute(found);
        call(fd, request, arg)
    }
}

/// The program's own fdopen.
///
/// # Safety
/// The C contract of the call.
pub unsafe fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    let Some(found) = available(&slot_fdopen) else { return core::ptr::null_mut() };
    // SAFETY: a function of this name has this type; the arguments are the caller's.
    unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int, *const c_char) -> *mut FILE>(found)(fd, mode) }
}

/// Returns a function of the C library, or sets errno to ENOSYS.
fn available(slot: &Next) -> Option<*mut c_void> {
    let found = slot.get();
    if found.is_null() {
        errno::set(ENOSYS);
        return None;
    }
    Some(found)
}

/// The program's own popen.
///
/// # Safety
/// The C contract of the call.
pub unsafe fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    let Some(found) = available(&slot_popen) else { return core::ptr::null_mut() };
    // SAFETY: a function of this name has this type; the arguments are the caller's.
    unsafe {
        let call: unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE = mem::transmute(found);
        call(command, mode)
    }
}

/// The program's own _Fork.
///
/// # Safety
/// The C contract of the call.
pub unsafe fn fork() -> pid_t {
    let found = slot_fork.get();
    if found.is_null() {
        return errno::fail(ENOSYS);
    }
    // SAFETY: a function of this name has this type.
    unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn() -> pid_t>(found)() }
}

/// The program's own vfork, which this library cannot call: it returns twice. Null if it has none.
pub fn vfork() -> *const c_void {
    slot_vfork.get()
}

/// The program's own closefrom. Returns false if it has none.
pub fn closefrom(low: c_int) -> bool {
    let found = slot_closefrom.get();
    if !found.is_null() {
        // SAFETY: a function of this name has this type.
        unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int)>(found)(low) };
    }
    !found.is_null()
}
