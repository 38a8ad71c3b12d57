//! Descriptors beyond the program's soft limit, for which the limit is raised for a moment.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::errno;

/// RLIMIT_NOFILE: one more than the highest number that the process may have now, and that it may
/// ask for. Returns `None` if the kernel does not tell.
pub fn limits() -> Option<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a live structure.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    known.then_some(limit)
}

/// Returns the limit before. Leaves `errno` alone.
fn replace(limit: libc::rlimit) -> libc::rlimit {
    let mut before = limit;
    // SAFETY: live structures.
    errno::keeping(|| unsafe { libc::prlimit(0, libc::RLIMIT_NOFILE, &raw const limit, &raw mut before) });
    before
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
        let limit = replace(libc::rlimit { rlim_cur: limit.rlim_max, ..limit });
        let result = call();
        let raised = replace(limit);
        if raised.rlim_cur != raised.rlim_max || raised.rlim_max != limit.rlim_max {
            // The program has changed it meanwhile.
            replace(raised);
        }
        self.0.store(0, Relaxed);
        result
    }

    /// In a child of fork(2), which does not have the thread that would restore the limit.
    pub fn in_child(&self) {
        let soft = self.0.swap(0, Relaxed);
        if let Some(limit) = limits().filter(|_| soft != 0) {
            replace(libc::rlimit { rlim_cur: soft.min(limit.rlim_max), ..limit });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_the_program_sets_meanwhile_stays() {
        let before = limits().unwrap();
        let low = libc::rlimit { rlim_cur: before.rlim_max - 2, ..before };
        replace(low);
        let during = |limit| RaisedLimit::new().during(|| i32::from(replace(limit).rlim_cur == before.rlim_max));
        assert_eq!(
            (during(libc::rlimit { rlim_cur: before.rlim_max, ..low }), limits().unwrap().rlim_cur),
            (1, low.rlim_cur)
        );
        let other = libc::rlimit { rlim_cur: before.rlim_max - 1, ..low };
        assert_eq!((during(other), limits().unwrap().rlim_cur), (1, other.rlim_cur));
        replace(before);
    }
}
