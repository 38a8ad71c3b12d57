//! Sockets over RDMA (rsocket(7), docs/protocol.md).

pub mod calls;
mod cm_id;
pub mod config;
mod dgram;
pub mod epoll;
#[cfg(test)]
mod fake;
mod flow;
mod pinned_budget;
pub mod poll;
mod poll_waiter;
pub mod pollable;
pub mod process;
mod reactor;
pub mod select;
mod socket_table;
mod stream;
mod table;
pub mod wire;

#[cfg(fuzzing)]
pub use stream::StreamOptions;
