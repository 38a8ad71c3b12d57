//! repoll: epoll(7) for rsockets and other descriptors.
//!
//! The program's descriptor is that of a kernel epoll instance, the main epoll, so it can be polled
//! and added to other epolls. The main epoll contains the completion channels of the rsockets, an
//! eventfd that is readable while the queue of members to poll is not empty, and another kernel
//! epoll, which contains the program's ordinary descriptors with the program's own data.
//!
//! Unless a thread is polling it, each enabled rsocket is in one of four states: armed; readable,
//! because of an event that no thread has read; in the queue; or in use by a blocking call for the
//! rsocket, which reads the completion channel, and queues the member when it returns. So the main
//! epoll is readable whenever there may be something to report, and the cost of a wait depends on
//! the number of events, not on the number of members. docs/concurrency.md describes the locks.

mod member;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod thread_tests;
mod wait;

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLOUT,
    EPOLLWAKEUP, POLLNVAL, epoll_event,
};

use self::member::{Interest, Member};
use super::pollable::{Lookup, Pollable};
use crate::errno::{Errno, Result};
use crate::os::alloc::try_arc;
use crate::os::event::{self, EventFd, KernelEpoll};
use crate::os::fork::AtomicOwner;
use crate::os::numbered::Numbered;
use crate::os::sync::Mutex;

/// Data in the main epoll of the queue's eventfd, and of the epoll with the ordinary descriptors.
/// No member has this data ([`Member::key`]), because no descriptor is negative.
const QUEUE_KEY: u64 = u64::MAX;
const ORDINARY_KEY: u64 = u64::MAX - 1;

type Members = Numbered<c_int, Arc<Member>>;

/// The object behind repoll_create().
pub struct Epoll {
    /// The program's descriptor of the main epoll; `None` after the close.
    program_fd: Mutex<Option<KernelEpoll>>,
    /// The program's descriptor as an integer, which stays after the close.
    pub fd: RawFd,
    /// The library's own descriptor of the main epoll: the program's descriptor may be closed and
    /// reused while threads are about to enter the kernel.
    main: KernelEpoll,
    /// Contains the members that are not rsockets.
    ordinary: KernelEpoll,
    queue: Queue,
    members: Mutex<Members>,
    /// Serial number of the next member; 0 until an rsocket was added.
    serial: AtomicU32,
    closed: AtomicBool,
    /// The level-triggered member that was last reported with its event left unread.
    last_reported: Mutex<Option<Arc<Member>>>,
    owner: AtomicOwner,
}

impl Epoll {
    /// repoll_create(). `flags` may be EPOLL_CLOEXEC; O_NONBLOCK is ignored.
    pub fn create(flags: c_int) -> Result<Arc<Epoll>> {
        let program_fd = KernelEpoll::new(flags & !libc::O_NONBLOCK)?;
        let epoll = try_arc(Epoll {
            fd: program_fd.as_raw_fd(),
            main: program_fd.duplicate()?,
            program_fd: Mutex::new(Some(program_fd)),
            ordinary: KernelEpoll::new(libc::EPOLL_CLOEXEC)?,
            queue: Queue { state: Mutex::default(), event: EventFd::new()? },
            members: Mutex::default(),
            serial: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            last_reported: Mutex::default(),
            owner: AtomicOwner::this_process(),
        })?;
        for (fd, key) in [(epoll.queue.event.as_raw_fd(), QUEUE_KEY), (epoll.ordinary.as_raw_fd(), ORDINARY_KEY)] {
            epoll.main.control(EPOLL_CTL_ADD, fd, Some(epoll_event { events: EPOLLIN as u32, u64: key }))?;
        }
        Ok(epoll)
    }

