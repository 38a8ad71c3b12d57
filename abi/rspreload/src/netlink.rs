//! Requests by netlink(7) that the kernel answers in the call that sends them.

use core::ffi::{c_int, c_void};

use libc::{AF_NETLINK, MSG_DONTWAIT, SOCK_CLOEXEC, SOCK_RAW};

use crate::{errno, next_symbol};

/// Sends the first `len` bytes of a request. Returns the answer and the number of its bytes, or
/// `None` without one. Keeps `errno`.
///
/// # Safety
/// The request has `len` bytes. Both types are structures of integers in the layout of C.
pub unsafe fn ask<Request, Answer>(protocol: c_int, request: &Request, len: usize) -> Option<(Answer, usize)> {
    errno::keeping(|| {
        let fd = next_symbol::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
        if fd < 0 {
            return None;
        }
        // SAFETY: all zeros are a value of the structure.
        let mut answer: Answer = unsafe { core::mem::zeroed() };
        let (from, to) = ((&raw const *request).cast::<c_void>(), (&raw mut answer).cast::<c_void>());
        // SAFETY: the request has `len` bytes, and the answer is as long as its type; the
        // descriptor was opened above.
        let received = unsafe {
            let sent = next_symbol::send(fd, from, len, MSG_DONTWAIT);
            let received = if sent < 0 { sent } else { next_symbol::recv(fd, to, size_of::<Answer>(), MSG_DONTWAIT) };
            next_symbol::close(fd);
            received
        };
        Some((answer, usize::try_from(received).ok()?))
    })
}
