//! Calls that copy and close numbers, and that ask what a number is.

use core::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use core::mem;

use libc::{
    AF_INET, AT_EMPTY_PATH, CLOSE_RANGE_CLOEXEC, CLOSE_RANGE_UNSHARE, EINVAL, EOPNOTSUPP, F_GETFL, F_SETFD, F_SETFL,
    FD_CLOEXEC, FILE, FIONBIO, FIONREAD, O_CLOEXEC, O_NONBLOCK, S_IFMT, S_IFSOCK, SOCK_CLOEXEC, SOCK_DGRAM, TIOCOUTQ,
    off64_t, size_t, socklen_t, ssize_t, stat, stat64, statx as Statx,
};

use super::next;
use crate::dispatch::Fd;
use crate::{auto, calls, errno, fds, next_symbol, open_fds, process, rsocket_abi, table};

// Copying and closing: dup3, close_range, closefrom, fclose.

/// dup3(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if !table::any() || old == new || flags & !O_CLOEXEC != 0 {
        // SAFETY: the C contract.
        return unsafe { next::dup3(old, new, flags) };
    }
    // SAFETY: the C contract.
    let result = unsafe { calls::dup2(old, new) };
    if result >= 0 && flags & O_CLOEXEC != 0 {
        // Not atomic: a thread that forks and executes now passes the number on.
        // SAFETY: no pointers.
        errno::keeping(|| unsafe { next_symbol::fcntl(new, F_SETFD, FD_CLOEXEC as usize) });
    }
    result
}

/// close_range(2). Descriptors of the library stay open.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let known = CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE;
    // Without an rsocket there is nothing to keep. A child of vfork(2) closes its own numbers.
    if !table::any() || process::is_guest() || flags as c_uint & known != 0 {
        // SAFETY: the C contract.
        return unsafe { next::close_range(first, last, flags) };
    }
    if first > last || flags != 0 {
        return errno::fail(EINVAL);
    }
    close_each(first, last);
    0
}

/// closefrom(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn closefrom(low: c_int) {
    if table::any() && !process::is_guest() || !next::closefrom(low) {
        close_each(low.max(0).cast_unsigned(), c_uint::MAX);
    }
}

fn close_each(first: c_uint, last: c_uint) {
    let number = |number: c_uint| c_int::try_from(number).unwrap_or(c_int::MAX);
    errno::keeping(|| {
        open_fds::each(number(first)..number(last).saturating_add(1), |fd| {
            // SAFETY: no pointers; the program closes the number.
            unsafe { calls::close(fd) };
        });
    });
}

/// fclose(3): the peer of an rsocket sees the end at once.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fclose(file: *mut FILE) -> c_int {
    if !table::any() || file.is_null() {
        // SAFETY: the C contract.
        return unsafe { next::fclose(file) };
    }
    // SAFETY: the C contract: an open stream.
    let fd = errno::keeping(|| unsafe { libc::fileno(file) });
    let entry = table::get(fd);
    // SAFETY: the C contract.
    let result = unsafe { next::fclose(file) };
    // Another thread may have got the number meanwhile: then the entry was replaced already.
    if let Some(entry) = entry
        && !process::is_guest()
        && table::replace(fd, Some(entry), None)
    {
        errno::keeping(|| fds::release(entry));
    }
    result
}

// Streams of stdio over sockets: fdopen.
//
// stdio makes its system calls by itself. In automatic mode the number is left to the kernel, and
// its data is forwarded. The number of another rsocket is no socket: its stream calls the functions
// here, and has no number (fileno(3) fails).

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

// fstat and its relatives: an rsocket's number is a socket, not the file of its placeholder.

/// A socket of the kernel's has these permissions.
const MODE: u32 = S_IFSOCK | 0o777;

/// Whether `/dev/null` is open at the number. In automatic mode and in fork mode a socket is.
fn has_placeholder(fd: c_int) -> bool {
    matches!(Fd::of(fd), Fd::Rsocket(entry) if !auto::is_auto(entry))
}

macro_rules! status_call {
    ($($name:ident($($arg:ident: $type:ty),*), $status:ty;)*) => {$(
        #[doc = concat!(stringify!($name), ": fstat(2).")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type,)* fd: c_int, status: *mut $status) -> c_int {
            // SAFETY: the C contract.
            let result = unsafe { next::$name($($arg,)* fd, status) };
            if result == 0 && has_placeholder(fd) {
                // SAFETY: the call has succeeded, so it has written the structure.
                unsafe {
                    if (*status).st_mode & S_IFMT == libc::S_IFCHR {
                        ((*status).st_mode, (*status).st_rdev) = (MODE, 0);
                    }
                }
            }
            result
        }
    )*};
}

