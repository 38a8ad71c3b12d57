//! Flow control of a stream (docs/protocol.md): what may be sent where, and what the peer may send.
//!
//! No I/O: the caller passes events in and acts on the results. Message numbers are 16 bits
//! wide and wrap. Everything received from the peer is validated: a peer that violates the protocol
//! affects only its own connection.

mod receive;
mod send;
#[cfg(test)]
mod simulation;

#[cfg(test)]
pub use receive::Advertisement;
pub use receive::{CreditUpdate, Received, Receiver};
pub use send::{Chunk, Reasons, SendLimits, Sender};

/// A protocol violation by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation;
