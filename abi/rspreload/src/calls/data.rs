//! Calls that move data, and calls that take the same arguments for rsockets and kernel sockets.

use core::ffi::{c_int, c_void};
use core::slice;

use libc::{
    EINVAL, ESPIPE, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_WAITALL, SEEK_CUR, SEEK_SET, iovec, msghdr, off_t,
    off64_t, size_t, sockaddr, socklen_t, ssize_t,
};

use crate::fds::{self, Fd};
use crate::memory;
use crate::sockets::{self, SockAddr};
use crate::table::{self, Kind};
use crate::transition::{self, Intent};
use crate::{auto, errno, next_symbol, rsocket_abi, tcp};

/// Defines calls that decide what a pending socket of fork mode becomes: `name by rname, intent,
/// (arguments after the descriptor) -> result, what the call was asked to move, before a check that
/// may fail with an errno`.
macro_rules! forward_data {
    ($($name:ident by $to:ident, $intent:expr, ($($arg:ident: $type:ty),*) -> $result:ty, $asked:expr
        $(, before $before:expr)?;)*) => {$(exports! {
        #[doc = concat!(stringify!($name), "(2).")]
        fn $name(fd: c_int, $($arg: $type),*) -> $result {
            // Out of line: otherwise the fast path would have to save its arguments.
            #[cold]
            #[inline(never)]
            unsafe fn decided(fd: c_int, $($arg: $type),*) -> $result {
                // SAFETY: the arguments are those of `$name`, whose C contract the program keeps:
                // its pointers are valid as the manual page requires (crate documentation).
                unsafe {
                    match fds::data(fd, $intent) {
                        Ok(None) => next_symbol::$name(fd, $($arg),*),
                        Ok(Some(rsocket)) => {
                            let result = rsocket_abi::$to(rsocket, $($arg),*) as ssize_t;
                            finish(fd, result, $asked, || next_symbol::$name(fd, $($arg),*) as ssize_t) as $result
                        }
                        Err(why) => errno::fail(why),
                    }
                }
            }

            $(if let Err(why) = $before {
                return errno::fail(why);
            })?
            match fds::data_at_once(fd) {
                Some(Ok(None)) => next_symbol::$name(fd, $($arg),*),
                Some(Ok(Some(rsocket))) => {
                    let result = rsocket_abi::$to(rsocket, $($arg),*) as ssize_t;
                    finish(fd, result, $asked, || decided(fd, $($arg),*) as ssize_t) as $result
                }
                _ => decided(fd, $($arg),*),
            }
        }
    })*};
}

/// The maximum number of buffers in a call (UIO_MAXIOV).
const MAX_BUFFERS: usize = 1024;

/// Fails with `EMSGSIZE` if a message has too many buffers.
///
/// # Safety
/// `message` is NULL or readable.
#[inline(always)]
unsafe fn check_count(message: *const msghdr) -> Result<(), c_int> {
    // SAFETY: `message` is NULL or readable: guaranteed by the caller.
    let is_too_long = unsafe { message.as_ref().is_some_and(|message| message.msg_iovlen > MAX_BUFFERS) };
    if is_too_long { Err(libc::EMSGSIZE) } else { Ok(()) }
}

/// Returns the intent of a call that receives.
#[inline(always)]
fn receive(flags: c_int) -> Intent {
    if flags & MSG_DONTWAIT != 0 { Intent::ReceiveNow } else { Intent::Receive }
}

/// Returns the intent of a call that sends.
#[inline(always)]
fn transmit(flags: c_int) -> Intent {
    if flags & MSG_DONTWAIT != 0 { Intent::SendNow } else { Intent::Send }
}

