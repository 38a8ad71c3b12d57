//! The first messages of a connection: the peer has little space for them ([`super::connection`]),
//! so they must be noticed even if the program makes no call. Until the peer has more space, the
//! receive CQ stays armed, and the reactor watches the completion channel.
//!
//! As with [`channel_leader`], everything outside of this logic is behind a trait, and the logic is
//! model-checked.
//!
//! The reactor is woken beside a thread of the program that waits, so it watches only after a
//! pause: a peer that needs more space and whose receiver makes no call waits that long, once. A
//! program that only sends stays new, and each credit update is an event, so the pauses become
//! longer.

use std::time::Duration;

use super::connection::Watch;
use super::held::HoldsData;
use super::{Phase, State, Stream, channel_leader};
use crate::rsocket::reactor;

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
pub(super) fn attend<S: Starts>(stream: &S, state: &mut S::State) {
    // The first condition is cheap, for a poller of many streams that are new for long.
    let is_armed = S::leadership(state).is_some_and(|leadership| leadership.is_armed());
    if !(is_armed && S::is_watched(state)) && S::is_starting(state) {
        attend_now(stream, state);
    }
}

#[cold]
#[inline(never)]
fn attend_now<S: Starts>(stream: &S, state: &mut S::State) {
    if !S::is_watched(state) {
        stream.watch_soon(state);
    }
    channel_leader::arm_receive(stream, state);
}

/// Time until the reactor watches. It doubles after each [`PAUSES_TO_DOUBLE`] pauses, up to
/// [`PAUSE_DOUBLINGS`] times.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSES_TO_DOUBLE: u32 = 4;
const PAUSE_DOUBLINGS: u32 = 4;

impl Stream {
    /// The reactor has found the channel readable: it watches the channel of a new connection
    /// again.
    pub(super) fn watch_start_again(state: &mut State) {
        if <Self as Starts>::is_starting(state) {
            Self::watch_start(state);
        }
    }

    fn watch_start(state: &mut State) {
        let (Some(connection), Some(key)) = (&mut state.connection, state.key) else { return };
        let channel = &mut connection.channel;
        let pause = PAUSE * (1 << (channel.start_pauses / PAUSES_TO_DOUBLE).min(PAUSE_DOUBLINGS));
        if reactor::watch_later(key, channel.completions.fd(), pause).is_ok() {
            channel.watch = Watch::Soon;
            channel.start_pauses = channel.start_pauses.saturating_add(1);
        }
    }
}

impl Starts for Stream {
    fn watch_soon(&self, state: &mut State) {
        Stream::watch_start(state);
    }

    #[inline]
    fn is_starting(state: &State) -> bool {
        let Some(connection) = &state.connection else { return false };
        connection.is_starting() && !state.eof && matches!(state.phase, Phase::Connected)
    }

    #[inline]
    fn is_watched(state: &State) -> bool {
        state.connection.as_ref().is_some_and(|connection| connection.channel.watch != Watch::None)
    }
}
