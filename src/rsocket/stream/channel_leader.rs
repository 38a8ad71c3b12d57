//! Whose turn it is to sleep in a connection's completion channel.
//!
//! One of the threads that wait, the leader, sleeps in the channel, in the one system call that takes the event. The others
//! sleep until they are told that something changed. Whoever comes back looks at what completed and tells the others; one of
//! them then leads, if it still has to wait. Pollers sleep on the channel's descriptor. As long as there is a leader they leave
//! the channel to it, and sleep until they are told, too.
//!
//! What touches the outside is behind [`EventSource`]. The hand-over is model-checked, by the crate in `models/` (`scripts/check loom`).

use std::time::{Duration, Instant};

#[cfg(not(all(test, loom)))]
use crate::sys::lock::Guard as LockGuard;

#[cfg(all(test, loom))]
use loom::sync::MutexGuard as LockGuard;

use crate::errno::{Errno, Result};
use crate::sys::event;
use crate::sys::futex::Changes;

/// When a thread that sleeps in a channel gives up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until {
    pub deadline: Option<Instant>,
    /// Every signal ends it, as with poll(2), and not only one whose handler asks for that.
    pub any_signal: bool,
}

/// A channel's part of the state.
#[derive(Debug, Default)]
pub(super) struct Leadership {
    /// The thread that sleeps in the channel, or is about to, or has just come back: [`EventSource::here`]; 0 without one.
    leader: usize,
    /// The event of the next message was asked for and not taken yet.
    armed: bool,
}

impl Leadership {
    /// Whether a thread sleeps in the channel. Whoever makes a change that no completion shows has to wake it.
    pub fn has_leader(&self) -> bool {
        self.leader != 0
    }

    /// Whether another thread than `thread` does.
    pub fn has_other_leader(&self, thread: usize) -> bool {
        self.has_leader() && !self.is_leader(thread)
    }

    /// Whether this very thread does: what asks is a signal handler, over the call that sleeps.
    fn is_leader(&self, thread: usize) -> bool {
        self.leader == thread
    }
}

/// What has a channel to sleep in: a stream, or the model of one.
pub(super) trait EventSource {
    /// What its lock guards.
    type State;
    /// The channel, for whoever sleeps in it without the lock. It stays as long as there is a leader.
    type Channel;
    /// What is taken out of it.
    type Event;

    /// A number of this thread's, not 0.
    fn this_thread() -> usize;
    /// The lock.
    fn lock(&self) -> LockGuard<'_, Self::State>;
    /// Who wait without a channel.
    fn changed(&self) -> &Changes;
    /// Tells the pollers, if there are any: the event they rely on was taken, or there is no leader any more who would take it.
    fn notify_pollers(&self);

    /// `None` without a channel.
    fn leadership(state: &mut Self::State) -> Option<&mut Leadership>;
    /// Whether what a thread waits for shows in the channel, if there is one.
    fn uses_channel(state: &Self::State) -> bool;
    /// Handles what completed; whether anything did. In that case it has told those who wait.
    fn process_completions(&self, state: &mut Self::State) -> bool;
    /// Has the next message of the peer's raise an event. `false`: that failed, which changed the state.
    fn arm_recv_cq(&self, state: &mut Self::State) -> bool;
    /// Has the completions raise an event that somebody needs beside that, and that none was asked for yet; whether it did, or
    /// the state changed because it failed.
    fn arm_send_cq(&self, state: &mut Self::State) -> bool;
    /// Whether an event that [`arm_send_cq`](Self::arm_send_cq) asked for was not taken yet.
    fn is_send_cq_armed(state: &Self::State) -> bool;
    /// The channel can't be used any more; whoever waits is told.
    fn channel_failed(&self, state: &mut Self::State);
    /// The channel, in blocking mode.
    fn channel(&self, state: &mut Self::State) -> Option<Self::Channel>;
    /// Waits for an event and takes it.
    fn sleep(channel: Self::Channel, until: Until) -> Result<Self::Event>;
    /// Runs `sleep`, and `undo` if the thread is cancelled in it.
    fn with_cleanup<T>(_undo: impl FnMut(), sleep: impl FnOnce() -> T) -> T {
        sleep()
    }
    /// Takes an event if there is one, without waiting.
    fn read_event(&self, state: &mut Self::State) -> Result<Self::Event>;
    /// Notes an event that was taken; whether it is the one that [`arm_recv_cq`](Self::arm_recv_cq) asked for.
    fn note_event(state: &mut Self::State, event: &Self::Event) -> bool;
}

