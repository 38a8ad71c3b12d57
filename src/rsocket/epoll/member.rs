//! An rsocket that is a member of an epoll.

use std::ffi::{c_int, c_short};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT, POLLNVAL,
    epoll_event,
};

use super::Epoll;
use crate::errno::Result;
use crate::rsocket::bits;
use crate::rsocket::few::Few;
use crate::rsocket::owner::Owner;
use crate::rsocket::watch::{Notice, Pollable, Watcher};
use crate::sys::alloc::try_arc;
use crate::sys::event::KernelEpoll;

pub struct Member {
    /// The number the program added.
    pub fd: c_int,
    serial: u32,
    process: Owner,
    owner: Weak<Epoll>,
    /// Whether it is in the queue; changes under the queue's lock.
    pub queued: AtomicBool,
    /// Whether one of its descriptors was seen raised, for the next look.
    pub raised: AtomicBool,
    gone: AtomicBool,
    state: Mutex<State>,
}

/// How a descriptor is in the inner epoll that is not to be waited for: an error shows at most once.
const SILENT: u32 = EPOLLET as u32;

/// What the program asked for, by the last ADD or MOD.
#[derive(Clone, Copy)]
pub struct Interest {
    pub events: u32,
    pub data: u64,
}

struct State {
    /// `None` once it is removed.
    rsocket: Option<Arc<dyn Pollable>>,
    interest: Interest,
    /// False after a report with EPOLLONESHOT.
    enabled: bool,
    /// Counts the MODs.
    version: u32,
    /// [`Pollable::edges`] at the last report; `None` if any edge is new.
    reported: Option<u64>,
    /// The descriptors in the inner epoll, and how they are in it.
    descriptors: Few<(c_int, u32), 2>,
}

/// A member as it was when a look at it began.
pub struct View {
    pub rsocket: Arc<dyn Pollable>,
    pub interest: Interest,
    pub enabled: bool,
    version: u32,
}

/// Whether the inner epoll shows when a descriptor is raised.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shows {
    Yes,
    /// It did not before: one may be raised already.
    Anew,
    /// There is none to wait for now.
    No,
}

/// Whether what was seen may be reported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is, by the caller.
    Report,
    /// There is nothing to report.
    Nothing,
    /// The program has changed its mind: look again.
    Again,
}

impl Interest {
    pub fn is_edge(self) -> bool {
        self.events & EPOLLET as u32 != 0
    }

    pub fn is_oneshot(self) -> bool {
        self.events & EPOLLONESHOT as u32 != 0
    }

    /// The program's bits as poll(2) has them.
    fn asked(self) -> c_short {
        (self.events & 0x7FFF) as c_short
    }

    pub fn wanted(self) -> c_short {
        bits::wanted(self.asked())
    }

    pub fn report(self, ready: c_short) -> epoll_event {
        epoll_event { events: bits::told(ready, self.asked()) as u32, u64: self.data }
    }

    /// How the descriptors are watched: where an event may stay untaken after a look, it must show again.
    fn how(self) -> u32 {
        let edge = if self.is_edge() || self.is_oneshot() { EPOLLET } else { 0 };
        (EPOLLIN | edge) as u32
    }
}

impl View {
    /// What holds of what the program asked for. A closed rsocket has nothing to tell: it is about to leave.
    pub fn ready(&self) -> c_short {
        self.rsocket.ready(self.interest.wanted()) & !POLLNVAL
    }

    /// Whether some of it holds.
    pub fn holds(&self) -> bool {
        self.rsocket.holds(self.interest.wanted())
    }

    /// [`Pollable::arm`], likewise.
    pub fn arm(&self) -> c_short {
        self.rsocket.arm(self.interest.wanted()) & !POLLNVAL
    }

    /// What to wait for now.
    fn descriptors(&self) -> Result<Few<c_int, 2>> {
        let (mut now, mut result) = (Few::new(), Ok(()));
        self.rsocket.descriptors(&mut |fd| {
            if result.is_ok() {
                result = now.push(fd);
            }
        });
        result.map(|()| now)
    }
}

impl Member {
    pub fn new(
        owner: &Arc<Epoll>,
        fd: c_int,
        serial: u32,
        rsocket: Arc<dyn Pollable>,
        interest: Interest,
    ) -> Result<Arc<Member>> {
        try_arc(Member {
            fd,
            serial,
            process: Owner::this_process(),
            owner: Arc::downgrade(owner),
            queued: AtomicBool::new(false),
            raised: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            state: Mutex::new(State {
                rsocket: Some(rsocket),
                interest,
                enabled: true,
                version: 0,
                reported: None,
                descriptors: Few::new(),
            }),
        })
    }

