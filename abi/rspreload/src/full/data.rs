//! Calls that move data and are not in librspreload.so.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::{ptr, slice};

use libc::{
    EFAULT, EINVAL, EOPNOTSUPP, ESPIPE, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_WAITFORONE, POLLIN, POLLOUT,
    SPLICE_F_NONBLOCK, iovec, loff_t, mmsghdr, nfds_t, off_t, off64_t, pollfd, sigset_t, size_t, sockaddr, socklen_t,
    ssize_t, timespec,
};

use super::waits;
use crate::fds::Fd;
use crate::process::{Deadline, milliseconds};
use crate::sockets::{self, is_ready};
use crate::transition::Intent;
use crate::{auto, calls, errno, tcp};

exports_and_next! {
    // Calls in programs that are compiled with _FORTIFY_SOURCE, with the buffer's size `room`. If
    // the buffer is too small, glibc's function aborts the program.

    /// read(2).
    fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        if len > room { next::__read_chk(fd, buf, len, room) } else { calls::read(fd, buf, len) }
    }

    /// recv(2).
    fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
        if len > room {
            return next::__recv_chk(fd, buf, len, room, flags);
        }
        calls::recv(fd, buf, len, flags)
    }

    /// recvfrom(2).
    fn __recvfrom_chk(
        fd: c_int,
        buf: *mut c_void,
        len: size_t,
        room: size_t,
        flags: c_int,
        addr: *mut sockaddr,
        addrlen: *mut socklen_t,
    ) -> ssize_t {
        if len > room {
            return next::__recvfrom_chk(fd, buf, len, room, flags, addr, addrlen);
        }
        calls::recvfrom(fd, buf, len, flags, addr, addrlen)
    }

    /// poll(2).
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
        if count as usize > room / size_of::<pollfd>() {
            return next::__poll_chk(fds, count, timeout, room);
        }
        calls::waits::poll(fds, count, timeout)
    }

    /// ppoll(2).
    fn __ppoll_chk(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
        room: size_t,
    ) -> c_int {
        if count as usize > room / size_of::<pollfd>() {
            return next::__ppoll_chk(fds, count, timeout, mask, room);
        }
        waits::ppoll(fds, count, timeout, mask)
    }

    /// recvmmsg(2). The time-out is only checked after each message, as in the kernel.
    fn recvmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        if matches!(Fd::of(fd), Fd::Kernel) {
            return next::recvmmsg(fd, list, count, flags, timeout);
        }
        let end = timeout.as_ref().map(|timeout| Deadline::after(milliseconds(timeout.tv_sec, timeout.tv_nsec)));
        let mut flags = flags;
        each(list, count, |message| {
            let result = calls::recvmsg(fd, &raw mut message.msg_hdr, flags & !MSG_WAITFORONE);
            if flags & MSG_WAITFORONE != 0 {
                flags |= MSG_DONTWAIT;
            }
            (result, end.as_ref().is_none_or(|end| end.left() > 0))
        })
    }

    /// sendmmsg(2).
    fn sendmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        if !matches!(Fd::of(fd), Fd::Kernel) {
            return each(list, count, |message| (calls::sendmsg(fd, &raw const message.msg_hdr, flags), true));
        }
        for message in 0..if list.is_null() { 0 } else { count.min(MAX_MESSAGES) } {
            if let Err(why) = auto::outside::before_sendmsg(&raw const (*list.add(message as usize)).msg_hdr) {
                return errno::fail(why);
            }
        }
        next::sendmmsg(fd, list, count, flags)
    }

    // glibc's functions write to the kernel descriptor. For an rsocket the text is formatted by
    // vasprintf(3) and then written. printf.c defines the functions with variable arguments, which
    // need an unstable feature in Rust.

    /// vdprintf(3).
    fn vdprintf(fd: c_int, format: *const c_char, list: Arguments) -> c_int {
        if is_unchanged(fd) {
            return next::vdprintf(fd, format, list);
        }
        write_formatted(fd, |text| vasprintf(text, format, list))
    }

    /// vdprintf(3) in programs that are compiled with _FORTIFY_SOURCE.
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: Arguments) -> c_int {
        if is_unchanged(fd) {
            return next::__vdprintf_chk(fd, flag, format, list);
        }
        write_formatted(fd, |text| __vasprintf_chk(text, flag, format, list))
    }

    /// splice(2). Between an rsocket and a pipe, each call moves at most 4 KB: splice may always
    /// move less than requested.
    fn splice(
        from: c_int,
        from_offset: *mut loff_t,
        to: c_int,
        to_offset: *mut loff_t,
        len: size_t,
        flags: c_uint,
    ) -> ssize_t {
        let is_rsocket = |fd| !matches!(Fd::of(fd), Fd::Kernel | Fd::Epoll | Fd::Tracked(_));
        let (receives, sends) = (is_rsocket(from), is_rsocket(to));
        if !receives && !sends {
            before_use(from, Intent::Receive);
            before_use(to, Intent::Send);
            return next::splice(from, from_offset, to, to_offset, len, flags);
        }
        // As in the kernel, one end must be a pipe, and an offset is an error.
        if receives && sends {
            return errno::fail(EINVAL);
        }
        if !from_offset.is_null() || !to_offset.is_null() {
            return errno::fail(ESPIPE);
        }
        // SPLICE_F_NONBLOCK applies to the pipe only; the rsocket's O_NONBLOCK decides whether the
        // rsocket blocks.
        let now = flags & SPLICE_F_NONBLOCK != 0;
        if len == 0 {
            0
        } else if receives {
            into_pipe(from, to, len.min(PIECE), now)
        } else {
            out_of_pipe(from, to, len.min(PIECE), now)
        }
    }
}

