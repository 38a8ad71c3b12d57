//! The calls that mean the same for an rsocket: they differ in the number they are made on, and in nothing else.

use core::ffi::{c_int, c_void};

use libc::{MSG_DONTWAIT, epoll_event, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use crate::fork::{Way, remote};
use crate::table;
use crate::{Target, data, epoll, errno, fds, inner, r, real};

/// `name by rname(arguments behind the number)`: calls that a socket serves in fork mode as the kernel's until it is
/// decided.
macro_rules! forward {
    ($($name:ident by $to:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[doc = concat!(stringify!($name), "(2).")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(fd: c_int, $($arg: $type),*) -> $result {
            // SAFETY: the C contract.
            unsafe {
                match inner(fd) {
                    None => real::$name(fd, $($arg),*),
                    Some(inner) => r::$to(inner, $($arg),*),
                }
            }
        }
    )*};
}

/// The same for calls that decide it, being about to go the given way.
macro_rules! forward_data {
    ($($name:ident by $to:ident, $way:expr, ($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[doc = concat!(stringify!($name), "(2).")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(fd: c_int, $($arg: $type),*) -> $result {
            // Apart, lest the usual way has to save its arguments.
            #[cold]
            #[inline(never)]
            unsafe fn decided(fd: c_int, $($arg: $type),*) -> $result {
                // SAFETY: the C contract.
                unsafe {
                    match data(fd, $way) {
                        Target::Kernel => real::$name(fd, $($arg),*),
                        Target::Rsocket(inner) => r::$to(inner, $($arg),*),
                        Target::Relayed(channel) => remote::$to(fd, channel, $($arg),*),
                        Target::Nowhere(why) => errno::fail(why),
                    }
                }
            }

            // SAFETY: the C contract.
            unsafe {
                match table::get(fd) {
                    None => real::$name(fd, $($arg),*),
                    Some(entry) if entry.is_settled() => r::$to(entry.inner, $($arg),*),
                    Some(_) => decided(fd, $($arg),*),
                }
            }
        }
    )*};
}

/// The way of a call that receives.
#[inline(always)]
fn receive(flags: c_int) -> Way {
    if flags & MSG_DONTWAIT != 0 { Way::ReceiveNow } else { Way::Receive }
}

/// The way of a call that sends.
#[inline(always)]
fn transmit(flags: c_int) -> Way {
    if flags & MSG_DONTWAIT != 0 { Way::SendNow } else { Way::Send }
}

forward! {
    bind by rbind(addr: *const sockaddr, len: socklen_t) -> c_int;
    listen by rlisten(backlog: c_int) -> c_int;
    getpeername by rgetpeername(addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockname by rgetsockname(addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    getsockopt by rgetsockopt(level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    setsockopt by rsetsockopt(level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
}

forward_data! {
    read by rread, Way::Receive, (buf: *mut c_void, len: size_t) -> ssize_t;
    readv by rreadv, Way::Receive, (list: *const iovec, count: c_int) -> ssize_t;
    recv by rrecv, receive(flags), (buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom by rrecvfrom, receive(flags), (
        buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t
    ) -> ssize_t;
    recvmsg by rrecvmsg, receive(flags), (msg: *mut msghdr, flags: c_int) -> ssize_t;

    write by rwrite, Way::Send, (buf: *const c_void, len: size_t) -> ssize_t;
    writev by rwritev, Way::Send, (list: *const iovec, count: c_int) -> ssize_t;
    send by rsend, transmit(flags), (buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto by rsendto, transmit(flags), (
        buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addrlen: socklen_t
    ) -> ssize_t;
    sendmsg by rsendmsg, transmit(flags), (msg: *const msghdr, flags: c_int) -> ssize_t;
    shutdown by rshutdown, Way::Shutdown, (how: c_int) -> c_int;
}

/// epoll_create(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: the C contract.
    fds::born(unsafe { real::epoll_create(size) })
}

/// epoll_create1(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: the C contract.
    fds::born(unsafe { real::epoll_create1(flags) })
}

/// epoll_ctl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the C contract.
    unsafe { if table::any() { epoll::control(epfd, op, fd, event) } else { real::epoll_ctl(epfd, op, fd, event) } }
}

/// epoll_wait(2). Also before there are rsockets: the first may be added while this thread waits.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int {
    // SAFETY: the C contract.
    unsafe { epoll::wait(epfd, events, max, timeout) }
}
