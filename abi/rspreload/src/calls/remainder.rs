//! What is left of a blocking call on an rsocket whose number became a TCP socket of the kernel
//! while the call slept: the rsocket does not block any more, so the call has returned early.

use core::ffi::{c_int, c_void};
use core::slice;

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_WAITALL, iovec, msghdr, ssize_t};

use crate::dispatch::Fd;
use crate::memory::{self, Plain};
use crate::tcp;
use crate::{errno, next_symbol};

/// What a call was asked to move, and how.
#[derive(Clone, Copy)]
pub struct Asked {
    list: *const iovec,
    count: usize,
    one: iovec,
    flags: c_int,
    sends: bool,
}

impl Asked {
    fn new(list: *const iovec, count: usize, flags: c_int, sends: bool) -> Asked {
        Asked { list, count, one: iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }, flags, sends }
    }

    /// A call that never moves more than it does at once.
    pub fn nothing() -> Asked {
        Asked::new(core::ptr::null(), 0, 0, false)
    }

    /// To send one buffer.
    pub fn send(start: *const c_void, len: usize, flags: c_int) -> Asked {
        let one = iovec { iov_base: start.cast_mut(), iov_len: len };
        Asked { one, ..Asked::new(core::ptr::null(), 1, flags, true) }
    }

    /// To send a list of buffers.
    pub fn send_list(list: *const iovec, count: c_int) -> Asked {
        Asked::new(list, usize::try_from(count).unwrap_or(0), 0, true)
    }

    /// To receive into one buffer.
    pub fn receive(start: *mut c_void, len: usize, flags: c_int) -> Asked {
        let one = iovec { iov_base: start, iov_len: len };
        Asked { one, ..Asked::new(core::ptr::null(), 1, flags, false) }
    }

    /// A message to send or to receive.
    ///
    /// # Safety
    /// `message` is null or readable.
    pub unsafe fn message(message: *const msghdr, flags: c_int, sends: bool) -> Asked {
        // SAFETY: as for this function.
        match unsafe { message.as_ref() } {
            Some(message) => Asked::new(message.msg_iov, message.msg_iovlen, flags, sends),
            None => Asked::nothing(),
        }
    }

    /// Whether the call asks for the queue of errors.
    pub fn is_of_errors(&self) -> bool {
        !self.sends && self.flags & libc::MSG_ERRQUEUE != 0
    }

    /// Whether the call returns early only for a reason: a blocking call that sends, or that waits
    /// for all of what it receives.
    #[inline(always)]
    fn is_whole(&self) -> bool {
        self.count > 0
            && self.flags & MSG_DONTWAIT == 0
            && (self.sends || self.flags & (MSG_WAITALL | MSG_PEEK) == MSG_WAITALL)
    }
}

/// The result of a call that has moved `done` bytes (not a failure) by an rsocket.
///
/// # Safety
/// The buffers are those of the call.
#[inline(always)]
pub unsafe fn finish(fd: c_int, asked: Asked, done: ssize_t) -> ssize_t {
    // Most calls have moved their only buffer.
    let is_short = !asked.list.is_null() || (done as usize) < asked.one.iov_len;
    if done > 0 && is_short && asked.is_whole() && matches!(Fd::of(fd), Fd::Known(_)) {
        // SAFETY: as for this function.
        return unsafe { go_on(fd, asked, done) };
    }
    done
}

/// # Safety
/// As for [`finish`].
#[cold]
unsafe fn go_on(fd: c_int, asked: Asked, done: ssize_t) -> ssize_t {
    // SAFETY: as for this function.
    let buffers = unsafe {
        if asked.list.is_null() { slice::from_ref(&asked.one) } else { slice::from_raw_parts(asked.list, asked.count) }
    };
    let total = buffers.iter().fold(0_usize, |total, buffer| total.saturating_add(buffer.iov_len));
    if done as usize >= total || !tcp::is_blocking(fd) {
        return done;
    }
    let more = errno::keeping(|| {
        memory::with::<iovec, _>(buffers.len(), |rest| {
            rest.copy_from_slice(buffers);
            skip(rest, done as usize);
            let mut message = msghdr::zero();
            message.msg_iov = rest.as_mut_ptr();
            message.msg_iovlen = rest.len() as _;
            // SAFETY: the buffers are those of the call.
            unsafe {
                if asked.sends {
                    // A call that has sent something does not raise SIGPIPE.
                    next_symbol::sendmsg(fd, &raw const message, asked.flags | MSG_NOSIGNAL)
                } else {
                    next_symbol::recvmsg(fd, &raw mut message, asked.flags)
                }
            }
        })
    });
    done + more.unwrap_or(0).max(0)
}

/// Takes the first bytes off a list of buffers.
fn skip(list: &mut [iovec], mut bytes: usize) {
    for buffer in list {
        let part = bytes.min(buffer.iov_len);
        buffer.iov_base = buffer.iov_base.wrapping_byte_add(part);
        buffer.iov_len -= part;
        bytes -= part;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::test_sockets::connection;

    #[test]
    fn the_rest_is_sent() {
        let (client, mut server) = connection();
        let data: Vec<u8> = (0..250).collect();
        let list = [&data[..100], &[], &data[100..]]
            .map(|part| iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
        for done in [1, 99, 100, 101, 249, 250] {
            for asked in [Asked::send_list(list.as_ptr(), 3), Asked::send(data.as_ptr().cast(), data.len(), 0)] {
                // SAFETY: live buffers.
                assert_eq!(unsafe { go_on(client.as_raw_fd(), asked, done) }, 250);
                let mut got = vec![0; 250 - done as usize];
                server.read_exact(&mut got).unwrap();
                assert_eq!(got, data[done as usize..]);
            }
        }
        client.set_nonblocking(true).unwrap();
        let asked = Asked::send(data.as_ptr().cast(), data.len(), 0);
        // SAFETY: a live buffer.
        assert_eq!(unsafe { go_on(client.as_raw_fd(), asked, 10) }, 10);
    }

    #[test]
    fn the_rest_is_received_up_to_the_end() {
        let (mut client, server) = connection();
        let mut room = [0_u8; 10];
        let asked = Asked::receive(room.as_mut_ptr().cast(), room.len(), MSG_WAITALL);
        client.write_all(b"3456789abc").unwrap();
        // SAFETY: a live buffer.
        assert_eq!(unsafe { go_on(server.as_raw_fd(), asked, 3) }, 10);
        assert_eq!(&room, b"\0\0\x003456789");
        drop(client);
        // SAFETY: a live buffer.
        assert_eq!(unsafe { go_on(server.as_raw_fd(), asked, 3) }, 6);
    }

    #[test]
    fn only_calls_that_wait_for_all_go_on() {
        let mut byte = [0_u8];
        let start = byte.as_mut_ptr().cast::<c_void>();
        for (asked, whole) in [
            (Asked::nothing(), false),
            (Asked::send(start, 1, 0), true),
            (Asked::send(start, 1, MSG_DONTWAIT), false),
            (Asked::receive(start, 1, 0), false),
            (Asked::receive(start, 1, MSG_WAITALL), true),
            (Asked::receive(start, 1, MSG_WAITALL | MSG_PEEK), false),
            (Asked::receive(start, 1, MSG_WAITALL | MSG_DONTWAIT), false),
            (Asked::send_list(core::ptr::null(), 0), false),
        ] {
            assert_eq!(asked.is_whole(), whole);
        }
    }
}
