//! close.

use core::ffi::c_int;

use libc::EBADF;

use crate::epoll::members;
use crate::table::{self, Entry, Kind};
use crate::{auto, cancel, errno, fds, next_symbol, process};

/// close(2). The rsocket is closed while its number is still taken: otherwise another thread could
/// get the number, and lose its entry.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if table::any() {
        return close_known(fd);
    }
    close_kernel(fd)
}

/// close(2) of a descriptor of the kernel's.
#[inline(always)]
fn close_kernel(fd: c_int) -> c_int {
    auto::tcp_bytes::before_close(fd);
    members::forget(fd);
    next_symbol::close(fd)
}

#[inline(never)]
fn close_known(fd: c_int) -> c_int {
    loop {
        let Some(entry) = fds::current_entry(fd) else {
            if fds::is_library(fd) {
                return errno::fail(EBADF);
            }
            return close_kernel(fd);
        };
        if process::is_guest() {
            return next_symbol::close(fd);
        }
        if entry.inner == table::CLOSING {
            return errno::fail(EBADF);
        }
        // A thread that is cancelled before the placeholder is closed would leave the number taken.
        if let Some(result) = cancel::disabled(|_| close_entry(fd, entry)) {
            return result;
        }
    }
}

/// Closes a number that has `entry`. Returns `None` if it has another one by now.
fn close_entry(fd: c_int, entry: Entry) -> Option<c_int> {
    // Closing an rsocket takes time, in which calls on the number must not meet the placeholder.
    let meanwhile = (entry.kind == Kind::Socket).then_some(Entry { inner: table::CLOSING, ..entry });
    table::replace(fd, Some(entry), meanwhile).then(|| {
        let released = fds::release(entry);
        let why = errno::get();
        let closed = close_placeholder(fd, meanwhile);
        if released < 0 { errno::fail(why) } else { closed }
    })
}

/// Closes a placeholder whose entry is `meanwhile`, unless dup2(2) has put another file there.
fn close_placeholder(fd: c_int, meanwhile: Option<Entry>) -> c_int {
    if meanwhile.is_some() && !table::replace(fd, meanwhile, None) {
        return 0;
    }
    members::forget(fd);
    next_symbol::close(fd)
}
