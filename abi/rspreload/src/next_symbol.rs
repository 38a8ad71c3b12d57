//! The next definitions of the names that this library defines: what the program would call without
//! it.
//!
//! They are resolved when the library is loaded, or by the first call if that comes earlier (from
//! the constructor of another library). Resolving twice gives the same result, so there is no lock.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{
    ENOSYS, epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, off64_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
    timeval,
};

use crate::errno;

/// A name and its next definition. Relaxed is enough: the loader has finished with the code before
/// it returns the address.
pub struct Next {
    name: &'static CStr,
    /// The name in a C library before glibc 2.28, if it differs.
    or: Option<&'static CStr>,
    pub found: AtomicPtr<c_void>,
}

impl Next {
    pub const fn new(name: &'static CStr, or: Option<&'static CStr>) -> Self {
        Next { name, or, found: AtomicPtr::new(ptr::null_mut()) }
    }

    #[inline(always)]
    pub fn get(&self) -> *mut c_void {
        let found = self.found.load(Relaxed);
        if found.is_null() { self.look_up() } else { found }
    }

    #[cold]
    #[inline(never)]
    pub fn look_up(&self) -> *mut c_void {
        // SAFETY: a handle that the loader defines, and a string.
        let find = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast::<c_char>()) };
        errno::keeping(|| {
            let mut found = find(self.name);
            if let (true, Some(or)) = (found.is_null(), self.or) {
                found = find(or);
            }
            self.found.store(found, Relaxed);
            found
        })
    }
}

macro_rules! name_of {
    ($name:ident) => {
        match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        }
    };
}

pub(crate) use name_of;

macro_rules! next {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        #[allow(non_upper_case_globals)]
        mod slot {
            use super::{CStr, Next};
            $(pub static $name: Next = Next::new(crate::next_symbol::name_of!($name), None);)*
        }

        $(
            #[doc = concat!("The program's own ", stringify!($name), "; `ENOSYS` if it has none.")]
            ///
            /// # Safety
            /// The C contract of the call.
            #[inline(always)]
            pub unsafe fn $name($($arg: $type),*) -> $result {
                // Out of line: otherwise the usual path would have to save its arguments.
                #[cold]
                #[inline(never)]
                unsafe fn look_up($($arg: $type),*) -> $result {
                    let found = slot::$name.look_up();
                    if found.is_null() {
                        return errno::fail(ENOSYS);
                    }
                    // SAFETY: a function of this name has this type; the arguments are the
                    // caller's.
                    unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(found)($($arg),*) }
                }

                let found = slot::$name.found.load(Relaxed);
                // SAFETY: as above.
                unsafe {
                    if found.is_null() {
                        return look_up($($arg),*);
                    }
                    mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(found)($($arg),*)
                }
            }
        )*

        /// Resolves the names.
        fn resolve_names() {
            $(slot::$name.get();)*
        }
    };
}
pub(crate) use next;

/// Resolves all names.
pub fn resolve() {
    resolve_names();
    integers::resolve();
    slot_fcntl.get();
    slot_fcntl64.get();
}

next! {
    accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: c_int) -> c_int;
    getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    pread64(fd: c_int, buf: *mut c_void, len: size_t, offset: off64_t) -> ssize_t;
    read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(
        fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t
    ) -> ssize_t;
    recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
    select(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval
    ) -> c_int;
    send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendfile(out: c_int, fd: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    sendfile64(out: c_int, fd: c_int, offset: *mut off64_t, count: size_t) -> ssize_t;
    sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
    sendto(
        fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addrlen: socklen_t
    ) -> ssize_t;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t;
}

/// Calls that take only integers.
mod integers {
    use core::ffi::{CStr, c_void};
    use core::mem;
    use core::sync::atomic::Ordering::Relaxed;

    use super::{ENOSYS, Next, c_int, errno};

    next! {
        close(fd: c_int) -> c_int;
        dup(fd: c_int) -> c_int;
        dup2(old: c_int, new: c_int) -> c_int;
        epoll_create(size: c_int) -> c_int;
        epoll_create1(flags: c_int) -> c_int;
        listen(fd: c_int, backlog: c_int) -> c_int;
        shutdown(fd: c_int, how: c_int) -> c_int;
        socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    }

    pub fn resolve() {
        resolve_names();
    }
}

macro_rules! safe {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[doc = concat!("The program's own ", stringify!($name), ".")]
        #[inline(always)]
        pub fn $name($($arg: $type),*) -> c_int {
            // SAFETY: takes no pointers.
            unsafe { integers::$name($($arg),*) }
        }
    )*};
}

safe! {
    close(fd: c_int);
    dup(fd: c_int);
    dup2(old: c_int, new: c_int);
    epoll_create(size: c_int);
    epoll_create1(flags: c_int);
    listen(fd: c_int, backlog: c_int);
    shutdown(fd: c_int, how: c_int);
    socket(domain: c_int, kind: c_int, protocol: c_int);
}

/// The program's own fcntl, of a command that takes an int or nothing.
pub fn fcntl_int(fd: c_int, cmd: c_int, value: c_int) -> c_int {
    debug_assert!(matches!(
        cmd,
        libc::F_GETFL | libc::F_SETFL | libc::F_GETFD | libc::F_SETFD | libc::F_DUPFD | libc::F_DUPFD_CLOEXEC
    ));
    // SAFETY: no pointer.
    unsafe { fcntl(fd, cmd, value as usize) }
}

#[allow(non_upper_case_globals)]
static slot_fcntl: Next = Next::new(c"fcntl", None);
#[allow(non_upper_case_globals)]
static slot_fcntl64: Next = Next::new(c"fcntl64", Some(c"fcntl"));

/// Calls a variadic function, whose calling convention differs on some machines.
unsafe fn variadic(next: &Next, fd: c_int, cmd: c_int, arg: usize) -> c_int {
    let found = next.get();
    if found.is_null() {
        return errno::fail(ENOSYS);
    }
    // SAFETY: functions of these names have this type.
    unsafe {
        let call: unsafe extern "C" fn(c_int, c_int, ...) -> c_int = mem::transmute(found);
        call(fd, cmd, arg)
    }
}

/// The program's own fcntl.
///
/// # Safety
/// The C contract of the call.
#[inline(always)]
pub unsafe fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    // SAFETY: the C contract of the call: guaranteed by the caller.
    unsafe { variadic(&slot_fcntl, fd, cmd, arg) }
}

/// The program's own fcntl64, or fcntl if it has none.
///
/// # Safety
/// The C contract of the call.
#[inline(always)]
pub unsafe fn fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    // SAFETY: the C contract of the call: guaranteed by the caller.
    unsafe { variadic(&slot_fcntl64, fd, cmd, arg) }
}
