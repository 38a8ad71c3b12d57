//! Which thread sleeps in a connection's completion channel.
//!
//! One of the waiting threads, the leader, sleeps in the channel, in the system call that reads the
//! event. The others sleep until they are notified. The leader processes the completions when it
//! wakes up, and notifies the others; one of them becomes the next leader if it still has to wait.
//! Pollers sleep on the channel's descriptor; while there is a leader they leave the channel to it
//! and wait to be notified, too.
//!
//! If the program makes no further call, and there is no leader, the reactor watches the channel.
//! This matters while data is held (kept back until earlier messages have arrived), and for the
//! first messages of a connection: the peer has little space for its messages
//! ([`super::connection`]). Until the peer has more space, the receive CQ stays armed.
//!
//! Everything outside of this logic is behind [`EventSource`]. The hand-over of the leadership is
//! model-checked by the crate in `tests/models` (`scripts/check loom`).

use std::time::{Duration, Instant};

#[cfg(not(all(test, loom)))]
pub(super) use crate::os::sync::Guard as LockGuard;

#[cfg(all(test, loom))]
pub(super) use loom::sync::MutexGuard as LockGuard;

use crate::errno::{Errno, Result};
use crate::os::event;
use crate::os::sync::Changes;

/// When a thread stops sleeping in a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until {
    pub deadline: Option<Instant>,
    /// Any signal ends the wait, as with poll(2), and not only a signal whose handler was installed
    /// without SA_RESTART.
    pub any_signal: bool,
}

/// The thread that sleeps in a completion channel, and whether the channel's receive CQ is armed.
#[derive(Debug, Default)]
pub(super) struct Leadership {
    /// The thread that sleeps in the channel, is about to sleep there, or has just woken up
    /// ([`EventSource::this_thread`]); 0 if there is none.
    pub leader: usize,
    /// The receive CQ is armed, and its event has not been read: the next message of the peer
    /// raises an event.
    pub armed: bool,
}

impl Leadership {
    /// Returns whether a thread sleeps in the channel. A change that causes no completion must wake
    /// this thread.
    pub fn has_leader(&self) -> bool {
        self.leader != 0
    }

    /// Returns whether a thread other than `thread` sleeps in the channel. If `thread` itself is
    /// the leader, its caller is a signal handler that has interrupted the sleeping call.
    pub fn has_other_leader(&self, thread: usize) -> bool {
        self.has_leader() && self.leader != thread
    }
}

/// A stream with a completion channel to sleep in, or a model of one.
pub(super) trait EventSource {
    /// State behind the lock.
    type State;
    /// The channel as the leader uses it without the lock. It stays live while there is a leader.
    type Channel;
    /// An event that was read.
    type Event;

    /// Returns a nonzero number that identifies the calling thread.
    fn this_thread() -> usize;
    /// Locks the state.
    fn lock(&self) -> LockGuard<'_, Self::State>;
    /// Returns the counter of changes. Threads that do not sleep in the channel wait for it to
    /// change.
    fn changed(&self) -> &Changes;
    /// Notifies the pollers, if any: the event that they rely on was read, or the leader that would
    /// read it has returned.
    fn notify_pollers(&self);

    /// Returns the leadership of the channel, or `None` without a channel.
    fn leadership(state: &mut Self::State) -> Option<&mut Leadership>;
    /// Returns whether the changes that threads wait for raise events in the channel.
    fn uses_channel(state: &Self::State) -> bool;
    /// Processes completions. If there were any, or the stream has failed, notifies the waiting
    /// threads and returns true.
    fn process_completions(&self, state: &mut Self::State) -> bool;
    /// Requests an event for the next message of the peer, unless one is requested
    /// ([`Leadership::armed`]). Returns false if there is no channel, or if the request failed: the
    /// state has changed then, and the channel is not used any more.
    fn arm_recv_cq(&self, state: &mut Self::State) -> bool;
    /// Requests an event for send completions if a waiter needs them and the CQ is not armed.
    /// Returns whether the CQ was armed now, or arming it failed and changed the state.
    fn arm_send_cq(&self, state: &mut Self::State) -> bool;
    /// Returns whether the send CQ is armed and its event has not been read.
    fn is_send_cq_armed(state: &Self::State) -> bool;
    /// Handles a channel that cannot be used any more. Notifies the waiting threads.
    fn channel_failed(&self, state: &mut Self::State);
    /// Makes the calling thread the leader. Returns the channel, in blocking mode, or `None` if there
    /// is none.
    fn lead(&self, state: &mut Self::State) -> Option<Self::Channel>;
    /// Waits for an event and reads it. Fails with `ETIMEDOUT` at the deadline, and with `EINTR`
    /// after a signal, as `until` specifies.
    fn sleep(channel: Self::Channel, until: Until) -> Result<Self::Event>;
    /// Runs `sleep`; runs `undo` if the thread is cancelled meanwhile.
    fn with_cleanup<T>(_undo: impl FnMut(), sleep: impl FnOnce() -> T) -> T {
        sleep()
    }
    /// Runs a pause between two polls, in which a signal handler may make calls of the library.
    fn pause<T>(pause: impl FnOnce() -> T) -> T {
        pause()
    }
    /// Reads an event without waiting. Fails with `EAGAIN` if there is none.
    fn read_event(&self, state: &mut Self::State) -> Result<Self::Event>;
    /// Counts an event that the leader, or a thread without a leader, has read. There is no leader any
    /// more, and the event's CQ is not armed ([`Leadership::armed`]).
    fn note_event(state: &mut Self::State, event: &Self::Event);

