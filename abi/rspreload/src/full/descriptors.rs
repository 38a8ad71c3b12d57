//! Calls that copy and close numbers, and that ask what a number is.

use core::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};

use libc::{
    AF_INET, AT_EMPTY_PATH, CLOSE_RANGE_CLOEXEC, CLOSE_RANGE_UNSHARE, EINVAL, EOPNOTSUPP, F_GETFL, F_SETFD, F_SETFL,
    FD_CLOEXEC, FILE, FIONBIO, FIONREAD, O_CLOEXEC, O_NONBLOCK, S_IFMT, S_IFSOCK, SOCK_CLOEXEC, SOCK_DGRAM, TIOCOUTQ,
    off64_t, size_t, ssize_t, stat, stat64, statx as Statx,
};

use crate::calls::exports;
use crate::fds::Fd;
use crate::sockets::kernel;
use crate::{auto, calls, errno, fds, next_symbol, open_fds, process, rsocket, table};

exports_and_next! {
    /// dup3(2).
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
        if !table::any() || old == new || flags & !O_CLOEXEC != 0 {
            return next::dup3(old, new, flags);
        }
        let result = calls::dup2(old, new);
        if result >= 0 && flags & O_CLOEXEC != 0 {
            // Not atomic: a thread that forks and executes now passes the number on.
            errno::keeping(|| kernel::fcntl(new, F_SETFD, FD_CLOEXEC));
        }
        result
    }

    /// close_range(2). Descriptors of the library stay open.
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        let known = CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE;
        // Without an rsocket there is nothing to keep. A child of vfork(2) closes its own numbers.
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
        // Another thread may have got the number meanwhile: then the entry was replaced already.
        if let Some(entry) = entry
            && !process::is_guest()
            && table::replace(fd, Some(entry), None)
        {
            errno::keeping(|| fds::release(entry));
        }
        result
    }

    /// fdopen(3). stdio makes its system calls by itself. In automatic mode the number is left to the
    /// kernel, and its data is forwarded. The number of another rsocket is no socket: its stream calls
    /// the functions here, and has no number (fileno(3) fails).
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

    /// statx(2) of a descriptor.
    fn statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, status: *mut Statx) -> c_int {
        let result = next::statx(dir, path, flags, mask, status);
        // The kernel has read the path if it succeeded.
        let is_descriptor = || flags & AT_EMPTY_PATH != 0 && (path.is_null() || CStr::from_ptr(path).is_empty());
        if result == 0 && is_descriptor() && has_placeholder(dir) {
            (*status).stx_mode = MODE as u16;
            ((*status).stx_rdev_major, (*status).stx_rdev_minor) = (0, 0);
        }
        result
    }

    /// sockatmark(3): rsockets have no urgent data.
    fn sockatmark(fd: c_int) -> c_int {
        if let Fd::Rsocket(_) = Fd::of(fd) { 0 } else { next::sockatmark(fd) }
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
        let number = arg.cast::<c_int>();
        match Fd::of(fd) {
            Fd::Rsocket(_) if arg.is_null() && matches!(request, FIONBIO | FIONREAD | TIOCOUTQ | SIOCATMARK) => {
                errno::fail(libc::EFAULT)
            }
            Fd::Rsocket(_) | Fd::Connecting(_) | Fd::Pending(_) if request == FIONBIO && !arg.is_null() => {
                set_nonblocking(fd, number.read_unaligned() != 0)
            }
            Fd::Rsocket(entry) if matches!(request, FIONREAD | TIOCOUTQ | SIOCATMARK) => {
                let bytes = match request {
                    FIONREAD => rsocket::library_option(entry.inner, rdmacm_private::READABLE_BYTES),
                    TIOCOUTQ => rsocket::library_option(entry.inner, rdmacm_private::UNSENT_BYTES),
                    _ => Some(0),
                };
                match bytes {
                    Some(bytes) => {
                        number.write_unaligned(bytes);
                        0
                    }
                    None => errno::fail(EINVAL),
                }
            }
            Fd::Rsocket(entry) if INTERFACE_REQUESTS.contains(&request) && !auto::is_auto(entry) => {
                // Any socket of the kernel can be asked about interfaces.
                let socket = next_symbol::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
                let result = variadic::ioctl(socket, request, arg);
                errno::keeping(|| next_symbol::close(socket));
                result
            }
            Fd::Known(entry) if request == FIONREAD => {
                // Without this no data would arrive in a child that does nothing else.
                auto::before_wait(entry);
                variadic::ioctl(fd, request, arg)
            }
            _ => variadic::ioctl(fd, request, arg),
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

// fstat and its relatives: an rsocket's number is a socket, not the file of its placeholder.

/// A socket of the kernel's has these permissions.
const MODE: u32 = S_IFSOCK | 0o777;

/// Whether `/dev/null` is open at the number. In automatic mode and in fork mode a socket is.
fn has_placeholder(fd: c_int) -> bool {
    matches!(Fd::of(fd), Fd::Rsocket(entry) if !auto::is_auto(entry))
}

macro_rules! status_calls {
    ($($name:ident($($arg:ident: $type:ty),*), $status:ty;)*) => {
        pub mod status {
            use super::*;

            exports_and_next! {$(
                #[doc = concat!(stringify!($name), ": fstat(2).")]
                fn $name($($arg: $type,)* fd: c_int, status: *mut $status) -> c_int {
                    let result = next::$name($($arg,)* fd, status);
                    if result == 0 && has_placeholder(fd) && (*status).st_mode & S_IFMT == libc::S_IFCHR {
                        ((*status).st_mode, (*status).st_rdev) = (MODE, 0);
                    }
                    result
                }
            )*}
        }
    };
}

status_calls! {
    fstat(), stat;
    fstat64(), stat64;
    __fxstat(version: c_int), stat;
    __fxstat64(version: c_int), stat64;
}

/// Whether there is urgent data (linux/sockios.h).
const SIOCATMARK: c_ulong = 0x8905;
/// Requests about network interfaces and routes (linux/sockios.h).
const INTERFACE_REQUESTS: core::ops::Range<c_ulong> = 0x890b..0x89f0;

/// The flags of a number.
pub fn flags(fd: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe { calls::fcntl(fd, F_GETFL, 0) }
}

fn set_nonblocking(fd: c_int, on: bool) -> c_int {
    let flags = flags(fd);
    if flags < 0 {
        return flags;
    }
    // SAFETY: no pointers.
    unsafe { calls::fcntl(fd, F_SETFL, (if on { flags | O_NONBLOCK } else { flags & !O_NONBLOCK }) as usize) }
}
