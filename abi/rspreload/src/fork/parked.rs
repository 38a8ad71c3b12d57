//! Members of the program's epolls whose handshake is under way.
//!
//! The program must not be told what happens on the TCP connection. So the kernel has the member
//! without events, under a mark of the library's as its data, and the program's own event is kept
//! here until the connection is decided. An error or a hangup, which the kernel tells unasked, is
//! told once at most (EPOLLONESHOT), and [`crate::epoll::wait`] drops it.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLONESHOT, epoll_event};

use super::thread::SignalsBlocked;
use super::{decide, slots};
use crate::epoll::Deadline;
use crate::table::{self, Entry, Kind};
use crate::{epoll, real};

/// What the program asked for.
pub struct Member {
    locked: AtomicBool,
    /// The epoll, -1 for none.
    epfd: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
}

/// The right to change a member.
pub struct Locked<'a> {
    member: &'a Member,
    _signals: SignalsBlocked,
}

impl Member {
    pub const fn new() -> Member {
        Member {
            locked: AtomicBool::new(false),
            epfd: AtomicI32::new(-1),
            events: AtomicU32::new(0),
            data: AtomicU64::new(0),
        }
    }

    /// Waits for other threads' epoll_ctl(2) on the member, or for its handshake's end.
    pub fn lock(&self) -> Locked<'_> {
        let signals = SignalsBlocked::new();
        while self.locked.swap(true, Ordering::Acquire) {
            pause();
        }
        Locked { member: self, _signals: signals }
    }

    /// In a child of fork(2), which has neither the thread that may hold the lock nor the member.
    pub fn reset(&self) {
        self.epfd.store(-1, Ordering::SeqCst);
        self.locked.store(false, Ordering::SeqCst);
    }
}

impl Locked<'_> {
    fn epfd(&self) -> c_int {
        self.member.epfd.load(Ordering::SeqCst)
    }

    fn keep(&mut self, epfd: c_int, event: epoll_event) {
        self.member.events.store(event.events, Ordering::SeqCst);
        self.member.data.store(event.u64, Ordering::SeqCst);
        self.member.epfd.store(epfd, Ordering::SeqCst);
    }

    /// The connection is out of the epoll.
    pub fn forget(&mut self) {
        self.member.epfd.store(-1, Ordering::SeqCst);
    }

    /// The connection is decided: the epoll gets the program's event for what it has become.
    pub fn restore(&mut self, fd: c_int) {
        let epfd = self.epfd();
        let (events, data) = (self.member.events.load(Ordering::SeqCst), self.member.data.load(Ordering::SeqCst));
        let mut event = epoll_event { events, u64: data };
        let is_rsocket = table::get(fd).is_some_and(|entry| entry.kind == Kind::Socket);
        // SAFETY: an event of this function.
        if epfd < 0 || !is_rsocket && unsafe { real::epoll_ctl(epfd, EPOLL_CTL_MOD, fd, &raw mut event) } == 0 {
            return;
        }
        // SAFETY: needs no event.
        if unsafe { real::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, ptr::null_mut()) } == 0 {
            epoll::add(epfd, fd, event);
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.member.locked.store(false, Ordering::Release);
    }
}

/// The number whose table entry and membership are changing, or -1: they can't change at once.
static MOVING: AtomicI32 = AtomicI32::new(-1);

/// In its place: the process forks.
const FORKING: c_int = -2;

/// The time in which they change.
pub struct Moving {
    _signals: SignalsBlocked,
}

impl Moving {
    pub fn begin(fd: c_int) -> Moving {
        let signals = SignalsBlocked::new();
        while !Moving::try_begin(fd) {
            pause();
        }
        Moving { _signals: signals }
    }

    /// For fork(2): the child finds no rsocket that it is not given. It does not wait long for who
    /// may wait for a lock that fork(2) has taken.
    pub fn stop_for_fork() {
        let end = Deadline::after(1_000);
        while !Moving::try_begin(FORKING) && end.left() > 0 {
            pause();
        }
    }

    /// In the parent, after [`Moving::stop_for_fork`].
    pub fn go_on() {
        let _ = MOVING.compare_exchange(FORKING, -1, Ordering::SeqCst, Ordering::SeqCst);
    }

    fn try_begin(who: c_int) -> bool {
        MOVING.compare_exchange(-1, who, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// In a child of fork(2).
    pub fn reset() {
        MOVING.store(-1, Ordering::SeqCst);
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        Moving::reset();
    }
}

/// Waits while `fd` is moving. Returns whether it was: then its entry is another one now.
pub fn wait_for_move(fd: c_int) -> bool {
    if MOVING.load(Ordering::SeqCst) != fd {
        return false;
    }
    while MOVING.load(Ordering::SeqCst) == fd {
        pause();
    }
    true
}

fn pause() {
    // SAFETY: no arguments.
    unsafe { libc::sched_yield() };
}

/// epoll_ctl(2) on a number whose handshake is under way, as `entry` says; `None` if that has
/// ended.
///
/// # Safety
/// As [`epoll::control`].
pub unsafe fn control(epfd: c_int, op: c_int, fd: c_int, entry: Entry, event: *mut epoll_event) -> Option<c_int> {
    let slot = slots::of(entry)?;
    let mut member = slot.member.lock();
    if slot.entry() != Some(entry) {
        return None;
    }
    let before = member.epfd();
    if op == EPOLL_CTL_ADD && before >= 0 && before != epfd {
        // A second epoll: there is room for the event of one.
        drop(member);
        decide::await_decision(fd, entry);
        return None;
    }
    let mut mark = epoll_event { events: EPOLLONESHOT as u32, u64: epoll::PARKED << 32 | u64::from(fd as u32) };
    let kernels = if op == EPOLL_CTL_DEL || event.is_null() { ptr::null_mut() } else { &raw mut mark };
    epoll::expect_marks();
    // SAFETY: an event of this function, or none where the kernel needs none or fails with EFAULT.
    let result = unsafe { real::epoll_ctl(epfd, op, fd, kernels) };
    match op {
        EPOLL_CTL_ADD | EPOLL_CTL_MOD if result == 0 => {
            // SAFETY: not null, as the kernel has accepted it, and readable: guaranteed by the
            // caller.
            member.keep(epfd, unsafe { event.read_unaligned() });
        }
        EPOLL_CTL_DEL if result == 0 && before == epfd => member.forget(),
        _ => {}
    }
    Some(result)
}
