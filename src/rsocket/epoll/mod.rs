//! repoll: epoll(7) for rsockets and other descriptors.
//!
//! The program's descriptor is that of a kernel epoll, the outer one, so it can be polled and added
//! to other epolls. The outer epoll contains the program's ordinary descriptors with the program's
//! own data: the kernel handles them alone. It also contains the inner epoll, under data that no
//! program uses. The inner epoll contains the completion channels of the rsockets, and an eventfd
//! that is readable while the queue of members to poll is not empty.
//!
//! Unless a thread is polling it, each enabled rsocket is in one of four states: armed; readable,
//! because of an event that no thread has read; in the queue; or in use by a blocking call for the
//! rsocket, which sleeps in its channel and queues the member when it returns. So the outer epoll
//! is readable whenever there may be something to report, and the cost of a wait depends on the
//! number of events, not of members. docs/concurrency.md describes the locks.

mod control;
mod exclusive;
#[cfg(test)]
mod exclusive_tests;
mod inner_waiters;
#[cfg(test)]
mod mark_tests;
mod member;
#[cfg(test)]
mod model_tests;
mod poll_member;
mod queue;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod thread_tests;
mod wait;

use std::collections::HashMap;
use std::ffi::c_int;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use libc::{EPOLL_CTL_ADD, EPOLLIN, epoll_event};
use once_cell::race::OnceBox;

use self::exclusive::Host;
use self::inner_waiters::InnerWaiters;
use self::member::Member;
use self::queue::Queue;
use super::pollable::Watcher;
use crate::errno::{Errno, Result};
use crate::sys::alloc::{try_arc, try_box};
use crate::sys::event::KernelEpoll;
use crate::sys::owner::AtomicOwner;
use crate::sys::sync::{Mutex, MutexGuard};

/// Data of the queue's eventfd in the inner epoll. The members' data is larger ([`Member::key`]).
const QUEUE_KEY: u64 = 0;

type Members = HashMap<c_int, Arc<Member>, BuildHasherDefault<FdHasher>>;

/// Hashes descriptor numbers. The kernel assigns the lowest free number, so it is sufficient to
/// spread the numbers over all bits that a hash table may use.
#[derive(Default)]
struct FdHasher(u64);