    /// Like epoll_ctl(2).
    ///
    /// # Errors
    /// Fails with `EFAULT` without an event, unless `op` is EPOLL_CTL_DEL.
    pub fn control(
        self: &Arc<Epoll>,
        lookup: &dyn Lookup,
        op: c_int,
        fd: c_int,
        event: Option<epoll_event>,
    ) -> Result<()> {
        self.check_not_closed()?;
        self.check_process()?;
        if op != EPOLL_CTL_DEL && event.is_none() {
            return Err(Errno::EFAULT);
        }
        let Some(rsocket) = lookup.find(fd) else {
            return if fd == self.fd { Err(Errno::EINVAL) } else { self.ordinary.control(op, fd, event) };
        };
        let interest = |event: epoll_event| Interest { events: event.events, data: event.u64 };
        match (op, event.map(interest)) {
            (EPOLL_CTL_ADD, Some(interest)) => self.add(fd, rsocket, interest),
            (EPOLL_CTL_MOD, Some(interest)) if interest.has(EPOLLEXCLUSIVE) => Err(Errno::EINVAL),
            (EPOLL_CTL_MOD, Some(interest)) => {
                let member = self.find(fd)?;
                member.modify(interest)?;
                self.arm_or_queue(&member)
            }
            (EPOLL_CTL_DEL, _) => self.forget(&self.find(fd)?).then_some(()).ok_or(Errno::ENOENT),
            _ => Err(Errno::EINVAL),
        }
    }

    fn add(self: &Arc<Epoll>, fd: c_int, rsocket: Arc<dyn Pollable>, interest: Interest) -> Result<()> {
        check_exclusive(interest)?;
        // The rsocket was closed in the meantime, or belongs to the parent process, whose threads
        // may have locked it at the fork.
        if rsocket.ready(0) & POLLNVAL != 0 {
            return Err(Errno::EBADF);
        }
        let member = Member::new(self, fd, Arc::clone(&rsocket), interest)?;
        self.insert(&member)?;
        let result = rsocket.watchers().add(member.clone()).and_then(|()| self.arm_or_queue(&member));
        if result.is_err() || member.is_removed() || self.check_not_closed().is_err() {
            // If another thread has removed the member or closed the epoll, perhaps this was before
            // the member became a watcher.
            self.forget(&member);
            rsocket.watchers().remove(&member);
        }
        result
    }

    fn insert(&self, member: &Arc<Member>) -> Result<()> {
        let mut members = self.members.lock();
        members.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        self.queue.reserve(members.len() + 1)?;
        match members.entry(member.fd) {
            Entry::Vacant(entry) => entry.insert(Arc::clone(member)),
            Entry::Occupied(_) => return Err(Errno::EEXIST),
        };
        Ok(())
    }

    /// Removes the member `fd` and adds `new`, a kernel descriptor, to `epfd`, a kernel epoll of
    /// the program, with the member's event. No other thread can change or remove the member or
    /// `new` between the two steps. Does nothing if `fd` is not a member.
    pub fn hand_over(&self, fd: c_int, new: RawFd, epfd: RawFd) -> Result<()> {
        self.check_process()?;
        let mut members = self.members.lock();
        let Some(member) = members.remove(&fd) else { return Ok(()) };
        let result = event::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, new, Some(member.kernel_event()));
        drop(members);
        self.detach(&member);
        result
    }

    /// Closes the program's descriptor and removes all members. Waiting threads fail with `EBADF`.
    /// The caller has removed the epoll from the table of descriptors. Dropping the epoll is not
    /// sufficient, because members and rsockets refer to each other.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // In a child, the members and waiters of the parent's epoll must stay.
        if self.owner.is_this_process() {
            let members = std::mem::take(&mut *self.members.lock());
            members.values().for_each(|member| self.detach(member));
            self.queue.raise_permanently();
        }
        // If a thread of the parent held this lock at the fork, the child's copy of the descriptor
        // stays open.
        if let Some(mut program_fd) = self.program_fd.try_lock() {
            drop(program_fd.take());
        }
    }

    fn find(&self, fd: c_int) -> Result<Arc<Member>> {
        self.members.lock().get(&fd).cloned().ok_or(Errno::ENOENT)
    }

    /// Removes a member, unless another one has replaced it. Returns whether the member was in the
    /// table.
    fn forget(&self, member: &Arc<Member>) -> bool {
        let mut members = self.members.lock();
        let there = members.get(&member.fd).is_some_and(|there| Arc::ptr_eq(there, member));
        let removed = if there { members.remove(&member.fd) } else { None };
        drop(members);
        self.detach(member);
        removed.is_some()
    }

    /// Detaches a member, which is no longer in the table, from its rsocket and the main epoll.
    fn detach(&self, member: &Arc<Member>) {
        if let Some(rsocket) = member.detach(&self.main) {
            rsocket.watchers().remove(member);
        }
    }

    /// Fails with `EBADF` in a child if the parent has created the epoll and added rsockets. An
    /// epoll that has never had rsockets becomes the child's, for example after daemon(3).
    fn check_process(&self) -> Result<()> {
        if self.owner.is_this_process() {
            return Ok(());
        }
        // Take no lock: a thread of the parent may have held it at the fork. Check the owner again,
        // because another thread may have taken the epoll over and added a member by now.
        if self.serial.load(Ordering::Acquire) == 0 {
            self.owner.take_over();
        }
        if self.owner.is_this_process() { Ok(()) } else { Err(Errno::EBADF) }
    }

    fn check_not_closed(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) { Err(Errno::EBADF) } else { Ok(()) }
    }
}

