//! What a thread sleeps on while it waits for rsockets.
//!
//! That no notice is lost is model-checked, by the crate in `models/` (`scripts/check loom`).

use std::cell::Cell;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicBool, Ordering};

use super::owner::Owner;
use super::watch::{Notice, Watcher};
use crate::errno::Result;
use crate::sys::alloc::try_arc;
use crate::sys::event::EventFd;

/// An eventfd that notices raise. A notice is a hint only: it may be one that was meant for an earlier wait.
pub struct Waiter {
    event: EventFd,
    /// Whether the eventfd is raised, or about to be.
    raised: AtomicBool,
    owner: Owner,
}

impl Waiter {
    fn new() -> Result<Arc<Waiter>> {
        try_arc(Waiter { event: EventFd::new()?, raised: AtomicBool::new(false), owner: Owner::this_process() })
    }

    /// Makes the descriptor unreadable; look at the rsockets afterwards.
    fn clear(&self) {
        // In this order: a notice that comes in between raises nothing, but what it is about will be looked at.
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
    /// The thread's waiter while it is not in use.
    static SPARE: Cell<Option<Arc<Waiter>>> = const { Cell::new(None) };
}

#[cfg(all(test, loom))]
loom::thread_local! {
    static SPARE: Cell<Option<Arc<Waiter>>> = Cell::new(None);
}

/// The thread's waiter, until dropped. A signal handler that waits while the thread does gets one of its own.
pub struct Waiting {
    waiter: Arc<Waiter>,
    watcher: Arc<dyn Watcher>,
}

impl Waiting {
    /// Takes it; the first time and after a fork() makes it.
    pub fn begin() -> Result<Waiting> {
        let spare = SPARE.try_with(Cell::take).unwrap_or(None);
        let waiter = match spare.filter(|spare| spare.owner.is_this_process()) {
            Some(spare) => spare,
            None => Waiter::new()?,
        };
        // A raise that is still under way costs one look at the rsockets more.
        if waiter.raised.load(Ordering::SeqCst) {
            waiter.clear();
        }
        Ok(Waiting { watcher: waiter.clone(), waiter })
    }

    /// To be added to the rsockets' watchers.
    pub fn watcher(&self) -> &Arc<dyn Watcher> {
        &self.watcher
    }

    /// Readable after a notice.
    pub fn descriptor(&self) -> RawFd {
        self.waiter.event.as_raw_fd()
    }

    /// The descriptor was seen readable: makes it unreadable. Look at the rsockets afterwards.
    pub fn clear(&self) {
        self.waiter.clear();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // In a thread that is ending there is nobody left to keep it.
        drop(SPARE.try_with(|spare| spare.replace(Some(self.waiter.clone()))));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::rsocket::fake::readable;

    #[test]
    fn one_for_each_thread_and_one_for_each_nested_wait() {
        let outer = Waiting::begin().unwrap();
        let number = outer.descriptor();
        let nested = Waiting::begin().unwrap();
        assert_ne!(nested.descriptor(), number);
        drop(nested);
        drop(outer);
        assert_eq!(Waiting::begin().unwrap().descriptor(), number);
        std::thread::spawn(move || assert_ne!(Waiting::begin().unwrap().descriptor(), number)).join().unwrap();
    }

    #[test]
    fn old_notices_are_forgotten() {
        let waiting = Waiting::begin().unwrap();
        waiting.watcher().clone().notice(Notice::Changed);
        waiting.watcher().clone().notice(Notice::Changed);
        assert!(readable(waiting.descriptor()));
        drop(waiting);
        let waiting = Waiting::begin().unwrap();
        assert!(!readable(waiting.descriptor()));
        waiting.watcher().clone().notice(Notice::Closed);
        assert!(readable(waiting.descriptor()));
    }
}
