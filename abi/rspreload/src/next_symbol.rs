//! The next definitions of the names that this library defines: the functions that the program
//! would call without this library. Also librdmacm's functions for rsockets (`rdma/rsocket.h`),
//! which take the same arguments as the C library's.
//!
//! Next definitions are resolved when the library is loaded, or by a call that is made earlier,
//! from another library's constructor. Resolving twice gives the same result, so there is no lock.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{
    ENOSYS, FILE, epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, off64_t, pollfd, size_t, sockaddr, socklen_t,
    ssize_t, timeval,
};

use crate::errno;

/// A name and its next definition. Relaxed is enough: the loader has finished with the code before
/// dlsym(3) returns the address.
pub struct Next {
    name: &'static str,
    pub found: AtomicPtr<c_void>,
}

impl Next {
    /// `name` must end with a NUL byte.
    pub const fn new(name: &'static str) -> Self {
        Next { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    pub fn get(&self) -> *mut c_void {
        let found = self.found.load(Relaxed);
        if found.is_null() { self.look_up() } else { found }
    }

    #[cold]
    #[inline(never)]
    pub fn look_up(&self) -> *mut c_void {
        let name = CStr::from_bytes_with_nul(self.name.as_bytes()).unwrap_or_default();
        errno::keeping(|| {
            // SAFETY: `RTLD_NEXT` is a valid handle, and `name` ends with a NUL byte.
            let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast::<c_char>()) };
            self.found.store(found, Relaxed);
            found
        })
    }
}

/// Result types of intercepted calls: `FAILURE` is the result of a call that has failed.
pub trait Failure {
    const FAILURE: Self;
}

macro_rules! failures {
    ($($type:ty: $failure:expr;)*) => {
        $(impl Failure for $type { const FAILURE: Self = $failure; })*
    };
}

failures! {
    c_int: -1;
    isize: -1;
    c_long: -1;
    (): ();
    *mut FILE: ptr::null_mut();
}

/// Fails with `ENOSYS`: there is no next definition, because the C library is older than the
/// function.
#[cold]
pub fn missing<T: Failure>() -> T {
    errno::set(ENOSYS);
    T::FAILURE
}

