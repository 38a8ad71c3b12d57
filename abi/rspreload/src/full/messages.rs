//! Several messages in one call: recvmmsg, sendmmsg.

use core::ffi::{c_int, c_uint};
use core::slice;

use libc::{MSG_DONTWAIT, MSG_WAITFORONE, mmsghdr, ssize_t, timespec};

use super::next;
use crate::dispatch::Fd;
use crate::time::{Deadline, milliseconds};
use crate::{auto, calls, errno};

/// The kernel's limit for one call.
const MAX_MESSAGES: c_uint = 1024;

/// recvmmsg(2). As in the kernel, the time-out is examined after each message only.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    list: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the C contract.
    unsafe {
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
}

/// sendmmsg(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sendmmsg(fd: c_int, list: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    // SAFETY: the C contract.
    unsafe {
        if matches!(Fd::of(fd), Fd::Kernel) {
            for message in 0..if list.is_null() { 0 } else { count.min(MAX_MESSAGES) } {
                if let Err(why) = auto::outside::before_sendmsg(&raw const (*list.add(message as usize)).msg_hdr) {
                    return errno::fail(why);
                }
            }
            return next::sendmmsg(fd, list, count, flags);
        }
        each(list, count, |message| (calls::sendmsg(fd, &raw const message.msg_hdr, flags), true))
    }
}

/// Makes a call for each message until one fails or the call says that it was the last. Returns the
/// number of messages, or -1 if the first one failed.
///
/// # Safety
/// `list` has `count` structures.
unsafe fn each(list: *mut mmsghdr, count: c_uint, mut call: impl FnMut(&mut mmsghdr) -> (ssize_t, bool)) -> c_int {
    if count == 0 {
        return 0;
    }
    // SAFETY: `count` structures, which no other thread changes meanwhile: guaranteed by the caller.
    let list = unsafe { slice::from_raw_parts_mut(list, count.min(MAX_MESSAGES) as usize) };
    let mut done = 0;
    for message in list {
        let (result, more) = call(message);
        let Ok(len) = c_uint::try_from(result) else { return if done == 0 { -1 } else { done } };
        message.msg_len = len;
        done += 1;
        // The end of a stream is reported once.
        if !more || len == 0 {
            break;
        }
    }
    done
}
