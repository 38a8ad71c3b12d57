//! Serves an rsocket of this process to a child of fork(2). A thread for each rsocket and child
//! makes the calls that the child asks for, until the child has closed its copies.

use core::ffi::{c_int, c_short, c_void};
use core::ptr;
use core::sync::atomic::{AtomicI32, Ordering};

use libc::{EINVAL, MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, iovec, pollfd};

use super::message::{self, Head};
use super::thread;
use crate::table::{Entry, Kind};
use crate::{errno, next_symbol, rsocket, rsocket_abi};

/// This process's ends of all pairs, plus one; children close their copies. Their number limits
/// what can be served.
static ENDS: [AtomicI32; 256] = [const { AtomicI32::new(0) }; 256];

/// Serves `inner` by `channel` in a new thread, which takes over both and a reference to the
/// rsocket. Returns false on failure.
pub fn serve(channel: c_int, inner: c_int) -> bool {
    let free = ENDS.iter().find(|end| end.compare_exchange(0, channel + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok());
    let Some(end) = free else { return false };
    let argument = (inner as usize) << 32 | channel as usize;
    let started = thread::start(run, argument as *mut c_void);
    if !started {
        end.store(0, Ordering::SeqCst);
    }
    started
}

/// Whether `fd` is an end of a pair.
pub fn is_end(fd: c_int) -> bool {
    ENDS.iter().any(|end| end.load(Ordering::SeqCst) == fd + 1)
}

/// In a child: closes the ends by which its parent serves other children.
pub fn forget() {
    for end in &ENDS {
        let number = end.swap(0, Ordering::SeqCst);
        if number != 0 {
            // SAFETY: the child's copy of a descriptor that only this library knows.
            unsafe { next_symbol::close(number - 1) };
        }
    }
}

extern "C" fn run(argument: *mut c_void) -> *mut c_void {
    let (channel, inner) = (argument as u32 as c_int, (argument as usize >> 32) as c_int);
    work(channel, inner);
    for end in &ENDS {
        let _ = end.compare_exchange(channel + 1, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
    // SAFETY: this thread's own descriptor. The child reads the end of the channel.
    unsafe { next_symbol::close(channel) };
    rsocket::release(Entry { kind: Kind::Socket, flags: 0, inner });
    ptr::null_mut()
}

/// Serves until the child has closed the channel.
fn work(channel: c_int, inner: c_int) {
    let mut buffer = [0u8; message::MAX_DATA];
    let mut wanted: c_short = 0;
    loop {
        let mut fds =
            [pollfd { fd: channel, events: POLLIN, revents: 0 }, pollfd { fd: inner, events: wanted, revents: 0 }];
        let count = if wanted != 0 { 2 } else { 1 };
        // SAFETY: `count` structures at `fds` are writable.
        if unsafe { rsocket_abi::rpoll(fds.as_mut_ptr(), count, -1) } < 0 {
            if errno::get() == libc::EINTR {
                continue;
            }
            return;
        }
        if fds[1].revents != 0 {
            let ready = Head { what: message::READY, value: c_int::from(fds[1].revents), flags: 0 };
            if message::put(channel, ready, &[]).is_err() {
                return;
            }
            wanted = 0;
        }
        if fds[0].revents != 0 && answer(channel, inner, &mut buffer, &mut wanted).is_err() {
            return;
        }
    }
}

/// Handles one request.
fn answer(channel: c_int, inner: c_int, buffer: &mut [u8], wanted: &mut c_short) -> Result<(), c_int> {
    let mut data = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let (head, len) = message::take(channel, &[data], 0)?;
    let flags = head.flags | MSG_DONTWAIT | MSG_NOSIGNAL;
    // SAFETY: lengths are at most the buffer's.
    let result = unsafe {
        match head.what {
            message::RECEIVE => {
                let len = usize::try_from(head.value).unwrap_or(0).min(buffer.len());
                rsocket_abi::rrecv(inner, buffer.as_mut_ptr().cast(), len, flags)
            }
            message::SEND => rsocket_abi::rsend(inner, buffer.as_ptr().cast(), len, flags),
            message::SHUTDOWN => rsocket_abi::rshutdown(inner, head.value) as isize,
            message::ASK => {
                *wanted |= head.value as c_short;
                let mut fds = [pollfd { fd: inner, events: *wanted, revents: 0 }];
                rsocket_abi::rpoll(fds.as_mut_ptr(), 1, 0) as isize
            }
            _ => return Err(EINVAL),
        }
    };
    let value = if result < 0 { -errno::get() } else { result as c_int };
    data.iov_len = if head.what == message::RECEIVE { usize::try_from(value).unwrap_or(0) } else { 0 };
    message::put(channel, Head { what: message::REPLY, value, flags: 0 }, &[data])?;
    Ok(())
}
