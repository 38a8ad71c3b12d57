//! What rpoll, rselect and repoll want of an rsocket, and how it tells them of changes.
//!
//! Most changes come as completions, and those raise a completion channel. The others (CM events, the end of a connect,
//! a local shutdown, close, an event that another thread took from the channel) go through [`Watchers`].

use std::ffi::{c_int, c_short};
use std::mem;
use std::sync::{Arc, PoisonError};

#[cfg(not(all(test, loom)))]
use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

#[cfg(all(test, loom))]
use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use crate::errno::{Errno, Result};
use crate::sys::event::Deadline;

/// An rsocket as those see it who wait for it.
///
/// An implementation and its users rely on each other:
/// - Whoever calls take_event() notifies the other watchers afterwards ([`Watchers::notify_except`]), for they may
///   sleep on the descriptor that is no longer readable. That includes the rsocket's own blocking calls.
/// - A change that is no completion is made first, under the lock that ready() takes, and notified then.
/// - A descriptor belongs to one rsocket only, and stays open until `notify(Notice::Closed)` has returned.
pub trait Pollable: Send + Sync {
    /// Handles the completions that are there; returns the poll bits that hold now: those of `wanted` (of POLLIN,
    /// POLLOUT, POLLRDHUP), and POLLERR, POLLHUP; POLLNVAL once it is closed.
    fn ready(&self, wanted: c_short) -> c_short;

    /// Whether some of what ready() tells holds. What has not been handled yet may be left where it is.
    fn holds(&self, wanted: c_short) -> bool {
        self.ready(wanted) != 0
    }

    /// As ready(); when the result is 0, no descriptor is readable once take_event() took what was there, and every
    /// later change, of whatever kind, raises a descriptor or notifies the watchers.
    fn arm(&self, wanted: c_short) -> c_short;

    /// For a call that waits for this rsocket alone, and has just looked at it: waits without descriptors and watchers, if the
    /// rsocket knows how to. The bits are those of ready(), 0 at the deadline.
    fn wait_alone(&self, wanted: c_short, deadline: Deadline) -> Option<Result<c_short>> {
        let _ = (wanted, deadline);
        None
    }

    /// Whether this thread is in the middle of a call of the rsocket's, which a signal handler
    /// interrupted that asks now: then ready() and arm() have nothing to tell, and nothing changes
    /// before the handler is over.
    fn is_held_here(&self) -> bool {
        false
    }

    /// One of the descriptors was seen readable: takes the event from the completion channel, never blocks. A later
    /// change raises a descriptor again only after arm().
    fn take_event(&self);

    /// The descriptors to wait for. There may be none yet, or none while a blocking call of the rsocket's takes their events;
    /// before others matter the watchers are notified.
    fn descriptors(&self, add: &mut dyn FnMut(c_int));

    /// Grows with every edge in the sense of EPOLLET (data came, space after there was none, EOF, error, connected, a
    /// connection waits), at the latest when ready() or arm() handles the completion behind it.
    fn edges(&self) -> u64;

    /// Who wants to know of changes.
    fn watchers(&self) -> &Watchers;
}

/// Finds the rsocket behind a descriptor.
pub trait Lookup {
    /// `None` for everything that is no rsocket.
    fn find(&self, fd: c_int) -> Option<Arc<dyn Pollable>>;

    /// [`Pollable::ready`] of the rsocket behind a descriptor.
    fn ready(&self, fd: c_int, wanted: c_short) -> Option<c_short> {
        self.find(fd).map(|rsocket| rsocket.ready(wanted))
    }
}

/// Why watchers are notified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Something may have changed that no descriptor shows.
    Changed,
    /// The rsocket was closed; no other notice follows.
    Closed,
}

/// One that waits.
pub trait Watcher: Send + Sync {
    /// Called in the thread that changed the rsocket. For [`Notice::Changed`] a lock is held: nothing but waking
    /// somebody is allowed.
    fn notice(self: Arc<Self>, notice: Notice);
}

/// The watchers of one rsocket.
#[derive(Default)]
pub struct Watchers {
    list: Mutex<Vec<Arc<dyn Watcher>>>,
    /// Length of the list. Changes under its lock only.
    count: AtomicUsize,
    /// Set once, under the lock of the list.
    closed: AtomicBool,
}

impl Watchers {
    /// No watchers.
    #[cfg(not(all(test, loom)))]
    pub const fn new() -> Watchers {
        Watchers { list: Mutex::new(Vec::new()), count: AtomicUsize::new(0), closed: AtomicBool::new(false) }
    }

