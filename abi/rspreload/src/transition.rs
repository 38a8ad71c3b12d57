//! A number becomes another kind of socket: the lock under which its table entry and its membership
//! in an epoll change together, and the wait for the thread that decides.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::errno;
use crate::table::{self, Entry};
use crate::thread::{SignalsBlocked, yield_now};

/// The number that is changing, -1 if there is none.
static MOVING: AtomicI32 = AtomicI32::new(-1);

/// The lock, held with all signals blocked.
pub struct Moving {
    _signals: SignalsBlocked,
}

impl Moving {
    /// Waits for the lock.
    pub fn begin(fd: c_int) -> Moving {
        let signals = SignalsBlocked::new();
        while MOVING.compare_exchange(-1, fd, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            yield_now();
        }
        Moving { _signals: signals }
    }

    /// In a child of fork(2).
    pub fn reset() {
        MOVING.store(-1, Ordering::SeqCst);
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        Moving::reset();
    }
}

/// Waits while `fd` is moving. Returns whether it was: its entry is another one then.
pub fn wait_for_move(fd: c_int) -> bool {
    if MOVING.load(Ordering::SeqCst) != fd {
        return false;
    }
    while MOVING.load(Ordering::SeqCst) == fd {
        yield_now();
    }
    true
}

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

/// What a call is about to do with a socket that is not decided yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Sends: must not wait for ever for a word that may not come.
    Send,
    /// Sends what there is room for (MSG_DONTWAIT).
    SendNow,
    /// Shuts down; otherwise like sending.
    Shutdown,
    /// Receives: waits as long as receiving would.
    Receive,
    /// Receives what is available (MSG_DONTWAIT).
    ReceiveNow,
}

impl Way {
    /// Whether the call waits if the socket is a blocking one.
    pub fn waits(self) -> bool {
        !matches!(self, Way::ReceiveNow | Way::SendNow)
    }

    /// Whether the call sends, or ends sending.
    pub fn sends(self) -> bool {
        matches!(self, Way::Send | Way::SendNow | Way::Shutdown)
    }
}
