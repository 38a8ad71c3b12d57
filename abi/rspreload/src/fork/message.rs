//! The messages of a child and the process that serves its rsocket, over a SOCK_SEQPACKET pair.

use core::ffi::c_int;
use core::mem;

use libc::{EINTR, MSG_NOSIGNAL, c_void, iovec, msghdr};

use crate::{errno, next_symbol};

/// The most data of a message. The pair's buffers hold several such messages.
pub const MAX_DATA: usize = 32 << 10;
/// The most pieces of data.
pub const MAX_PIECES: usize = 15;

/// The start of each message. Data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub what: c_int,
    /// The number of bytes to receive, poll bits, how to shut down, a result, or a negated errno.
    pub value: c_int,
    /// MSG_* of the call.
    pub flags: c_int,
}

/// Requests. Each is answered at once.
pub const RECEIVE: c_int = 1;
pub const SEND: c_int = 2;
pub const SHUTDOWN: c_int = 3;
/// Asks for [`READY`] when one of these poll bits, or of those asked for before, holds. The reply
/// says whether one holds now.
pub const ASK: c_int = 4;
/// The answer.
pub const REPLY: c_int = 5;
/// The poll bits that hold. Comes unasked, and ends all that was asked for.
pub const READY: c_int = 6;

/// Sends a message. Fails with `EPIPE` or a similar error if the other end is closed.
pub fn put(channel: c_int, mut head: Head, data: &[iovec]) -> Result<(), c_int> {
    let mut list = pieces(&mut head, data);
    let message = over(&mut list, 1 + data.len().min(MAX_PIECES));
    loop {
        // SAFETY: the pieces are the head and the caller's, which are as long as they say.
        if unsafe { next_symbol::sendmsg(channel, &raw const message, MSG_NOSIGNAL) } >= 0 {
            return Ok(());
        }
        match errno::get() {
            EINTR => {}
            error => return Err(error),
        }
    }
}

/// Receives a message. Returns its head and the length of its data. Fails with `EPIPE` if the other
/// end is closed.
pub fn take(channel: c_int, data: &[iovec], flags: c_int) -> Result<(Head, usize), c_int> {
    let mut head = Head { what: 0, value: 0, flags: 0 };
    let mut list = pieces(&mut head, data);
    let mut message = over(&mut list, 1 + data.len().min(MAX_PIECES));
    // SAFETY: the pieces are the head and the caller's, which are as long as they say.
    let count = unsafe { next_symbol::recvmsg(channel, &raw mut message, flags) };
    match usize::try_from(count) {
        Ok(count) if count >= mem::size_of::<Head>() => Ok((head, count - mem::size_of::<Head>())),
        Ok(_) => Err(libc::EPIPE),
        Err(_) => Err(errno::get()),
    }
}

fn pieces(head: &mut Head, data: &[iovec]) -> [iovec; 1 + MAX_PIECES] {
    let first = iovec { iov_base: (head as *mut Head).cast::<c_void>(), iov_len: mem::size_of::<Head>() };
    let mut list = [first; 1 + MAX_PIECES];
    for (piece, data) in list[1..].iter_mut().zip(data) {
        *piece = *data;
    }
    list
}

fn over(list: &mut [iovec; 1 + MAX_PIECES], count: usize) -> msghdr {
    // SAFETY: zeros are a value: no name, no control data.
    let mut message: msghdr = unsafe { mem::zeroed() };
    message.msg_iov = list.as_mut_ptr();
    message.msg_iovlen = count as _;
    message
}

/// The part of a call's data, after its first `skip` bytes, that fits into one message. Returns the
/// pieces, their number, and their total length.
pub fn limited(data: &[iovec], mut skip: usize) -> ([iovec; MAX_PIECES], usize, usize) {
    let mut list = [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; MAX_PIECES];
    let (mut count, mut total) = (0, 0);
    for piece in data {
        let skipped = skip.min(piece.iov_len);
        skip -= skipped;
        let Some(target) = list.get_mut(count) else { break };
        let len = (piece.iov_len - skipped).min(MAX_DATA - total);
        if len > 0 {
            *target = iovec { iov_base: piece.iov_base.cast::<u8>().wrapping_add(skipped).cast(), iov_len: len };
            total += len;
            count += 1;
        }
    }
    (list, count, total)
}
