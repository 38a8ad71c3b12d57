//! Cancellation: pthread_cancel(3) may end a thread in the middle of a call.
//!
//! The C library unwinds the thread's stack from the system call in which it sleeps, without
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
}

/// PTHREAD_CANCEL_DISABLE of pthread.h.
const DISABLE: c_int = 1;

/// The thread cannot be cancelled until this is dropped: what it has locked would stay locked.
pub struct CancelDisabled {
    before: c_int,
}

impl CancelDisabled {
    pub fn new() -> CancelDisabled {
        CancelDisabled { before: set_state(DISABLE) }
    }

    /// Whether the thread could be cancelled before.
    #[cfg(test)]
    pub fn was_enabled(&self) -> bool {
        self.before != DISABLE
    }

    /// Runs a call that waits, in which the thread may be cancelled if it could be before. Runs
    /// `undo` then.
    pub fn allow<T>(&self, undo: impl FnMut(), call: impl FnOnce() -> T) -> T {
        with_cleanup(undo, || {
            set_state(self.before);
            let result = call();
            set_state(DISABLE);
            result
        })
    }
}

impl Drop for CancelDisabled {
    fn drop(&mut self) {
        set_state(self.before);
    }
}

fn set_state(state: c_int) -> c_int {
    let mut before = 0;
    // SAFETY: a value of the setting; `before` is writable.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Runs a call in which the thread cannot be cancelled, but for what the call allows. A handler may
/// leave it by longjmp(3): the setting is the program's again then.
pub fn disabled<T>(call: impl FnOnce(&CancelDisabled) -> T) -> T {
    let cancel = CancelDisabled::new();
    let restore = || {
        set_state(cancel.before);
    };
    with_cleanup(restore, || call(&cancel))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_registered_runs_in_cancelled_calls_only() {
        let mut undone = 0;
        assert_eq!(with_cleanup(|| undone += 1, || 7), 7);
        assert_eq!(undone, 0);
        assert!(disabled(|_| !CancelDisabled::new().was_enabled()));
        assert!(disabled(|cancel| cancel.allow(|| (), || CancelDisabled::new().was_enabled())));
        assert!(disabled(|outer| disabled(|inner| outer.was_enabled() && !inner.was_enabled())));
        assert!(CancelDisabled::new().was_enabled());
    }
}
