//! The first messages of a connection: the peer has little space for them ([`super::connection`]),
//! so they must be noticed even if the program makes no call. Until the peer has more space, the
//! receive CQ stays armed, and the reactor watches the completion channel.
//!
//! As with [`channel_leader`], everything outside of this logic is behind a trait, and the logic is
//! model-checked.

use super::channel_leader;
use super::held::HoldsData;

/// A stream, or a model of one, that may be new.
pub(super) trait Starts: HoldsData {
    /// Returns whether the connection is new and the peer may send.
    fn is_starting(state: &Self::State) -> bool;
    /// Makes the reactor call [`channel_is_readable`](super::held::channel_is_readable) at the
    /// channel's next event, from the end of a pause on. If it cannot, the program's next call
    /// notices the message.
    fn watch_soon(&self, state: &mut Self::State);
    /// Returns whether the reactor watches the channel, or will do so in a moment.
    fn is_watched(state: &Self::State) -> bool;
}

/// If the connection is new, makes sure that the peer's next message is noticed. Called whenever an
/// event of the channel may have been read.
#[inline]
pub(super) fn ensure_armed<S: Starts>(stream: &S, state: &mut S::State) {
    // The first condition is cheap, for a poller of many streams that are new for long.
    let is_armed = S::leadership(state).is_some_and(|leadership| leadership.is_armed());
    if !(is_armed && S::is_watched(state)) && S::is_starting(state) {
        watch_and_arm(stream, state);
    }
}

#[cold]
#[inline(never)]
fn watch_and_arm<S: Starts>(stream: &S, state: &mut S::State) {
    if !S::is_watched(state) {
        stream.watch_soon(state);
    }
    channel_leader::arm_receive(stream, state);
}
