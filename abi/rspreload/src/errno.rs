//! `errno`: how every call here reports failure.

use core::ffi::c_int;

/// The value of this thread.
pub fn get() -> c_int {
    // SAFETY: a valid pointer for as long as the thread lives.
    unsafe { libc::__errno_location().read() }
}

/// Changes it.
pub fn set(errno: c_int) {
    // SAFETY: as above.
    unsafe { libc::__errno_location().write(errno) }
}

/// Sets it, and gives the -1 to return.
pub fn fail<T: From<i8>>(errno: c_int) -> T {
    set(errno);
    T::from(-1)
}

/// The result of `call`, and the `errno` from before it: for what goes on behind the program's back.
pub fn keeping<T>(call: impl FnOnce() -> T) -> T {
    let before = get();
    let result = call();
    set(before);
    result
}