    /// Locks the state if no thread holds the lock.
    fn try_lock(&self) -> Option<LockGuard<'_, Self::State>>;
    /// Returns whether data is held.
    fn has_held(state: &Self::State) -> bool;
    /// Sends the held data, or discards it after a failure.
    fn send_held(&self, state: &mut Self::State);
    /// Polls the send CQ. Returns whether held data has to wait because earlier messages are still
    /// on their way.
    fn must_hold(&self, state: &mut Self::State) -> bool;
    /// Makes the reactor call [`channel_is_readable`] at the channel's next event. Returns false if
    /// the reactor cannot watch the channel.
    fn watch(&self, state: &mut Self::State) -> bool;
    /// Notes that the reactor does not watch the channel any more.
    fn watched(&self, state: &mut Self::State);
    /// Returns whether the connection is new and the peer may send.
    fn is_starting(state: &Self::State) -> bool;
    /// Makes the reactor call [`channel_is_readable`] at the channel's next event, but not before
    /// the end of a pause. If the reactor cannot watch the channel, the program's next call notices
    /// the peer's message.
    fn watch_soon(&self, state: &mut Self::State);
    /// Returns whether the reactor watches the channel, or will do so after a pause.
    fn is_watched(state: &Self::State) -> bool;
}

type Guard<'a, S> = LockGuard<'a, <S as EventSource>::State>;

/// Returns whether the deadline, if there is one, has passed.
#[inline]
pub(super) fn has_passed(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

/// Returns whether the calling thread may become the leader.
#[inline]
pub(super) fn may_lead<S: EventSource>(state: &mut S::State) -> bool {
    S::uses_channel(state) && S::leadership(state).is_some_and(|leadership| !leadership.has_leader())
}

/// Polls until something has changed, or `is_over` returns true. Returns whether something has
/// changed. Other threads may take the lock between two polls.
pub(super) fn spin<'a, S: EventSource>(
    stream: &'a S,
    mut state: Guard<'a, S>,
    mut is_over: impl FnMut() -> bool,
) -> (Guard<'a, S>, bool) {
    let count = stream.changed().count();
    let mut is_last = false;
    loop {
        // Process completions even if another thread has counted a change. A closed stream has
        // changed, too, but its change may be counted later.
        let processed = stream.process_completions(&mut state);
        if processed || stream.changed().count() != count || !S::uses_channel(&state) {
            return (state, true);
        }
        if is_last {
            return (state, false);
        }
        drop(state);
        is_last = S::pause(|| {
            event::spin();
            is_over()
        });
        state = stream.lock();
    }
}

/// Waits until something may have changed. Fails with `ETIMEDOUT` at the deadline, and with `EINTR`
/// after a signal whose handler was installed without SA_RESTART. The caller has checked its
/// condition under the lock that it passes.
#[inline(always)] // the usual wait is one function
pub(super) fn wait<'a, S: EventSource>(
    stream: &'a S,
    mut state: Guard<'a, S>,
    deadline: Option<Instant>,
) -> (Guard<'a, S>, Result<()>) {
    if may_lead::<S>(&mut state) {
        wait_as_leader(stream, state, Until { deadline, any_signal: false })
    } else {
        wait_for_leader(stream, state, deadline)
    }
}

/// [`wait`] for a thread that cannot be the leader: sleeps until it is notified of a change.
#[inline(never)]
fn wait_for_leader<'a, S: EventSource>(
    stream: &'a S,
    mut state: Guard<'a, S>,
    deadline: Option<Instant>,
) -> (Guard<'a, S>, Result<()>) {
    if arm_send_cq(stream, &mut state) {
        return (state, Ok(()));
    }
    if S::leadership(&mut state).is_some_and(|leadership| leadership.leader == S::this_thread()) {
        drop(state);
        return sleep_briefly(stream, deadline);
    }
    wait_for_change_until(stream, state, deadline)
}