    /// The member's data in the inner epoll.
    pub fn key(&self) -> u64 {
        u64::from(self.serial) << 32 | u64::from(self.fd as u32)
    }

    /// The number that a key was made of.
    pub fn fd_of(key: u64) -> c_int {
        key as u32 as c_int
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// `None` once it is removed.
    pub fn view(&self) -> Option<View> {
        let state = self.lock();
        let State { interest, enabled, version, .. } = *state;
        state.rsocket.clone().map(|rsocket| View { rsocket, interest, enabled, version })
    }

    /// EPOLL_CTL_MOD: every edge is new again.
    pub fn modify(&self, interest: Interest) {
        let mut state = self.lock();
        state.interest = interest;
        state.enabled = true;
        state.version = state.version.wrapping_add(1);
        state.reported = None;
    }

    pub fn interest(&self) -> Interest {
        self.lock().interest
    }

    /// Sees to it that the rsocket's descriptors are in the inner epoll, in the right way.
    pub fn refresh(&self, inner: &KernelEpoll, view: &View) -> Result<Shows> {
        let mut anew = false;
        loop {
            let now = view.descriptors()?;
            let (silenced, shown) = self.register(inner, now.as_slice())?;
            anew |= shown;
            // Once more after one was silenced: the notice that it is to be waited for again may have come before that.
            if !silenced {
                let shows = if anew { Shows::Anew } else { Shows::Yes };
                return Ok(if now.as_slice().is_empty() { Shows::No } else { shows });
            }
        }
    }

    /// Whether one was silenced, for it is not among `now`, and whether one shows that did not before.
    fn register(&self, inner: &KernelEpoll, now: &[c_int]) -> Result<(bool, bool)> {
        let mut state = self.lock();
        if state.rsocket.is_none() {
            return Ok((false, false));
        }
        let loud = state.interest.how();
        // Mostly nothing has changed.
        if state.descriptors.as_slice().iter().copied().eq(now.iter().map(|&fd| (fd, loud))) {
            return Ok((false, false));
        }
        let event = |how| Some(epoll_event { events: how, u64: self.key() });
        let (mut silenced, mut shown) = (false, false);
        for (fd, how) in state.descriptors.as_mut_slice() {
            let right = if now.contains(fd) { loud } else { SILENT };
            if *how != right {
                let changed = inner.control(EPOLL_CTL_MOD, *fd, event(right));
                // It fails for one that a removed device has left behind: nobody needs to hear of that.
                if right != SILENT {
                    changed?;
                }
                silenced |= right == SILENT;
                shown |= *how == SILENT;
                *how = right;
            }
        }
        for &fd in now {
            if !state.descriptors.as_slice().iter().any(|(there, _)| *there == fd) {
                // First the list: what is in the epoll must not be forgotten.
                state.descriptors.push((fd, loud))?;
                inner.control(EPOLL_CTL_ADD, fd, event(loud)).inspect_err(|_| state.descriptors.pop())?;
                shown = true;
            }
        }
        Ok((silenced, shown))
    }

    /// Decides about a report of `ready`; `edges` for one by edges.
    pub fn decide(&self, view: &View, ready: bool, edges: Option<u64>) -> Verdict {
        let mut state = self.lock();
        if state.rsocket.is_none() {
            return Verdict::Nothing;
        }
        if state.version != view.version {
            return Verdict::Again;
        }
        // Another thread may have reported meanwhile.
        if !state.enabled || edges.is_some() && edges <= state.reported {
            return Verdict::Nothing;
        }
        if edges.is_some() {
            state.reported = edges;
        }
        if !ready {
            return Verdict::Nothing;
        }
        state.enabled = !state.interest.is_oneshot();
        Verdict::Report
    }

    /// Whether the program has changed its mind since the look began.
    pub fn is_changed(&self, view: &View) -> bool {
        self.lock().version != view.version
    }

    /// Ends the membership, the first time: out of the inner epoll, and the rsocket let go.
    pub fn detach(&self, inner: &KernelEpoll) -> Option<Arc<dyn Pollable>> {
        let mut state = self.lock();
        let rsocket = state.rsocket.take();
        self.gone.store(true, Ordering::SeqCst);
        let descriptors = mem::replace(&mut state.descriptors, Few::new());
        // In the child of a fork() the epoll is still the parent's, who goes on using it.
        if self.process.is_this_process() {
            for &(fd, _) in descriptors.as_slice() {
                // It fails where the rsocket has closed the descriptor.
                let _ = inner.control(EPOLL_CTL_DEL, fd, None);
            }
        }
        rsocket
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Conditions that are reported even if not asked for, as for epoll_ctl(2).
pub const ALWAYS: u32 = (EPOLLERR | EPOLLHUP) as u32;