    /// One more; it may be there several times. What changes from now on is notified, so look at the rsocket
    /// afterwards. `EBADF` after close.
    pub fn add(&self, watcher: Arc<dyn Watcher>) -> Result<()> {
        let mut list = self.lock();
        if self.is_closed() {
            return Err(Errno::EBADF);
        }
        list.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        list.push(watcher);
        self.count.store(list.len(), Ordering::SeqCst);
        Ok(())
    }

    /// One less, if it is there. Afterwards it gets no [`Notice::Changed`] unless it was there several times.
    pub fn remove(&self, watcher: &Arc<dyn Watcher>) {
        let mut list = self.lock();
        // The last one that came is often the first one to go.
        let removed = list.iter().rposition(|there| is_same(there, watcher)).map(|place| list.swap_remove(place));
        self.count.store(list.len(), Ordering::SeqCst);
        drop(list);
        drop(removed);
    }

    /// Whether nobody would be told: one load, for the data path. The change must have been made under a lock that
    /// ready() takes too; then a watcher that is missed here sees the change.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Whether [`Notice::Closed`] was given.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Tells all.
    #[inline]
    pub fn notify(&self, notice: Notice) {
        match notice {
            Notice::Changed if self.is_empty() => {}
            Notice::Changed => self.changed(None),
            Notice::Closed => self.close(),
        }
    }

    /// [`Notice::Changed`] to all but `own`, which knows: the event that `own` took was everybody's.
    pub fn notify_except(&self, own: &Arc<dyn Watcher>) {
        self.changed(Some(own));
    }

    fn changed(&self, own: Option<&Arc<dyn Watcher>>) {
        if self.is_empty() {
            return;
        }
        for watcher in self.lock().iter() {
            if own.is_none_or(|own| !is_same(own, watcher)) {
                Arc::clone(watcher).notice(Notice::Changed);
            }
        }
    }

    fn close(&self) {
        let mut list = self.lock();
        self.closed.store(true, Ordering::SeqCst);
        let all = mem::take(&mut *list);
        self.count.store(0, Ordering::SeqCst);
        drop(list);
        for watcher in all {
            watcher.notice(Notice::Closed);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<dyn Watcher>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether both are the same object. Which virtual table a pointer carries says nothing about that.
fn is_same(a: &Arc<dyn Watcher>, b: &Arc<dyn Watcher>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counter {
        changed: AtomicUsize,
        closed: AtomicUsize,
    }

    impl Watcher for Counter {
        fn notice(self: Arc<Self>, notice: Notice) {
            let count = if notice == Notice::Closed { &self.closed } else { &self.changed };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Counter {
        fn seen(&self) -> (usize, usize) {
            (self.changed.load(Ordering::Relaxed), self.closed.load(Ordering::Relaxed))
        }
    }

    fn watcher() -> (Arc<Counter>, Arc<dyn Watcher>) {
        let counter = Arc::new(Counter::default());
        (counter.clone(), counter)
    }

    #[test]
    fn all_are_told_but_the_one_that_knows() {
        let watchers = Watchers::new();
        assert!(watchers.is_empty());
        let ((a, watch_a), (b, watch_b)) = (watcher(), watcher());
        watchers.add(watch_a.clone()).unwrap();
        watchers.add(watch_b.clone()).unwrap();
        watchers.notify(Notice::Changed);
        watchers.notify_except(&watch_a);
        assert_eq!((a.seen(), b.seen()), ((1, 0), (2, 0)));
        watchers.remove(&watch_b);
        assert!(!watchers.is_empty());
        watchers.notify(Notice::Changed);
        watchers.remove(&watch_a);
        assert!(watchers.is_empty());
        watchers.notify(Notice::Changed);
        assert_eq!((a.seen(), b.seen()), ((2, 0), (2, 0)));
    }

    #[test]
    fn added_twice_removed_twice() {
        let watchers = Watchers::new();
        let (counter, watch) = watcher();
        watchers.add(watch.clone()).unwrap();
        watchers.add(watch.clone()).unwrap();
        watchers.remove(&watch);
        watchers.notify(Notice::Changed);
        assert_eq!(counter.seen(), (1, 0));
        watchers.remove(&watch);
        watchers.remove(&watch);
        assert!(watchers.is_empty());
    }

    #[test]
    fn close_is_told_once_and_stays() {
        let watchers = Watchers::new();
        let (counter, watch) = watcher();
        watchers.add(watch.clone()).unwrap();
        watchers.notify(Notice::Closed);
        watchers.notify(Notice::Closed);
        watchers.notify(Notice::Changed);
        assert_eq!(counter.seen(), (0, 1));
        assert!(watchers.is_closed() && watchers.is_empty());
        assert_eq!(watchers.add(watch.clone()), Err(Errno::EBADF));
        watchers.remove(&watch);
        assert_eq!(Arc::strong_count(&counter), 2);
    }
}
