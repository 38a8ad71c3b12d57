//! Which thread sleeps in a connection's completion channel.
//!
//! One of the waiting threads, the leader, sleeps in the channel, in the system call that reads the
//! event. The others sleep until they are notified. The leader processes the completions when it
//! comes back, and notifies the others; one of them becomes the next leader if it still has to
//! wait. Pollers sleep on the channel's descriptor; while there is a leader they leave the channel
//! to it and wait to be notified, too.
//!
//! Everything outside of this logic is behind [`EventSource`]. The hand-over is model-checked by
//! the crate in `models/` (`scripts/check loom`).

use std::time::{Duration, Instant};

#[cfg(not(all(test, loom)))]
use crate::sys::lock::Guard as LockGuard;

#[cfg(all(test, loom))]
use loom::sync::MutexGuard as LockGuard;

use crate::errno::{Errno, Result};
use crate::sys::event;
use crate::sys::futex::Changes;

/// When a thread stops sleeping in a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until {
    pub deadline: Option<Instant>,
    /// Every signal ends it, as with poll(2), and not only one whose handler is without SA_RESTART.
    pub any_signal: bool,
}

/// The part of a stream's state that belongs to its channel.
#[derive(Debug, Default)]
pub(super) struct Leadership {
    /// The thread that sleeps in the channel, is about to, or has just come back
    /// ([`EventSource::this_thread`]); 0 if there is none.
    leader: usize,
    /// The receive CQ is armed, and its event was not read yet.
    armed: bool,
}

impl Leadership {
    /// Returns whether a thread sleeps in the channel. A change that causes no completion has to
    /// wake it.
    pub fn has_leader(&self) -> bool {
        self.leader != 0
    }

    /// Returns whether another thread than `thread` sleeps in it.
    pub fn has_other_leader(&self, thread: usize) -> bool {
        self.has_leader() && !self.is_leader(thread)
    }

    /// Returns whether `thread` sleeps in it: then the caller is a signal handler over that call.
    fn is_leader(&self, thread: usize) -> bool {
        self.leader == thread
    }
}

/// A completion channel to sleep in: that of a stream, or a model of one.
pub(super) trait EventSource {
    /// State behind the lock.
    type State;
    /// The channel for the thread that sleeps in it without the lock. It is live as long as there
    /// is a leader.
    type Channel;
    /// An event that was read.
    type Event;

    /// A number that identifies the calling thread, not 0.
    fn this_thread() -> usize;
    /// The lock.
    fn lock(&self) -> LockGuard<'_, Self::State>;
    /// Where threads wait that do not sleep in the channel.
    fn changed(&self) -> &Changes;
    /// Notifies the pollers, if there are any: the event that they rely on was read, or there is no
    /// leader any more that would read it.
    fn notify_pollers(&self);

    /// `None` without a channel.
    fn leadership(state: &mut Self::State) -> Option<&mut Leadership>;
    /// Returns whether what a thread waits for raises an event in the channel.
    fn uses_channel(state: &Self::State) -> bool;
    /// Processes completions. Returns whether there were any; the waiting threads are notified
    /// then.
    fn process_completions(&self, state: &mut Self::State) -> bool;
    /// Requests an event for the next message of the peer. Returns false if that failed, which has
    /// changed the state.
    fn arm_recv_cq(&self, state: &mut Self::State) -> bool;
    /// Requests an event for send completions if a waiter needs them and the CQ is not armed.
    /// Returns whether it was armed now, or the state has changed because that failed.
    fn arm_send_cq(&self, state: &mut Self::State) -> bool;
    /// Returns whether the send CQ is armed and its event was not read yet.
    fn is_send_cq_armed(state: &Self::State) -> bool;
    /// The channel cannot be used any more. Notifies the waiting threads.
    fn channel_failed(&self, state: &mut Self::State);
    /// Returns the channel, in blocking mode.
    fn channel(&self, state: &mut Self::State) -> Option<Self::Channel>;
    /// Waits for an event and reads it.
    fn sleep(channel: Self::Channel, until: Until) -> Result<Self::Event>;
    /// Runs `sleep`; runs `undo` if the thread is cancelled meanwhile.
    fn with_cleanup<T>(_undo: impl FnMut(), sleep: impl FnOnce() -> T) -> T {
        sleep()
    }
    /// Reads an event without waiting.
    fn read_event(&self, state: &mut Self::State) -> Result<Self::Event>;
    /// Counts an event that was read. Returns whether it is the receive CQ's.
    fn note_event(state: &mut Self::State, event: &Self::Event) -> bool;
}

