//! Polling the receive CQ for polling_time without the stream's lock.
//!
//! The receive CQ is lent ([`Lease`]) while the thread polls: it takes no lock until it has found a
//! completion, the time is over, or another thread has changed something. Other threads send and
//! receive meanwhile. One that needs a completion takes the CQ back, for which it waits for one
//! poll at most; the polling thread then lends the CQ again, after that call. Several threads may
//! poll the same CQ, one at a time.
//!
//! Only the receive CQ is lent. A thread that waits for send completions, too, polls both CQs with
//! the lock, which is free for as long as a poll takes between two polls. Events do not depend on
//! who polls: threads arm the receive CQ while it is lent, and take it back for the poll that
//! follows.
//!
//! As with [`channel_leader`](super::channel_leader), everything outside of this logic is behind a
//! trait, and the logic is model-checked.

use super::channel_leader::{EventSource, LockGuard};
use crate::errno::Result;
use crate::sys::event;
pub(super) use crate::sys::lease::Interrupted;
use crate::sys::lease::{Lease, Turn};
use crate::sys::unlocked::{self, Use};

/// A stream, or a model of one, whose receive CQ can be polled without its lock.
pub(super) trait LendsCq: EventSource {
    /// The CQ as it is polled without the lock. It is destroyed only after it was taken back.
    type Cq;
    type Completion;

    /// Returns the lease of the receive CQ.
    fn lease(&self) -> &Lease<Self::Completion>;
    /// Returns the receive CQ. Returns `None` if it must be polled with the lock, because somebody
    /// needs completions of the send CQ, too, or must not be polled any more.
    fn recv_cq(state: &Self::State) -> Option<Self::Cq>;
    /// Polls the CQ, which is live.
    fn poll_one(cq: &Self::Cq) -> Result<Option<Self::Completion>>;
}

type Guard<'a, S> = LockGuard<'a, <S as EventSource>::State>;

/// Polls until something has changed, or `is_over` says that the time is over. Returns whether
/// something has changed.
pub(super) fn spin<'a, S: LendsCq>(
    stream: &'a S,
    mut state: Guard<'a, S>,
    mut is_over: impl FnMut() -> bool,
) -> (Guard<'a, S>, bool) {
    let count = stream.changed().count();
    loop {
        // Completions are processed even if another thread has changed something. A closed stream
        // has changed, but the change may be counted later.
        let processed = stream.process_completions(&mut state);
        if processed || stream.changed().count() != count || !S::uses_channel(&state) {
            return (state, true);
        }
        if is_over() {
            return (state, false);
        }
        let lent = lend(stream, &mut state);
        drop(state);
        match lent {
            Some(cq) => poll_lent(stream, &cq, || stream.changed().count() != count || is_over()),
            None => event::spin(),
        }
        state = stream.lock();
    }
}

/// Lends the receive CQ to a call for several rsockets. Returns `None` if the stream has to be
/// polled with the lock.
pub(super) fn lend_to_several<S: LendsCq>(stream: &S, state: &mut S::State) -> Option<S::Cq> {
    if S::uses_channel(state) { lend(stream, state) } else { None }
}

/// Polls once, for a call for several rsockets. Returns whether the stream may have changed since
/// `count`, the value of [`EventSource::changed`] before the caller looked at it: it does so again,
/// with the lock.
pub(super) fn poll_one_of_several<S: LendsCq>(stream: &S, cq: &S::Cq, count: u32) -> bool {
    stream.changed().count() != count || poll_once(stream, cq)
}

/// Lends the receive CQ, if another thread has not done so.
fn lend<S: LendsCq>(stream: &S, state: &mut S::State) -> Option<S::Cq> {
    let cq = S::recv_cq(state)?;
    let leadership = S::leadership(state)?;
    if !leadership.lent {
        leadership.lent = true;
        stream.lease().lend();
    }
    Some(cq)
}

/// Polls until the CQ was taken back, something was found, polling fails, or `ends` returns true.
fn poll_lent<S: LendsCq>(stream: &S, cq: &S::Cq, mut ends: impl FnMut() -> bool) {
    while !ends() && !poll_once(stream, cq) {
        event::spin();
    }
}

/// Polls once. Returns whether the CQ has to be polled with the lock: it is not lent any more, or
/// the poll has failed, which the one with the lock reports.
fn poll_once<S: LendsCq>(stream: &S, cq: &S::Cq) -> bool {
    // A handler that interrupts the poll finds the stream in use.
    let Some(_polling) = Use::begin(stream) else { return true };
    let mut has_failed = false;
    let turn = stream.lease().poll(|| {
        S::poll_one(cq).unwrap_or_else(|_| {
            has_failed = true;
            None
        })
    });
    turn == Turn::Ended || has_failed
}

/// Takes the receive CQ back if it is lent. Returns the completion that was found and not
/// processed. Waits for a poll that is in progress. Fails if the caller is a signal handler that
/// interrupted a poll: no such handler waits for the lock ([`Stream::enter`](super::Stream::enter)),
/// so the poll ends.
pub(super) fn take_back<S: LendsCq>(
    stream: &S,
    state: &mut S::State,
) -> std::result::Result<Option<S::Completion>, Interrupted> {
    let Some(leadership) = S::leadership(state).filter(|leadership| leadership.lent) else { return Ok(None) };
    let found = stream.lease().take_back(|| unlocked::is_used_here(stream))?;
    leadership.lent = false;
    Ok(found)
}

/// Makes sure that [`take_back`] does not wait. Returns false in the middle of a poll.
pub(super) fn try_end<S: LendsCq>(stream: &S, state: &mut S::State) -> bool {
    S::leadership(state).is_none_or(|leadership| !leadership.lent) || stream.lease().try_end()
}

/// Makes the polling thread, if there is one, take the lock soon. Does not wait.
pub(super) fn end_soon<S: LendsCq>(stream: &S, state: &mut S::State) {
    if S::leadership(state).is_some_and(|leadership| leadership.lent) {
        stream.lease().end_soon();
    }
}