/// Defines, for each name, a function that calls the next definition. A `safe` function takes no
/// pointers, a `variadic` function has `...` in place of its last argument, and `c` marks all
/// others.
macro_rules! next {
    ($($kind:ident $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {
        #[allow(non_upper_case_globals)]
        mod slot {
            use $crate::next_symbol::Next;
            $(pub static $name: Next = Next::new(concat!(stringify!($name), "\0"));)*
        }

        $($crate::next_symbol::function! { $kind $name($($arg: $type),*) -> $result })*

        /// Resolves all names. Called at load time, because dlsym(3) is not async-signal-safe.
        pub fn resolve() {
            $(slot::$name.look_up();)*
        }
    };
}
pub(crate) use next;

macro_rules! function {
    (safe $name:ident($($arg:ident: $type:ty),*) -> $result:ty) => {
        $crate::next_symbol::function! { @ [] $name($($arg: $type),*) -> $result; [$($type),*] }
    };
    (c $name:ident($($arg:ident: $type:ty),*) -> $result:ty) => {
        $crate::next_symbol::function! { @ [unsafe] $name($($arg: $type),*) -> $result; [$($type),*] }
    };
    (variadic $name:ident($fd:ident: $int:ty, $cmd:ident: $type:ty, $arg:ident: $last:ty) -> $result:ty) => {
        $crate::next_symbol::function! {
            @ [unsafe] $name($fd: $int, $cmd: $type, $arg: $last) -> $result; [$int, $type, ...]
        }
    };
    (@ [$($unsafe:tt)?] $name:ident($($arg:ident: $type:ty),*) -> $result:ty; [$($parameters:tt)*]) => {
        #[doc = concat!("The program's own ", stringify!($name), "; `ENOSYS` if it has none.")]
        ///
        /// # Safety
        /// Pointers among the arguments must be valid for the C function.
        #[inline(always)]
        pub $($unsafe)? fn $name($($arg: $type),*) -> $result {
            type Function = unsafe extern "C" fn($($parameters)*) -> $result;

            // Out of line: otherwise the fast path would have to save its arguments.
            #[cold]
            #[inline(never)]
            $($unsafe)? fn look_up($($arg: $type),*) -> $result {
                let found = slot::$name.look_up();
                if found.is_null() {
                    return $crate::next_symbol::missing();
                }
                // SAFETY: C functions of this name have this type; pointers among the arguments are
                // valid: guaranteed by the caller.
                unsafe { core::mem::transmute::<*mut core::ffi::c_void, Function>(found)($($arg),*) }
            }

            let found = slot::$name.found.load(core::sync::atomic::Ordering::Relaxed);
            // SAFETY: C functions of this name have this type; pointers among the arguments are
            // valid: guaranteed by the caller.
            unsafe {
                if found.is_null() {
                    return look_up($($arg),*);
                }
                core::mem::transmute::<*mut core::ffi::c_void, Function>(found)($($arg),*)
            }
        }
    };
}
pub(crate) use function;

/// Declares next definitions, and librdmacm's functions. Unit tests use the C library's functions
/// instead of librdmacm's, with kernel sockets and epoll instances as descriptors.
macro_rules! next_and_rsocket {
    ($($kind:ident $name:ident by $by:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {
        next! {
            $($kind $name($($arg: $type),*) -> $result;)*
            c accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
            c pread64(fd: c_int, buf: *mut c_void, len: size_t, offset: off64_t) -> ssize_t;
            c select(
                count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval
            ) -> c_int;
            c sendfile(out: c_int, fd: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
            c sendfile64(out: c_int, fd: c_int, offset: *mut off64_t, count: size_t) -> ssize_t;
            safe dup(fd: c_int) -> c_int;
            safe dup2(old: c_int, new: c_int) -> c_int;
            safe epoll_create(size: c_int) -> c_int;
            variadic fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int;
        }

        pub mod rsocket_abi {
            use super::*;

            $(extern_function! { $kind $name by $by($($arg: $type),*) -> $result })*
        }
    };
}

macro_rules! extern_function {
    (c $name:ident by $by:ident($($arg:ident: $type:ty),*) -> $result:ty) => {
        unsafe extern "C" {
            #[cfg_attr(test, link_name = stringify!($name))]
            pub fn $by($($arg: $type),*) -> $result;
        }
    };
    (variadic $name:ident by $by:ident($fd:ident: $int:ty, $cmd:ident: $type:ty, $arg:ident: $last:ty) -> $result:ty) => {
        unsafe extern "C" {
            #[cfg_attr(test, link_name = stringify!($name))]
            pub fn $by($fd: $int, $cmd: $type, ...) -> $result;
        }
    };
    (safe $name:ident by $by:ident($($arg:ident: $type:ty),*) -> $result:ty) => {
        unsafe extern "C" {
            #[cfg_attr(test, link_name = stringify!($name))]
            pub safe fn $by($($arg: $type),*) -> $result;
        }
    };
}

next_and_rsocket! {
    c accept by raccept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    c bind by rbind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    safe close by rclose(fd: c_int) -> c_int;
    c connect by rconnect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    safe epoll_create1 by repoll_create(flags: c_int) -> c_int;
    c epoll_ctl by repoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    c epoll_wait by repoll_wait(epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: c_int) -> c_int;
    variadic fcntl by rfcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int;
    c getpeername by rgetpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    c getsockname by rgetsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    c getsockopt by rgetsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t
    ) -> c_int;
    safe listen by rlisten(fd: c_int, backlog: c_int) -> c_int;
    c poll by rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    c read by rread(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    c readv by rreadv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t;
    c recv by rrecv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    c recvfrom by rrecvfrom(
        fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t
    ) -> ssize_t;
    c recvmsg by rrecvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
    c send by rsend(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    c sendmsg by rsendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
    c sendto by rsendto(
        fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addrlen: socklen_t
    ) -> ssize_t;
    c setsockopt by rsetsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    safe shutdown by rshutdown(fd: c_int, how: c_int) -> c_int;
    safe socket by rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    c write by rwrite(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    c writev by rwritev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t;
}
