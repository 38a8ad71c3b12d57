//! The thread that notices the next event of a stream's completion channel if the program makes no
//! further call: the leader or, without a leader, the reactor, which watches the channel.
//!
//! This matters while data is held (kept back until earlier messages have arrived), and for the
//! first messages of a connection: the peer has little space for its messages
//! ([`super::connection`]). Until the peer has more space, the receive CQ stays armed, and the
//! reactor watches the channel.
//!
//! As with [`channel_leader`], everything outside of this logic is behind a trait, and the logic is
//! model-checked.

use super::channel_leader::{self, EventSource, LockGuard};

/// A stream, or a model of one, that may hold data or be new.
pub(super) trait Watchable: EventSource {
    /// Locks the state if no thread holds the lock.
    fn try_lock(&self) -> Option<LockGuard<'_, Self::State>>;
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

/// If data is held, makes sure that it is sent when the earlier messages have arrived.
#[inline]
pub(super) fn ensure_flush_scheduled<S: Watchable>(stream: &S, state: &mut S::State) {
    if S::has_held(state) {
        schedule_flush(stream, state);
    }
}

#[inline(never)]
fn schedule_flush<S: Watchable>(stream: &S, state: &mut S::State) {
    // Completions from before the CQ was armed raise no event.
    let has_to_wait = !stream.arm_send_cq(state) || stream.must_hold(state);
    let is_scheduled = has_to_wait && S::is_send_cq_armed(state) && is_noticed(stream, state);
    if !is_scheduled {
        stream.send_held(state);
    }
}

/// Returns whether the leader or the reactor will see the channel's next event.
fn is_noticed<S: Watchable>(stream: &S, state: &mut S::State) -> bool {
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
pub(super) fn channel_is_readable<S: Watchable>(stream: &S) -> bool {
    let Some(mut state) = stream.try_lock() else { return false };
    stream.watched(&mut state);
    // Notify before reading, too: a repoll that only this event makes readable must stay readable.
    stream.notify_pollers();
    channel_leader::take_event(stream, &mut state);
    stream.process_completions(&mut state);
    drop(state);
    // Pollers may rely on the events that were read. They take the lock next, so release it first.
    stream.notify_pollers();
    true
}

/// If the connection is new, makes sure that the peer's next message is noticed. Called whenever an
/// event of the channel may have been read.
#[inline]
pub(super) fn ensure_armed<S: Watchable>(stream: &S, state: &mut S::State) {
    // Check the cheap condition first: a program may poll many streams that stay new for long.
    let is_armed = S::leadership(state).is_some_and(|leadership| leadership.armed);
    if !(is_armed && S::is_watched(state)) && S::is_starting(state) {
        watch_and_arm(stream, state);
    }
}

#[cold]
#[inline(never)]
fn watch_and_arm<S: Watchable>(stream: &S, state: &mut S::State) {
    if !S::is_watched(state) {
        stream.watch_soon(state);
    }
    channel_leader::arm_receive(stream, state);
}