/// The kernel's limit for one call of recvmmsg and sendmmsg.
const MAX_MESSAGES: c_uint = 1024;

/// Calls `call` for each message until a call fails, moves 0 bytes, or returns false in its second
/// value. Returns the number of messages, or -1 if the first call failed.
///
/// # Safety
/// `list` has `count` structures, which no other thread uses meanwhile.
unsafe fn each(list: *mut mmsghdr, count: c_uint, mut call: impl FnMut(&mut mmsghdr) -> (ssize_t, bool)) -> c_int {
    if count == 0 {
        return 0;
    }
    if list.is_null() {
        return errno::fail(EFAULT);
    }
    // SAFETY: `list` is not NULL, and has `count` structures that no other thread uses: guaranteed
    // by the caller.
    let list = unsafe { slice::from_raw_parts_mut(list, count.min(MAX_MESSAGES) as usize) };
    let mut done = 0;
    for message in list {
        let (result, more) = call(message);
        let Ok(len) = c_uint::try_from(result) else { return if done == 0 { -1 } else { done } };
        message.msg_len = len;
        done += 1;
        // Stop at the end of a stream, which is to be reported once.
        if !more || len == 0 {
            break;
        }
    }
    done
}

// preadv2 and pwritev2: on sockets they act like readv and writev with flags, if the offset is -1,
// the current position. The kernel rejects other offsets.

/// The kernel's limit for a list of buffers (UIO_MAXIOV).
const MAX_BUFFERS: c_int = 1024;

// The flags of preadv2 and pwritev2 (linux/fs.h).
const RWF_NOWAIT: c_int = 0x8;
const RWF_APPEND: c_int = 0x10;
const RWF_NOAPPEND: c_int = 0x20;
const RWF_NOSIGNAL: c_int = 0x100;
/// RWF_HIPRI, RWF_DSYNC and RWF_SYNC: the kernel accepts them for sockets, without effect.
const RWF_OF_FILES: c_int = 0x7;

macro_rules! with_flags {
    ($($name:ident($offset:ty) by $transfer:ident, $message:ident;)*) => {
        pub mod with_flags {
            use super::*;

            exports_and_next! {$(
                #[doc = concat!(stringify!($name), "(2).")]
                fn $name(fd: c_int, list: *const iovec, count: c_int, offset: $offset, flags: c_int) -> ssize_t {
                    if is_unchanged(fd) || offset != -1 {
                        return next::$name(fd, list, count, offset, flags);
                    }
                    match message_flags(list, count, flags) {
                        Err(why) => errno::fail(why),
                        Ok(None) => calls::$transfer(fd, list, count),
                        Ok(Some(flags)) => calls::$message(fd, &mut sockets::message(list, count as usize), flags),
                    }
                }
            )*}
        }
    };
}

