//! An rsocket that is a member of a repoll.

use std::ffi::{c_int, c_short};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, POLLNVAL, epoll_event,
};

use super::Epoll;
use crate::errno::{Errno, Result};
use crate::os::alloc::{SmallList, try_arc};
use crate::os::event::KernelEpoll;
use crate::os::sync::Mutex;
use crate::rsocket::pollable::{self, Notice, Pollable, Watcher};

pub struct Member {
    /// The descriptor that the program added.
    pub fd: c_int,
    serial: u32,
    owner: Weak<Epoll>,
    /// Whether the member is in the queue. Changes only with the queue locked.
    pub queued: AtomicBool,
    /// Whether the main epoll has reported a readable descriptor since the member was last polled.
    pub readable: AtomicBool,
    removed: AtomicBool,
    state: Mutex<State>,
}

/// Events in the main epoll for a descriptor that is not watched at present: only errors, each
/// reported at most once.
const MUTED: u32 = EPOLLET as u32;

/// What the program requested with the last ADD or MOD.
#[derive(Clone, Copy, Default)]
pub struct Interest {
    pub events: u32,
    pub data: u64,
}

#[derive(Default)]
struct State {
    /// `None` after the removal.
    rsocket: Option<Arc<dyn Pollable>>,
    interest: Interest,
    /// False after a report with EPOLLONESHOT.
    enabled: bool,
    /// Number of EPOLL_CTL_MOD operations.
    version: u32,
    /// [`Watchers::edges`](pollable::Watchers) at the last report. `None` after ADD or MOD: the
    /// current state is a new edge.
    reported: Option<u64>,
    /// The descriptors in the main epoll, each with its events there.
    descriptors: SmallList<(c_int, u32), 2>,
}

/// The state of a member when polling it began.
pub struct Snapshot {
    pub rsocket: Arc<dyn Pollable>,
    pub interest: Interest,
    pub enabled: bool,
    version: u32,
}

/// Whether to report a member that was polled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Report the member.
    Report,
    /// There is nothing to report.
    Nothing,
    /// The program has modified the member: poll it again.
    Retry,
}

impl Interest {
    /// Returns whether the program has set one of these flags.
    pub fn has(self, flags: c_int) -> bool {
        self.events & flags as u32 != 0
    }

    /// Returns the requested events as poll(2) bits.
    fn requested(self) -> c_short {
        (self.events & 0x7FFF) as c_short
    }

    pub fn wanted(self) -> c_short {
        pollable::wanted(self.requested())
    }

    pub fn report(self, ready: c_short) -> epoll_event {
        epoll_event { events: pollable::reported(ready, self.requested()) as u32, u64: self.data }
    }

    /// Returns the events for the member's descriptors in the main epoll: level-triggered if a wait
    /// may leave an event unread.
    fn events(self) -> u32 {
        let edge = if self.has(EPOLLET | EPOLLONESHOT) { EPOLLET } else { 0 };
        (EPOLLIN | edge) as u32
    }
}

impl Snapshot {
    /// Returns the requested bits that are ready, and POLLERR and POLLHUP if they apply. Returns 0
    /// for a closed rsocket, whose member is about to be removed.
    pub fn ready(&self) -> c_short {
        self.rsocket.ready(self.interest.wanted()) & !POLLNVAL
    }

    /// Calls [`Pollable::arm`]. Returns the same bits as ready().
    pub fn arm(&self) -> c_short {
        self.rsocket.arm(self.interest.wanted()) & !POLLNVAL
    }
}

impl Member {
    pub fn new(owner: &Arc<Epoll>, fd: c_int, rsocket: Arc<dyn Pollable>, interest: Interest) -> Result<Arc<Member>> {
        try_arc(Member {
            fd,
            serial: owner.serial.fetch_add(1, Ordering::AcqRel),
            owner: Arc::downgrade(owner),
            queued: AtomicBool::new(false),
            readable: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            state: Mutex::new(State { rsocket: Some(rsocket), interest, enabled: true, ..State::default() }),
        })
    }

    /// Returns the member's data in the main epoll.
    pub fn key(&self) -> u64 {
        u64::from(self.serial) << 32 | u64::from(self.fd as u32)
    }

