//! How many CPUs this process may use.

use std::sync::atomic::{AtomicUsize, Ordering};

/// As it was at the first call.
pub fn usable() -> usize {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let known = COUNT.load(Ordering::Relaxed);
    if known > 0 {
        return known;
    }
    // SAFETY: all zeros are a set, which is writable for its size.
    let count = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        match libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) {
            0 => libc::CPU_COUNT(&set) as usize,
            _ => 1,
        }
    };
    COUNT.store(count.max(1), Ordering::Relaxed);
    count.max(1)
}