with_flags! {
    preadv2(off_t) by readv, recvmsg;
    preadv64v2(off64_t) by readv, recvmsg;
    pwritev2(off_t) by writev, sendmsg;
    pwritev64v2(off64_t) by writev, sendmsg;
}

/// Returns the MSG_ flags for the flags of preadv2 and pwritev2, or `None` if readv and writev have
/// the same effect. Fails as the kernel does for a TCP socket, which only checks the flags if there
/// is something to transfer.
///
/// # Safety
/// `list` is NULL or has `count` buffers.
unsafe fn message_flags(list: *const iovec, count: c_int, flags: c_int) -> Result<Option<c_int>, c_int> {
    if flags == 0 || count == 0 {
        return Ok(None);
    }
    if !(0..=MAX_BUFFERS).contains(&count) {
        return Err(EINVAL);
    }
    if list.is_null() {
        return Err(EFAULT);
    }
    // SAFETY: `list` has `count` buffers: guaranteed by the caller.
    let is_empty = unsafe { slice::from_raw_parts(list, count as usize) }.iter().all(|buffer| buffer.iov_len == 0);
    if is_empty {
        return Ok(None);
    }
    if flags & !(RWF_OF_FILES | RWF_NOWAIT | RWF_APPEND | RWF_NOAPPEND | RWF_NOSIGNAL) != 0 {
        return Err(EOPNOTSUPP);
    }
    if flags & RWF_APPEND != 0 && flags & RWF_NOAPPEND != 0 {
        return Err(EINVAL);
    }
    let without_waiting = if flags & RWF_NOWAIT != 0 { MSG_DONTWAIT } else { 0 };
    let without_signal = if flags & RWF_NOSIGNAL != 0 { MSG_NOSIGNAL } else { 0 };
    Ok(Some(without_waiting | without_signal))
}

/// A `va_list` as a function argument. On Linux's 64-bit machines it is a pointer: the type is an
/// array, a structure that is passed by reference, or a pointer.
pub(super) type Arguments = *mut c_void;

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, list: Arguments) -> c_int;
    fn __vasprintf_chk(text: *mut *mut c_char, flag: c_int, format: *const c_char, list: Arguments) -> c_int;
}

fn is_unchanged(fd: c_int) -> bool {
    matches!(Fd::of(fd), Fd::Kernel | Fd::Epoll)
}

/// Writes the text that `format` allocates. Returns its length, or -1 with `errno`.
///
/// # Safety
/// `format` calls vasprintf(3) or its checked variant, and passes on the pointer that it gets.
unsafe fn write_formatted(fd: c_int, format: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text = ptr::null_mut();
    let formatted = format(&raw mut text);
    let Ok(len) = usize::try_from(formatted) else { return -1 };
    let mut written = 0;
    while written < len {
        // SAFETY: `text` has `len` bytes, of which `written` are written.
        let result = unsafe { calls::write(fd, text.add(written).cast(), len - written) };
        let Ok(count) = usize::try_from(result) else { break };
        written += count;
    }
    // SAFETY: the C library has allocated `text`, which is not used any more.
    errno::keeping(|| unsafe { libc::free(text.cast()) });
    if written == len { formatted } else { -1 }
}

/// Maximum number of bytes that one splice moves. A pipe that poll(2) reports as writable has space
/// for this many bytes.
const PIECE: usize = 4096;

/// Called before the kernel moves data over `fd`. If the data is forwarded, the process that has
/// the rsocket must know that the connection is used.
fn before_use(fd: c_int, intent: Intent) {
    if let Fd::Tracked(entry) = Fd::of(fd) {
        auto::before_use(entry, intent);
    }
}

/// Moves bytes from an rsocket to a pipe. The bytes are peeked at, and only consumed when the pipe
/// has taken them, so no bytes are lost. Returns the number of bytes, or -1 with `errno`.
fn into_pipe(from: c_int, pipe: c_int, len: usize, now: bool) -> ssize_t {
    let mut buffer = [0; PIECE];
    let have = receive(from, &mut buffer[..len], MSG_PEEK);
    let Ok(have @ 1..) = usize::try_from(have) else { return have };
    if now && !is_ready(pipe, POLLOUT) {
        return errno::fail(libc::EAGAIN);
    }
    let written = sockets::write(pipe, &buffer[..have]);
    if let Ok(written @ 1..) = usize::try_from(written) {
        errno::keeping(|| receive(from, &mut buffer[..written], 0));
    }
    written
}

