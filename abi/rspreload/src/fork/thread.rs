//! Threads of the library's own.

use core::ffi::c_void;
use core::mem;
use core::ptr;

/// Blocks all signals of the thread until it is dropped: a handler might need what the thread has
/// locked.
pub struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    pub fn new() -> SignalsBlocked {
        // SAFETY: zeros are a set, and the sets live on this stack.
        unsafe {
            let (mut all, mut before) = (mem::zeroed(), mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            SignalsBlocked { before }
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: a set that pthread_sigmask has filled in.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

/// Lets other threads run, for waits that are over soon.
pub fn yield_now() {
    // SAFETY: no arguments.
    unsafe { libc::sched_yield() };
}

/// Starts a detached thread with all signals blocked: the program's handlers run in its own threads
/// only. Returns false if the thread can't be created.
pub fn start(run: extern "C" fn(*mut c_void) -> *mut c_void, argument: *mut c_void) -> bool {
    let _inherited = SignalsBlocked::new();
    // SAFETY: the attributes live on this stack, and the argument is only handed to `run`.
    unsafe {
        let (mut thread, mut attributes) = mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let failed = libc::pthread_create(&raw mut thread, &raw const attributes, run, argument);
        libc::pthread_attr_destroy(&raw mut attributes);
        failed == 0
    }
}
