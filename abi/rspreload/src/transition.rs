//! A number becomes another kind of socket: the lock under which its table entry and its membership
//! in an epoll change together, and the wait for the thread that decides.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use crate::table::{self, Entry};
use crate::thread::{Held, Lock, sleep_while, wake_all};

/// The number that is changing, -1 if there is none.
static MOVING: AtomicI32 = AtomicI32::new(-1);

static LOCK: Lock = Lock::new();

/// The lock while a number moves.
pub struct Moving {
    _held: Held<'static>,
}

impl Moving {
    /// Waits for the lock.
    pub fn begin(fd: c_int) -> Moving {
        let held = LOCK.hold();
        MOVING.store(fd, Ordering::SeqCst);
        Moving { _held: held }
    }

    /// In a child of fork(2).
    pub fn reset() {
        MOVING.store(-1, Ordering::SeqCst);
        LOCK.reset();
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        MOVING.store(-1, Ordering::SeqCst);
    }
}

/// Waits while `fd` is moving. Returns whether it was: its entry is another one then.
pub fn wait_for_move(fd: c_int) -> bool {
    let moves = MOVING.load(Ordering::SeqCst) == fd;
    if moves {
        drop(LOCK.hold());
    }
    moves
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
    sleep_while(&DECISIONS, seen, DECISION_TIMEOUT)
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
    wake_all(&DECISIONS);
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