fn receive(fd: c_int, bytes: &mut [u8], flags: c_int) -> ssize_t {
    // SAFETY: `bytes` is writable for its length.
    unsafe { calls::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) }
}

/// Moves bytes from a pipe to an rsocket. What is read from the pipe is sent completely, unless the
/// connection fails. Returns the number of bytes, or -1 with `errno`.
fn out_of_pipe(pipe: c_int, to: c_int, len: usize, now: bool) -> ssize_t {
    let mut buffer = [0; PIECE];
    let mut room = [pollfd { fd: to, events: POLLOUT, revents: 0 }];
    let timeout = if tcp::is_blocking(to) { -1 } else { 0 };
    if calls::waits::poll_list(&mut room, timeout) <= 0 || now && !is_ready(pipe, POLLIN) {
        return errno::fail(libc::EAGAIN);
    }
    let have = sockets::read(pipe, &mut buffer[..len]);
    let Ok(have @ 1..) = usize::try_from(have) else { return have };
    let mut sent = 0;
    while sent < have {
        let rest = &buffer[sent..have];
        // SAFETY: `rest` is readable for its length.
        let part = unsafe { calls::send(to, rest.as_ptr().cast(), rest.len(), 0) };
        match usize::try_from(part) {
            Ok(part) => sent += part,
            Err(_) if errno::get() == libc::EAGAIN => {
                calls::waits::poll_list(&mut room, -1);
            }
            Err(_) if errno::get() == libc::EINTR => {}
            Err(_) => return if sent > 0 { sent as ssize_t } else { -1 },
        }
    }
    sent as ssize_t
}

#[cfg(test)]
mod tests_of_offsets {
    use super::*;

    fn flags_of(lens: &[usize], flags: c_int) -> Result<Option<c_int>, c_int> {
        let list: Vec<iovec> = lens.iter().map(|&iov_len| iovec { iov_base: core::ptr::null_mut(), iov_len }).collect();
        // SAFETY: `list` has the number of buffers that is passed.
        unsafe { message_flags(list.as_ptr(), list.len() as c_int, flags) }
    }

    #[test]
    fn flags_are_those_of_a_tcp_socket() {
        assert_eq!(flags_of(&[1], 0), Ok(None));
        assert_eq!(flags_of(&[1], RWF_OF_FILES | RWF_APPEND), Ok(Some(0)));
        assert_eq!(flags_of(&[0, 1], RWF_NOWAIT), Ok(Some(MSG_DONTWAIT)));
        assert_eq!(flags_of(&[1], RWF_NOSIGNAL | RWF_NOWAIT), Ok(Some(MSG_NOSIGNAL | MSG_DONTWAIT)));
        assert_eq!(flags_of(&[1], RWF_APPEND | RWF_NOAPPEND), Err(EINVAL));
        for flag in [0x40, 0x80, 0x200, 0x400, c_int::MIN] {
            assert_eq!(flags_of(&[1], flag | RWF_NOWAIT), Err(EOPNOTSUPP), "{flag:#x}");
        }
    }

    #[test]
    fn flags_of_empty_transfers_are_not_examined() {
        assert_eq!(flags_of(&[], c_int::MAX), Ok(None));
        assert_eq!(flags_of(&[0, 0], c_int::MAX), Ok(None));
    }

    #[test]
    fn the_number_of_buffers_is_limited() {
        assert_eq!(flags_of(&[1; 1024], RWF_NOWAIT), Ok(Some(MSG_DONTWAIT)));
        assert_eq!(flags_of(&[1; 1025], RWF_NOWAIT), Err(EINVAL));
        // SAFETY: a negative count is rejected before the list is read.
        assert_eq!(unsafe { message_flags(core::ptr::null(), -1, RWF_NOWAIT) }, Err(EINVAL));
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { message_flags(core::ptr::null(), 1, RWF_NOWAIT) }, Err(EFAULT));
    }
}
