//! Members of the program's epoll instances whose handshake is under way.
//!
//! The program must not see what happens on the TCP connection. So the kernel has the member
//! without events and with a mark of the library's as its data, and the program's own event is kept
//! here until the connection is decided. An error or a hangup, which the kernel reports unasked, is
//! reported once at most (EPOLLONESHOT), and [`crate::epoll::wait`] drops it.

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::{EPOLL_CTL_DEL, EPOLL_CTL_MOD, epoll_event};

use crate::table::{self, Kind};
use crate::thread::{SignalsBlocked, yield_now};
use crate::{epoll, next_symbol};

/// What the program asked for.
pub struct Member {
    locked: AtomicBool,
    /// The epoll, -1 for none.
    epfd: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
}

/// A locked member.
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
            yield_now();
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
    /// The epoll instance, -1 for none.
    pub fn epfd(&self) -> c_int {
        self.member.epfd.load(Ordering::SeqCst)
    }

    /// Keeps what the program asked for.
    pub fn keep(&mut self, epfd: c_int, event: epoll_event) {
        self.member.events.store(event.events, Ordering::SeqCst);
        self.member.data.store(event.u64, Ordering::SeqCst);
        self.member.epfd.store(epfd, Ordering::SeqCst);
    }

    /// The connection is out of the epoll.
    pub fn forget(&mut self) {
        self.member.epfd.store(-1, Ordering::SeqCst);
    }

    /// The connection is decided: restores the program's event for what the connection has become.
    pub fn restore(&mut self, fd: c_int) {
        let epfd = self.epfd();
        let (events, data) = (self.member.events.load(Ordering::SeqCst), self.member.data.load(Ordering::SeqCst));
        let mut event = epoll_event { events, u64: data };
        let is_rsocket = table::get(fd).is_some_and(|entry| entry.kind == Kind::Socket);
        // SAFETY: an event of this function.
        if epfd < 0 || !is_rsocket && unsafe { next_symbol::epoll_ctl(epfd, EPOLL_CTL_MOD, fd, &raw mut event) } == 0 {
            return;
        }
        // SAFETY: needs no event.
        if unsafe { next_symbol::epoll_ctl(epfd, EPOLL_CTL_DEL, fd, ptr::null_mut()) } == 0 {
            epoll::add(epfd, fd, event);
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.member.locked.store(false, Ordering::Release);
    }
}
