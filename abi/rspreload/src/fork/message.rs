//! What a child says to the process that serves its rsocket, and the answers: messages of a SOCK_SEQPACKET pair.

use core::ffi::c_int;
use core::mem;

use libc::{EINTR, MSG_NOSIGNAL, c_void, iovec, msghdr};

use crate::{errno, real};

/// The most data of a message; a pair's buffers hold several.
pub const MOST: usize = 32 << 10;
/// The most pieces of data.
pub const PIECES: usize = 15;

/// Each message begins so; data may follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub what: c_int,
    /// How much to receive; poll bits; how to shut down; the result, or an errno, negative.
    pub value: c_int,
    /// MSG_* of the call.
    pub flags: c_int,
}

/// Requests. Each is answered at once.
pub const RECEIVE: c_int = 1;
pub const SEND: c_int = 2;
pub const SHUTDOWN: c_int = 3;
/// To be told by [`READY`] when one of these poll bits holds, or one of those asked for before. The reply is whether that
/// is so now.
pub const ASK: c_int = 4;
/// The answer.
pub const REPLY: c_int = 5;
/// The poll bits that hold; comes by itself, and ends all that was asked for.
pub const READY: c_int = 6;

/// Sends a message. `EPIPE` and the like when nobody is there.
pub fn put(channel: c_int, mut head: Head, data: &[iovec]) -> Result<(), c_int> {
    let mut list = pieces(&mut head, data);
    let message = over(&mut list, 1 + data.len().min(PIECES));
    loop {
        // SAFETY: the pieces are the head and what the caller vouches for.
        if unsafe { real::sendmsg(channel, &raw const message, MSG_NOSIGNAL) } >= 0 {
            return Ok(());
        }
        match errno::get() {
            EINTR => {}
            error => return Err(error),
        }
    }
}

/// Takes a message: its head, and how much data came with it. `EPIPE` when nobody is there any more.
pub fn take(channel: c_int, data: &[iovec], flags: c_int) -> Result<(Head, usize), c_int> {
    let mut head = Head { what: 0, value: 0, flags: 0 };
    let mut list = pieces(&mut head, data);
    let mut message = over(&mut list, 1 + data.len().min(PIECES));
    // SAFETY: the pieces are the head and what the caller vouches for.
    let count = unsafe { real::recvmsg(channel, &raw mut message, flags) };
    match usize::try_from(count) {
        Ok(count) if count >= mem::size_of::<Head>() => Ok((head, count - mem::size_of::<Head>())),
        Ok(_) => Err(libc::EPIPE),
        Err(_) => Err(errno::get()),
    }
}

fn pieces(head: &mut Head, data: &[iovec]) -> [iovec; 1 + PIECES] {
    let first = iovec { iov_base: (head as *mut Head).cast::<c_void>(), iov_len: mem::size_of::<Head>() };
    let mut list = [first; 1 + PIECES];
    for (piece, data) in list[1..].iter_mut().zip(data) {
        *piece = *data;
    }
    list
}

fn over(list: &mut [iovec; 1 + PIECES], count: usize) -> msghdr {
    // SAFETY: zeros are a value of it: no name, no control data.
    let mut message: msghdr = unsafe { mem::zeroed() };
    message.msg_iov = list.as_mut_ptr();
    message.msg_iovlen = count as _;
    message
}

/// What of a call's data, behind its first `skip` bytes, one message takes: the pieces, their number, and how much they
/// are.
pub fn limited(data: &[iovec], mut skip: usize) -> ([iovec; PIECES], usize, usize) {
    let mut list = [iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; PIECES];
    let (mut count, mut total) = (0, 0);
    for piece in data {
        let skipped = skip.min(piece.iov_len);
        skip -= skipped;
        let Some(place) = list.get_mut(count) else { break };
        let len = (piece.iov_len - skipped).min(MOST - total);
        if len > 0 {
            *place = iovec { iov_base: piece.iov_base.cast::<u8>().wrapping_add(skipped).cast(), iov_len: len };
            total += len;
            count += 1;
        }
    }
    (list, count, total)
}