type Guard<'a, S> = LockGuard<'a, <S as EventSource>::State>;

/// Whether a thread that wants to wait may do so in the channel.
pub(super) fn may_lead<S: EventSource>(state: &mut S::State) -> bool {
    S::uses_channel(state) && S::leadership(state).is_some_and(|leadership| !leadership.has_leader())
}

/// Waits until something may have changed: `ETIMEDOUT` at the deadline, `EINTR` after a signal whose handler asks for it. The
/// caller has looked at everything under the lock that it hands over.
#[inline]
pub(super) fn wait<'a, S: EventSource>(
    stream: &'a S,
    mut state: Guard<'a, S>,
    deadline: Option<Instant>,
) -> (Guard<'a, S>, Result<()>) {
    if !may_lead::<S>(&mut state) {
        // The leader takes the event.
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

/// In a signal handler, over the call that leads: nobody takes the channel's events meanwhile, so the caller has to look every now
/// and then.
#[cold]
fn nap<S: EventSource>(stream: &S, deadline: Option<Instant>) -> (Guard<'_, S>, Result<()>) {
    const NAP: Duration = Duration::from_millis(1);
    // Nothing is polled but the time.
    let _ = event::poll(&mut [], Some(NAP));
    let over = deadline.is_some_and(|end| Instant::now() >= end);
    (stream.lock(), if over { Err(Errno::ETIMEDOUT) } else { Ok(()) })
}

/// As [`wait`], in the channel, for a thread that [`may_lead`].
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
            // The thread may have taken the event and lost it: it is asked for once more.
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

/// For a poller of nothing else: waits in the channel until `ready` has an answer, `None` at the deadline. The outer `None` says
/// that another thread leads. The caller has looked at everything under the lock that it hands over.
pub(super) fn wait_alone<'a, S: EventSource, T>(
    stream: &'a S,
    mut state: Guard<'a, S>,
    deadline: Option<Instant>,
    ready: impl Fn(&S::State) -> Option<T>,
) -> Option<Result<Option<T>>> {
    let mut in_vain = false;
    loop {
        let answer = ready(&state);
        // A peer that sends what `ready` does not ask for would end each sleep before the clock is
        // looked at.
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

/// As far as a leader has not done so: see [`EventSource::arm_send_cq`]. Whether something came.
pub(super) fn arm_send_cq<S: EventSource>(stream: &S, state: &mut S::State) -> bool {
    stream.arm_send_cq(state) && (stream.process_completions(state) || !S::uses_channel(state))
}

/// Has the next message raise an event, and what somebody needs beside that, and looks once more; whether something came.
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
    // Those who wait to be told: one of them leads next, if this thread is done.
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

/// A poller saw the channel readable: takes the event, unless a leader is there to do so and to tell the pollers. Both of them if
/// both may be there: a descriptor that is watched for edges would not show the second one again.
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

/// Returns when nobody sleeps in the channel. The caller has woken the leader, and made sure that nobody leads after it. `Err` when
/// it is this very thread that sleeps, and a signal handler that asks: the channel has to stay until the handler is over.
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
        // Signals don't matter here.
        let _: std::result::Result<(), Errno> = stream.changed().wait(count, None);
        state = stream.lock();
    }
    Ok(state)
}