exports! {
    /// bind(2).
    fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
        match Fd::of(fd) {
            Fd::Rsocket(entry) => {
                tcp::like_tcp(rsocket_abi::rbind(entry.handle, addr, len), || SockAddr::read(addr, len))
            }
            Fd::Connecting(_) => errno::fail(EINVAL),
            _ => next_symbol::bind(fd, addr, len),
        }
    }

    /// listen(2).
    safe fn listen(fd: c_int, backlog: c_int) -> c_int {
        match Fd::of(fd) {
            Fd::Rsocket(entry) => rsocket_abi::rlisten(entry.handle, backlog),
            Fd::Kernel if auto::is_on() => auto::listen(fd, backlog, None),
            Fd::Tracked(entry) => auto::listen(fd, backlog, Some(entry)),
            Fd::Connecting(_) => errno::fail(EINVAL),
            _ => next_symbol::listen(fd, backlog),
        }
    }

    /// getsockopt(2).
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        match Fd::of(fd) {
            Fd::Rsocket(entry) if auto::is_auto(entry) => auto::getsockopt(fd, entry, (level, name), value, len),
            Fd::Rsocket(entry) => rsocket_abi::rgetsockopt(entry.handle, level, name, value, len),
            _ => next_symbol::getsockopt(fd, level, name, value, len),
        }
    }

    /// setsockopt(2).
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        let next = || next_symbol::setsockopt(fd, level, name, value, len);
        let rsockets = |rsocket| rsocket_abi::rsetsockopt(rsocket, level, name, value, len);
        match table::get(fd) {
            Some(entry) if entry.kind == Kind::Socket && !auto::is_auto(entry) => rsockets(entry.handle),
            entry => {
                let purpose = || auto::purpose_of((level, name), value, len);
                let result = auto::setsockopt(fd, entry, (level, name), purpose, rsockets, next);
                // `None`: a connection attempt has ended, so look at the descriptor again.
                result.unwrap_or_else(|| setsockopt(fd, level, name, value, len))
            }
        }
    }
}

/// Defines calls that return an address: `name by rname, whether it is the peer's address`.
macro_rules! forward_name {
    ($($name:ident by $to:ident, $is_peer:expr;)*) => {$(exports! {
        #[doc = concat!(stringify!($name), "(2).")]
        fn $name(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
            if let (false, Fd::Connecting(entry)) = ($is_peer, Fd::of(fd)) {
                // The local port is known only when the attempt has ended.
                errno::keeping(|| transition::wait_for_change(fd, entry));
            }
            match Fd::of(fd) {
                Fd::Rsocket(entry) | Fd::Tracked(entry) => match (auto::name_of(entry, $is_peer), entry.kind) {
                    (Some(name), _) => store(name, addr, len),
                    (None, Kind::Socket) => rsocket_abi::$to(entry.handle, addr, len),
                    (None, _) => next_symbol::$name(fd, addr, len),
                },
                _ => next_symbol::$name(fd, addr, len),
            }
        }
    })*};
}

forward_name! {
    getpeername by rgetpeername, true;
    getsockname by rgetsockname, false;
}

/// Stores an address for the program. Returns 0, or -1 with `EFAULT` if a pointer is NULL.
///
/// # Safety
/// `len` is NULL or valid, and `addr` is NULL or writable for `*len` bytes.
unsafe fn store(name: SockAddr, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if addr.is_null() || len.is_null() {
        return errno::fail(libc::EFAULT);
    }
    // SAFETY: `len` is valid and `addr` writable for `*len` bytes: guaranteed by the caller.
    unsafe { name.write(addr, len) };
    0
}

forward_data! {
    read by rread, Intent::Receive, (buf: *mut c_void, len: size_t) -> ssize_t, NOTHING;
    readv by rreadv, Intent::Receive, (list: *const iovec, count: c_int) -> ssize_t, NOTHING;
    recv by rrecv, receive(flags), (buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t,
        Asked { buffers: &one(buf, len), flags, sends: false };
    recvfrom by rrecvfrom, receive(flags), (
        buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t
    ) -> ssize_t, Asked { buffers: &one(buf, len), flags, sends: false };
    recvmsg by rrecvmsg, receive(flags), (msg: *mut msghdr, flags: c_int) -> ssize_t,
        Asked { buffers: list_of(msg), flags, sends: false }, before check_count(msg);

    write by rwrite, Intent::Send, (buf: *const c_void, len: size_t) -> ssize_t,
        Asked { buffers: &one(buf, len), flags: 0, sends: true };
    writev by rwritev, Intent::Send, (buffers: *const iovec, count: c_int) -> ssize_t,
        Asked { buffers: list(buffers, usize::try_from(count).unwrap_or(0)), flags: 0, sends: true };
    send by rsend, transmit(flags), (buf: *const c_void, len: size_t, flags: c_int) -> ssize_t,
        Asked { buffers: &one(buf, len), flags, sends: true };
    sendto by rsendto, transmit(flags), (
        buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addrlen: socklen_t
    ) -> ssize_t, Asked { buffers: &one(buf, len), flags, sends: true };
    sendmsg by rsendmsg, transmit(flags), (msg: *const msghdr, flags: c_int) -> ssize_t,
        Asked { buffers: list_of(msg), flags, sends: true },
        before check_count(msg).and_then(|()| auto::outside::before_sendmsg(msg));
    shutdown by rshutdown, Intent::Shutdown, (how: c_int) -> c_int, NOTHING;
}

// The rest of a blocking call on an rsocket whose descriptor became a kernel TCP socket while the
// call slept. The rsocket was made non-blocking, so the call has returned early.

/// What a call was asked to move, and how.
#[derive(Clone, Copy)]
struct Asked<'a> {
    buffers: &'a [iovec],
    flags: c_int,
    sends: bool,
}