    /// Returns the descriptor in a key.
    pub fn fd_from_key(key: u64) -> c_int {
        key as u32 as c_int
    }

    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::SeqCst)
    }

    /// Returns the present state, or `None` after the removal.
    pub fn snapshot(&self) -> Option<Snapshot> {
        let state = self.state.lock();
        let State { interest, enabled, version, .. } = *state;
        state.rsocket.clone().map(|rsocket| Snapshot { rsocket, interest, enabled, version })
    }

    /// EPOLL_CTL_MOD. Resets the edges, so that the current state is reported again. Fails with
    /// `EINVAL` for a member with EPOLLEXCLUSIVE.
    pub fn modify(&self, interest: Interest) -> Result<()> {
        let mut state = self.state.lock();
        if state.interest.has(EPOLLEXCLUSIVE) {
            return Err(Errno::EINVAL);
        }
        state.interest = interest;
        state.enabled = true;
        state.version = state.version.wrapping_add(1);
        state.reported = None;
        Ok(())
    }

    /// Returns the event with which a kernel epoll takes the member over. If EPOLLONESHOT has
    /// disabled the member, the event contains only flags.
    pub fn kernel_event(&self) -> epoll_event {
        const FLAGS: u32 = (EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE) as u32 | libc::EPOLLWAKEUP as u32;
        let State { interest, enabled, .. } = *self.state.lock();
        epoll_event { events: if enabled { interest.events } else { interest.events & FLAGS }, u64: interest.data }
    }

    /// Registers `now`, the rsocket's current descriptors, in the main epoll. Returns whether a
    /// descriptor was muted because it is not in `now`, and whether a descriptor was added or
    /// unmuted.
    pub fn register(&self, main: &KernelEpoll, now: &[c_int]) -> Result<(bool, bool)> {
        let mut state = self.state.lock();
        if state.rsocket.is_none() {
            return Ok((false, false));
        }
        let active = state.interest.events();
        // Usually nothing has changed.
        if state.descriptors.as_slice().iter().copied().eq(now.iter().map(|&fd| (fd, active))) {
            return Ok((false, false));
        }
        let event = |events| Some(epoll_event { events, u64: self.key() });
        let (mut muted, mut unmuted) = (false, false);
        for (fd, events) in state.descriptors.as_mut_slice() {
            let desired = if now.contains(fd) { active } else { MUTED };
            if *events != desired {
                let changed = main.control(EPOLL_CTL_MOD, *fd, event(desired));
                // Muting fails for the descriptor of a removed device. This is harmless.
                if desired != MUTED {
                    changed?;
                }
                muted |= desired == MUTED;
                unmuted |= *events == MUTED;
                *events = desired;
            }
        }
        for &fd in now {
            if !state.descriptors.as_slice().iter().any(|(there, _)| *there == fd) {
                // Reserve memory first: a descriptor in the epoll must be in the list.
                state.descriptors.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                main.control(EPOLL_CTL_ADD, fd, event(active))?;
                state.descriptors.push((fd, active));
                unmuted = true;
            }
        }
        Ok((muted, unmuted))
    }

    /// Decides whether to report the member. `edges` is the number of edges for an edge-triggered
    /// member, otherwise `None`.
    pub fn decide(&self, snapshot: &Snapshot, ready: bool, edges: Option<u64>) -> Decision {
        let mut state = self.state.lock();
        if state.rsocket.is_none() {
            return Decision::Nothing;
        }
        if state.version != snapshot.version {
            return Decision::Retry;
        }
        // Another thread may have reported the member in the meantime.
        if !state.enabled || edges.is_some() && edges <= state.reported {
            return Decision::Nothing;
        }
        if edges.is_some() {
            state.reported = edges;
        }
        if !ready {
            return Decision::Nothing;
        }
        state.enabled = !state.interest.has(EPOLLONESHOT);
        Decision::Report
    }

    /// Returns whether the program has modified the member since the snapshot was taken.
    pub fn was_modified(&self, snapshot: &Snapshot) -> bool {
        self.state.lock().version != snapshot.version
    }

    /// Removes the member from the epoll. Returns the rsocket, or `None` if the member was removed
    /// before. Never called in the child of a fork(), whose parent still uses the epoll.
    pub fn detach(&self, main: &KernelEpoll) -> Option<Arc<dyn Pollable>> {
        let mut state = self.state.lock();
        self.removed.store(true, Ordering::SeqCst);
        let descriptors = mem::take(&mut state.descriptors);
        for &(fd, _) in descriptors.as_slice() {
            // Fails if the rsocket has closed the descriptor.
            let _ = main.control(EPOLL_CTL_DEL, fd, None);
        }
        state.rsocket.take()
    }
}

impl Watcher for Member {
    fn notice(self: Arc<Self>, notice: Notice) {
        let Some(owner) = self.owner.upgrade() else { return };
        match notice {
            Notice::Changed => owner.queue.push(&self),
            Notice::Closed => drop(owner.forget(&self)),
        }
    }
}