type Guard<'a, S> = LockGuard<'a, <S as EventSource>::State>;

/// Returns whether a thread may wait in the channel.
pub(super) fn may_lead<S: EventSource>(state: &mut S::State) -> bool {
    S::uses_channel(state) && S::leadership(state).is_some_and(|leadership| !leadership.has_leader())
}

/// Waits until something may have changed. Fails with `ETIMEDOUT` at the deadline, and with `EINTR`
/// after a signal whose handler is without SA_RESTART. The caller has checked everything under the
/// lock that it passes.
#[inline]
pub(super) fn wait<'a, S: EventSource>(
    stream: &'a S,
    mut state: Guard<'a, S>,
    deadline: Option<Instant>,
) -> (Guard<'a, S>, Result<()>) {
    if !may_lead::<S>(&mut state) {
        // The leader reads the event.
        if arm_send_cq(stream, &mut state) {
            return (state, Ok(()));
        }
        if S::leadership(&mut state).is_some_and(|leadership| leadership.is_leader(S::this_thread())) {
            drop(state);
            return nap(stream, deadline);
        }
        let count = stream.changed().count();
        drop(state);
        let result = stream.changed().wait(count, deadline);
        return (stream.lock(), result);
    }
    wait_as_leader(stream, state, Until { deadline, any_signal: false })
}

/// In a signal handler over the leader's own call: no thread reads the channel's events meanwhile,
/// so the caller polls the CQs every now and then.
#[cold]
fn nap<S: EventSource>(stream: &S, deadline: Option<Instant>) -> (Guard<'_, S>, Result<()>) {
    const NAP: Duration = Duration::from_millis(1);
    // No descriptors: only the time-out ends it.
    let _ = event::poll(&mut [], Some(NAP));
    let over = deadline.is_some_and(|end| Instant::now() >= end);
    (stream.lock(), if over { Err(Errno::ETIMEDOUT) } else { Ok(()) })
}

/// As [`wait`], for a thread that may wait in the channel ([`may_lead`]).
#[inline]
pub(super) fn wait_as_leader<'a, S: EventSource>(
    stream: &'a S,
    mut state: Guard<'a, S>,
    until: Until,
) -> (Guard<'a, S>, Result<()>) {
    if arm(stream, &mut state) {
        return (state, Ok(()));
    }
    let Some(channel) = begin(stream, &mut state) else { return (state, Ok(())) };
    drop(state);
    let cancelled = || {
        let mut state = stream.lock();
        if let Some(leadership) = S::leadership(&mut state) {
            // The thread may have read the event and lost it: it is requested once more.
            leadership.armed = false;
        }
        end(stream, &mut state, None);
    };
    let result = S::with_cleanup(cancelled, || S::sleep(channel, until));
    let mut state = stream.lock();
    end(stream, &mut state, result.as_ref().ok());
    match result {
        Ok(_) => (state, Ok(())),
        Err(error @ (Errno::EINTR | Errno::ETIMEDOUT | Errno::EAGAIN)) => (state, Err(error)),
        Err(_) => {
            stream.channel_failed(&mut state);
            (state, Ok(()))
        }
    }
}

