//! Raises the soft limit on descriptors for a moment, for a call that needs higher descriptors.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::errno;

/// Returns RLIMIT_NOFILE: one more than the highest descriptor that the process may have now
/// (soft), and one more than the highest that it may ask for (hard).
pub fn limits() -> libc::rlimit {
    limits_of(libc::RLIMIT_NOFILE)
}

/// Returns the soft and the hard limit of a resource. Both are infinite if getrlimit(2) fails.
pub fn limits_of(resource: libc::__rlimit_resource_t) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is a live structure.
    unsafe { libc::getrlimit(resource, &raw mut limit) };
    limit
}

/// Sets RLIMIT_NOFILE and returns the previous value. Leaves `errno` alone.
fn replace(limit: libc::rlimit) -> libc::rlimit {
    let mut before = limit;
    // SAFETY: `limit` and `before` are live structures.
    errno::keeping(|| unsafe { libc::prlimit(0, libc::RLIMIT_NOFILE, &raw const limit, &raw mut before) });
    before
}

/// The program's soft limit while a thread has raised the limit, otherwise 0. Each library has one
/// such value.
#[derive(Debug)]
pub struct RaisedLimit(AtomicU64);

impl RaisedLimit {
    /// Creates the state in which no thread has raised the limit.
    #[expect(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> RaisedLimit {
        RaisedLimit(AtomicU64::new(0))
    }

    /// Makes a call with the soft limit raised to the hard limit, and returns its result. Other
    /// threads may see the raised limit for a moment.
    pub fn during(&self, call: impl FnOnce() -> i32) -> i32 {
        // A limit that another thread has raised already is restored by that thread.
        let limit = limits();
        if limit.rlim_cur == limit.rlim_max {
            return call();
        }
        self.0.store(limit.rlim_cur, Relaxed);
        let limit = replace(libc::rlimit { rlim_cur: limit.rlim_max, ..limit });
        let result = call();
        let raised = replace(limit);
        if raised.rlim_cur != raised.rlim_max || raised.rlim_max != limit.rlim_max {
            // The program has changed the limit meanwhile: put its value back.
            replace(raised);
        }
        self.0.store(0, Relaxed);
        result
    }

    /// Restores the limit in a child of fork(2), which does not have the thread that would do so.
    pub fn in_child(&self) {
        let soft = self.0.swap(0, Relaxed);
        if soft != 0 {
            let limit = limits();
            replace(libc::rlimit { rlim_cur: soft.min(limit.rlim_max), ..limit });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_the_program_sets_meanwhile_stays() {
        let before = limits();
        let low = libc::rlimit { rlim_cur: before.rlim_max - 2, ..before };
        replace(low);
        let during = |limit| RaisedLimit::new().during(|| i32::from(replace(limit).rlim_cur == before.rlim_max));
        assert_eq!((during(libc::rlimit { rlim_cur: before.rlim_max, ..low }), limits().rlim_cur), (1, low.rlim_cur));
        let other = libc::rlimit { rlim_cur: before.rlim_max - 1, ..low };
        assert_eq!((during(other), limits().rlim_cur), (1, other.rlim_cur));
        replace(before);
    }
}
