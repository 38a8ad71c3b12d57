//! The first data of a connection: the peer has little space for it ([`super::connection`]), so the
//! stream must notice its arrival even if the program makes no call. The receive CQ stays armed, and
//! the reactor watches the completion channel, until data has arrived.

use super::held::HoldsData;
use super::{Phase, State, Stream, channel_leader};

impl Stream {
    /// If the peer has sent no data yet, makes sure that its arrival is noticed. Called whenever an
    /// event of the channel may have been read.
    #[inline]
    pub(super) fn attend_first_data(&self, state: &mut State) {
        if state.connection.as_ref().is_some_and(|connection| connection.awaits_first_data()) {
            self.attend_first_data_now(state);
        }
    }

    #[cold]
    #[inline(never)]
    fn attend_first_data_now(&self, state: &mut State) {
        if matches!(state.phase, Phase::Connected) && !state.eof {
            // If the reactor cannot watch the channel, the program's next call notices the data.
            HoldsData::watch(self, state);
            channel_leader::arm_receive(self, state);
        }
    }
}