/// The value for a call that is never continued after it has moved some bytes.
const NOTHING: Asked<'_> = Asked { buffers: &[], flags: 0, sends: false };

/// Returns a list with one buffer.
fn one(start: *const c_void, len: usize) -> [iovec; 1] {
    [iovec { iov_base: start.cast_mut(), iov_len: len }]
}

/// Returns the buffers of a call as a slice; an empty slice for NULL.
///
/// # Safety
/// `list` is NULL, or has `count` buffers during `'a`.
unsafe fn list<'a>(list: *const iovec, count: usize) -> &'a [iovec] {
    // SAFETY: `list` has `count` buffers during `'a`: guaranteed by the caller.
    unsafe { if list.is_null() { &[] } else { slice::from_raw_parts(list, count) } }
}

/// Returns the buffers of a message; an empty slice for NULL.
///
/// # Safety
/// `message` is NULL, or it and its list of buffers are readable during `'a`.
unsafe fn list_of<'a>(message: *const msghdr) -> &'a [iovec] {
    // SAFETY: `message` and its list are readable during `'a`: guaranteed by the caller.
    unsafe { message.as_ref().map_or(&[], |message| list(message.msg_iov, message.msg_iovlen)) }
}

impl Asked<'_> {
    /// Whether the call normally moves all bytes: it blocks, and it sends or has MSG_WAITALL.
    #[inline(always)]
    fn is_whole(&self) -> bool {
        !self.buffers.is_empty()
            && self.flags & MSG_DONTWAIT == 0
            && (self.sends || self.flags & (MSG_WAITALL | MSG_PEEK) == MSG_WAITALL)
    }
}

/// Returns the final result of an rsocket call that has returned `done`. If the library has started
/// to forward the data meanwhile, the rsocket is non-blocking and the descriptor is a kernel
/// socket: a call that failed with `EAGAIN` is repeated with `again`, and a call that should have
/// moved more bytes is continued.
///
/// # Safety
/// The buffers are readable if the call sends, and otherwise writable.
#[inline(always)]
unsafe fn finish(fd: c_int, done: ssize_t, asked: Asked<'_>, again: impl FnOnce() -> ssize_t) -> ssize_t {
    if done < 0 {
        return if has_moved(fd, asked) { again() } else { done };
    }
    // Most calls have one buffer, and have moved all of it.
    let is_short = asked.buffers.len() > 1 || asked.buffers.first().is_some_and(|one| (done as usize) < one.iov_len);
    if done > 0 && is_short && asked.is_whole() && matches!(Fd::of(fd), Fd::Tracked(_)) {
        // SAFETY: the buffers are readable or writable as `go_on` needs: guaranteed by the caller.
        return unsafe { go_on(fd, asked, done) };
    }
    done
}

#[cold]
fn has_moved(fd: c_int, asked: Asked<'_>) -> bool {
    if !asked.sends && asked.flags & libc::MSG_ERRQUEUE != 0 && errno::get() == libc::EOPNOTSUPP {
        // An rsocket's error queue is always empty.
        errno::set(libc::EAGAIN);
        return false;
    }
    errno::get() == libc::EAGAIN && matches!(Fd::of(fd), Fd::Tracked(_))
}

