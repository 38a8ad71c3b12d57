//! What ends a call that sleeps: cancellation and signals.
//!
//! pthread_cancel(3) may end a thread in the middle of a call. The C library unwinds the thread's
//! stack from the system call in which it sleeps, without running destructors: cleanup must be
//! registered first, with [`with_cleanup`]. Memory that the call has allocated may leak.
//!
//! A thread never ends while it holds a lock or is in the middle of a change: cancellation is
//! disabled ([`in_call`], [`disabled`]) around all code that may contain a cancellation point. The
//! program's setting is in force in [`sleep`] only: around system calls that wait, which are made
//! without a lock. rclose(3) and rshutdown(3) disable cancellation even there ([`never`]), because
//! they could not be repeated.
//!
//! A call for an rsocket runs within [`in_call`], except for the fast paths below. The calls that
//! each rdma_cm_id needs run outside of [`in_call`]: their commands to the kernel are direct system
//! calls, which are no cancellation points, and the other functions that these calls use run within
//! [`in_call`] or [`disabled`].
//!
//! A call that may wait is a cancellation point even if it need not wait ([`in_waiting_call`]),
//! like the system call that it replaces: otherwise a thread that only sends could not be
//! cancelled.
//!
//! The fast paths of rsend, rrecv and rpoll do not pass through [`in_call`], not even if an rrecv,
//! or an rpoll of one stream, finds nothing and sleeps. The fast paths make only the system calls
//! of libibverbs, with cancellation disabled ([`disabled`]): write(2), which notifies software
//! devices of work, is a cancellation point.
//!
//! recv(2) and similar calls continue after a signal whose handler was installed with SA_RESTART,
//! and fail with EINTR after any other signal. A call that sleeps in poll(2) is interrupted in both
//! cases, and the kernel does not say which case it was ([`ask_for_restart`]).

use std::ffi::{CStr, c_int};
use std::mem::zeroed;
use std::ptr;

use base::sleep::{ASYNCHRONOUS, DISABLE, disable, restore_state, set_type};
use libc::{SA_RESETHAND, SA_RESTART, SIG_DFL, SIG_IGN};
use once_cell::race::OnceBool;

use crate::os::mark::{self, Word, Words, read};

pub use base::sleep::with_cleanup;

unsafe extern "C" {
    fn pthread_testcancel();
}

/// Value of the thread's [`Word::Cancel`] if the program's cancelability state is in force. In a
/// call, which runs with cancellation disabled, the word is 1 plus the state that [`sleep`] puts in
/// force.
const OUTSIDE: usize = 0;

const fn in_call_with(state: c_int) -> usize {
    1 + state as usize
}

/// Runs a call of the program, or the rest of a call. The thread can be cancelled only while it
/// sleeps.
#[inline]
pub fn in_call<T>(call: impl FnOnce() -> T) -> T {
    let before = begin_call();
    let result = call();
    end_call(before);
    result
}

/// Returned by [`begin_call`] within a call: no cancelability state.
const IN_CALL: c_int = -1;

/// Disables cancellation, and returns the program's setting. Does nothing within a call.
#[inline(never)]
fn begin_call() -> c_int {
    if read(Word::Cancel) != OUTSIDE {
        return IN_CALL;
    }
    let before = disable();
    Words::here().write(Word::Cancel, in_call_with(before));
    before
}

/// Puts the setting that [`begin_call`] has returned in force again.
#[inline(never)]
fn end_call(before: c_int) {
    if before != IN_CALL {
        Words::here().write(Word::Cancel, OUTSIDE);
        restore_state(before);
    }
}

/// Like [`in_call`], for a call that may wait: the thread ends here if it was cancelled before.
pub fn in_waiting_call<T>(call: impl FnOnce() -> T) -> T {
    test();
    in_call(call)
}

/// Ends the thread if it was cancelled before. The program's call has done nothing or everything at
/// this point.
pub fn test() {
    // Clear the mark meanwhile, because cancellation handlers may make calls.
    // SAFETY: pthread_testcancel() has no preconditions, and there is nothing to undo if the thread
    // ends.
    mark::asleep(|| unsafe { pthread_testcancel() });
}

