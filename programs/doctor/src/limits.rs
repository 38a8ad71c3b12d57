//! Limits of the process: locked memory and open descriptors.

use std::fs;

use libc::RLIM_INFINITY;
use nix::sys::resource::{Resource, getrlimit};

use crate::codes::{Check, Problem, Warning};
use crate::report::Report;

/// One connection locks less than this: an rsocket's full buffers, and the queues that adapters
/// (unlike the soft devices) lock. An idle rsocket locks 12 kB.
const ONE_CONNECTION: u64 = 1 << 20;
/// Enough for several dozen connections.
const MANY_CONNECTIONS: u64 = 64 << 20;
const CAP_IPC_LOCK: u32 = 14;

/// Checks the limits.
pub fn check(report: &mut Report) {
    let kilobytes = |limit: u64| format!("{} kB", limit / 1024);
    let advice = if has_lock_capability() && !may_lock_all() {
        "CAP_IPC_LOCK does not count in a user namespace: raise the limit where the container is started (docker: --ulimit memlock=-1)"
    } else {
        "raise it: `* - memlock unlimited` in /etc/security/limits.d/rdma.conf, or LimitMEMLOCK=infinity for a service"
    };
    match soft_limit(Resource::RLIMIT_MEMLOCK) {
        None => report.ok(Check::Memlock, "memory may be locked without limit (ulimit -l)"),
        Some(_) if may_lock_all() => report.ok(Check::Memlock, "memory may be locked without limit (CAP_IPC_LOCK)"),
        Some(limit) if limit < ONE_CONNECTION => report.problem(
            Problem::MemlockTooLittle,
            format!(
                "{} of memory may be locked (ulimit -l): too little for the buffers and queues of one connection",
                kilobytes(limit)
            ),
            advice,
        ),
        Some(limit) if limit < MANY_CONNECTIONS => report.warning(
            Warning::MemlockLittle,
            format!("{} of memory may be locked (ulimit -l): enough for only a few connections", kilobytes(limit)),
            advice,
        ),
        Some(limit) => report.ok(Check::Memlock, format!("{} of memory may be locked (ulimit -l)", kilobytes(limit))),
    }
    match soft_limit(Resource::RLIMIT_NOFILE) {
        Some(limit) if limit < 256 => report.warning(
            Warning::DescriptorsFew,
            format!("{limit} descriptors may be open (ulimit -n); an rsocket takes two"),
            "raise it with ulimit -n, or LimitNOFILE= for a service",
        ),
        _ => report.ok(Check::Descriptors, "the limit is high enough (ulimit -n)"),
    }
}

/// Returns the soft limit, or `None` if there is none.
fn soft_limit(which: Resource) -> Option<u64> {
    getrlimit(which).ok().map(|(soft, _)| soft).filter(|&soft| soft != RLIM_INFINITY)
}

/// Returns whether the process has CAP_IPC_LOCK where it counts: in the first user namespace, whose
/// map of user ids is complete.
fn may_lock_all() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    has_lock_capability() && (map.is_empty() || map.split_whitespace().eq(["0", "0", "4294967295"]))
}

fn has_lock_capability() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> CAP_IPC_LOCK & 1 == 1)
}
