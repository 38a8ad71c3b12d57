//! The interface between an rsocket and rpoll, rselect and repoll: the bits, which poll(2) and
//! epoll(7) share, and the notification of its watchers.
//!
//! Most changes arrive as completions, which make a completion channel readable. All other changes
//! (CM events, the end of a connect, a local shutdown, a close, an event that another thread read
//! from the channel) are reported through [`Watchers`].

use std::ffi::{c_int, c_short};
use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM};

use crate::errno::{Errno, Result};
use crate::os::alloc::{SmallList, try_arc};
use crate::os::event::Deadline;
use crate::os::sync::Mutex;
use crate::os::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The bits for readable data. poll(2) has two names for the event.
pub const IN: c_short = POLLIN | POLLRDNORM;
/// The bits for space to send. poll(2) has two names for this event, too.
pub const OUT: c_short = POLLOUT | POLLWRNORM;

/// Returns the bits if `on`, otherwise none.
pub fn set(bits: c_short, on: bool) -> c_short {
    if on { bits } else { 0 }
}

/// Returns the bits to ask a [`Pollable`] for when a program requests `events`: POLLIN, POLLOUT,
/// POLLRDHUP, and librspreload's private bit. Rsockets have neither urgent data nor priority bands.
#[inline]
pub fn wanted(events: c_short) -> c_short {
    // A shift turns POLLRDNORM and POLLWRNORM into POLLIN and POLLOUT, because rpoll comes here for
    // each descriptor.
    const SHIFT: u32 = POLLRDNORM.trailing_zeros() - POLLIN.trailing_zeros();
    const { assert!(POLLIN << SHIFT == POLLRDNORM && POLLOUT << SHIFT == POLLWRNORM) };
    (events | events >> SHIFT) & (POLLIN | POLLOUT) | events & (POLLRDHUP | base::private::FORWARDER_EVENT)
}

/// Returns the revents of an rsocket with the bits `ready` for a program that requested `events`. A
/// closed rsocket reports POLLNVAL only.
pub fn reported(ready: c_short, events: c_short) -> c_short {
    if ready & POLLNVAL != 0 {
        return POLLNVAL;
    }
    let mut reported = ready & (POLLERR | POLLHUP | (events & POLLRDHUP));
    if ready & POLLIN != 0 {
        reported |= events & IN;
    }
    if ready & POLLOUT != 0 {
        reported |= events & OUT;
    }
    reported
}

/// An rsocket that can be polled.
///
/// Implementations and callers rely on these rules:
/// - A caller of take_event() notifies the other watchers afterwards ([`Watchers::notify_except`]),
///   because they may sleep on the descriptor that is no longer readable. This also applies to the
///   rsocket's own blocking calls.
/// - A change that is not a completion is made under the lock that ready() takes, and then
///   notified.
/// - A descriptor belongs to one rsocket only, and stays open until `notify(Notice::Closed)` has
///   returned.
pub trait Pollable: Send + Sync {
    /// Processes the available completions. Returns the current poll bits: those in `wanted` (of
    /// POLLIN, POLLOUT, POLLRDHUP), POLLERR and POLLHUP; POLLNVAL after a close.
    fn ready(&self, wanted: c_short) -> c_short;

    /// Like ready(), and arms the rsocket. If the result is 0, no descriptor is readable after
    /// take_event() has read the pending events, and every later change makes a descriptor readable
    /// or notifies the watchers.
    fn arm(&self, wanted: c_short) -> c_short;

    /// Waits without descriptors and watchers, for a call that waits for this rsocket alone and has
    /// just called ready(). Returns the bits of ready(), 0 at the deadline; `None` if the rsocket
    /// does not support such a wait at all or at present.
    fn wait_alone(&self, wanted: c_short, deadline: Deadline) -> Option<Result<c_short>> {
        let _ = (wanted, deadline);
        None
    }

    /// Reads an event from the completion channel after a descriptor became readable. Never blocks.
    /// Later changes make a descriptor readable only after the next arm().
    fn take_event(&self);

