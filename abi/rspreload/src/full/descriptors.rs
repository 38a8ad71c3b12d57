//! Calls that copy and close descriptors, and that ask what a descriptor is.

use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

use libc::{
    CLOSE_RANGE_CLOEXEC, CLOSE_RANGE_UNSHARE, EINVAL, EOPNOTSUPP, F_GETFL, F_SETFD, FD_CLOEXEC, FILE, FIONBIO,
    FIONREAD, O_CLOEXEC, TIOCOUTQ, off64_t, size_t, ssize_t,
};

use crate::calls::exports;
use crate::fds::Fd;
use crate::sockets::kernel;
use crate::{auto, calls, errno, fds, open_fds, process, rsocket, table};

exports_and_next! {
    /// dup3(2).
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        if !table::any() || old == new || flags & !O_CLOEXEC != 0 {
            return next::dup3(old, new, flags);
        }
        let result = calls::dup2(old, new);
        if result >= 0 && flags & O_CLOEXEC != 0 {
            // Not atomic: a thread that forks and executes now passes the descriptor on.
            errno::keeping(|| kernel::fcntl(new, F_SETFD, FD_CLOEXEC));
        }
        result
    }

    /// close_range(2). Descriptors of the library stay open.
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        let known = CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE;
        // Without an rsocket there is nothing to keep. A child of vfork(2) closes its own
        // descriptors.
        if !table::any() || process::is_guest() || flags as c_uint & known != 0 {
            return next::close_range(first, last, flags);
        }
        if first > last || flags != 0 {
            return errno::fail(EINVAL);
        }
        close_each(first, last);
        0
    }

    /// closefrom(3).
    fn closefrom(low: c_int) -> () {
        if table::any() && !process::is_guest() {
            close_each(low.max(0).cast_unsigned(), c_uint::MAX);
        } else {
            next::closefrom(low);
        }
    }

    /// fclose(3): the peer of an rsocket sees the end at once.
    fn fclose(file: *mut FILE) -> c_int {
        if !table::any() || file.is_null() {
            return next::fclose(file);
        }
        let fd = errno::keeping(|| libc::fileno(file));
        let entry = table::get(fd);
        let result = next::fclose(file);
        // Another thread may have got the descriptor meanwhile: then the entry was replaced
        // already.
        if let Some(entry) = entry
            && !process::is_guest()
            && table::replace(fd, Some(entry), None)
        {
            errno::keeping(|| fds::release(entry));
        }
        result
    }

    /// fdopen(3). stdio makes its system calls by itself. In automatic mode the descriptor is left
    /// to the kernel, and its data is forwarded. The number of another rsocket is no socket: its
    /// stream calls the functions here, and has no descriptor (fileno(3) fails).
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        let left = if table::any() { auto::outside::leave_to_kernel(fd) } else { Ok(()) };
        match left {
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

pub mod variadic {
    use super::*;

    crate::next_symbol::next! {
        variadic ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int;
    }
}

exports! {
    /// ioctl(2). It is variadic in C: an argument that was not given is whatever the register has,
    /// and is not used.
    fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
        if request == libc::FIONCLEX {
            auto::outside::loses_cloexec(fd);
        }
        if let (FIONREAD, Fd::Tracked(entry)) = (request, Fd::of(fd)) {
            // Without this no data would arrive in a child that does nothing else.
            auto::before_wait(entry);
        }
        // The kernel checks the pointer, and has the answer but for what only the rsocket knows.
        let result = variadic::ioctl(fd, request, arg);
        let (0, Fd::Rsocket(entry)) = (result, Fd::of(fd)) else { return result };
        let option = match request {
            FIONREAD => base::private::READABLE_BYTES,
            TIOCOUTQ => base::private::UNSENT_BYTES,
            FIONBIO => {
                rsocket::sync_nonblock(fd, entry.handle);
                return 0;
            }
            _ => return result,
        };
        match rsocket::bytes(entry.handle, option) {
            Ok(bytes) => {
                arg.cast::<c_int>().write_unaligned(bytes);
                0
            }
            Err(why) => errno::fail(why),
        }
    }
}

fn close_each(first: c_uint, last: c_uint) {
    let number = |number: c_uint| c_int::try_from(number).unwrap_or(c_int::MAX);
    errno::keeping(|| {
        open_fds::each(number(first)..number(last).saturating_add(1), |fd| {
            calls::close(fd);
        });
    });
}

/// `cookie_io_functions_t` of glibc.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    close: extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
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

extern "C" fn close(cookie: *mut c_void) -> c_int {
    calls::close(number(cookie))
}

/// The flags of a descriptor.
pub fn flags(fd: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe { calls::fcntl(fd, F_GETFL, 0) }
}
