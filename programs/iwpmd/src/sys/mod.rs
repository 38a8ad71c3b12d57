//! The daemon's interface to the operating system: sockets, signals, capabilities.

pub mod process;
pub mod sockets;
