//! Cancellation: pthread_cancel(3) may end a thread in the middle of a call.
//!
//! The C library unwinds the thread's stack from the system call in which it sleeps, without
//! running destructors: what has to be undone must be registered first, with [`with_cleanup`].
//! Memory that the call has allocated may leak.
//!
//! A thread never ends while it holds a lock or is in the middle of a change: it runs with
//! cancellation disabled ([`in_call`], [`disabled`]) wherever it calls what may contain a
//! cancellation point. The program's setting is in force in [`sleep`] only: around system calls
//! that wait, which are made without a lock. rclose(3) and rshutdown(3) disable it even there
//! ([`never`]), because they could not be repeated.
//!
//! All of a call for an rsocket is within [`in_call`]. The calls that each rdma_cm_id needs are
//! not: their commands to the kernel are direct system calls, which are no cancellation points, and
//! what else they call is within [`in_call`] or [`disabled`] where it is called.
//!
//! A call that may wait is a cancellation point even if it need not ([`in_waiting_call`]), as the
//! system call that it stands for: otherwise a thread that only sends would never end.
//!
//! The usual rsend, rrecv and rpoll, which find what they need, do not pass through [`in_call`],
//! nor does an rrecv that has found nothing and sleeps. They make only the system calls of
//! libibverbs, with cancellation disabled ([`disabled`]): write(2), which notifies software devices
//! of work, is a cancellation point.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use once_cell::race::OnceBool;

use super::mark;
use super::thread_word::{Word, Words, read};

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
    fn pthread_testcancel();
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
}

/// PTHREAD_CANCEL_ENABLE, PTHREAD_CANCEL_DISABLE, PTHREAD_CANCEL_ASYNCHRONOUS of pthread.h.
const ENABLE: c_int = 0;
const DISABLE: c_int = 1;
const ASYNCHRONOUS: c_int = 1;

/// The word of the thread. 0: the program's setting is in force. In a call, which runs with
/// cancellation disabled, 1 more than the setting while it sleeps.
const OUTSIDE: usize = 0;

const fn in_call_with(state: c_int) -> usize {
    1 + state as usize
}

/// Runs a call of the program, or the rest of one, in which the thread can be cancelled only while
/// it sleeps.
pub fn in_call<T>(call: impl FnOnce() -> T) -> T {
    if read(Word::Cancel) != OUTSIDE {
        return call();
    }
    let before = set_state(DISABLE);
    let result = with_word(in_call_with(before), call);
    set_state(before);
    result
}

/// As [`in_call`], for a call that may wait: the thread ends here if it was cancelled before.
pub fn in_waiting_call<T>(call: impl FnOnce() -> T) -> T {
    test();
    in_call(call)
}

/// The thread ends here if it was cancelled before. The call of the program has done nothing, or
/// everything.
pub fn test() {
    // The thread is marked, and a handler of the cancellation may make calls.
    // SAFETY: there is nothing to undo.
    mark::asleep(|| unsafe { pthread_testcancel() });
}

/// As [`in_call`], for calls that must not be cancelled while they sleep, either.
pub fn never<T>(call: impl FnOnce() -> T) -> T {
    disabled(|| with_word(in_call_with(DISABLE), call))
}

#[inline]
fn with_word<T>(word: usize, call: impl FnOnce() -> T) -> T {
    let words = Words::here();
    let before = words.read(Word::Cancel);
    words.write(Word::Cancel, word);
    let result = call();
    words.write(Word::Cancel, before);
    result
}

/// Runs a system call that waits. The thread holds no lock, and may be cancelled if the program has
/// not disabled that.
#[inline]
pub fn sleep<T>(call: impl FnOnce() -> T) -> T {
    let word = read(Word::Cancel);
    if word == OUTSIDE {
        return mark::asleep(call);
    }
    let stays_disabled = word == in_call_with(DISABLE);
    let with_setting =
        || if stays_disabled { call() } else { meanwhile(pthread_setcancelstate, word as c_int - 1, call) };
    // Calls of a signal handler are not within this one, and it may leave the sleep by siglongjmp(3).
    with_word(OUTSIDE, || mark::asleep(with_setting))
}

/// Returns whether a thread that is cancelled in a [`sleep`] may lose what its system call has just
/// taken, for example an event: with glibc before 2.41, which ends a thread at a cancellation point
/// even if the system call has returned (glibc's bug 12683). Such a call has to be made after a wait
/// that takes nothing. Not if the program has disabled cancellation.
pub fn may_lose() -> bool {
    static IS_OLD: OnceBool = OnceBool::new();
    read(Word::Cancel) != in_call_with(DISABLE) && IS_OLD.get_or_init(|| !ends_only_waits(c_library_version()))
}

/// Returns whether the C library of this version ends threads only while they wait.
fn ends_only_waits(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (2, 41)
}

fn c_library_version() -> &'static str {
    // SAFETY: a constant string of the C library.
    unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }.to_str().unwrap_or_default()
}

/// Runs code that does not sleep but contains a cancellation point.
#[inline]
pub fn disabled<T>(call: impl FnOnce() -> T) -> T {
    if read(Word::Cancel) == OUTSIDE { meanwhile(pthread_setcancelstate, DISABLE, call) } else { call() }
}

/// Runs `call`, and `undo` if the thread is cancelled in it, which happens in a [`sleep`].
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

/// As [`sleep`], for a system call that is not a cancellation point: the thread may end at any
/// instruction of `call`.
#[inline]
pub fn sleep_anywhere<T>(call: impl FnOnce() -> T) -> T {
    // In this order: with a cancellation pending, pthread_setcancelstate(3) of some C libraries
    // makes pthread_join(3) miss that the thread was cancelled.
    sleep(|| meanwhile(pthread_setcanceltype, ASYNCHRONOUS, call))
}

fn set_state(state: c_int) -> c_int {
    let mut before = ENABLE;
    // SAFETY: a value of the setting's; `before` is writable.
    unsafe { pthread_setcancelstate(state, &raw mut before) };
    before
}

/// Runs `call` with another value of a setting of the thread.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert!(["2.41", "2.100", "3.0", "2.41.9000"].into_iter().all(ends_only_waits));
        assert!(!["2.36", "2.5", "2.40", "", "?"].into_iter().any(ends_only_waits));
        assert!(c_library_version().starts_with("2."));
    }
}
