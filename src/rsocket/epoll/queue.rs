//! The queue of members to poll although none of their descriptors is readable.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::member::Member;
use crate::errno::{Errno, Result};
use crate::os::event::EventFd;
use crate::os::sync::Mutex;

/// A FIFO that contains each member once. The eventfd is readable while the queue is not empty.
///
/// Notices take the lock with an rsocket's list of watchers locked. The only system calls made with
/// the lock held are reading and writing the eventfd.
pub struct Queue {
    state: Mutex<State>,
    event: EventFd,
}

#[derive(Default)]
struct State {
    /// Members with their sequence numbers.
    members: VecDeque<(u64, Arc<Member>)>,
    /// Sequence number of the next member.
    sequence: u64,
    raised: bool,
    permanent: bool,
}

impl Queue {
    pub fn new() -> Result<Queue> {
        Ok(Queue { state: Mutex::default(), event: EventFd::new()? })
    }

    /// Returns the eventfd, which is readable while there are members.
    pub fn descriptor(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Returns a number greater than the sequence number of every member in the queue.
    pub fn next_sequence(&self) -> u64 {
        self.state.lock().sequence
    }

    /// Reserves memory for `members` members, so that push() does not allocate.
    pub fn reserve(&self, members: usize) -> Result<()> {
        let mut state = self.state.lock();
        // Removed members leave the queue only when they are polled. They must not accumulate if
        // the program never waits.
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
        let first = state.members.front().is_some_and(|(number, _)| *number < sequence);
        let member = if first { state.members.pop_front().map(|(_, member)| member) } else { None };
        if let Some(member) = &member {
            member.queued.store(false, Ordering::SeqCst);
        }
        member
    }

    /// Makes the eventfd unreadable if the queue is empty. This is not done by pop(), because a
    /// reported member usually returns to the queue.
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

    fn raise(&self, state: &mut State) {
        if !state.raised {
            state.raised = true;
            self.event.raise();
        }
    }
}
