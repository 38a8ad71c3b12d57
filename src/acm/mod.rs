//! The client of ibacm, the InfiniBand communication manager assistant, which knows paths from its
//! cache (ibacm(8)).
//!
//! [`wire`] defines the messages, and [`client`] keeps the connection.
//! Until a daemon is found, every query returns `None`, and all queries together make at most two
//! failing system calls per second.

use std::time::Duration;

pub use client::{ANSWER_TIMEOUT, CACHED_ANSWER_TIMEOUT};
use client::{Client, RETRY_DELAY, SocketPaths};
use wire::{Paths, Query};

use crate::os::sockaddr::SockAddr;

pub mod addr;
pub mod client;
mod socket;
pub mod wire;

/// The files through which rdma-core's ibacm is reached.
const SOCKET_PATHS: SocketPaths<'static> = SocketPaths { port_file: "/run/ibacm.port", socket: "/run/ibacm.sock" };

static CLIENT: Client<'static> = Client::new(SOCKET_PATHS, ANSWER_TIMEOUT, RETRY_DELAY);

/// Returns the ibacm client of this process.
pub fn client() -> &'static Client<'static> {
    &CLIENT
}

/// Asks ibacm for the paths from `src` to `dst`, for rdma_resolve_route(). [`Paths::as_bytes`] of
/// the result is the value of RDMA_OPTION_IB_PATH. Returns `None` if ibacm gives no path: the
/// kernel then has to resolve the route.
pub fn resolve_path(
    client: &Client<'_>,
    src: Option<SockAddr>,
    dst: Option<SockAddr>,
    timeout: Duration,
) -> Option<Paths> {
    let answer = client.ask_within(&Query { src, dst, ..Query::default() }, timeout)?;
    (!answer.paths.is_empty()).then_some(answer.paths)
}