impl Hasher for FdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_i32(&mut self, number: i32) {
        self.write_u64(u64::from(number as u32));
    }

    fn write_u64(&mut self, number: u64) {
        // 2 to the 64th power divided by the golden ratio: adjacent numbers get distant hashes.
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The object behind repoll_create().
pub struct Epoll {
    /// The program's descriptor of the outer epoll, until it is closed.
    number: Mutex<Option<KernelEpoll>>,
    fd: RawFd,
    /// The library's own descriptor of the outer epoll: the program's descriptor may be closed, and
    /// its number reused, while threads are about to enter the kernel.
    outer: KernelEpoll,
    inner: KernelEpoll,
    /// Set by librspreload before there are members.
    host: OnceBox<Host>,
    queue: Queue,
    members: Mutex<Members>,
    /// Serial number of the last member.
    serial: AtomicU32,
    /// Greatest serial number of an exclusive member in the outer epoll; 0: there was none.
    last_exclusive: AtomicU32,
    /// Number of exclusive members that have left the outer epoll. Changes with `members` locked.
    removals: AtomicU64,
    closed: AtomicBool,
    /// Whether there have ever been members in the outer epoll: descriptors that are not rsockets,
    /// or rsockets with EPOLLEXCLUSIVE.
    ordinary: AtomicBool,
    /// Number of threads that wait in the inner epoll. Used until the first ordinary member is
    /// added.
    inner_waiters: InnerWaiters,
    last_reported: Mutex<LastReported>,
    owner: AtomicOwner,
}

/// Level-triggered rsockets that the last wait reported, which the next wait polls first.
#[derive(Default)]
struct LastReported {
    count: usize,
    /// The only one, if its event was left unread.
    only: Option<Arc<Member>>,
}

impl Epoll {
    /// repoll_create(). `flags` may be EPOLL_CLOEXEC; O_NONBLOCK is ignored.
    pub fn create(flags: c_int) -> Result<Arc<Epoll>> {
        let number = KernelEpoll::new(flags & !libc::O_NONBLOCK)?;
        let epoll = try_arc(Epoll {
            fd: number.as_raw_fd(),
            outer: number.duplicate()?,
            number: Mutex::new(Some(number)),
            inner: KernelEpoll::new(libc::EPOLL_CLOEXEC)?,
            host: OnceBox::new(),
            queue: Queue::new()?,
            members: Mutex::default(),
            serial: AtomicU32::new(0),
            last_exclusive: AtomicU32::new(0),
            removals: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            ordinary: AtomicBool::new(false),
            inner_waiters: InnerWaiters::default(),
            last_reported: Mutex::default(),
            owner: AtomicOwner::this_process(),
        })?;
        let event = |data| Some(epoll_event { events: EPOLLIN as u32, u64: data });
        epoll.inner.control(EPOLL_CTL_ADD, epoll.queue.descriptor(), event(QUEUE_KEY))?;
        epoll.outer.control(EPOLL_CTL_ADD, epoll.inner.as_raw_fd(), event(epoll.inner_key()))?;
        Ok(epoll)
    }

    /// Returns the program's descriptor.
    pub fn fd(&self) -> c_int {
        self.fd
    }

    /// Sets the program's epoll in which its threads sleep. It reports the exclusive members that
    /// are added later, with `data` and their numbers.
    pub fn set_host(&self, epfd: RawFd, data: u64) -> Result<()> {
        self.host.set(try_box(Host::new(epfd, data)?)?).map_err(|_| Errno::EINVAL)
    }

    /// Returns the epoll in which threads sleep that wait for an exclusive member, and its mark in a
    /// host.
    fn sleepers(&self, fd: c_int) -> (&KernelEpoll, Option<u64>) {
        match self.host.get().and_then(|host| host.mark(fd).map(|mark| (host, mark))) {
            Some((host, mark)) => (&host.epoll, Some(mark)),
            None => (&self.outer, None),
        }
    }

    /// The host has reported an event of this member.
    pub fn host_event(&self, fd: c_int) {
        let member = self.members().get(&fd).cloned();
        if let Some(member) = member.filter(|member| member.interest().is_exclusive()) {
            self.queue.push(&member);
        }
    }

    /// Closes the program's descriptor and removes all members. Waiting threads fail with `EBADF`.
    /// Removed from the table before. Dropping it is not sufficient, because members and rsockets
    /// refer to each other.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if !self.owner.is_this_process() {
            // The parent's epoll: threads that do not exist here may have locked it, and its
            // members and waiters must stay.
            if let Some(mut number) = self.number.try_lock() {
                drop(number.take());
            }
            return;
        }
        let members = std::mem::take(&mut *self.members());
        for member in members.into_values() {
            self.detach(&member);
        }
        self.queue.raise_permanently();
        drop(self.number.lock().take());
    }

    /// Returns the data of the inner epoll in the outer one. Programs use small numbers or
    /// addresses as data. This number is neither, and differs from run to run.
    fn inner_key(&self) -> u64 {
        const NO_ADDRESS: u64 = 0xA5C3_0000_0000_0000;
        std::ptr::from_ref(self).addr() as u64 ^ NO_ADDRESS
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock()
    }

    /// Returns the member with this data in the inner epoll, if it still exists.
    fn member(&self, key: u64) -> Option<Arc<Member>> {
        let members = self.members();
        members.get(&Member::fd_from_key(key)).filter(|member| member.key() == key).cloned()
    }

    /// Returns the exclusive member with this data in the outer epoll, if it still exists.
    fn exclusive_member(&self, mark: u64) -> Option<Arc<Member>> {
        let member = self.members().get(&Member::fd_from_key(mark)).cloned()?;
        (exclusive::mark(member.key()) == mark && member.interest().is_exclusive()).then_some(member)
    }

    /// Removes a member, unless another one has replaced it. Returns whether it was in the table.
    fn forget(&self, member: &Arc<Member>) -> bool {
        let mut members = self.lock_without_events(member);
        let there = members.get(&member.fd).is_some_and(|there| Arc::ptr_eq(there, member));
        let removed = if there { members.remove(&member.fd) } else { None };
        drop(members);
        self.detach(member);
        removed.is_some()
    }

    /// Locks the table, from which `member` is about to be removed. A wait that begins afterwards
    /// finds no event of it if it is exclusive, and one that has begun finds that the number of
    /// removals has changed.
    fn lock_without_events(&self, member: &Member) -> MutexGuard<'_, Members> {
        member.leave_wait_queue(self.sleepers(member.fd).0);
        let members = self.members();
        if member.interest().is_exclusive() {
            self.removals.fetch_add(1, Ordering::SeqCst);
        }
        members
    }

    /// Detaches a member that is no longer in the table from its rsocket and the epolls.
    fn detach(&self, member: &Arc<Member>) {
        if let Some(notifier) = member.detach(&self.inner, self.sleepers(member.fd).0) {
            let watcher: Arc<dyn Watcher> = member.clone();
            notifier.watchers().remove(&watcher);
        }
    }

    fn last_reported(&self) -> MutexGuard<'_, LastReported> {
        self.last_reported.lock()
    }

    /// Fails with `EBADF` in a child, if the epoll belongs to the parent and has had rsockets,
    /// which are the parent's. An epoll without rsockets becomes the child's, as after daemon(3).
    fn check_process(&self) -> Result<()> {
        if self.owner.is_this_process() {
            return Ok(());
        }
        // Without a lock, which a thread of the parent may have held. Of threads that take it over at
        // the same time, one may have added a member by now.
        if self.serial.load(Ordering::Acquire) != 0 {
            return if self.owner.is_this_process() { Ok(()) } else { Err(Errno::EBADF) };
        }
        self.owner.take_over();
        Ok(())
    }

    fn check_not_closed(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) { Err(Errno::EBADF) } else { Ok(()) }
    }
}
