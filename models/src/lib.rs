//! Files of the library that are modelled on their own, as loom sees them, and stand-ins for the few that they need and
//! that are the outside: the kernel, and the defaults of rsockets.
#![cfg(all(test, loom))]

#[path = "../../src/rsocket/bits.rs"]
mod bits;
mod config;
#[path = "../../src/errno.rs"]
mod errno;
#[path = "../../src/rsocket/few.rs"]
mod few;
#[path = "../../src/rsocket/owner.rs"]
mod owner;
#[path = "../../src/rsocket/poll.rs"]
mod poll;
mod sys;
#[path = "../../src/rsocket/table.rs"]
mod table;
#[path = "../../src/rsocket/stream/channel_leader.rs"]
mod channel_leader;
#[path = "../../src/rsocket/waiter.rs"]
mod waiter;
#[path = "../../src/rsocket/watch.rs"]
mod watch;

mod models;
