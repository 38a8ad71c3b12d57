//! fstat and its relatives: an rsocket's number is a socket, not the file of its placeholder.

use core::ffi::{CStr, c_char, c_int, c_uint};

use libc::{AT_EMPTY_PATH, S_IFMT, S_IFSOCK, stat, stat64, statx as Statx};

use super::next;
use crate::auto;
use crate::dispatch::Fd;

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
