//! The daemon's contact with the operating system: sockets, signals, capabilities.

pub mod process;
pub mod sockets;
