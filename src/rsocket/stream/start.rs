//! The first messages of a connection: the peer has little space for them ([`super::connection`]), so
//! the stream must notice them even if the program makes no call. Until the peer has more space, the
//! receive CQ stays armed, and the reactor watches the completion channel.
//!
//! The reactor is woken beside a thread of the program that waits, so it watches again only after a
//! pause: a peer that needs more space and whose receiver makes no call waits that long, once.

use std::time::Duration;

use super::connection::Watch;
use super::held::HoldsData;
use super::{Phase, State, Stream, channel_leader};
use crate::rsocket::reactor;

/// Time until the reactor watches again.
const PAUSE: Duration = Duration::from_millis(5);

impl Stream {
    /// If the connection is new, makes sure that the peer's next message is noticed. Called whenever an
    /// event of the channel may have been read.
    #[inline]
    pub(super) fn attend_start(&self, state: &mut State) {
        if state.connection.as_ref().is_some_and(|connection| connection.is_starting()) {
            self.attend_start_now(state);
        }
    }

    #[cold]
    #[inline(never)]
    fn attend_start_now(&self, state: &mut State) {
        if !matches!(state.phase, Phase::Connected) || state.eof {
            return;
        }
        if let Some(connection) = &state.connection
            && connection.channel.watch == Watch::None
        {
            // If the reactor cannot watch the channel, the program's next call notices the message.
            HoldsData::watch(self, state);
        }
        channel_leader::arm_receive(self, state);
    }

    /// The reactor has found the channel of a new connection readable.
    pub(super) fn watch_start_again(&self, state: &mut State) {
        let (Some(connection), Some(key)) = (&mut state.connection, state.key) else { return };
        let fd = connection.channel.completions.fd();
        if connection.is_starting() && reactor::watch_later(key, fd, PAUSE).is_ok() {
            connection.channel.watch = Watch::Soon;
        }
    }
}
