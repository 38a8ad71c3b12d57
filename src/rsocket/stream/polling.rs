//! Polling the CQs for polling_time without the stream's lock.
//!
//! The receive CQ is lent ([`Lease`]) while the thread polls, and the send CQ if somebody waits for
//! send completions. The thread takes no lock until it has found a completion, the time is over, or
//! another thread has changed something. Other threads send and receive meanwhile. One that needs a
//! completion takes the CQs back, for which it waits for one poll at most; the polling thread then
//! lends them again, after that call. Several threads may poll the same CQs, one at a time.
//!
//! Events do not depend on who polls: threads arm the CQs while they are lent, and take them back
//! for the poll that follows.
//!
//! As with [`channel_leader`](super::channel_leader), everything outside of this logic is behind a
//! trait, and the logic is model-checked.

use std::sync::Arc;

use super::channel_leader::{EventSource, LockGuard};
use crate::errno::Result;
use crate::sys::alloc::try_arc;
use crate::sys::event;
pub(super) use crate::sys::lease::Interrupted;
use crate::sys::lease::{Lease, Leases, Lent, Turn};
use crate::sys::unlocked::{self, Use};

/// Attempts to end a lease without waiting: a poll takes less time than so many.
#[cfg(not(all(test, loom)))]
const TRIES: usize = 1000;
#[cfg(all(test, loom))]
const TRIES: usize = 1;

/// A stream, or a model of one, whose CQs can be polled without its lock.
pub(super) trait LendsCqs: EventSource {
    /// The CQs as they are polled without the lock. They are destroyed only after they were taken
    /// back.
    type Cqs;
    type Completion;

    /// Returns the lending of the CQs. Returns `None` without a connection.
    fn lending(state: &mut Self::State) -> Option<&mut Lending<Self::Completion>>;
    /// Returns the receive CQ, and the send CQ if somebody needs its completions. Returns `None` if
    /// they must not be polled any more.
    fn cqs(state: &Self::State) -> Option<Self::Cqs>;
    /// Returns whether the send CQ is among them.
    fn has_send_cq(cqs: &Self::Cqs) -> bool;
    /// Polls the receive CQ, which is live, for one completion.
    fn poll_receive(cqs: &Self::Cqs) -> Result<Option<Self::Completion>>;
    /// Polls the send CQ likewise.
    fn poll_send(cqs: &Self::Cqs) -> Result<Option<Self::Completion>>;
}

/// Which CQs of a connection are lent. Belongs to the holder of the stream's lock.
#[derive(Debug)]
pub(super) struct Lending<T> {
    is_receive_lent: bool,
    is_send_lent: bool,
    leases: Arc<Leases<T>>,
}

/// Completions that were found and not processed.
pub(super) struct Found<T> {
    pub received: Option<T>,
    pub sent: Option<T>,
}

type Guard<'a, S> = LockGuard<'a, <S as EventSource>::State>;
type LentBy<S> = Lent<<S as LendsCqs>::Cqs, <S as LendsCqs>::Completion>;

impl<T> Lending<T> {
    pub fn new() -> Result<Lending<T>> {
        Ok(Lending { is_receive_lent: false, is_send_lent: false, leases: try_arc(Leases::default())? })
    }

    /// Returns whether CQs were lent and not taken back. Nobody polls them otherwise. The send CQ is
    /// lent only together with the receive CQ.
    #[inline]
    pub fn is_lent(&self) -> bool {
        self.is_receive_lent
    }

    #[inline]
    pub fn is_send_lent(&self) -> bool {
        self.is_send_lent
    }

    fn lend(&mut self, with_send: bool) -> Arc<Leases<T>> {
        if !self.is_receive_lent {
            self.is_receive_lent = true;
            self.leases.receive.lend();
        }
        if with_send && !self.is_send_lent {
            self.is_send_lent = true;
            self.leases.send.lend();
        }
        Arc::clone(&self.leases)
    }

    /// The leases of the CQs that are lent.
    fn lent(&self) -> impl Iterator<Item = &Lease<T>> {
        let receive = self.is_receive_lent.then_some(&self.leases.receive);
        receive.into_iter().chain(self.is_send_lent.then_some(&self.leases.send))
    }

    /// Ends the leases. Returns false if a poll in progress takes long: its thread may never run
    /// again.
    pub fn end(&self) -> bool {
        self.lent().all(|lease| {
            lease.end_soon();
            ends_in_time(lease)
        })
    }

    /// Ends the lease of the send CQ in the middle of a call, which may poll it then. Returns the
    /// completion that was found. Fails as [`end`](Self::end), and at once the next time.
    pub fn end_send(&mut self) -> Option<Option<T>> {
        let send = &self.leases.send;
        let has_ended = !self.is_send_lent || if send.end_soon() { ends_in_time(send) } else { send.try_end() };
        has_ended.then(|| send.take())
    }

