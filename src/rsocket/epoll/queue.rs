//! The members that are to be looked at though no descriptor of theirs is raised.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::member::Member;
use crate::errno::{Errno, Result};
use crate::sys::event::EventFd;

/// First in, first out; each member once. The eventfd is raised while there are any.
///
/// The lock is taken in notices, that is, while an rsocket's list of watchers is locked; nothing is called under it but
/// the eventfd's read and write.
pub struct Queue {
    state: Mutex<State>,
    event: EventFd,
}

#[derive(Default)]
struct State {
    /// With the times of their coming.
    members: VecDeque<(u64, Arc<Member>)>,
    /// Counts all that ever came.
    time: u64,
    raised: bool,
    for_ever: bool,
    /// Raised until those who sleep on it have gone elsewhere.
    evicting: bool,
}

impl Queue {
    pub fn new() -> Result<Queue> {
        Ok(Queue { state: Mutex::default(), event: EventFd::new()? })
    }

    /// Readable while there are members.
    pub fn descriptor(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// A time later than that of every member in the queue.
    pub fn now(&self) -> u64 {
        self.lock().time
    }

    /// Makes room, so that push() need not allocate, for `members`, each of them once.
    pub fn reserve(&self, members: usize) -> Result<()> {
        let mut state = self.lock();
        // Those that have gone leave when they are looked at; if nobody looks, they must not become ever more.
        if state.members.len() > 2 * members + 16 {
            state.members.retain(|(_, member)| !member.is_gone());
        }
        state.members.try_reserve(members).map_err(|_| Errno::ENOMEM)
    }

    /// Appends a member, unless it is there.
    pub fn push(&self, member: &Arc<Member>) {
        let mut state = self.lock();
        if !member.queued.swap(true, Ordering::SeqCst) {
            let time = state.time;
            state.time += 1;
            state.members.push_back((time, Arc::clone(member)));
            self.raise(&mut state);
        }
    }

    /// Takes the first one, if it came before `time`; [`settle`](Self::settle) afterwards.
    pub fn pop(&self, time: u64) -> Option<Arc<Member>> {
        let mut state = self.lock();
        let first = state.members.front().is_some_and(|(came, _)| *came < time);
        let member = if first { state.members.pop_front().map(|(_, member)| member) } else { None };
        if let Some(member) = &member {
            member.queued.store(false, Ordering::SeqCst);
        }
        member
    }

    /// Lowers the eventfd if no member is left. Not as soon as the last one is taken: a member that is reported mostly comes back.
    pub fn settle(&self) {
        let mut state = self.lock();
        if state.members.is_empty() && state.raised && !state.for_ever && !state.evicting {
            state.raised = false;
            self.event.clear();
        }
    }

    /// The eventfd stays raised until [`end_eviction`](Self::end_eviction), so that all who sleep on it wake up.
    pub fn evict(&self) {
        let mut state = self.lock();
        state.evicting = true;
        self.raise(&mut state);
    }

    /// Nobody is left whom [`evict`](Self::evict) was for.
    pub fn end_eviction(&self) {
        self.lock().evicting = false;
        self.settle();
    }

    /// The eventfd stays raised from now on, so that all who sleep on it wake up.
    pub fn raise_for_ever(&self) {
        let mut state = self.lock();
        state.for_ever = true;
        self.raise(&mut state);
    }

    fn raise(&self, state: &mut State) {
        if !state.raised {
            state.raised = true;
            self.event.raise();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