    /// Returns the descriptors to wait for. There are none before the connection exists, and none
    /// while a blocking call of the rsocket reads their events. The watchers are notified before
    /// the set of descriptors changes.
    fn descriptors(&self) -> Result<Descriptors>;

    /// Returns the watchers of the rsocket.
    fn watchers(&self) -> &Watchers;
}

/// An rsocket that is being closed, and has left the table of rsockets.
struct Closed(Watchers);

impl Pollable for Closed {
    fn ready(&self, _: c_short) -> c_short {
        POLLNVAL
    }

    fn arm(&self, _: c_short) -> c_short {
        POLLNVAL
    }

    fn take_event(&self) {}

    fn descriptors(&self) -> Result<Descriptors> {
        Ok(Descriptors::new())
    }

    fn watchers(&self) -> &Watchers {
        &self.0
    }
}

/// Returns an rsocket that is closed.
pub fn closed() -> Result<Arc<dyn Pollable>> {
    let closed = try_arc(Closed(Watchers::default()))?;
    closed.watchers().notify(Notice::Closed);
    Ok(closed)
}

/// The descriptors of one rsocket.
pub type Descriptors = SmallList<c_int, 2>;

/// Finds the rsocket of a descriptor.
pub trait Lookup {
    /// Returns `None` if the descriptor is not an rsocket.
    fn find(&self, fd: c_int) -> Option<Arc<dyn Pollable>>;

    /// Calls [`Pollable::ready`] of the rsocket of a descriptor. Returns `None` if the descriptor
    /// is not an rsocket.
    fn ready(&self, fd: c_int, wanted: c_short) -> Option<c_short> {
        self.find(fd).map(|rsocket| rsocket.ready(wanted))
    }
}

/// The reason why watchers are notified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Something may have changed without making a descriptor readable.
    Changed,
    /// The rsocket was closed. No other notice follows.
    Closed,
}

/// A waiting thread or a repoll that is notified of changes.
pub trait Watcher: Send + Sync {
    /// Called in the thread that changed the rsocket. [`Notice::Changed`] is sent with the list of
    /// watchers locked: the implementation may wake a thread and nothing else.
    fn notice(self: Arc<Self>, notice: Notice);
}

/// The watchers of one rsocket.
#[derive(Default)]
pub struct Watchers {
    list: Mutex<Vec<Arc<dyn Watcher>>>,
    /// Length of the list. Changes only with the list locked.
    count: AtomicUsize,
    /// Set once, with the list locked.
    closed: AtomicBool,
    /// Number of edges in the sense of EPOLLET: each change, also one that makes nothing ready. An
    /// edge is counted at the latest when ready() or arm() processes its completion.
    pub edges: AtomicU64,
}

impl Watchers {
    /// Adds a watcher, which may be added several times. It is notified of changes from now on, so
    /// the caller polls the rsocket afterwards.
    ///
    /// # Errors
    /// Fails with `EBADF` if the rsocket is closed, and with `ENOMEM`.
    pub fn add(&self, watcher: Arc<dyn Watcher>) -> Result<()> {
        let mut list = self.list.lock();
        if self.is_closed() {
            return Err(Errno::EBADF);
        }
        list.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        list.push(watcher);
        self.count.store(list.len(), Ordering::SeqCst);
        Ok(())
    }

    /// Removes a watcher once, if it is in the list. Afterwards it gets no [`Notice::Changed`],
    /// unless it was added several times.
    pub fn remove(&self, watcher: &Arc<impl Watcher + ?Sized>) {
        self.remove_at(address(watcher));
    }

    /// [`remove`](Self::remove) for the address of a watcher of any type.
    #[inline(never)] // once, not for each type
    fn remove_at(&self, watcher: *const ()) {
        let mut list = self.list.lock();
        // The watcher that was added last is often the first to be removed.
        let index = list.iter().rposition(|there| address(there) == watcher);
        let removed = index.map(|index| list.swap_remove(index));
        self.count.store(list.len(), Ordering::SeqCst);
        drop(list);
        drop(removed);
    }