    /// Takes the CQs back, as [`take_back`].
    fn take_back(&mut self, is_polling_here: impl Fn() -> bool) -> std::result::Result<Found<T>, Interrupted> {
        // All end before anything is taken: what was found stays where it is if the call fails.
        self.lent().try_for_each(|lease| lease.end(&is_polling_here))?;
        (self.is_receive_lent, self.is_send_lent) = (false, false);
        Ok(Found { received: self.leases.receive.take(), sent: self.leases.send.take() })
    }
}

fn ends_in_time<T>(lease: &Lease<T>) -> bool {
    (0..TRIES).any(|_| {
        let has_ended = lease.try_end();
        if !has_ended {
            event::spin();
        }
        has_ended
    })
}

/// Polls until something has changed, or `is_over` says that the time is over. Returns whether
/// something has changed.
pub(super) fn spin<'a, S: LendsCqs>(
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
        let lent = lend::<S>(&mut state);
        drop(state);
        match lent {
            Some(lent) => poll_lent(stream, &lent, || stream.changed().count() != count || is_over()),
            None => event::spin(),
        }
        state = stream.lock();
    }
}

/// Lends the CQs to a call for several rsockets. Returns `None` if they must not be polled any more.
pub(super) fn lend_to_several<S: LendsCqs>(state: &mut S::State) -> Option<LentBy<S>> {
    if S::uses_channel(state) { lend::<S>(state) } else { None }
}

/// Polls once, for a call for several rsockets. Returns whether the stream may have changed since
/// `count`, the value of [`EventSource::changed`] before the caller looked at it: it does so again,
/// with the lock.
pub(super) fn poll_one_of_several<S: LendsCqs>(stream: &S, lent: &LentBy<S>, count: u32) -> bool {
    stream.changed().count() != count || poll_once(stream, lent)
}

/// Lends the CQs, if another thread has not done so.
fn lend<S: LendsCqs>(state: &mut S::State) -> Option<LentBy<S>> {
    let cqs = S::cqs(state)?;
    let leases = S::lending(state)?.lend(S::has_send_cq(&cqs));
    Some(Lent { cqs, leases })
}

/// Polls until a CQ was taken back, something was found, polling fails, or `ends` returns true.
fn poll_lent<S: LendsCqs>(stream: &S, lent: &LentBy<S>, mut ends: impl FnMut() -> bool) {
    while !ends() && !poll_once(stream, lent) {
        event::spin();
    }
}

/// Polls each CQ once. Returns whether they have to be polled with the lock: one of them is not
/// lent any more, or a poll has failed, which the one with the lock reports.
fn poll_once<S: LendsCqs>(stream: &S, Lent { cqs, leases }: &LentBy<S>) -> bool {
    // A handler that interrupts the poll finds the stream in use.
    let Some(_polling) = Use::begin(stream) else { return true };
    ends(&leases.receive, || S::poll_receive(cqs)) || S::has_send_cq(cqs) && ends(&leases.send, || S::poll_send(cqs))
}

/// Polls one CQ. Returns whether it has to be polled with the lock.
fn ends<T>(lease: &Lease<T>, poll: impl FnOnce() -> Result<Option<T>>) -> bool {
    let mut has_failed = false;
    let turn = lease.poll(|| {
        poll().unwrap_or_else(|_| {
            has_failed = true;
            None
        })
    });
    turn == Turn::Ended || has_failed
}

/// Takes the CQs back if they are lent. Returns the completions that were found and not processed.
/// Waits for a poll that is in progress. Fails if the caller is a signal handler that interrupted a
/// poll: no such handler waits for the lock ([`Stream::enter`](super::Stream::enter)), so the poll
/// ends.
pub(super) fn take_back<S: LendsCqs>(
    stream: &S,
    state: &mut S::State,
) -> std::result::Result<Found<S::Completion>, Interrupted> {
    match S::lending(state) {
        Some(lending) => lending.take_back(|| unlocked::is_used_here(stream)),
        None => Ok(Found { received: None, sent: None }),
    }
}

/// Makes sure that [`take_back`] does not wait. Returns false in the middle of a poll.
pub(super) fn try_end<S: LendsCqs>(state: &mut S::State) -> bool {
    S::lending(state).is_none_or(|lending| lending.lent().all(Lease::try_end))
}

/// Makes the polling thread, if there is one, take the lock soon. Does not wait.
pub(super) fn end_soon<S: LendsCqs>(state: &mut S::State) {
    if let Some(lending) = S::lending(state) {
        lending.lent().for_each(|lease| _ = lease.end_soon());
    }
}
