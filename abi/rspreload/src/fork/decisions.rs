//! Waiting for the decision of another thread: a count of decisions, with a futex.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::errno;
use crate::table::{self, Entry};

/// How long either end waits for the other, in milliseconds, where the program has not asked for
/// waiting itself.
pub const HANDSHAKE_TIMEOUT: c_int = 10_000;

/// How long a thread waits for another thread's decision, in seconds: longer than any decision
/// takes. The other thread may have been one of the parent, from before fork(2).
const DECISION_TIMEOUT: i64 = 60;

/// Decisions so far: a futex.
static DECISIONS: AtomicU32 = AtomicU32::new(0);

/// The number of decisions so far, for [`wait`].
pub fn count() -> u32 {
    DECISIONS.load(Ordering::SeqCst)
}

/// Waits for the decision after `seen`. Returns false if waiting any longer makes no sense.
pub fn wait(seen: u32) -> bool {
    let limit = libc::timespec { tv_sec: DECISION_TIMEOUT, tv_nsec: 0 };
    let word = DECISIONS.as_ptr();
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is static, and `limit` outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_futex, word, operation, seen, &raw const limit) };
    result == 0 || errno::get() != libc::ETIMEDOUT
}

/// Waits until `fd` has another entry, or until the longest handshake must be over.
pub fn wait_for_change(fd: c_int, entry: Entry) {
    loop {
        let decisions = count();
        if table::get(fd) != Some(entry) || !wait(decisions) {
            return;
        }
    }
}

/// Wakes the threads that wait for a decision.
pub fn announce() {
    DECISIONS.fetch_add(1, Ordering::SeqCst);
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: only the address of the static word is used.
    unsafe { libc::syscall(libc::SYS_futex, DECISIONS.as_ptr(), operation, c_int::MAX) };
}
