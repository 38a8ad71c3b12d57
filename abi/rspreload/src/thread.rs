//! Locks, guards that disable cancellation and block signals, and the start of the library's
//! threads.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use core::{mem, ptr};

use base::sleep::{disable, futex_wait, futex_wake, restore_state};

pub use base::sleep::with_cleanup;

use crate::errno;

/// Disables cancellation of the thread until the guard is dropped: locks that a cancelled thread
/// holds would stay locked.
pub struct CancelDisabled {
    before: c_int,
}

impl CancelDisabled {
    pub fn new() -> CancelDisabled {
        CancelDisabled { before: disable() }
    }

    /// Whether the thread could be cancelled before.
    #[cfg(test)]
    pub fn was_enabled(&self) -> bool {
        self.before != base::sleep::DISABLE
    }

    /// Runs a call that waits, with the cancelability that the thread had before the guard. Runs
    /// `undo` if the thread is cancelled in the call.
    pub fn allow<T>(&self, undo: impl FnMut(), call: impl FnOnce() -> T) -> T {
        with_cleanup(undo, || {
            restore_state(self.before);
            let result = call();
            disable();
            result
        })
    }
}

impl Drop for CancelDisabled {
    fn drop(&mut self) {
        restore_state(self.before);
    }
}

/// Runs `call` with cancellation disabled, except in [`CancelDisabled::allow`]. The program's
/// setting is also restored if a signal handler leaves `call` by longjmp(3).
pub fn without_cancel<T>(call: impl FnOnce(&CancelDisabled) -> T) -> T {
    let cancel = CancelDisabled::new();
    with_cleanup(|| restore_state(cancel.before), || call(&cancel))
}

/// Blocks all signals of the thread, and disables cancellation, until the guard is dropped: a
/// signal handler might need a lock that the thread holds.
pub struct SignalsBlocked {
    before: libc::sigset_t,
    /// Dropped before the signal mask is restored: a handler that runs once the mask is restored
    /// may leave by longjmp(3), and cancellation would stay disabled.
    cancel: Option<CancelDisabled>,
}

impl SignalsBlocked {
    pub fn new() -> SignalsBlocked {
        // SAFETY: all-zero bytes are a valid `sigset_t`, and both sets live until the calls return.
        unsafe {
            let (mut all, mut before) = (mem::zeroed(), mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            SignalsBlocked { before, cancel: Some(CancelDisabled::new()) }
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        self.cancel = None;
        // SAFETY: `before` is a set that pthread_sigmask(3) has filled in.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

/// Sleeps while the word is `value`, for at most `seconds` (0: no limit). A wake-up or a signal may
/// end the sleep early. Returns false after a time-out.
pub fn sleep_while(word: &AtomicU32, value: u32, seconds: u64) -> bool {
    let limit = (seconds != 0).then(|| base::clock::timespec(Duration::from_secs(seconds)));
    futex_wait(word.as_ptr(), value, limit.as_ref()) == 0 || errno::get() != libc::ETIMEDOUT
}

/// Wakes all threads that sleep on a word.
pub fn wake_all(word: &AtomicU32) {
    futex_wake(word.as_ptr(), i32::MAX);
}

const FREE: u32 = 0;
const HELD: u32 = 1;
/// The lock is held, and threads may be waiting for it.
const AWAITED: u32 = 2;

/// A lock that is held with all signals blocked, so that signal handlers may take it, too.
pub struct Lock(AtomicU32);

/// A guard that holds a [`Lock`] until the guard is dropped.
pub struct Held<'a> {
    lock: &'a Lock,
    _signals: SignalsBlocked,
}

impl Lock {
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    /// Waits for the lock.
    pub fn hold(&self) -> Held<'_> {
        let signals = SignalsBlocked::new();
        if self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            errno::keeping(|| {
                while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
                    sleep_while(&self.0, AWAITED, 0);
                }
            });
        }
        Held { lock: self, _signals: signals }
    }

    /// Frees the lock in a child of fork(2): the thread that may have held it does not exist there.
    pub fn reset(&self) {
        self.0.store(FREE, Ordering::SeqCst);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.lock.0.swap(FREE, Ordering::Release) == AWAITED {
            wake_all(&self.lock.0);
        }
    }
}

/// Starts a detached thread with all signals blocked, so that the program's signal handlers run in
/// the program's threads only. Returns false if the thread cannot be created.
pub fn start(run: extern "C" fn(*mut c_void) -> *mut c_void) -> bool {
    let _inherited = SignalsBlocked::new();
    let mut thread = 0;
    // SAFETY: `thread` is writable, and has the new thread's identifier when it is detached, once.
    unsafe {
        libc::pthread_create(&raw mut thread, ptr::null(), run, ptr::null_mut()) == 0
            && libc::pthread_detach(thread) == 0
    }
}

#[cfg(test)]
mod tests_of_cancel {
    use super::*;

    #[test]
    fn what_is_registered_runs_in_cancelled_calls_only() {
        let mut undone = 0;
        assert_eq!(with_cleanup(|| undone += 1, || 7), 7);
        assert_eq!(undone, 0);
        assert!(without_cancel(|_| !CancelDisabled::new().was_enabled()));
        assert!(without_cancel(|cancel| cancel.allow(|| (), || CancelDisabled::new().was_enabled())));
        assert!(without_cancel(|outer| without_cancel(|inner| outer.was_enabled() && !inner.was_enabled())));
        assert!(CancelDisabled::new().was_enabled());
    }
}

#[cfg(test)]
mod tests_of_thread {
    use super::*;

    /// Whether the thread can be cancelled, and whether SIGUSR1 is blocked.
    fn state() -> (bool, bool) {
        let cancel = CancelDisabled::new();
        // SAFETY: all-zero bytes are a valid `sigset_t`, and `mask` lives until the calls return.
        unsafe {
            let mut mask: libc::sigset_t = mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut mask);
            (cancel.was_enabled(), libc::sigismember(&raw const mask, libc::SIGUSR1) == 1)
        }
    }

    #[test]
    fn a_thread_that_holds_a_lock_cannot_be_cancelled() {
        assert_eq!(state(), (true, false));
        let outer = SignalsBlocked::new();
        assert_eq!(state(), (false, true));
        drop(SignalsBlocked::new());
        assert_eq!(state(), (false, true), "an inner guard has restored the mask");
        drop(outer);
        assert_eq!(state(), (true, false));
        let lock = Lock::new();
        let held = lock.hold();
        assert_eq!(state(), (false, true));
        drop(held);
        let moving = crate::transition::Moving::begin(-3);
        assert_eq!(state(), (false, true));
        drop(moving);
        assert_eq!(state(), (true, false));
    }
}
