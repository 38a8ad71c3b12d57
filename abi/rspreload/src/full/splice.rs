//! splice: between an rsocket and a pipe it copies.

use core::ffi::{c_int, c_uint, c_void};

use libc::{
    EINVAL, ESPIPE, F_GETFL, MSG_PEEK, O_NONBLOCK, POLLIN, POLLOUT, SPLICE_F_NONBLOCK, loff_t, pollfd, size_t, ssize_t,
};

use super::next;
use crate::calls;
use crate::dispatch::Fd;
use crate::transition::Way;
use crate::{auto, errno, next_symbol};

/// What is copied at once: a pipe takes at least this much when it is writable.
const PIECE: usize = 4096;

/// splice(2). Returns after one piece of at most 4 KB: the call may always move less than it was
/// asked for.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut loff_t,
    to: c_int,
    to_offset: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let is_rsocket = |fd| !matches!(Fd::of(fd), Fd::Kernel | Fd::Epoll(_) | Fd::Known(_));
    let (receives, sends) = (is_rsocket(from), is_rsocket(to));
    if !receives && !sends {
        before_use(from, Way::Receive);
        before_use(to, Way::Send);
        // SAFETY: the C contract.
        return unsafe { next::splice(from, from_offset, to, to_offset, len, flags) };
    }
    // One end must be a pipe, and neither has an offset.
    if receives && sends {
        return errno::fail(EINVAL);
    }
    if !from_offset.is_null() || !to_offset.is_null() {
        return errno::fail(ESPIPE);
    }
    // The flag is for the pipe; the rsocket waits or not by its own O_NONBLOCK.
    let now = flags & SPLICE_F_NONBLOCK != 0;
    if len == 0 {
        0
    } else if receives {
        into_pipe(from, to, len.min(PIECE), now)
    } else {
        out_of_pipe(from, to, len.min(PIECE), now)
    }
}

/// The kernel is about to move data over a number of its own: if the number is forwarded, the
/// process that has the rsocket has to know.
fn before_use(fd: c_int, way: Way) {
    if let Fd::Known(entry) = Fd::of(fd) {
        auto::before_use(entry, way);
    }
}

/// The bytes are taken from the rsocket after the pipe has taken them, so none are lost.
fn into_pipe(from: c_int, pipe: c_int, len: usize, now: bool) -> ssize_t {
    let mut buffer = [0_u8; PIECE];
    let start = buffer.as_mut_ptr().cast::<c_void>();
    // SAFETY: `len` bytes of the buffer are writable, and at most those received are readable.
    unsafe {
        let have = calls::recv(from, start, len, MSG_PEEK);
        let Ok(have @ 1..) = usize::try_from(have) else { return have };
        if now && !is_ready(pipe, POLLOUT) {
            return errno::fail(libc::EAGAIN);
        }
        let written = next_symbol::write(pipe, start, have);
        if let Ok(written @ 1..) = usize::try_from(written) {
            errno::keeping(|| calls::recv(from, start, written, 0));
        }
        written
    }
}

/// A pipe gives its bytes away when they are read: all of them are sent, unless the connection
/// fails.
fn out_of_pipe(pipe: c_int, to: c_int, len: usize, now: bool) -> ssize_t {
    let mut buffer = [0_u8; PIECE];
    let start = buffer.as_mut_ptr().cast::<c_void>();
    let mut ready = pollfd { fd: to, events: POLLOUT, revents: 0 };
    // SAFETY: a live structure; `len` bytes of the buffer are writable, and those read are readable.
    unsafe {
        let waits = calls::fcntl(to, F_GETFL, 0) & O_NONBLOCK == 0;
        if calls::poll::poll(&raw mut ready, 1, if waits { -1 } else { 0 }) <= 0 {
            return errno::fail(libc::EAGAIN);
        }
        if now && !is_ready(pipe, POLLIN) {
            return errno::fail(libc::EAGAIN);
        }
        let have = next_symbol::read(pipe, start, len);
        let Ok(have @ 1..) = usize::try_from(have) else { return have };
        let mut sent = 0;
        while sent < have {
            let part = calls::send(to, start.byte_add(sent), have - sent, 0);
            match usize::try_from(part) {
                Ok(part) => sent += part,
                Err(_) if errno::get() == libc::EAGAIN => {
                    ready.revents = 0;
                    calls::poll::poll(&raw mut ready, 1, -1);
                }
                Err(_) if errno::get() == libc::EINTR => {}
                Err(_) => return if sent > 0 { sent as ssize_t } else { -1 },
            }
        }
        sent as ssize_t
    }
}

fn is_ready(pipe: c_int, events: libc::c_short) -> bool {
    let mut ready = pollfd { fd: pipe, events, revents: 0 };
    // SAFETY: a live structure.
    unsafe { next_symbol::poll(&raw mut ready, 1, 0) > 0 }
}
