//! What the program's signal handlers ask for.
//!
//! recv(2) and its like go on after a signal whose handler was installed with SA_RESTART and fail with `EINTR` after any
//! other. A call that sleeps in poll(2) is interrupted by both kinds, and the kernel does not say which one it was.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;

use libc::{SA_RESETHAND, SA_RESTART, SIG_DFL, SIG_IGN};

/// Raised by what the interrupted thread itself does, which sleeps; their handlers are a runtime's and say nothing about calls.
const FAULTS: [c_int; 6] = [libc::SIGILL, libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGSYS];

/// After a signal interrupted a call: whether the call is to go on. It is when every handler asks for that; where handlers
/// differ it is not, because one that is meant to end a wait must do so. Costs some system calls.
pub fn ask_for_restart() -> bool {
    (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal)).filter_map(handler_flags).all(restarts)
}

/// The flags of a signal's handler, if it has one or had one that went when it ran.
fn handler_flags(signal: c_int) -> Option<c_int> {
    // SAFETY: all zeros are a value of it.
    let mut action: libc::sigaction = unsafe { zeroed() };
    // SAFETY: only reads the action, into a live structure. Fails for the signals that the C library keeps for itself.
    if unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } != 0 {
        return None;
    }
    let handled = !matches!(action.sa_sigaction, SIG_DFL | SIG_IGN) || action.sa_flags & SA_RESETHAND != 0;
    handled.then_some(action.sa_flags)
}

fn restarts(flags: c_int) -> bool {
    flags & SA_RESTART != 0
}