/// Rejects flags that epoll_ctl(2) does not allow together with EPOLLEXCLUSIVE, which has no other
/// effect on an rsocket: an event wakes all epolls.
fn check_exclusive(interest: Interest) -> Result<()> {
    let allowed = (EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE) as u32;
    if interest.has(EPOLLEXCLUSIVE) && interest.events & !allowed != 0 { Err(Errno::EINVAL) } else { Ok(()) }
}

/// A FIFO of members to poll although none of their descriptors is readable. Contains each member
/// at most once. The eventfd is readable while the queue is not empty.
///
/// A notice takes the queue's lock while the list of an rsocket's watchers is locked. The only
/// system calls made with the queue's lock held are reading and writing the eventfd.
struct Queue {
    state: Mutex<QueueState>,
    event: EventFd,
}

#[derive(Default)]
struct QueueState {
    /// Members with their sequence numbers.
    members: VecDeque<(u64, Arc<Member>)>,
    /// Sequence number of the next member.
    sequence: u64,
    raised: bool,
    permanent: bool,
}

impl Queue {
    /// Returns a number greater than the sequence number of every member in the queue.
    pub fn next_sequence(&self) -> u64 {
        self.state.lock().sequence
    }

    /// Reserves memory for `members` members, so that push() does not allocate.
    pub fn reserve(&self, members: usize) -> Result<()> {
        let mut state = self.state.lock();
        // Removed members leave the queue only when they are polled. Drop them here, so that they
        // do not accumulate if the program never waits.
        if state.members.len() > 2 * members + 16 {
            state.members.retain(|(_, member)| !member.is_removed());
        }
        state.members.try_reserve(members).map_err(|_| Errno::ENOMEM)
    }

    /// Appends a member, unless it is in the queue.
    pub fn push(&self, member: &Arc<Member>) {
        let mut state = self.state.lock();
        if !member.queued.swap(true, Ordering::SeqCst) {
            let sequence = state.sequence;
            state.sequence += 1;
            state.members.push_back((sequence, Arc::clone(member)));
            self.raise(&mut state);
        }
    }

    /// Takes the first member, if its sequence number is less than `sequence`. The caller calls
    /// [`lower_if_empty`](Self::lower_if_empty) afterwards.
    pub fn pop(&self, sequence: u64) -> Option<Arc<Member>> {
        let mut state = self.state.lock();
        state.members.front().filter(|(first, _)| *first < sequence)?;
        let (_, member) = state.members.pop_front()?;
        member.queued.store(false, Ordering::SeqCst);
        Some(member)
    }

    /// Makes the eventfd unreadable if the queue is empty, unless the eventfd is readable for good.
    /// This is not done by pop(), because a reported member usually returns to the queue.
    pub fn lower_if_empty(&self) {
        let mut state = self.state.lock();
        if state.members.is_empty() && state.raised && !state.permanent {
            state.raised = false;
            self.event.clear();
        }
    }

    /// Keeps the eventfd readable for good, so that all threads that sleep on it wake up.
    pub fn raise_permanently(&self) {
        let mut state = self.state.lock();
        state.permanent = true;
        self.raise(&mut state);
    }

    fn raise(&self, state: &mut QueueState) {
        if !state.raised {
            state.raised = true;
            self.event.raise();
        }
    }
}
