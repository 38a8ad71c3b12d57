//! The daemon's contact with the operating system: sockets, signals, capabilities, timers, the log.

pub mod process;
pub mod sockets;
pub mod timer;
