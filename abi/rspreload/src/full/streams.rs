//! Streams of stdio over sockets: fdopen.
//!
//! stdio makes its system calls by itself. In automatic mode the number is left to the kernel, and
//! its data is forwarded. The number of another rsocket is no socket: its stream calls the functions
//! here, and has no number (fileno(3) fails).

use core::ffi::{c_char, c_int, c_void};

use libc::{EOPNOTSUPP, FILE, off64_t, size_t, ssize_t};

use super::next;
use crate::{auto, calls, errno, table};

/// `cookie_io_functions_t` of glibc.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

/// fdopen(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the C contract.
    unsafe {
        if !table::any() {
            return next::fdopen(fd, mode);
        }
        match auto::outside::leave_to_kernel(fd) {
            Ok(()) => next::fdopen(fd, mode),
            Err(EOPNOTSUPP) => {
                fopencookie(fd as usize as *mut c_void, mode, Functions { read, write, seek: None, close })
            }
            Err(why) => {
                errno::set(why);
                core::ptr::null_mut()
            }
        }
    }
}

fn number(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

unsafe extern "C" fn read(cookie: *mut c_void, buffer: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: `len` bytes are writable.
    unsafe { calls::read(number(cookie), buffer.cast(), len) }
}

/// Returns 0 after a failure, as fopencookie(3) requires.
unsafe extern "C" fn write(cookie: *mut c_void, data: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: `len` bytes are readable.
    unsafe { calls::write(number(cookie), data.cast(), len) }.max(0)
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: no pointers; the program closes the stream.
    unsafe { calls::close(number(cookie)) }
}
