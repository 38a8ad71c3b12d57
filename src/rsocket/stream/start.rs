//! What a new stream does; see [`super::starting`].
//!
//! The reactor is woken beside a thread of the program that waits, so it watches again only after a
//! pause: a peer that needs more space and whose receiver makes no call waits that long, once.

use std::time::Duration;

use super::connection::Watch;
use super::starting::Starts;
use super::{Phase, State, Stream};
use crate::rsocket::reactor;

/// Time until the reactor watches again.
const PAUSE: Duration = Duration::from_millis(5);

impl Stream {
    /// The reactor has found the channel readable: it watches the channel of a new connection again.
    pub(super) fn watch_start_again(state: &mut State) {
        let (Some(connection), Some(key)) = (&mut state.connection, state.key) else { return };
        let fd = connection.channel.completions.fd();
        if connection.is_starting() && reactor::watch_later(key, fd, PAUSE).is_ok() {
            connection.channel.watch = Watch::Soon;
        }
    }
}

impl Starts for Stream {
    #[inline]
    fn is_starting(state: &State) -> bool {
        let is_new = state.connection.as_ref().is_some_and(|connection| connection.is_starting());
        is_new && matches!(state.phase, Phase::Connected) && !state.eof
    }

    #[inline]
    fn is_watched(state: &State) -> bool {
        state.connection.as_ref().is_some_and(|connection| connection.channel.watch != Watch::None)
    }
}
