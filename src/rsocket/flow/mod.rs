//! Flow control of a stream (spec: rsocket, Stream protocol): what may be sent where, and what the peer may send.
//!
//! No input or output: the functions say what to do and are told what happened. Numbers of messages are 16 bits wide and
//! wrap; the peer's are checked, for a peer that breaks the rules must cost only its own connection.

mod pace;
mod receive;
mod send;
#[cfg(test)]
mod simulation;

pub use pace::Wish;
pub use receive::{Announcement, Grant, Received, Receiver};
pub use send::{Chunk, SendLimits, Sender};

/// A rule of the protocol that the peer broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A message without credit.
    NoCredit,
    /// More data than was granted.
    TooMuchData,
    /// Credits taken back, or more than its receive queue has room for.
    BadGrant,
    /// An announced receive buffer that cannot be one.
    BadBuffer,
}
