//! The functions that the library exports, by their manual pages' names. Each asks
//! [`crate::dispatch`] where it goes.

mod descriptors;
pub mod epoll;
mod forward;
mod remainder;
mod sendfile;
#[cfg(test)]
mod tests;
pub mod waits;

pub use descriptors::{accept4, close, connect, dup, dup2, fcntl};
pub use forward::{
    getpeername, getsockname, getsockopt, read, readv, recv, recvfrom, recvmsg, send, sendmsg, sendto, setsockopt,
    shutdown, write, writev,
};