    /// Returns whether there are no watchers: one load, for the data path. The caller has made the
    /// change under a lock that ready() also takes, so a watcher that is missed here sees the
    /// change.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Returns whether [`Notice::Closed`] was sent.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Notifies all watchers.
    #[inline]
    pub fn notify(&self, notice: Notice) {
        match notice {
            Notice::Changed if self.is_empty() => {}
            Notice::Changed => self.changed(ptr::null()),
            Notice::Closed => self.close(),
        }
    }

    /// Sends [`Notice::Changed`] to all watchers but `own`, which has read an event that the others
    /// may wait for, too.
    pub fn notify_except(&self, own: &Arc<impl Watcher + ?Sized>) {
        self.changed(address(own));
    }

    /// Sends [`Notice::Changed`] to all watchers but the one at the address `own`.
    fn changed(&self, own: *const ()) {
        for watcher in self.list.lock().iter() {
            if address(watcher) != own {
                Arc::clone(watcher).notice(Notice::Changed);
            }
        }
    }

    fn close(&self) {
        let mut list = self.list.lock();
        self.closed.store(true, Ordering::SeqCst);
        let all = mem::take(&mut *list);
        self.count.store(0, Ordering::SeqCst);
        drop(list);
        for watcher in all {
            watcher.notice(Notice::Closed);
        }
    }
}

/// Returns what identifies a watcher: its address without the pointer to a virtual table, which may
/// differ.
fn address(watcher: &Arc<impl Watcher + ?Sized>) -> *const () {
    Arc::as_ptr(watcher).cast()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use libc::{EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM, POLLPRI, POLLRDBAND};

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
    fn notify_except_skips_one_watcher() {
        let watchers = Watchers::default();
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
    fn a_watcher_added_twice_is_removed_twice() {
        let watchers = Watchers::default();
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
    fn close_is_notified_once_and_is_final() {
        let watchers = Watchers::default();
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

    #[test]
    fn both_names_of_a_bit_are_reported() {
        assert_eq!(wanted(POLLRDNORM | POLLWRNORM), POLLIN | POLLOUT);
        assert_eq!(wanted(base::private::FORWARDER_EVENT), base::private::FORWARDER_EVENT);
        assert_eq!(reported(POLLIN, base::private::FORWARDER_EVENT | POLLIN), POLLIN);
        assert_eq!(reported(POLLIN | POLLOUT, POLLRDNORM | POLLOUT), POLLRDNORM | POLLOUT);
        assert_eq!(reported(POLLIN, POLLIN | POLLRDNORM), POLLIN | POLLRDNORM);
        assert_eq!(wanted(POLLPRI | POLLRDBAND), 0);
    }

    #[test]
    fn only_requested_bits_and_errors_are_reported() {
        let all = POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP;
        assert_eq!(reported(all, 0), POLLERR | POLLHUP);
        assert_eq!(reported(all, POLLPRI), POLLERR | POLLHUP);
    }

    #[test]
    fn no_bit_is_reported_that_is_not_asked_for() {
        let always = POLLERR | POLLHUP | POLLNVAL;
        for events in 0..0x4000 {
            for ready in [POLLIN, POLLOUT, POLLRDHUP, POLLERR, POLLHUP, POLLIN | POLLOUT | POLLRDHUP] {
                let revents = reported(ready, events);
                assert_eq!(revents & !(events | always), 0, "ready {ready:#x}, asked {events:#x}");
                let is_asked = wanted(events) & ready != 0 || ready & always != 0;
                assert_eq!(revents != 0, is_asked, "ready {ready:#x}, asked {events:#x}");
            }
        }
    }

    #[test]
    fn a_closed_rsocket_reports_pollnval_only() {
        assert_eq!(reported(POLLNVAL | POLLIN | POLLHUP, POLLIN), POLLNVAL);
    }

    #[test]
    fn epoll_has_the_same_values() {
        let poll = [POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRNORM];
        assert_eq!(poll.map(i32::from), [EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLRDNORM, EPOLLWRNORM]);
    }
}
