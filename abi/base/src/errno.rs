//! `errno`: how every call here reports failure.

use core::ffi::c_int;

/// The address of this thread's value. No two threads of a process share one.
pub fn location() -> *mut c_int {
    // SAFETY: no arguments.
    unsafe { libc::__errno_location() }
}

/// This thread's value.
pub fn get() -> c_int {
    // SAFETY: valid as long as the thread lives.
    unsafe { location().read() }
}

/// Sets this thread's value.
pub fn set(errno: c_int) {
    // SAFETY: valid as long as the thread lives.
    unsafe { location().write(errno) }
}

/// Sets `errno` and returns -1.
pub fn fail<T: From<i8>>(errno: c_int) -> T {
    set(errno);
    T::from(-1)
}

/// Runs `call` and restores `errno`: for calls that the program did not make.
pub fn keeping<T>(call: impl FnOnce() -> T) -> T {
    keeping_if(call, |_| true)
}

/// Runs `call`, and restores `errno` if `restores` returns true for the result.
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