status_call! {
    fstat(), stat;
    fstat64(), stat64;
    __fxstat(version: c_int), stat;
    __fxstat64(version: c_int), stat64;
}

/// statx(2) of a descriptor.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    status: *mut Statx,
) -> c_int {
    // SAFETY: the C contract.
    unsafe {
        let result = next::statx(dir, path, flags, mask, status);
        // The kernel has read the path if it succeeded.
        let is_descriptor = || flags & AT_EMPTY_PATH != 0 && (path.is_null() || CStr::from_ptr(path).is_empty());
        if result == 0 && is_descriptor() && has_placeholder(dir) {
            (*status).stx_mode = MODE as u16;
            ((*status).stx_rdev_major, (*status).stx_rdev_minor) = (0, 0);
        }
        result
    }
}

// ioctl and sockatmark.

/// Whether there is urgent data (linux/sockios.h).
const SIOCATMARK: c_ulong = 0x8905;
/// Requests about network interfaces and routes (linux/sockios.h).
const INTERFACE_REQUESTS: core::ops::Range<c_ulong> = 0x890b..0x89f0;

/// ioctl(2). It is variadic in C: an argument that was not given is whatever the register has, and
/// is not used.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    if request == libc::FIONCLEX {
        auto::outside::loses_cloexec(fd);
    }
    // SAFETY: the C contract.
    unsafe {
        match Fd::of(fd) {
            Fd::Rsocket(_) if arg.is_null() && matches!(request, FIONBIO | FIONREAD | TIOCOUTQ | SIOCATMARK) => {
                errno::fail(libc::EFAULT)
            }
            Fd::Rsocket(entry) => match request {
                FIONBIO => set_nonblocking(fd, arg.cast::<c_int>().read_unaligned() != 0),
                FIONREAD => write_number(entry.inner, rdmacm_private::READABLE_BYTES, arg.cast()),
                TIOCOUTQ => write_number(entry.inner, rdmacm_private::UNSENT_BYTES, arg.cast()),
                SIOCATMARK => {
                    arg.cast::<c_int>().write_unaligned(0);
                    0
                }
                _ if INTERFACE_REQUESTS.contains(&request) && !auto::is_auto(entry) => by_any_socket(request, arg),
                _ => next::ioctl(fd, request, arg),
            },
            Fd::Connecting(_) | Fd::Pending(_) if request == FIONBIO && !arg.is_null() => {
                set_nonblocking(fd, arg.cast::<c_int>().read_unaligned() != 0)
            }
            Fd::Known(entry) if request == FIONREAD => {
                // Without this no data would arrive in a child that does nothing else.
                auto::before_wait(entry);
                next::ioctl(fd, request, arg)
            }
            _ => next::ioctl(fd, request, arg),
        }
    }
}

fn set_nonblocking(fd: c_int, on: bool) -> c_int {
    // SAFETY: no pointers.
    unsafe {
        let flags = calls::fcntl(fd, F_GETFL, 0);
        if flags < 0 {
            return flags;
        }
        calls::fcntl(fd, F_SETFL, (if on { flags | O_NONBLOCK } else { flags & !O_NONBLOCK }) as usize)
    }
}

/// Writes an option of the private level, an int, to `arg`.
///
/// # Safety
/// `arg` is writable.
unsafe fn write_number(inner: c_int, option: c_int, arg: *mut c_int) -> c_int {
    let (mut number, mut len) = (0_i32, mem::size_of::<c_int>() as socklen_t);
    // SAFETY: live variables of these lengths.
    let result = unsafe {
        rsocket_abi::rgetsockopt(inner, rdmacm_private::LEVEL, option, (&raw mut number).cast(), &raw mut len)
    };
    if result == 0 {
        // SAFETY: writable: guaranteed by the caller.
        unsafe { arg.write_unaligned(number) };
    }
    result
}

/// Any socket of the kernel can be asked about interfaces.
///
/// # Safety
/// The C contract of ioctl(2).
unsafe fn by_any_socket(request: c_ulong, arg: *mut c_void) -> c_int {
    // SAFETY: the C contract of ioctl(2): guaranteed by the caller.
    unsafe {
        let socket = next_symbol::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if socket < 0 {
            return socket;
        }
        let result = next::ioctl(socket, request, arg);
        errno::keeping(|| next_symbol::close(socket));
        result
    }
}

/// sockatmark(3): rsockets have no urgent data.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sockatmark(fd: c_int) -> c_int {
    // SAFETY: the C contract.
    if let Fd::Rsocket(_) = Fd::of(fd) { 0 } else { unsafe { next::sockatmark(fd) } }
}
