//! Sockets over RDMA (rsocket(7), docs/protocol.md).

mod bits;
pub mod calls;
mod cm_id;
pub mod config;
mod dgram;
pub mod epoll;
#[cfg(test)]
mod fake;
mod few;
mod flow;
mod forks;
mod growth_budget;
mod owner;
pub mod poll;
mod reactor;
pub mod select;
mod stream;
pub mod table;
mod waiter;
pub mod watch;
pub mod wire;

#[cfg(fuzzing)]
pub use stream::after_calls;
pub use stream::{address, name_len};
