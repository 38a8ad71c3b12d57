//! Descriptors beyond the program's soft limit, for which the limit is raised for a moment.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// RLIMIT_NOFILE: one more than the highest number that the process may have now, and that it may
/// ask for. Returns `None` if the kernel does not tell.
pub fn limits() -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a live structure.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    known.then_some(limit)
}

/// Leaves `errno` alone.
fn set(limit: libc::rlimit) {
    // SAFETY: `limit` is a live structure; the C library's errno of this thread.
    unsafe {
        let errno = *libc::__errno_location();
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        *libc::__errno_location() = errno;
    }
}

/// The soft limit while a thread has raised it, otherwise 0. Each library has one.
#[derive(Debug)]
pub struct RaisedLimit(AtomicU64);

impl RaisedLimit {
    /// No thread has raised the limit.
    #[expect(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> RaisedLimit {
        RaisedLimit(AtomicU64::new(0))
    }

    /// Makes a call for which the program's limit is raised. Other threads may see it for a moment.
    pub fn during(&self, call: impl FnOnce() -> i32) -> i32 {
        // One that another thread has raised is restored by that one.
        let Some(limit) = limits().filter(|limit| limit.rlim_cur < limit.rlim_max) else { return call() };
        self.0.store(limit.rlim_cur, Relaxed);
        set(libc::rlimit { rlim_cur: limit.rlim_max, ..limit });
        let result = call();
        set(limit);
        self.0.store(0, Relaxed);
        result
    }

    /// In a child of fork(2), which does not have the thread that would restore the limit.
    pub fn in_child(&self) {
        let soft = self.0.swap(0, Relaxed);
        if let Some(limit) = limits().filter(|_| soft != 0) {
            set(libc::rlimit { rlim_cur: soft.min(limit.rlim_max), ..limit });
        }
    }
}
