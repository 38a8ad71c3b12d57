//! Calls that take the same arguments for an rsocket as for a socket of the kernel's.

use core::ffi::{c_int, c_void};

use libc::{EINVAL, MSG_DONTWAIT, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use super::remainder::{self, Asked};
use crate::dispatch::{self, Fd, Target};
use crate::tcp::bind;
use crate::transition::Way;
use crate::{auto, errno, next_symbol, rsocket_abi};

/// `name by rname(arguments after the number)`: calls that decide what a socket of fork mode is,
/// and what they are asked to move. `before` may fail with an errno.
macro_rules! forward_data {
    ($($name:ident by $to:ident, $way:expr, ($($arg:ident: $type:ty),*) -> $result:ty, $asked:expr
        $(, before $before:expr)?;)*) => {$(
        #[doc = concat!(stringify!($name), "(2).")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(fd: c_int, $($arg: $type),*) -> $result {
            // Out of line: otherwise the usual path would have to save its arguments.
            #[cold]
            #[inline(never)]
            unsafe fn decided(fd: c_int, $($arg: $type),*) -> $result {
                // SAFETY: the C contract.
                unsafe {
                    match dispatch::data(fd, $way) {
                        Target::Kernel => next_symbol::$name(fd, $($arg),*),
                        Target::Rsocket(inner) => {
                            let result = rsocket_abi::$to(inner, $($arg),*);
                            if result < 0 && has_moved(fd, $asked) {
                                return next_symbol::$name(fd, $($arg),*);
                            }
                            remainder::finish(fd, $asked, result as ssize_t) as $result
                        }
                        Target::Fails(why) => errno::fail(why),
                    }
                }
            }

            // SAFETY: the C contract.
            unsafe {
                $(if let Err(why) = $before {
                    return errno::fail(why);
                })?
                match dispatch::data_at_once(fd) {
                    Some(Target::Kernel) => next_symbol::$name(fd, $($arg),*),
                    Some(Target::Rsocket(inner)) => {
                        let result = rsocket_abi::$to(inner, $($arg),*);
                        if result < 0 && has_moved(fd, $asked) {
                            return decided(fd, $($arg),*);
                        }
                        remainder::finish(fd, $asked, result as ssize_t) as $result
                    }
                    _ => decided(fd, $($arg),*),
                }
            }
        }
    )*};
}

/// Whether a call on an rsocket has failed because the library forwards its data meanwhile: the
/// number is a socket of the kernel now, and the rsocket does not block any more.
#[cold]
fn has_moved(fd: c_int, asked: Asked) -> bool {
    if asked.is_of_errors() && errno::get() == libc::EOPNOTSUPP {
        // There are never any.
        errno::set(libc::EAGAIN);
        return false;
    }
    errno::get() == libc::EAGAIN && matches!(Fd::of(fd), Fd::Known(_))
}

/// The most buffers of a call.
const MAX_BUFFERS: usize = 1024;

/// # Safety
/// `message` is null or readable.
#[inline(always)]
unsafe fn check_count(message: *const msghdr) -> Result<(), c_int> {
    // SAFETY: as for this function.
    let is_too_long = unsafe { message.as_ref().is_some_and(|message| message.msg_iovlen > MAX_BUFFERS) };
    if is_too_long { Err(libc::EMSGSIZE) } else { Ok(()) }
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

/// bind(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the C contract.
    unsafe {
        match Fd::of(fd) {
            Fd::Rsocket(entry) => bind::like_tcp(entry.inner, addr, len),
            Fd::Connecting(_) => errno::fail(EINVAL),
            _ => next_symbol::bind(fd, addr, len),
        }
    }
}

/// listen(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: the C contract.
    unsafe {
        match Fd::of(fd) {
            Fd::Rsocket(entry) => rsocket_abi::rlisten(entry.inner, backlog),
            Fd::Kernel if auto::is_on() => auto::listen(fd, backlog, None),
            Fd::Known(entry) => auto::listen(fd, backlog, Some(entry)),
            Fd::Connecting(_) => errno::fail(EINVAL),
            _ => next_symbol::listen(fd, backlog),
        }
    }
}

