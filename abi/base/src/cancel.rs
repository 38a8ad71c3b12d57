//! pthread_cancel(3), as far as code without destructors needs it.
//!
//! The C library unwinds a cancelled thread's stack from the system call in which it sleeps, without
//! running destructors: what has to be undone must be registered first, with [`with_cleanup`]. The
//! GNU C library also runs what is registered when a signal handler leaves the call by longjmp(3).

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;

/// `struct _pthread_cleanup_buffer` of pthread.h.
#[repr(C)]
struct Buffer {
    routine: Option<Routine>,
    argument: *mut c_void,
    cancel_type: c_int,
    previous: *mut Buffer,
}

type Routine = unsafe extern "C" fn(*mut c_void);

unsafe extern "C" {
    fn _pthread_cleanup_push(buffer: *mut Buffer, routine: Routine, argument: *mut c_void);
    fn _pthread_cleanup_pop(buffer: *mut Buffer, execute: c_int);
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of pthread.h, a state.
pub const DISABLE: c_int = 1;
/// `PTHREAD_CANCEL_ASYNCHRONOUS` of pthread.h, a type.
pub const ASYNCHRONOUS: c_int = 1;

/// Sets the thread's state, and returns the one before.
#[inline]
pub fn set_state(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: the C library refuses an unknown value; `before` is writable.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Sets the thread's type, and returns the one before.
#[inline]
pub fn set_type(kind: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: the C library refuses an unknown value; `before` is writable.
    unsafe { pthread_setcanceltype(kind, &raw mut before) };
    before
}

/// Runs `call`, and `undo` if the thread is cancelled in it.
#[inline]
pub fn with_cleanup<T>(mut undo: impl FnMut(), call: impl FnOnce() -> T) -> T {
    unsafe extern "C" fn run<F: FnMut()>(undo: *mut c_void) {
        // SAFETY: the closure of this function's caller, whose frame still exists.
        unsafe { (*undo.cast::<F>())() }
    }
    fn routine<F: FnMut()>(_: &F) -> Routine {
        run::<F>
    }
    let routine = routine(&undo);
    let mut buffer = MaybeUninit::<Buffer>::uninit();
    // SAFETY: buffer and closure are not moved before the handler is removed, in this function.
    unsafe { _pthread_cleanup_push(buffer.as_mut_ptr(), routine, (&raw mut undo).cast()) };
    let result = call();
    // SAFETY: the handler that was pushed last.
    unsafe { _pthread_cleanup_pop(buffer.as_mut_ptr(), 0) };
    result
}
