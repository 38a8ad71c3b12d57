//! Calls that take the same arguments for an rsocket as for a socket of the kernel's.

use core::ffi::{c_int, c_void};

use libc::{EINVAL, MSG_DONTWAIT, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use super::remainder::{self, Asked};
use crate::dispatch::{self, Fd, Target};
use crate::name::Name;
use crate::table::{self, Kind};
use crate::transition::{self, Way};
use crate::{auto, errno, next_symbol, rsocket_abi, tcp};

/// `name by rname(arguments after the number)`: calls that decide what a socket of fork mode is,
/// and what they are asked to move. `before` may fail with an errno.
macro_rules! forward_data {
    ($($name:ident by $to:ident, $way:expr, ($($arg:ident: $type:ty),*) -> $result:ty, $asked:expr
        $(, before $before:expr)?;)*) => {$(exports! {
        #[doc = concat!(stringify!($name), "(2).")]
        fn $name(fd: c_int, $($arg: $type),*) -> $result {
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
    })*};
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

exports! {
    /// bind(2).
    fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        match Fd::of(fd) {
            Fd::Rsocket(entry) => {
                tcp::like_tcp(rsocket_abi::rbind(entry.inner, addr, len), || Name::read(addr, len))
            }
            Fd::Connecting(_) => errno::fail(EINVAL),
            _ => next_symbol::bind(fd, addr, len),
        }
    }

    /// listen(2).
    safe fn listen(fd: c_int, backlog: c_int) -> c_int {
        match Fd::of(fd) {
            Fd::Rsocket(entry) => rsocket_abi::rlisten(entry.inner, backlog),
            Fd::Kernel if auto::is_on() => auto::listen(fd, backlog, None),
            Fd::Known(entry) => auto::listen(fd, backlog, Some(entry)),
            Fd::Connecting(_) => errno::fail(EINVAL),
            _ => next_symbol::listen(fd, backlog),
        }
    }

    /// getpeername(2).
    fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        match (Fd::of(fd), known_name(fd, true)) {
            (_, Some(name)) => store(name, addr, len),
            (Fd::Rsocket(entry), None) => rsocket_abi::rgetpeername(entry.inner, addr, len),
            _ => next_symbol::getpeername(fd, addr, len),
        }
    }

    /// getsockname(2).
    fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if let Fd::Connecting(entry) = Fd::of(fd) {
            // Only the end of the attempt decides the port.
            errno::keeping(|| transition::wait_for_change(fd, entry));
        }
        match (Fd::of(fd), known_name(fd, false)) {
            (_, Some(name)) => store(name, addr, len),
            (Fd::Rsocket(entry), None) => rsocket_abi::rgetsockname(entry.inner, addr, len),
            _ => next_symbol::getsockname(fd, addr, len),
        }
    }

    /// getsockopt(2).
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        match Fd::of(fd) {
            Fd::Rsocket(entry) if auto::is_auto(entry) => auto::getsockopt(fd, entry, (level, name), value, len),
            Fd::Rsocket(entry) => rsocket_abi::rgetsockopt(entry.inner, level, name, value, len),
            _ => next_symbol::getsockopt(fd, level, name, value, len),
        }
    }

    /// setsockopt(2).
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        let next = || next_symbol::setsockopt(fd, level, name, value, len);
        let rsockets = |inner| rsocket_abi::rsetsockopt(inner, level, name, value, len);
        match table::get(fd) {
            Some(entry) if entry.kind == Kind::Socket && !auto::is_auto(entry) => rsockets(entry.inner),
            entry => {
                let purpose = || auto::purpose_of((level, name), value, len);
                let result = auto::setsockopt(fd, entry, (level, name), purpose, rsockets, next);
                // Otherwise the attempt has ended.
                result.unwrap_or_else(|| setsockopt(fd, level, name, value, len))
            }
        }
    }
}

/// The address that automatic mode knows of a number.
fn known_name(fd: c_int, is_peer: bool) -> Option<Name> {
    match Fd::of(fd) {
        Fd::Rsocket(entry) | Fd::Known(entry) => auto::name_of(entry, is_peer),
        _ => None,
    }
}

/// # Safety
/// As for getpeername(2).
unsafe fn store(name: Name, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if addr.is_null() || len.is_null() {
        return errno::fail(libc::EFAULT);
    }
    // SAFETY: as for this function.
    unsafe { name.write(addr, len) };
    0
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
