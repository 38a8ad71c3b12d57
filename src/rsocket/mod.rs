//! Sockets over RDMA (rsocket(7), docs/protocol.md).

pub mod calls;
mod cm_id;
pub mod config;
mod dgram;
mod enter;
pub mod epoll;
#[cfg(test)]
mod fake;
mod flow;
pub mod forks;
mod pinned_budget;
pub mod poll;
mod poll_waiter;
pub mod pollable;
mod reactor;
pub mod select;
mod small_list;
mod socket_table;
mod spinning;
mod stream;
pub mod table;
pub mod wire;

#[cfg(fuzzing)]
pub use stream::after_calls;
pub use stream::{address, name_len};