/// For a poller of this stream alone: waits in the channel until `ready` returns an answer; the
/// answer is `None` at the deadline. Returns `None` if another thread is the leader. The caller has
/// checked everything under the lock that it passes.
pub(super) fn wait_alone<'a, S: EventSource, T>(
    stream: &'a S,
    mut state: Guard<'a, S>,
    deadline: Option<Instant>,
    ready: impl Fn(&S::State) -> Option<T>,
) -> Option<Result<Option<T>>> {
    let mut in_vain = false;
    loop {
        let answer = ready(&state);
        // A peer that sends what the poller does not wait for would end each sleep before the
        // deadline is checked.
        if answer.is_some() || in_vain && deadline.is_some_and(|end| Instant::now() >= end) {
            return Some(Ok(answer));
        }
        if !may_lead::<S>(&mut state) {
            return None;
        }
        let (back, result) = wait_as_leader(stream, state, Until { deadline, any_signal: true });
        state = back;
        match result {
            Ok(()) | Err(Errno::EAGAIN) => in_vain = true,
            Err(Errno::ETIMEDOUT) => return Some(Ok(ready(&state))),
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Arms the send CQ if a waiter needs it, then processes completions once more. Returns whether
/// something has changed.
pub(super) fn arm_send_cq<S: EventSource>(stream: &S, state: &mut S::State) -> bool {
    stream.arm_send_cq(state) && (stream.process_completions(state) || !S::uses_channel(state))
}

/// Arms both CQs as far as needed, then processes completions once more: what completed before
/// raises no event. Returns whether there was something.
#[inline]
pub(super) fn arm<S: EventSource>(stream: &S, state: &mut S::State) -> bool {
    let Some(leadership) = S::leadership(state) else { return false };
    if !leadership.armed {
        if !stream.arm_recv_cq(state) {
            return true;
        }
        if let Some(leadership) = S::leadership(state) {
            leadership.armed = true;
        }
    }
    stream.arm_send_cq(state);
    stream.process_completions(state)
}

#[inline]
fn begin<S: EventSource>(stream: &S, state: &mut S::State) -> Option<S::Channel> {
    let channel = stream.channel(state)?;
    S::leadership(state)?.leader = S::this_thread();
    Some(channel)
}

#[inline]
fn end<S: EventSource>(stream: &S, state: &mut S::State, event: Option<&S::Event>) {
    if let Some(leadership) = S::leadership(state) {
        leadership.leader = 0;
    }
    if let Some(event) = event {
        note::<S>(state, event);
    }
    // One of the waiting threads becomes the leader if this one is done.
    if !stream.process_completions(state) {
        stream.changed().notify();
    }
    stream.notify_pollers();
}

#[inline]
fn note<S: EventSource>(state: &mut S::State, event: &S::Event) {
    if S::note_event(state, event)
        && let Some(leadership) = S::leadership(state)
    {
        leadership.armed = false;
    }
}

/// A poller has found the channel readable: reads the event, unless there is a leader that does so
/// and notifies the pollers. Reads both CQs' events if both may be there: an edge-triggered watcher
/// would not see the second one.
pub(super) fn take_event<S: EventSource>(stream: &S, state: &mut S::State) {
    if S::leadership(state).is_none_or(|leadership| leadership.has_leader()) {
        return;
    }
    loop {
        match stream.read_event(state) {
            Ok(event) => note::<S>(state, &event),
            Err(Errno::EAGAIN | Errno::EINTR) => return,
            Err(_) => return stream.channel_failed(state),
        }
        if !S::is_send_cq_armed(state) && S::leadership(state).is_none_or(|leadership| !leadership.armed) {
            return;
        }
    }
}

/// Returns when no thread sleeps in the channel. The caller has woken the leader and made sure that
/// none follows. Fails if the leader is the calling thread, in a signal handler over its own call:
/// the channel has to stay until the handler returns.
pub(super) fn wait_for_no_leader<'a, S: EventSource>(
    stream: &'a S,
    mut state: Guard<'a, S>,
) -> std::result::Result<Guard<'a, S>, Guard<'a, S>> {
    while S::leadership(&mut state).is_some_and(|leadership| leadership.has_leader()) {
        if S::leadership(&mut state).is_some_and(|leadership| leadership.is_leader(S::this_thread())) {
            return Err(state);
        }
        let count = stream.changed().count();
        drop(state);
        // Interrupted waits are repeated.
        let _: std::result::Result<(), Errno> = stream.changed().wait(count, None);
        state = stream.lock();
    }
    Ok(state)
}
