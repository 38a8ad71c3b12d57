//! dprintf(3) and its like: glibc's functions write to the number by themselves. For an rsocket the
//! text is formatted by vasprintf(3) and then written.
//!
//! printf.c defines the functions with variable arguments, which need an unstable feature in Rust.

use core::ffi::{c_char, c_int, c_void};
use core::ptr;

use super::next;
use crate::dispatch::Fd;
use crate::{calls, errno};

/// A `va_list` as it is passed to a function: on the 64-bit machines of Linux a pointer, because
/// the type is an array, a structure that is passed by reference, or a pointer itself.
pub(super) type Arguments = *mut c_void;

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, list: Arguments) -> c_int;
    fn __vasprintf_chk(text: *mut *mut c_char, flag: c_int, format: *const c_char, list: Arguments) -> c_int;
}

/// vdprintf(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn vdprintf(fd: c_int, format: *const c_char, list: Arguments) -> c_int {
    // SAFETY: the C contract.
    unsafe {
        if is_kernels(fd) {
            return next::vdprintf(fd, format, list);
        }
        write_formatted(fd, |text| vasprintf(text, format, list))
    }
}

/// vdprintf(3) of programs compiled with _FORTIFY_SOURCE.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: Arguments) -> c_int {
    // SAFETY: the C contract.
    unsafe {
        if is_kernels(fd) {
            return next::__vdprintf_chk(fd, flag, format, list);
        }
        write_formatted(fd, |text| __vasprintf_chk(text, flag, format, list))
    }
}

fn is_kernels(fd: c_int) -> bool {
    matches!(Fd::of(fd), Fd::Kernel | Fd::Epoll(_))
}

/// Writes what `format` allocates. Returns the length, or -1 with `errno`.
///
/// # Safety
/// `format` is one of the functions above.
unsafe fn write_formatted(fd: c_int, format: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text = ptr::null_mut();
    let formatted = format(&raw mut text);
    let Ok(len) = usize::try_from(formatted) else { return -1 };
    let mut written = 0;
    while written < len {
        // SAFETY: `text` has `len` bytes.
        let result = unsafe { calls::write(fd, text.add(written).cast(), len - written) };
        let Ok(count) = usize::try_from(result) else { break };
        written += count;
    }
    // SAFETY: allocated by the C library, and not used any more.
    errno::keeping(|| unsafe { libc::free(text.cast()) });
    if written == len { formatted } else { -1 }
}
