//! EPOLLEXCLUSIVE: of several epolls that an rsocket is a member of, an event wakes one.
//!
//! Which one is the kernel's decision, as for a socket: it knows the threads that sleep, in which
//! epoll, and which of them a signal or a time-out ends at the same moment. The socket's wait queue
//! is that of an eventfd, which the epolls have as a member with EPOLLEXCLUSIVE. It is written to
//! for each event and never read; with EPOLLET, each write is an event.
//!
//! The reactor watches the rsocket, as an edge-triggered member of an epoll of its own, and writes
//! to the eventfd: once, or for a listener once for each connection, of which several may become
//! ready at once. Members without EPOLLEXCLUSIVE watch the rsocket themselves, so all of them are
//! woken.

use std::ffi::{c_int, c_short};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use libc::{EPOLL_CTL_ADD, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLRDHUP, epoll_event};

use super::Epoll;
use crate::errno::Result;
use crate::rsocket::pollable::{Lookup, Notice, Pollable, Watcher, Watchers};
use crate::rsocket::reactor::{self, Key, Role, Service};
use crate::sys::alloc::try_arc;
use crate::sys::event::{EventFd, KernelEpoll};

/// Events of the eventfd in the epolls.
pub const EVENTS: u32 = (EPOLLIN | EPOLLET | EPOLLEXCLUSIVE) as u32;

/// Upper 16 bits of the data of exclusive members in the outer epoll. Programs use small numbers or
/// addresses as data, which have other bits there.
const MARK: u64 = 0xA5C4;

/// Delay after which the reactor retries after a lack of memory.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// Returns the data of an exclusive member in the outer epoll. `key` is its [`Member::key`], of
/// which 16 bits of the serial number are kept.
///
/// [`Member::key`]: super::member::Member::key
pub fn mark(key: u64) -> u64 {
    MARK << 48 | key & 0xFFFF_FFFF_FFFF
}

/// Returns whether `event` may be that of an exclusive member. `last_serial` is the greatest serial
/// number that such a member ever had. The program's own descriptors may have any data.
pub fn may_be_mark(event: epoll_event, last_serial: u32) -> bool {
    let serial = (event.u64 >> 32) as u16;
    // Of greater numbers only these 16 bits are left, which may be any.
    let has_serial = last_serial > u32::from(u16::MAX) || (1..=last_serial).contains(&serial.into());
    event.u64 >> 48 == MARK && event.events == EPOLLIN as u32 && last_serial != 0 && has_serial
}

/// The exclusive members of an rsocket that wait for the same events.
pub struct WaitQueue {
    waker: Arc<Waker>,
    key: Key,
}

/// Wakes the members. Called by the reactor when the rsocket has an event.
struct Waker {
    /// Has the waker as a watcher until the queue is dropped.
    rsocket: Arc<dyn Pollable>,
    /// [`Pollable::edges`] when the eventfd was written to last.
    edges: AtomicU64,
    event: EventFd,
    /// All members, for the end of the connection.
    members: Watchers,
    /// Contains the rsocket.
    watch: Arc<Epoll>,
}

impl WaitQueue {
    /// Returns the rsocket's queue of members that wait for `wanted`.
    pub fn of(rsocket: &Arc<dyn Pollable>, wanted: c_short) -> Result<Arc<WaitQueue>> {
        let shared = rsocket.watchers().shared();
        match shared.get(wanted) {
            Some(queue) => Ok(queue),
            // If two threads make one at the same time, both use that of the faster one.
            None => shared.insert(wanted, WaitQueue::new(rsocket, wanted)?),
        }
    }

    fn new(rsocket: &Arc<dyn Pollable>, wanted: c_short) -> Result<Arc<WaitQueue>> {
        let watch = Epoll::create(libc::EPOLL_CLOEXEC)?;
        let descriptor = watch.fd();
        let (edges, event) = (AtomicU64::new(rsocket.edges()), EventFd::new()?);
        let waker = try_arc(Waker { rsocket: Arc::clone(rsocket), edges, event, members: Watchers::new(), watch })?;
        let key = reactor::register(Role::Events, descriptor, waker.clone()).inspect_err(|_| waker.watch.close())?;
        // From here on, dropping the queue undoes everything.
        let queue = try_arc(WaitQueue { waker, key })?;
        let waker: Arc<dyn Watcher> = queue.waker.clone();
        rsocket.watchers().add(waker)?;
        let events = EPOLLET as u32 | EPOLLRDHUP as u32 | u32::from(wanted as u16);
        queue.waker.watch.control(&Only(rsocket), EPOLL_CTL_ADD, 0, Some(epoll_event { events, u64: 0 }))?;
        Ok(queue)
    }

    /// Returns the eventfd that is written to for each event.
    pub fn descriptor(&self) -> RawFd {
        self.waker.event.as_raw_fd()
    }

    /// Returns the members, which are notified of the end of the connection and of the rsocket.
    pub fn members(&self) -> &Watchers {
        &self.waker.members
    }
}

impl Drop for WaitQueue {
    fn drop(&mut self) {
        reactor::unregister(self.key);
        self.waker.watch.close();
        let waker: Arc<dyn Watcher> = self.waker.clone();
        self.waker.rsocket.watchers().remove(&waker);
    }
}

impl Waker {
    /// Wakes one epoll, or for a listener one for each connection that has become ready. Edges of
    /// other rsockets may be old: the program's calls count them, too.
    fn wake(&self) {
        let edges = self.rsocket.edges();
        let new = edges.wrapping_sub(self.edges.swap(edges, Ordering::Relaxed));
        let is_listener = self.rsocket.ready_connections() > 0;
        let count = if is_listener { new.min(self.members.len() as u64) } else { 1 };
        (0..count.max(1)).for_each(|_| self.event.raise());
    }
}

impl Service for Waker {
    fn service(self: Arc<Self>, key: Key) -> bool {
        let mut event = [MaybeUninit::uninit()];
        match self.watch.wait(&mut event, 0) {
            Ok(0) => {}
            Ok(_) => {
                // SAFETY: wait() has written the event.
                let events = unsafe { event[0].assume_init() }.events;
                // The end of a connection wakes all who wait for it, as with TCP.
                if events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR) as u32 != 0 {
                    self.members.notify(Notice::Changed);
                } else {
                    self.wake();
                }
            }
            Err(_) => reactor::pause(key, RETRY_DELAY),
        }
        true
    }
}

impl Watcher for Waker {
    fn notice(self: Arc<Self>, notice: Notice) {
        // The reactor's epoll gets the changes.
        if notice == Notice::Closed {
            self.members.notify(Notice::Closed);
        }
    }
}

/// The program's epoll in which its threads sleep, if librspreload uses the epoll on its behalf.
pub struct Host {
    pub epoll: KernelEpoll,
    /// Data of the members' events, without their numbers.
    data: u64,
}

impl Host {
    pub fn new(epfd: RawFd, data: u64) -> Result<Host> {
        Ok(Host { epoll: KernelEpoll::duplicate_of(epfd)?, data })
    }

    /// Returns the data of a member's events; `None` if its number is too large.
    pub fn mark(&self, fd: c_int) -> Option<u64> {
        (fd >> rdmacm_private::HOST_NUMBER_BITS == 0).then_some(self.data | fd as u64)
    }
}

/// Finds one rsocket, under every number.
struct Only<'a>(&'a Arc<dyn Pollable>);

impl Lookup for Only<'_> {
    fn find(&self, _: c_int) -> Option<Arc<dyn Pollable>> {
        Some(Arc::clone(self.0))
    }
}
