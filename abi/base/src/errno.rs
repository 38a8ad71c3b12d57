//! `errno`, by which the functions of the C interfaces report failures.

use core::ffi::c_int;

/// Returns the address of the thread's `errno`, which is different in each thread of the process.
pub fn location() -> *mut c_int {
    // SAFETY: the function has no arguments and no preconditions.
    unsafe { libc::__errno_location() }
}

/// Returns the thread's `errno`.
pub fn get() -> c_int {
    // SAFETY: valid as long as the thread lives.
    unsafe { location().read() }
}

/// Sets the thread's `errno`.
pub fn set(errno: c_int) {
    // SAFETY: valid as long as the thread lives.
    unsafe { location().write(errno) }
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
    let errno = location();
    // SAFETY: valid as long as the thread lives.
    let before = unsafe { errno.read() };
    let result = call();
    if restores(&result) {
        // SAFETY: valid as long as the thread lives.
        unsafe { errno.write(before) };
    }
    result
}
