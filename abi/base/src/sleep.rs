//! Sleeping and waking with futex(2) between the threads of a process, and thread cancellation
//! (pthread_cancel(3)), which may end a thread that sleeps.
//!
//! The C library unwinds a cancelled thread's stack from the system call in which it sleeps,
//! without running destructors: cleanup must be registered first, with [`with_cleanup`]. The GNU C
//! library also runs the registered cleanup when a signal handler leaves the call by longjmp(3).
//!
//! The address of a futex need not be valid: the kernel checks it, and never writes to the word.

use core::ffi::{c_int, c_long, c_void};
use core::mem::MaybeUninit;
use core::ptr;

use libc::{FUTEX_PRIVATE_FLAG, FUTEX_WAIT, FUTEX_WAKE, SYS_futex, syscall, timespec};

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

/// `PTHREAD_CANCEL_DISABLE` of pthread.h, a cancelability state.
pub const DISABLE: c_int = 1;
/// `PTHREAD_CANCEL_ASYNCHRONOUS` of pthread.h, a cancelability type.
pub const ASYNCHRONOUS: c_int = 1;

/// Disables cancellation of the thread. Returns the previous cancelability state.
#[inline]
pub fn disable() -> c_int {
    let mut before = MaybeUninit::uninit();
    // SAFETY: `before` is writable; the C library stores the old state, because the new one is
    // valid.
    unsafe {
        pthread_setcancelstate(DISABLE, before.as_mut_ptr());
        before.assume_init()
    }
}

/// Sets the thread's cancelability state to one that [`disable`] has returned.
#[inline]
pub fn restore_state(state: c_int) {
    // SAFETY: the C library rejects an unknown value, and accepts NULL if the old state is not
    // needed.
    unsafe { pthread_setcancelstate(state, core::ptr::null_mut()) };
}

/// Sets the thread's cancelability type, and returns the previous type.
#[inline]
pub fn set_type(kind: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: the C library rejects an unknown value; `before` is writable.
    unsafe { pthread_setcanceltype(kind, &raw mut before) };
    before
}

/// Runs `call` and returns its result. Runs `undo` if the thread is cancelled in `call`.
#[inline]
pub fn with_cleanup<T>(mut undo: impl FnMut(), call: impl FnOnce() -> T) -> T {
    unsafe extern "C" fn run<F: FnMut()>(undo: *mut c_void) {
        // SAFETY: `undo` points to the closure in the frame of `with_cleanup`, which still exists.
        unsafe { (*undo.cast::<F>())() }
    }
    fn routine<F: FnMut()>(_: &F) -> Routine {
        run::<F>
    }
    let routine = routine(&undo);
    let mut buffer = MaybeUninit::<Buffer>::uninit();
    // SAFETY: `buffer` and `undo` stay at these addresses until the handler is removed below.
    unsafe { _pthread_cleanup_push(buffer.as_mut_ptr(), routine, (&raw mut undo).cast()) };
    let result = call();
    // SAFETY: `buffer` is the handler that was pushed last.
    unsafe { _pthread_cleanup_pop(buffer.as_mut_ptr(), 0) };
    result
}

/// Sleeps if the value of the word is `value`, until the thread is woken, a signal handler has run,
/// or the time `limit` is over. Returns the result of the system call: 0, or -1 with `errno`.
#[inline]
pub fn futex_wait(word: *const u32, value: u32, limit: Option<&timespec>) -> c_long {
    let limit = limit.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `limit` is NULL or lives as long as the call; the kernel checks the word's address.
    unsafe { syscall(SYS_futex, word.addr(), FUTEX_WAIT | FUTEX_PRIVATE_FLAG, value, limit) }
}

/// Wakes up to `count` of the threads that sleep at a word. Does not change `errno`. The word's
/// memory may have been freed: then no thread sleeps there, or an unrelated one wakes up
/// spuriously.
pub fn futex_wake(word: *const u32, count: i32) {
    // SAFETY: the arguments are integers and an address that the kernel checks.
    crate::errno::keeping(|| unsafe { syscall(SYS_futex, word.addr(), FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count) });
}
