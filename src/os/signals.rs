//! Determines whether an interrupted call continues.
//!
//! recv(2) and similar calls continue after a signal whose handler was installed with SA_RESTART,
//! and fail with EINTR after any other. A call that sleeps in poll(2) is interrupted by both kinds,
//! and the kernel does not say which one it was.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;

use libc::{SA_RESETHAND, SA_RESTART, SIG_DFL, SIG_IGN};

/// Signals that a thread raises by its own instructions, which it cannot do while it sleeps.
/// Language runtimes handle them, so their handlers are ignored here.
const FAULTS: [c_int; 6] = [libc::SIGILL, libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGSYS];

/// Returns whether a call that a signal has interrupted continues, which is the case if every
/// handler has SA_RESTART: a handler that is meant to end a wait must end it. Makes one system call
/// for each signal.
pub fn ask_for_restart() -> bool {
    (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal)).filter_map(handler_flags).all(restarts)
}

/// Returns the flags of a signal's handler, also of one that SA_RESETHAND has removed.
fn handler_flags(signal: c_int) -> Option<c_int> {
    // SAFETY: all zeros are a valid value.
    let mut action: libc::sigaction = unsafe { zeroed() };
    // SAFETY: only reads the action, into a live structure. Fails for the signals that the C
    // library keeps for itself.
    if unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } != 0 {
        return None;
    }
    let handled = !matches!(action.sa_sigaction, SIG_DFL | SIG_IGN) || action.sa_flags & SA_RESETHAND != 0;
    handled.then_some(action.sa_flags)
}

fn restarts(flags: c_int) -> bool {
    flags & SA_RESTART != 0
}