/// Like [`in_call`], for calls that must not be cancelled even while they sleep.
pub fn never<T>(call: impl FnOnce() -> T) -> T {
    in_call(|| with_word(in_call_with(DISABLE), call))
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

/// Runs a system call that waits. The thread must hold no lock: it may be cancelled, unless the
/// program has disabled cancellation.
#[inline]
pub fn sleep<T>(call: impl FnOnce() -> T) -> T {
    let word = read(Word::Cancel);
    if word == OUTSIDE {
        return mark::asleep(call);
    }
    let is_cancelable = word != in_call_with(DISABLE);
    let with_setting = || {
        if is_cancelable {
            restore_state(word as c_int - 1);
        }
        let result = call();
        if is_cancelable {
            disable();
        }
        result
    };
    // While it sleeps, the thread is outside of the call: signal handlers may make calls, and may
    // leave the sleep by siglongjmp(3).
    with_word(OUTSIDE, || mark::asleep(with_setting))
}

/// Returns whether a thread that is cancelled in a [`sleep`] may lose what its system call has just
/// taken, for example an event. glibc before 2.41 ends a thread at a cancellation point even if the
/// system call has returned (glibc's bug 12683): such a system call must follow a wait that takes
/// nothing. Returns false if the program has disabled cancellation.
pub fn may_lose() -> bool {
    static IS_OLD: OnceBool = OnceBool::new();
    read(Word::Cancel) != in_call_with(DISABLE) && IS_OLD.get_or_init(|| !ends_only_waits(c_library_version()))
}

/// Returns whether glibc of this version ends threads at a cancellation point only while they wait.
fn ends_only_waits(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (2, 41)
}

fn c_library_version() -> &'static str {
    // SAFETY: the function returns a constant C string.
    unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }.to_str().unwrap_or_default()
}

/// Runs code that does not sleep but contains a cancellation point, with cancellation disabled.
#[inline]
pub fn disabled<T>(call: impl FnOnce() -> T) -> T {
    if read(Word::Cancel) == OUTSIDE { disabled_outside(call) } else { call() }
}

/// Like [`disabled`], for code that is known not to be within [`in_call`].
#[inline(always)] // see rsocket::calls
pub fn disabled_outside<T>(call: impl FnOnce() -> T) -> T {
    let before = disable();
    let result = call();
    restore_state(before);
    result
}

/// Like [`sleep`], for a system call that is not a cancellation point. Cancellation is
/// asynchronous: the thread may end at any instruction of `call`.
#[inline]
pub fn sleep_anywhere<T>(call: impl FnOnce() -> T) -> T {
    // Restore the state first, then set the type: in the other order, with a cancellation pending,
    // pthread_setcancelstate(3) of some C libraries makes pthread_join(3) miss that the thread was
    // cancelled.
    sleep(|| {
        let before = set_type(ASYNCHRONOUS);
        let result = call();
        set_type(before);
        result
    })
}

/// Signals that a thread's own instructions raise, which cannot happen while the thread sleeps.
/// Language runtimes handle these signals, so their handlers are ignored here.
const FAULTS: [c_int; 6] = [libc::SIGILL, libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGSYS];

/// Returns whether a call that a signal has interrupted continues: only if all signal handlers have
/// SA_RESTART, because a handler without SA_RESTART is meant to end a wait. Makes one system call
/// for each signal.
pub fn ask_for_restart() -> bool {
    let signals = (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal));
    signals.filter_map(handler_flags).all(|flags| flags & SA_RESTART != 0)
}

/// Returns the flags of a signal's handler, or of a handler that SA_RESETHAND has removed; `None`
/// if the signal has no handler.
fn handler_flags(signal: c_int) -> Option<c_int> {
    // SAFETY: all zeros are a valid sigaction.
    let mut action: libc::sigaction = unsafe { zeroed() };
    // SAFETY: only reads the action, into a live structure. Fails for the signals that the C
    // library keeps for itself.
    if unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } != 0 {
        return None;
    }
    let handled = !matches!(action.sa_sigaction, SIG_DFL | SIG_IGN) || action.sa_flags & SA_RESETHAND != 0;
    handled.then_some(action.sa_flags)
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
