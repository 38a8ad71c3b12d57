//! How a thread waits for rsockets: it polls for `polling_time` if that has paid lately, and then
//! sleeps on an eventfd, the thread's waiter.
//!
//! The crate in `tests/models` (`scripts/check loom`) checks that no notice is lost.

use std::cell::Cell;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::pollable::{Notice, Watcher};
use crate::errno::Result;
use crate::os::alloc::try_arc;
use crate::os::event::EventFd;
use crate::os::fork::Owner;
use crate::os::sync::atomic::AtomicBool;

/// An eventfd that becomes readable with a notice. A notice is only a hint: it may be left over
/// from an earlier wait.
pub struct Waiter {
    event: EventFd,
    /// Whether the eventfd is readable or about to become readable.
    raised: AtomicBool,
    owner: Owner,
}

impl Waiter {
    fn new() -> Result<Arc<Waiter>> {
        try_arc(Waiter { event: EventFd::new()?, raised: AtomicBool::new(false), owner: Owner::this_process() })
    }

    /// Makes the descriptor unreadable. The caller polls the rsockets afterwards.
    pub fn clear(&self) {
        // The order matters: a notice between the two steps does not raise the eventfd again, but
        // the caller polls the rsockets afterwards and sees its change.
        self.event.clear();
        self.raised.swap(false, Ordering::SeqCst);
    }
}

impl Watcher for Waiter {
    fn notice(self: Arc<Self>, _: Notice) {
        if !self.raised.swap(true, Ordering::SeqCst) {
            self.event.raise();
        }
    }
}

#[cfg(not(all(test, loom)))]
thread_local! {
    /// The thread's waiter while no wait uses it.
    static SPARE: Cell<Option<Arc<Waiter>>> = const { Cell::new(None) };
}

#[cfg(all(test, loom))]
loom::thread_local! {
    static SPARE: Cell<Option<Arc<Waiter>>> = Cell::new(None);
}

/// The thread's waiter, in use until it is dropped. A signal handler that waits while the thread
/// waits uses another one.
pub struct Waiting {
    /// The watcher to add to the rsockets.
    pub watcher: Arc<Waiter>,
}

impl Waiting {
    /// Takes the thread's waiter. Creates one for the first wait and after a fork().
    pub fn begin() -> Result<Waiting> {
        let spare = SPARE.try_with(Cell::take).unwrap_or(None);
        let watcher = spare.filter(|spare| spare.owner.is_this_process()).map_or_else(Waiter::new, Ok)?;
        // If a notice is still raising the eventfd, the rsockets are polled once more than
        // necessary.
        if watcher.raised.load(Ordering::SeqCst) {
            watcher.clear();
        }
        Ok(Waiting { watcher })
    }

    /// Returns the descriptor that is readable after a notice.
    pub fn descriptor(&self) -> RawFd {
        self.watcher.event.as_raw_fd()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // The thread-local variable may be destroyed already, in a thread that is ending.
        drop(SPARE.try_with(|spare| spare.replace(Some(self.watcher.clone()))));
    }
}

/// Polling ends after this many waits in a row in which nothing changed within polling_time.
const MISSES: u32 = 8;
/// After [`MISSES`] such waits, every RETRY_EVERY-th wait still polls, to notice when polling pays
/// again.
const RETRY_EVERY: u32 = 16;

/// Counts the waits in which polling was in vain. A race between threads loses a count at worst.
#[derive(Debug, Default)]
pub struct Spinning {
    /// Number of waits since the last wait in which something changed within polling_time.
    misses: AtomicU32,
}

impl Spinning {
    pub const fn new() -> Spinning {
        Spinning { misses: AtomicU32::new(0) }
    }

    /// Counts a wait that begins. Returns whether it should poll first.
    pub fn begin(&self) -> bool {
        let misses = self.misses.load(Ordering::Relaxed);
        self.misses.store(misses.wrapping_add(1), Ordering::Relaxed);
        misses < MISSES || misses.is_multiple_of(RETRY_EVERY)
    }

    /// Resets the count, because something changed while the call polled.
    pub fn succeeded(&self) {
        self.misses.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::rsocket::fake::readable;

    #[test]
    fn each_thread_and_each_nested_wait_has_its_own_waiter() {
        let outer = Waiting::begin().unwrap();
        let fd = outer.descriptor();
        let nested = Waiting::begin().unwrap();
        assert_ne!(nested.descriptor(), fd);
        drop(nested);
        drop(outer);
        assert_eq!(Waiting::begin().unwrap().descriptor(), fd);
        std::thread::spawn(move || assert_ne!(Waiting::begin().unwrap().descriptor(), fd)).join().unwrap();
    }

    #[test]
    fn a_new_wait_starts_without_old_notices() {
        let waiting = Waiting::begin().unwrap();
        waiting.watcher.clone().notice(Notice::Changed);
        waiting.watcher.clone().notice(Notice::Changed);
        assert!(readable(waiting.descriptor()));
        drop(waiting);
        let waiting = Waiting::begin().unwrap();
        assert!(!readable(waiting.descriptor()));
        waiting.watcher.clone().notice(Notice::Closed);
        assert!(readable(waiting.descriptor()));
    }

    #[test]
    fn stops_when_it_is_in_vain() {
        let spinning = Spinning::new();
        assert!((0..MISSES).all(|_| spinning.begin()));
        let tries = (0..10 * RETRY_EVERY).filter(|_| spinning.begin()).count();
        assert_eq!(tries, 10);
    }

    #[test]
    fn begins_again_when_it_pays() {
        let spinning = Spinning::new();
        while spinning.begin() {}
        while !spinning.begin() {}
        spinning.succeeded();
        assert!((0..MISSES).all(|_| spinning.begin()));
        assert!(!spinning.begin());
    }
}
