//! The functions that the library exports, by their manual pages' names. Each asks
//! [`crate::dispatch`] where it goes.

mod close;
mod dup;
pub mod epoll;
mod forward;
pub mod poll;
mod remainder;
pub mod select;
mod sendfile;
mod socket;
#[cfg(test)]
mod tests;
mod waiting;

pub use close::close;
pub use dup::{dup, dup2, fcntl};
pub use forward::{
    getpeername, getsockname, getsockopt, read, readv, recv, recvfrom, recvmsg, send, sendmsg, sendto, setsockopt,
    shutdown, write, writev,
};
pub use socket::{accept4, connect};
