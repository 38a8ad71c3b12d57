//! The port mapper protocol without I/O: messages and the time go in, actions come out.
//!
//! iWARP devices share the TCP ports of the host with its sockets. For each local address that a
//! device uses, the kernel asks the port mapper to bind a socket to a free port (a *mapping*).
//! Before a connection, the kernel has the port mapper query the peer's port mapper for the port to
//! which the remote address is mapped.

pub mod engine;
pub(crate) mod mappings;
pub mod netlink;
pub(crate) mod requests;
pub mod uapi;
pub mod wire;
