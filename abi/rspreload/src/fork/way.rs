//! What a call is about to do with a pending socket.

/// The kind of call that decides about the socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Sends: must not wait for ever for a word that may not come.
    Send,
    /// Sends what there is room for (MSG_DONTWAIT).
    SendNow,
    /// Shuts down; otherwise like sending.
    Shutdown,
    /// Receives: waits as long as receiving would.
    Receive,
    /// Receives what is available (MSG_DONTWAIT).
    ReceiveNow,
}

impl Way {
    /// Whether the call waits if the socket is a blocking one.
    pub fn waits(self) -> bool {
        !matches!(self, Way::ReceiveNow | Way::SendNow)
    }

    /// Whether the call sends, or ends sending.
    pub fn sends(self) -> bool {
        matches!(self, Way::Send | Way::SendNow | Way::Shutdown)
    }
}