/// `name by rname, whether it is the peer's`: calls that return an address.
macro_rules! forward_name {
    ($($name:ident by $to:ident, $is_peer:expr;)*) => {$(
        #[doc = concat!(stringify!($name), "(2).")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
            if let (false, Fd::Connecting(entry)) = ($is_peer, Fd::of(fd)) {
                auto::wait_for_name(fd, entry);
            }
            // SAFETY: the C contract.
            unsafe {
                match Fd::of(fd) {
                    Fd::Rsocket(entry) => match auto::name_of(entry, $is_peer, addr, len) {
                        None => rsocket_abi::$to(entry.inner, addr, len),
                        Some(result) => result,
                    },
                    Fd::Known(entry) => match auto::name_of(entry, $is_peer, addr, len) {
                        None => next_symbol::$name(fd, addr, len),
                        Some(result) => result,
                    },
                    _ => next_symbol::$name(fd, addr, len),
                }
            }
        }
    )*};
}

forward_name! {
    getpeername by rgetpeername, true;
    getsockname by rgetsockname, false;
}

/// getsockopt(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: the C contract.
    unsafe {
        match Fd::of(fd) {
            Fd::Rsocket(entry) if auto::is_auto(entry) => auto::getsockopt(fd, entry, (level, name), value, len),
            Fd::Rsocket(entry) => rsocket_abi::rgetsockopt(entry.inner, level, name, value, len),
            _ => next_symbol::getsockopt(fd, level, name, value, len),
        }
    }
}

/// setsockopt(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: the C contract.
    unsafe {
        match Fd::of(fd) {
            Fd::Rsocket(entry) if auto::is_auto(entry) => auto::setsockopt(fd, entry, (level, name), value, len),
            Fd::Rsocket(entry) => rsocket_abi::rsetsockopt(entry.inner, level, name, value, len),
            Fd::Known(entry) => auto::setsockopt_of_known(fd, entry, (level, name), value, len),
            Fd::Connecting(entry) => {
                let result = auto::setsockopt_of_attempt(fd, entry, (level, name), value, len);
                result.unwrap_or_else(|| setsockopt(fd, level, name, value, len))
            }
            Fd::Pending(_) => auto::setsockopt_of_pending(fd, (level, name), value, len),
            Fd::Kernel => auto::setsockopt_of_kernel(fd, (level, name), value, len),
            Fd::Epoll(_) => next_symbol::setsockopt(fd, level, name, value, len),
        }
    }
}

forward_data! {
    read by rread, Way::Receive, (buf: *mut c_void, len: size_t) -> ssize_t, Asked::nothing();
    readv by rreadv, Way::Receive, (list: *const iovec, count: c_int) -> ssize_t, Asked::nothing();
    recv by rrecv, receive(flags), (buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t,
        Asked::receive(buf, len, flags);
    recvfrom by rrecvfrom, receive(flags), (
        buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t
    ) -> ssize_t, Asked::receive(buf, len, flags);
    recvmsg by rrecvmsg, receive(flags), (msg: *mut msghdr, flags: c_int) -> ssize_t,
        Asked::message(msg, flags, false), before check_count(msg);

    write by rwrite, Way::Send, (buf: *const c_void, len: size_t) -> ssize_t, Asked::send(buf, len, 0);
    writev by rwritev, Way::Send, (list: *const iovec, count: c_int) -> ssize_t, Asked::send_list(list, count);
    send by rsend, transmit(flags), (buf: *const c_void, len: size_t, flags: c_int) -> ssize_t,
        Asked::send(buf, len, flags);
    sendto by rsendto, transmit(flags), (
        buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addrlen: socklen_t
    ) -> ssize_t, Asked::send(buf, len, flags);
    sendmsg by rsendmsg, transmit(flags), (msg: *const msghdr, flags: c_int) -> ssize_t,
        Asked::message(msg, flags, true), before check_count(msg).and_then(|()| auto::outside::before_sendmsg(msg));
    shutdown by rshutdown, Way::Shutdown, (how: c_int) -> c_int, Asked::nothing();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_msg_dontwait_makes_a_call_not_wait() {
        let others = libc::MSG_PEEK | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        assert_eq!([0, others].map(receive), [Way::Receive; 2]);
        assert_eq!([0, others].map(transmit), [Way::Send; 2]);
        assert_eq!([MSG_DONTWAIT, !0].map(receive), [Way::ReceiveNow; 2]);
        assert_eq!([MSG_DONTWAIT, !0].map(transmit), [Way::SendNow; 2]);
    }
}
