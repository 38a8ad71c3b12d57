//! repoll: epoll(7) over rsockets and other descriptors together.
//!
//! The program's number is that of a kernel epoll, the outer one, so it can be polled and put into other epolls. The
//! program's ordinary descriptors are in it with the program's own data: there, everything is the kernel's. With them
//! is the inner epoll, under data that no program has. It holds the descriptors of the rsockets, and an eventfd that
//! is raised while the queue of rsockets to be looked at is not empty.
//!
//! Each enabled rsocket is, at any time outside a look at it, one of: armed; raised, by an event that nobody has
//! taken; in the queue; in the hands of a blocking call of its own, which sleeps in its channel and queues it when that is
//! over. So the outer epoll is readable whenever there may be something to report, and a wait costs as much as there is to
//! report, however many rsockets are members. docs/locking.md has the locks.

mod control;
mod look;
mod member;
#[cfg(test)]
mod model_tests;
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
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::{EPOLL_CTL_ADD, EPOLLIN, epoll_event};

use self::member::Member;
use self::queue::Queue;
use super::owner::fork_generation;
use super::watch::Watcher;
use crate::errno::{Errno, Result};
use crate::sys::alloc::try_arc;
use crate::sys::event::KernelEpoll;

/// Data of the queue's eventfd in the inner epoll; the members' are greater ([`Member::key`]).
const QUEUE: u64 = 0;

type Members = HashMap<c_int, Arc<Member>, BuildHasherDefault<Spread>>;

/// Hashes descriptor numbers. The kernel gives them, the lowest ones that are free: they need no more than to be spread over all
/// the bits that a table may look at.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_i32(&mut self, number: i32) {
        self.write_u64(u64::from(number as u32));
    }

    fn write_u64(&mut self, number: u64) {
        // 2 to the 64th divided by the golden ratio: neighbours end up far from each other.
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// What repoll_create() makes.
pub struct Epoll {
    /// The program's number, until close.
    number: Mutex<Option<KernelEpoll>>,
    fd: RawFd,
    /// The outer epoll by a descriptor of our own: the program's may be closed, and its number used again, while
    /// threads are on their way into the kernel.
    outer: KernelEpoll,
    inner: KernelEpoll,
    queue: Queue,
    members: Mutex<Members>,
    /// The last member's number.
    serial: AtomicU32,
    closed: AtomicBool,
    /// Whether there have ever been members that are no rsockets.
    ordinary: AtomicBool,
    /// Threads that wait in the inner epoll: as long as there have been none.
    direct: AtomicUsize,
    left: Mutex<Left>,
    generation: AtomicU32,
}

/// Level-triggered rsockets that the last wait reported, which the next one will find in the inner epoll again.
#[derive(Default)]
struct Left {
    count: usize,
    /// If it was one, whose event nobody has taken.
    only: Option<Arc<Member>>,
}

impl Epoll {
    /// repoll_create(). flags: EPOLL_CLOEXEC; O_NONBLOCK has no meaning.
    pub fn create(flags: c_int) -> Result<Arc<Epoll>> {
        let number = KernelEpoll::new(flags & !libc::O_NONBLOCK)?;
        let epoll = try_arc(Epoll {
            fd: number.as_raw_fd(),
            outer: number.duplicate()?,
            number: Mutex::new(Some(number)),
            inner: KernelEpoll::new(libc::EPOLL_CLOEXEC)?,
            queue: Queue::new()?,
            members: Mutex::default(),
            serial: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            ordinary: AtomicBool::new(false),
            direct: AtomicUsize::new(0),
            left: Mutex::default(),
            generation: AtomicU32::new(fork_generation()),
        })?;
        let event = |data| Some(epoll_event { events: EPOLLIN as u32, u64: data });
        epoll.inner.control(EPOLL_CTL_ADD, epoll.queue.descriptor(), event(QUEUE))?;
        epoll.outer.control(EPOLL_CTL_ADD, epoll.inner.as_raw_fd(), event(epoll.mark()))?;
        Ok(epoll)
    }

    /// The program's number for it.
    pub fn fd(&self) -> c_int {
        self.fd
    }

    /// Ends it: the members are free, waiting threads return with `EBADF`, the number is closed. Take it from the table
    /// first, but do not just drop it: members and rsockets refer to each other.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        if self.generation.load(Ordering::Relaxed) != fork_generation() {
            // The parent's: threads that are not there may hold the locks for ever, and its members and sleepers are to stay.
            if let Ok(mut number) = self.number.try_lock() {
                drop(number.take());
            }
            return;
        }
        let members = std::mem::take(&mut *self.members());
        for member in members.into_values() {
            self.let_go(&member);
        }
        self.queue.raise_for_ever();
        drop(self.number.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Data of the inner epoll in the outer one. A program's data is a small number or an address; this is neither, and
    /// differs from one run to the next.
    fn mark(&self) -> u64 {
        const NO_ADDRESS: u64 = 0xA5C3_0000_0000_0000;
        std::ptr::from_ref(self).addr() as u64 ^ NO_ADDRESS
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The member behind data in the inner epoll, if it is still there.
    fn member(&self, key: u64) -> Option<Arc<Member>> {
        let members = self.members();
        members.get(&Member::fd_of(key)).filter(|member| member.key() == key).cloned()
    }

    /// Removes a member, unless another one has taken its place; true if it was there.
    fn forget(&self, member: &Arc<Member>) -> bool {
        let mut members = self.members();
        let there = members.get(&member.fd).is_some_and(|there| Arc::ptr_eq(there, member));
        let removed = if there { members.remove(&member.fd) } else { None };
        drop(members);
        self.let_go(member);
        removed.is_some()
    }

    /// What has to be undone for a member that is no longer in the table.
    fn let_go(&self, member: &Arc<Member>) {
        if let Some(rsocket) = member.detach(&self.inner) {
            let watcher: Arc<dyn Watcher> = member.clone();
            rsocket.watchers().remove(&watcher);
        }
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In a child: `EBADF` for an epoll of the parent's that has had rsockets, for they are the parent's, and so is what tells of them.
    /// One without is the child's from now on, as after daemon(3).
    fn check_ours(&self) -> Result<()> {
        let now = fork_generation();
        if self.generation.load(Ordering::Relaxed) == now {
            return Ok(());
        }
        if self.serial.load(Ordering::Relaxed) != 0 {
            return Err(Errno::EBADF);
        }
        // The parent's threads that wait are not here.
        self.direct.store(0, Ordering::SeqCst);
        self.generation.store(now, Ordering::Relaxed);
        Ok(())
    }

    fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) { Err(Errno::EBADF) } else { Ok(()) }
    }
}
