//! Threads that are ended in the middle of a call, by pthread_cancel(3).
//!
//! The C library unwinds the thread's stack from the system call in which it sleeps. Our frames are passed by, nothing in them is
//! dropped: what must not stay as it is has to be named before. What is forgotten is memory.
//!
//! A thread is ended where it sleeps without a lock. In rclose(3) and rshutdown(3) it is not: nobody could call them again.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

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

/// PTHREAD_CANCEL_DISABLE, PTHREAD_CANCEL_ASYNCHRONOUS of pthread.h.
const DISABLE: c_int = 1;
const ASYNCHRONOUS: c_int = 1;

/// Runs `sleep`, and `undo` if the thread is cancelled in it.
#[inline]
pub fn with_cleanup<T>(mut undo: impl FnMut(), sleep: impl FnOnce() -> T) -> T {
    unsafe extern "C" fn run<F: FnMut()>(undo: *mut c_void) {
        // SAFETY: the closure of this function's caller, whose frame is not gone yet.
        unsafe { (*undo.cast::<F>())() }
    }
    fn routine<F: FnMut()>(_: &F) -> Routine {
        run::<F>
    }
    let routine = routine(&undo);
    let mut buffer = MaybeUninit::<Buffer>::uninit();
    // SAFETY: buffer and closure stay where they are until they are taken off again, in this function.
    unsafe { _pthread_cleanup_push(buffer.as_mut_ptr(), routine, (&raw mut undo).cast()) };
    let result = sleep();
    // SAFETY: the last one that was put there.
    unsafe { _pthread_cleanup_pop(buffer.as_mut_ptr(), 0) };
    result
}

/// Runs a system call that is no cancellation point, as one: the thread may end at any instruction of `call`.
#[inline]
pub fn as_point<T>(call: impl FnOnce() -> T) -> T {
    meanwhile(pthread_setcanceltype, ASYNCHRONOUS, call)
}

/// Runs what is not to be left half done.
pub fn disabled<T>(call: impl FnOnce() -> T) -> T {
    meanwhile(pthread_setcancelstate, DISABLE, call)
}

/// Runs `call` with another value of a setting of the thread's.
#[inline]
fn meanwhile<T>(set: unsafe extern "C" fn(c_int, *mut c_int) -> c_int, value: c_int, call: impl FnOnce() -> T) -> T {
    let mut before = 0;
    // SAFETY: a value of the setting's; `before` is writable.
    unsafe { set(value, &raw mut before) };
    let result = call();
    // SAFETY: the value that was in force.
    unsafe { set(before, ptr::null_mut()) };
    result
}
