//! Calls that copy and close descriptors, stdio on a descriptor, and ioctl(2).

use core::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

use libc::{
    CLOSE_RANGE_CLOEXEC, CLOSE_RANGE_UNSHARE, EINVAL, EOPNOTSUPP, F_SETFD, FD_CLOEXEC, FILE, FIONBIO, FIONREAD,
    O_CLOEXEC, TIOCOUTQ, off64_t, size_t, ssize_t,
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
            // Not atomic: if another thread forks and executes a program now, it inherits the
            // descriptor.
            errno::keeping(|| kernel::fcntl(new, F_SETFD, FD_CLOEXEC));
        }
        result
    }

    /// close_range(2). Without flags, descriptors of the library stay open.
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        let known = CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE;
        // Without an rsocket the library has no descriptors to keep. A child of vfork(2) may close
        // its own copies of all descriptors.
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

    /// fclose(3). Also closes an rsocket, so that its peer sees the end at once.
    fn fclose(file: *mut FILE) -> c_int {
        if !table::any() || file.is_null() {
            return next::fclose(file);
        }
        let fd = errno::keeping(|| libc::fileno(file));
        let entry = table::get(fd);
        let result = next::fclose(file);
        // If another thread has reused the descriptor meanwhile, the entry was replaced already.
        if let Some(entry) = entry
            && !process::is_guest()
            && table::replace(fd, Some(entry), None)
        {
            errno::keeping(|| fds::release(entry));
        }
        result
    }

    /// fdopen(3). stdio's system calls are not intercepted. So an rsocket of automatic mode is left
    /// to the kernel, and its data is forwarded. For any other rsocket, the stream makes the calls
    /// of this library and has no descriptor (fileno(3) fails).
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
    /// ioctl(2). It is variadic in C: without a third argument, `arg` is an arbitrary register
    /// value, and is not used.
    fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
        if request == libc::FIONCLEX {
            auto::outside::loses_cloexec(fd);
        }
        if let (FIONREAD, Fd::Tracked(entry)) = (request, Fd::of(fd)) {
            // The data of a child that makes no other calls must be forwarded, or no data would
            // arrive.
            auto::before_wait(entry);
        }
        // Ask the kernel first: it checks the pointer, and serves the requests that do not need the
        // rsocket.
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
        match rsocket::library_option::<c_int>(entry.handle, option) {
            Ok(bytes) => {
                arg.cast::<c_int>().write_unaligned(bytes);
                0
            }
            Err(why) => errno::fail(why),
        }
    }
}

fn close_each(first: c_uint, last: c_uint) {
    let to_fd = |fd: c_uint| c_int::try_from(fd).unwrap_or(c_int::MAX);
    errno::keeping(|| {
        open_fds::each(to_fd(first)..to_fd(last).saturating_add(1), |fd| {
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

fn fd(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

unsafe extern "C" fn read(cookie: *mut c_void, buffer: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: `buffer` is writable for `len` bytes: stdio guarantees it.
    unsafe { calls::read(fd(cookie), buffer.cast(), len) }
}

/// Returns 0 after a failure, as fopencookie(3) requires.
unsafe extern "C" fn write(cookie: *mut c_void, data: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: `data` is readable for `len` bytes: stdio guarantees it.
    unsafe { calls::write(fd(cookie), data.cast(), len) }.max(0)
}

extern "C" fn close(cookie: *mut c_void) -> c_int {
    calls::close(fd(cookie))
}
