//! Calls on sockets with references in place of pointers: those of the kernel, and rsockets.

use core::ffi::c_int;

use libc::{epoll_event, nfds_t, pollfd, socklen_t};

use crate::errno;
use crate::memory::Plain;
use crate::name::Name;
use crate::next_symbol::{self, rsocket_abi};

macro_rules! sockets {
    ($(#[$doc:meta])* $module:ident: $from:ident, $accept:ident($($flags:expr)?), $bind:ident, $connect:ident, $fcntl:ident,
        $getpeername:ident, $getsockname:ident, $getsockopt:ident, $poll:ident, $recv:ident, $send:ident,
        $setsockopt:ident) => {
        $(#[$doc])*
        pub mod $module {
            use super::*;

            /// Accepts a connection.
            pub fn accept(fd: c_int) -> c_int {
                // SAFETY: no address is asked for.
                unsafe { $from::$accept(fd, core::ptr::null_mut(), core::ptr::null_mut() $(, $flags)?) }
            }

            pub fn bind(fd: c_int, name: &Name) -> c_int {
                // SAFETY: an address of this length.
                name.pass(|addr, len| unsafe { $from::$bind(fd, addr, len) })
            }

            pub fn connect(fd: c_int, name: &Name) -> c_int {
                // SAFETY: an address of this length.
                name.pass(|addr, len| unsafe { $from::$connect(fd, addr, len) })
            }

            /// A command that takes an int or nothing.
            pub fn fcntl(fd: c_int, cmd: c_int, value: c_int) -> c_int {
                debug_assert!(matches!(
                    cmd,
                    libc::F_GETFL | libc::F_SETFL | libc::F_GETFD | libc::F_SETFD | libc::F_DUPFD | libc::F_DUPFD_CLOEXEC
                ));
                // SAFETY: no pointer.
                unsafe { $from::$fcntl(fd, cmd, value as usize) }
            }

            /// The peer's address.
            pub fn peer(fd: c_int) -> Option<Name> {
                // SAFETY: room for an address of this length.
                Name::take(|addr, len| unsafe { $from::$getpeername(fd, addr, len) })
            }

            /// The local address.
            pub fn own(fd: c_int) -> Option<Name> {
                // SAFETY: room for an address of this length.
                Name::take(|addr, len| unsafe { $from::$getsockname(fd, addr, len) })
            }

            /// The value and the length of an option.
            pub fn get<T: Plain>(fd: c_int, (level, name): (c_int, c_int)) -> Option<(T, usize)> {
                let (mut value, mut len) = (T::zero(), size_of::<T>() as socklen_t);
                // SAFETY: room for a value of this length.
                let result = unsafe { $from::$getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
                (result == 0).then_some((value, len as usize))
            }

            /// Sets an option. Returns the errno of a failure.
            pub fn set<T: Plain>(fd: c_int, option: (c_int, c_int), value: &T) -> Result<(), c_int> {
                set_bytes(fd, option, value, size_of::<T>())
            }

            /// Sets an option to the first bytes of a value.
            pub fn set_bytes<T: Plain>(
                fd: c_int, (level, name): (c_int, c_int), value: &T, len: usize
            ) -> Result<(), c_int> {
                let (start, len) = ((&raw const *value).cast(), len.min(size_of::<T>()) as socklen_t);
                errno::keeping(|| {
                    // SAFETY: a value of at least this length.
                    let result = unsafe { $from::$setsockopt(fd, level, name, start, len) };
                    if result == 0 { Ok(()) } else { Err(errno::get()) }
                })
            }

            pub fn poll(list: &mut [pollfd], timeout: c_int) -> c_int {
                // SAFETY: structures of this number.
                unsafe { $from::$poll(list.as_mut_ptr(), list.len() as nfds_t, timeout) }
            }

            pub fn receive(fd: c_int, bytes: &mut [u8], flags: c_int) -> isize {
                // SAFETY: a buffer of this length.
                unsafe { $from::$recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) }
            }

            pub fn send(fd: c_int, bytes: &[u8], flags: c_int) -> isize {
                // SAFETY: bytes of this length.
                unsafe { $from::$send(fd, bytes.as_ptr().cast(), bytes.len(), flags) }
            }
        }
    };
}

sockets! {
    /// Sockets of the kernel.
    kernel: next_symbol, accept4(libc::SOCK_CLOEXEC), bind, connect, fcntl, getpeername, getsockname, getsockopt, poll, recv, send, setsockopt
}

sockets! {
    /// Rsockets.
    rdma: rsocket_abi, raccept(), rbind, rconnect, rfcntl, rgetpeername, rgetsockname, rgetsockopt, rpoll, rrecv, rsend, rsetsockopt
}

/// epoll_ctl(2) of an instance of the kernel's.
pub fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: Option<epoll_event>) -> c_int {
    let event = event.as_ref().map_or(core::ptr::null(), core::ptr::from_ref).cast_mut();
    // SAFETY: null or an event, which the kernel only reads.
    unsafe { next_symbol::epoll_ctl(epfd, op, fd, event) }
}

/// epoll_wait(2) of an instance of the kernel's. Returns the events.
pub fn epoll_wait(epfd: c_int, events: &mut [epoll_event], timeout: c_int) -> &[epoll_event] {
    // SAFETY: room for so many events.
    let count = unsafe { next_symbol::epoll_wait(epfd, events.as_mut_ptr(), events.len() as c_int, timeout) };
    events.get(..usize::try_from(count).unwrap_or(0)).unwrap_or_default()
}

/// Opens a file, with close-on-exec. Nothing is created.
pub fn open(path: &core::ffi::CStr, flags: c_int) -> c_int {
    // SAFETY: a string; no mode is needed where nothing is created.
    unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) }
}

/// Reads from a file. Returns the number of bytes, or -1.
pub fn read(fd: c_int, bytes: &mut [u8]) -> isize {
    // SAFETY: a buffer of this length.
    unsafe { next_symbol::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) }
}

/// Writes to a file. Returns the number of bytes, or -1.
pub fn write(fd: c_int, bytes: &[u8]) -> isize {
    // SAFETY: bytes of this length.
    unsafe { next_symbol::write(fd, bytes.as_ptr().cast(), bytes.len()) }
}

pub fn sleep_ms(milliseconds: c_int) {
    // SAFETY: no descriptors.
    errno::keeping(|| unsafe { libc::poll(core::ptr::null_mut(), 0, milliseconds) });
}