/// Sleeps for a short time in a signal handler that has interrupted the leader: no thread reads the
/// channel's events meanwhile, so the caller polls the CQs at intervals.
#[cold]
fn sleep_briefly<S: EventSource>(stream: &S, deadline: Option<Instant>) -> (Guard<'_, S>, Result<()>) {
    const POLL_INTERVAL: Duration = Duration::from_millis(1);
    // poll(2) without descriptors only sleeps.
    let _ = event::poll(&mut [], Some(POLL_INTERVAL));
    let result = if has_passed(deadline) { Err(Errno::ETIMEDOUT) } else { Ok(()) };
    (stream.lock(), result)
}

/// [`wait`] for a thread that [`may_lead`]: becomes the leader and sleeps in the channel.
#[inline(never)]
pub(super) fn wait_as_leader<'a, S: EventSource>(
    stream: &'a S,
    mut state: Guard<'a, S>,
    until: Until,
) -> (Guard<'a, S>, Result<()>) {
    if arm(stream, &mut state) {
        return (state, Ok(()));
    }
    let Some(channel) = stream.lead(&mut state) else { return (state, Ok(())) };
    drop(state);
    let cancelled = || resign_cancelled(stream);
    let result = S::with_cleanup(cancelled, || S::sleep(channel, until));
    let mut state = stream.lock();
    resign(stream, &mut state, result.as_ref().ok());
    match result {
        Ok(_) => (state, Ok(())),
        Err(error @ (Errno::EINTR | Errno::ETIMEDOUT | Errno::EAGAIN)) => (state, Err(error)),
        Err(_) => {
            stream.channel_failed(&mut state);
            (state, Ok(()))
        }
    }
}