/// Continues a call that has moved `done` bytes, on the kernel socket. Returns the total number of
/// bytes, which is `done` if the kernel's call fails.
///
/// # Safety
/// The buffers are readable if the call sends, and otherwise writable.
#[cold]
unsafe fn go_on(fd: c_int, asked: Asked<'_>, done: ssize_t) -> ssize_t {
    let buffers = asked.buffers;
    let total = buffers.iter().fold(0_usize, |total, buffer| total.saturating_add(buffer.iov_len));
    if done as usize >= total || !tcp::is_blocking(fd) {
        return done;
    }
    let more = errno::keeping(|| {
        memory::with::<iovec, _>(buffers.len(), |rest| {
            rest.copy_from_slice(buffers);
            skip(rest, done as usize);
            let mut message = sockets::message(rest.as_ptr(), rest.len());
            // SAFETY: `rest` is a part of the buffers, which are readable or writable as needed.
            unsafe {
                if asked.sends {
                    // A call that has sent some bytes must not raise SIGPIPE.
                    next_symbol::sendmsg(fd, &raw const message, asked.flags | MSG_NOSIGNAL)
                } else {
                    next_symbol::recvmsg(fd, &raw mut message, asked.flags)
                }
            }
        })
    });
    done + more.unwrap_or(0).max(0)
}

/// Removes the first `bytes` bytes from a list of buffers.
fn skip(list: &mut [iovec], mut bytes: usize) {
    for buffer in list {
        let part = bytes.min(buffer.iov_len);
        buffer.iov_base = buffer.iov_base.wrapping_byte_add(part);
        buffer.iov_len -= part;
        bytes -= part;
    }
}

/// The number of bytes that sendfile(2) reads and sends at a time.
const PIECE: usize = 64 << 10;
/// The kernel's limit for the bytes of one call (linux/fs.h, with pages of 4 KB).
const MAX_RW_COUNT: usize = 0x7fff_f000;

exports! {
    /// sendfile(2).
    fn sendfile(out: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        // off_t has 64 bits on all supported machines.
        send_file(out, file, offset.cast(), count, || next_symbol::sendfile(out, file, offset, count))
    }

    /// sendfile(2) under its name for programs that are compiled for large files.
    fn sendfile64(out: c_int, file: c_int, offset: *mut off64_t, count: size_t) -> ssize_t {
        send_file(out, file, offset, count, || next_symbol::sendfile64(out, file, offset, count))
    }
}

#[inline(always)]
fn send_file(out: c_int, file: c_int, offset: *mut off64_t, len: usize, next: impl FnOnce() -> ssize_t) -> ssize_t {
    match fds::data(out, Intent::Send) {
        // A socket cannot be `file`: the kernel fails with EINVAL, also for a placeholder.
        Ok(None) => next(),
        // Pass the descriptor, not the rsocket, as the library may start to forward the connection.
        // SAFETY: `offset` is NULL or valid: the C contract of sendfile(2).
        Ok(Some(_)) => unsafe { send_to(out, file, offset, len) },
        Err(why) => errno::fail(why),
    }
}

/// sendfile(2) to an rsocket.
///
/// # Safety
/// `offset` is NULL or valid for reads and writes.
unsafe fn send_to(out: c_int, file: c_int, offset: *mut off64_t, count: usize) -> ssize_t {
    // SAFETY: `offset` is NULL or readable: guaranteed by the caller.
    let start = unsafe { if offset.is_null() { libc::lseek64(file, 0, SEEK_CUR) } else { offset.read() } };
    if start < 0 {
        return if offset.is_null() && errno::get() != ESPIPE { -1 } else { errno::fail(EINVAL) };
    }
    let send = |buffer: &mut [u8]| send_pieces(out, file, start, count.min(MAX_RW_COUNT), buffer);
    let sent = memory::with(PIECE, send).unwrap_or_else(errno::fail);
    if sent > 0 {
        // SAFETY: `offset` is NULL or writable: guaranteed by the caller.
        unsafe {
            if offset.is_null() {
                errno::keeping(|| libc::lseek64(file, start + sent as off64_t, SEEK_SET));
            } else {
                offset.write(start + sent as off64_t);
            }
        }
    }
    sent
}

