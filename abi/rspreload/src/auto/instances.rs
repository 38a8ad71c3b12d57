//! The program's epoll instances: a member that becomes an rsocket changes its place in them.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use libc::{EPOLL_CTL_DEL, epoll_event};

use super::log::Reason;
use crate::epoll::handover;
use crate::own_fd::OwnFd;
use crate::table::Growing;
use crate::{epoll, next_symbol};

/// By number: whether it is or was an instance. In automatic mode only.
static INSTANCES: Growing<AtomicU64> = Growing::new();
/// One more than the highest of them.
static INSTANCES_END: AtomicI32 = AtomicI32::new(0);

/// The program has got a new instance (or -1). Returns its number.
pub fn created(epfd: c_int) -> c_int {
    if epfd >= 0
        && super::entry::is_on()
        && let Ok(word) = INSTANCES.get_or_grow(epfd)
    {
        word.store(1, Ordering::Relaxed);
        INSTANCES_END.fetch_max(epfd + 1, Ordering::Relaxed);
    }
    epfd
}

/// The most instances of which a socket can be a member while it becomes an rsocket.
pub const MAX_INSTANCES: usize = 8;

/// The instances that a socket has left, and the program's events.
pub struct Left {
    members: [(c_int, epoll_event); MAX_INSTANCES],
    count: usize,
    /// It is still a member of others, or may be.
    pub is_incomplete: bool,
}

impl Left {
    pub fn iter(&self) -> impl Iterator<Item = &(c_int, epoll_event)> {
        self.members.iter().take(self.count)
    }

    /// Why it is still a member of others.
    pub fn reason(&self) -> Reason {
        if self.count == MAX_INSTANCES { Reason::Instances } else { Reason::Descriptors }
    }

    /// Makes the number a member again, as what it is now.
    pub fn join_again(&self, fd: c_int) {
        for &(epfd, event) in self.iter() {
            epoll::add(epfd, fd, event);
        }
    }
}

fn instances() -> impl Iterator<Item = c_int> {
    (0..INSTANCES_END.load(Ordering::Relaxed))
        .filter(|&epfd| INSTANCES.get(epfd).is_some_and(|word| word.load(Ordering::Relaxed) != 0))
}

/// Returns whether a socket is a member of more instances than it can be while it becomes an
/// rsocket. The kernel is not asked as long as the process has not as many.
pub fn are_too_many(fd: c_int) -> bool {
    // One whose members cannot be read counts.
    let is_member = |&epfd: &c_int| !matches!(handover::find(epfd, fd), Ok(None));
    instances().nth(MAX_INSTANCES).is_some() && instances().filter(is_member).nth(MAX_INSTANCES).is_some()
}

/// A descriptor that is kept during an attempt, for [`leave`].
pub struct Reserve {
    _descriptor: Option<OwnFd>,
}

/// Prepares [`leave`] at the end of an attempt, which takes descriptors itself. Returns `None` if
/// the instances cannot be read.
pub fn reserve() -> Option<Reserve> {
    if instances().next().is_none() {
        return Some(Reserve { _descriptor: None });
    }
    // SAFETY: a string; no mode is needed where nothing is created.
    let fd = unsafe { libc::open(c"/proc/self/fdinfo".as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
    OwnFd::new(fd).map(|descriptor| Reserve { _descriptor: Some(descriptor) })
}

/// Removes a socket of the kernel's that becomes an rsocket from the instances of which it is a
/// member.
pub fn leave(fd: c_int) -> Left {
    let none = (-1, epoll_event { events: 0, u64: 0 });
    let mut left = Left { members: [none; MAX_INSTANCES], count: 0, is_incomplete: false };
    // One after another: an instance may have several numbers.
    for epfd in instances() {
        let event = match handover::find(epfd, fd) {
            Ok(Some(event)) => event,
            Ok(None) => continue,
            Err(_) => {
                left.is_incomplete = true;
                return left;
            }
        };
        let Some(member) = left.members.get_mut(left.count) else {
            left.is_incomplete = true;
            return left;
        };
        // SAFETY: needs no event.
        if unsafe { next_symbol::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, core::ptr::null_mut()) } == 0 {
            *member = (epfd, event);
            left.count += 1;
        }
    }
    left
}