/// Waits in the channel until `ready` returns an answer, for a call that polls only this stream.
/// Returns the answer, which is `None` at the deadline. Fails with `EINTR` after a signal. Returns
/// an outer `None` if the thread cannot become the leader.
pub(super) fn wait_alone<'a, S: EventSource, T>(
    stream: &'a S,
    mut state: Guard<'a, S>,
    deadline: Option<Instant>,
    ready: impl Fn(&S::State) -> Option<T>,
) -> Option<Result<Option<T>>> {
    let mut in_vain = false;
    loop {
        let answer = ready(&state);
        // Check the deadline after each sleep, because messages that are irrelevant to the poller
        // may end every sleep early.
        if answer.is_some() || in_vain && has_passed(deadline) {
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

/// Arms both CQs as far as needed, then processes completions once more: earlier completions raise
/// no event. Returns whether something has changed.
#[inline(always)] // the usual wait is one function
pub(super) fn arm<S: EventSource>(stream: &S, state: &mut S::State) -> bool {
    if !stream.arm_recv_cq(state) {
        return true;
    }
    stream.arm_send_cq(state);
    stream.process_completions(state)
}

/// Arms the receive CQ unless it is armed, then processes completions once more.
pub(super) fn arm_receive<S: EventSource>(stream: &S, state: &mut S::State) {
    let was_armed = S::leadership(state).is_some_and(|leadership| leadership.armed);
    if !was_armed && stream.arm_recv_cq(state) {
        stream.process_completions(state);
    }
}

/// Ends the leadership of a thread that has returned from its sleep, and has read `event`, if there
/// was one.
#[inline(always)] // the usual wait is one function
fn resign<S: EventSource>(stream: &S, state: &mut S::State, event: Option<&S::Event>) {
    match event {
        Some(event) => S::note_event(state, event),
        None => S::leadership(state).into_iter().for_each(|leadership| leadership.leader = 0),
    }
    // Wake the waiting threads: one of them becomes the leader if this thread does not wait again.
    if !stream.process_completions(state) {
        stream.changed().notify();
    }
    stream.notify_pollers();
}

/// Ends the leadership of a thread that was cancelled in its sleep.
#[cold]
#[inline(never)]
fn resign_cancelled<S: EventSource>(stream: &S) {
    resign(stream, &mut stream.lock(), None);
}

/// Reads the event after a poller has found the channel readable, unless there is a leader, which
/// reads it and notifies the pollers. Reads the events of both CQs if both may be pending, because
/// an edge-triggered watcher would not notice the second one.
pub(super) fn take_event<S: EventSource>(stream: &S, state: &mut S::State) {
    if S::leadership(state).is_none_or(|leadership| leadership.has_leader()) {
        return;
    }
    loop {
        match stream.read_event(state) {
            Ok(event) => S::note_event(state, &event),
            Err(Errno::EAGAIN | Errno::EINTR) => return,
            Err(_) => return stream.channel_failed(state),
        }
        if !S::is_send_cq_armed(state) && S::leadership(state).is_none_or(|leadership| !leadership.armed) {
            return;
        }
    }
}

/// Waits until no thread sleeps in the channel. The caller has woken the leader and made sure that
/// no other thread becomes the leader. Fails if the calling thread itself is the leader, in a
/// signal handler that has interrupted its sleep: the channel must be kept until the handler
/// returns.
pub(super) fn wait_for_no_leader<'a, S: EventSource>(
    stream: &'a S,
    mut state: Guard<'a, S>,
) -> std::result::Result<Guard<'a, S>, Guard<'a, S>> {
    while let Some(leadership) = S::leadership(&mut state).filter(|leadership| leadership.has_leader()) {
        if leadership.leader == S::this_thread() {
            return Err(state);
        }
        state = wait_for_change(stream, state);
    }
    Ok(state)
}

/// Waits for a change. May return early, for example after a signal: the caller checks its
/// condition in a loop.
pub(super) fn wait_for_change<'a, S: EventSource>(stream: &'a S, state: Guard<'a, S>) -> Guard<'a, S> {
    wait_for_change_until(stream, state, None).0
}

/// [`wait_for_change`] with a deadline. Fails with `ETIMEDOUT` or `EINTR`, as [`wait`] does.
pub(super) fn wait_for_change_until<'a, S: EventSource>(
    stream: &'a S,
    state: Guard<'a, S>,
    deadline: Option<Instant>,
) -> (Guard<'a, S>, Result<()>) {
    let count = stream.changed().count();
    drop(state);
    let result = stream.changed().wait(count, deadline);
    (stream.lock(), result)
}

/// If data is held, makes sure that it is sent when the earlier messages have arrived.
#[inline]
pub(super) fn ensure_flush_scheduled<S: EventSource>(stream: &S, state: &mut S::State) {
    if S::has_held(state) {
        schedule_flush(stream, state);
    }
}

#[inline(never)]
fn schedule_flush<S: EventSource>(stream: &S, state: &mut S::State) {
    // Completions from before the CQ was armed raise no event.
    let has_to_wait = !stream.arm_send_cq(state) || stream.must_hold(state);
    let is_scheduled = has_to_wait && S::is_send_cq_armed(state) && is_noticed(stream, state);
    if !is_scheduled {
        stream.send_held(state);
    }
}

/// Returns whether the leader or the reactor will see the channel's next event.
fn is_noticed<S: EventSource>(stream: &S, state: &mut S::State) -> bool {
    let (me, leadership) = (S::this_thread(), S::leadership(state));
    match leadership.filter(|leadership| leadership.has_leader()) {
        // This thread may be the leader, in a signal handler that never returns to the leader's
        // call.
        Some(leadership) => leadership.has_other_leader(me),
        None => stream.watch(state),
    }
}

/// Handles a channel that the reactor has found readable. Returns false if another thread holds the
/// lock: the reactor tries again after a pause. The reactor does not wait for the lock, because a
/// thread that sends message after message would have to wake the reactor with each message, and
/// would take the lock again before the reactor runs.
pub(super) fn channel_is_readable<S: EventSource>(stream: &S) -> bool {
    let Some(mut state) = stream.try_lock() else { return false };
    stream.watched(&mut state);
    // Notify before reading, too: a repoll that only this event makes readable must stay readable.
    stream.notify_pollers();
    take_event(stream, &mut state);
    stream.process_completions(&mut state);
    drop(state);
    // Pollers may rely on the events that were read. They take the lock next, so release it first.
    stream.notify_pollers();
    true
}

/// If the connection is new, makes sure that the peer's next message is noticed. Called whenever an
/// event of the channel may have been read.
#[inline]
pub(super) fn ensure_armed<S: EventSource>(stream: &S, state: &mut S::State) {
    // Check the cheap condition first: a program may poll many streams that stay new for long.
    let is_armed = S::leadership(state).is_some_and(|leadership| leadership.armed);
    if !(is_armed && S::is_watched(state)) && S::is_starting(state) {
        watch_and_arm(stream, state);
    }
}

#[cold]
#[inline(never)]
fn watch_and_arm<S: EventSource>(stream: &S, state: &mut S::State) {
    if !S::is_watched(state) {
        stream.watch_soon(state);
    }
    arm_receive(stream, state);
}