/// Returns the number of bytes sent before the end of the file or a failure; -1 if the first read
/// or send failed.
fn send_pieces(out: c_int, file: c_int, start: off64_t, count: usize, buffer: &mut [u8]) -> ssize_t {
    let mut sent = 0;
    while sent < count {
        let want = buffer.len().min(count - sent);
        // SAFETY: `want` bytes at `buffer` are writable.
        let have =
            unsafe { next_symbol::pread64(file, buffer.as_mut_ptr().cast::<c_void>(), want, start + sent as off64_t) };
        if have < 0 && sent == 0 {
            return if errno::get() == ESPIPE { errno::fail(EINVAL) } else { -1 };
        }
        let Some(piece) = usize::try_from(have).ok().and_then(|have| buffer.get(..have)) else { break };
        if piece.is_empty() {
            break;
        }
        // SAFETY: `piece.len()` bytes at `piece` are readable.
        match usize::try_from(unsafe { send(out, piece.as_ptr().cast(), piece.len(), 0) }) {
            Err(_) if sent == 0 => return -1,
            Ok(part) if part == piece.len() => sent += part,
            part => {
                sent += part.unwrap_or(0);
                break;
            }
        }
    }
    sent as ssize_t
}

#[cfg(test)]
mod tests_of_forward {
    use super::*;

    #[test]
    fn only_msg_dontwait_makes_a_call_not_wait() {
        let others = libc::MSG_PEEK | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        assert_eq!([0, others].map(receive), [Intent::Receive; 2]);
        assert_eq!([0, others].map(transmit), [Intent::Send; 2]);
        assert_eq!([MSG_DONTWAIT, !0].map(receive), [Intent::ReceiveNow; 2]);
        assert_eq!([MSG_DONTWAIT, !0].map(transmit), [Intent::SendNow; 2]);
    }
}

#[cfg(test)]
mod tests_of_remainder {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::calls::tests::connection;

    fn to_send(buffers: &[iovec]) -> Asked<'_> {
        Asked { buffers, flags: 0, sends: true }
    }

    #[test]
    fn the_rest_is_sent() {
        let (client, mut server) = connection();
        let data: Vec<u8> = (0..250).collect();
        let list = [&data[..100], &[], &data[100..]]
            .map(|part| iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
        for done in [1, 99, 100, 101, 249, 250] {
            for buffers in [&list[..], &one(data.as_ptr().cast(), data.len())] {
                // SAFETY: the buffers point to `data`, which is readable for their lengths.
                assert_eq!(unsafe { go_on(client.as_raw_fd(), to_send(buffers), done) }, 250);
                let mut got = vec![0; 250 - done as usize];
                server.read_exact(&mut got).unwrap();
                assert_eq!(got, data[done as usize..]);
            }
        }
        client.set_nonblocking(true).unwrap();
        // SAFETY: the buffer points to `data`, which has 250 bytes.
        assert_eq!(unsafe { go_on(client.as_raw_fd(), to_send(&one(data.as_ptr().cast(), 250)), 10) }, 10);
    }

    #[test]
    fn the_rest_is_received_up_to_the_end() {
        let (mut client, server) = connection();
        let mut room = [0_u8; 10];
        let buffers = one(room.as_mut_ptr().cast(), room.len());
        let asked = Asked { buffers: &buffers, flags: MSG_WAITALL, sends: false };
        client.write_all(b"3456789abc").unwrap();
        // SAFETY: the buffer is writable for its length.
        assert_eq!(unsafe { go_on(server.as_raw_fd(), asked, 3) }, 10);
        assert_eq!(&room, b"\0\0\x003456789");
        drop(client);
        // SAFETY: the buffer is writable for its length.
        assert_eq!(unsafe { go_on(server.as_raw_fd(), asked, 3) }, 6);
    }

    #[test]
    fn only_calls_that_wait_for_all_go_on() {
        let buffers = &one(c"".as_ptr().cast(), 1);
        for (flags, sends, whole) in [
            (0, true, true),
            (MSG_DONTWAIT, true, false),
            (0, false, false),
            (MSG_WAITALL, false, true),
            (MSG_WAITALL | MSG_PEEK, false, false),
            (MSG_WAITALL | MSG_DONTWAIT, false, false),
        ] {
            assert_eq!(Asked { buffers, flags, sends }.is_whole(), whole);
        }
        assert!(!NOTHING.is_whole() && !to_send(&[]).is_whole());
    }
}
