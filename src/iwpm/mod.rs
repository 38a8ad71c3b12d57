//! The port mapper of iWARP devices (`iwpmd`), without any I/O: messages and time go in, actions come out.
//!
//! Kernel drivers of iWARP devices share the host's TCP ports with its sockets. For each local address they have a port
//! reserved by a socket that the port mapper binds (a *mapping*), and ask, through it, the port mapper of the host they
//! connect to which port an address is mapped to there.

pub mod clients;
pub mod engine;
pub mod mappings;
pub mod netlink;
pub mod requests;
pub mod wire;
