//! `errno`, by which the functions of the C interfaces report failures.

use core::ffi::c_int;

/// Returns the thread's `errno`.
pub fn get() -> c_int {
    errno::errno().0
}

/// Sets the thread's `errno`.
pub fn set(value: c_int) {
    errno::set_errno(errno::Errno(value));
}

/// Sets `errno` and returns -1.
pub fn fail<T: From<i8>>(errno: c_int) -> T {
    set(errno);
    T::from(-1)
}

/// Runs `call`, restores `errno` and returns the result: for calls that the program did not make.
pub fn keeping<T>(call: impl FnOnce() -> T) -> T {
    keeping_if(call, |_| true)
}

/// Runs `call`, restores `errno` if `restores` returns true for the result, and returns the result.
#[inline]
pub fn keeping_if<T>(call: impl FnOnce() -> T, restores: impl FnOnce(&T) -> bool) -> T {
    let before = get();
    let result = call();
    if restores(&result) {
        set(before);
    }
    result
}
