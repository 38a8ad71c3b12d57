//! The client of ibacm, the InfiniBand communication manager assistant, which knows paths from its cache
//! (ibacm(8)).
//!
//! [`wire`] has the messages, [`client`] the connection, [`addr`] the addresses. Without a daemon every answer is
//! `None`, at the price of two failed system calls a second.

use std::time::Duration;

use addr::Addr;
use client::{ABSENCE, Client, Places};
pub use client::{HASTE, PATIENCE};
use wire::{Paths, Query};

pub mod addr;
pub mod client;
mod socket;
pub mod wire;

/// The files of the reference's daemon.
const PLACES: Places<'static> = Places { port_file: "/run/ibacm.port", socket: "/run/ibacm.sock" };

static CLIENT: Client<'static> = Client::new(PLACES, PATIENCE, ABSENCE);

/// The process's client.
pub fn client() -> &'static Client<'static> {
    &CLIENT
}

/// The paths from `src` to `dst` for rdma_resolve_route(): [`Paths::as_bytes`] is the value of RDMA_OPTION_IB_PATH.
/// `None` when the kernel has to be asked.
pub fn resolve_path(client: &Client<'_>, src: Option<Addr>, dst: Option<Addr>, patience: Duration) -> Option<Paths> {
    let answer = client.ask_within(&Query { src, dst, ..Query::default() }, patience)?;
    (!answer.paths.is_empty()).then_some(answer.paths)
}
