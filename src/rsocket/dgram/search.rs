//! Path searches in the background: each has a connection manager id. The reactor's worker
//! handles its events, because resolving may wait for ibacm, and address handles are commands.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use super::port;
use super::{Dgram, State};
use crate::errno::{Errno, Result};
use crate::ffi::rdma_cm_event_type::*;
use crate::rsocket::cm_id::CmId;
use crate::rsocket::reactor::{self, Key, Role};
use crate::sys::sockaddr::{to_sockaddr, with_port};
use crate::sys::uapi::{RDMA_OPTION_ID, RDMA_OPTION_ID_TOS};

/// Maximum number of concurrent searches. Further peers are reached over UDP until the next
/// datagram.
const MAX_SEARCHES: usize = 32;
/// Time-out of each of the two steps, in milliseconds.
const RESOLVE_TIMEOUT_MS: i32 = 2000;

/// A search in progress.
#[derive(Debug)]
pub(super) struct Search {
    pub key: Key,
    pub id: CmId,
    peer: SocketAddr,
    /// IP address of the peer's QP.
    address: IpAddr,
    /// The port that the path starts at.
    port: Key,
}

impl Dgram {
    /// Starts a search for the path from a port to `address`, the address of the QP of `peer`.
    pub(super) fn search(self: &Arc<Self>, state: &mut State, port: Key, peer: SocketAddr, address: IpAddr) {
        if let Err(error) = self.start_search(state, port, peer, address) {
            match error {
                Errno::EAGAIN => state.peers.search_not_started(&peer),
                error => state.peers.search_finished(&peer, address, Err(error), Instant::now()),
            }
        }
    }

    fn start_search(self: &Arc<Self>, state: &mut State, port: Key, peer: SocketAddr, address: IpAddr) -> Result<()> {
        if state.searches.len() >= MAX_SEARCHES {
            return Err(Errno::EAGAIN);
        }
        state.searches.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let local = state.port(port).ok_or(Errno::ENODEV)?.local;
        let id = port::bound_id(&local)?;
        let tos = state.udp()?.type_of_service(&address)?;
        if tos != 0 {
            id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &[tos])?;
        }
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        id.resolve_addr(&to_sockaddr(family, &with_port(address, peer.port(), &local)), RESOLVE_TIMEOUT_MS)?;
        let service: Arc<dyn reactor::Service> = Arc::clone(self) as _;
        let key = reactor::register(Role::Setup, id.fd(), service)?;
        state.searches.push(Search { key, id, peer, address, port });
        Ok(())
    }

    /// Handles an event of a search's id.
    pub(super) fn continue_search(&self, state: &mut State, key: Key) {
        let Some(index) = state.searches.iter().position(|search| search.key == key) else { return };
        let Some(search) = state.searches.get(index) else { return };
        let end = match search.id.event() {
            Err(Errno::EAGAIN | Errno::ENOMEM) => return,
            Err(error) => Err(error),
            Ok(event) if event.kind == RDMA_CM_EVENT_ADDR_RESOLVED as u32 => {
                match search.id.resolve_route(RESOLVE_TIMEOUT_MS) {
                    Ok(()) => return,
                    Err(error) => Err(error),
                }
            }
            Ok(event) if event.kind == RDMA_CM_EVENT_ROUTE_RESOLVED as u32 => Ok(()),
            Ok(event) => Err(Errno::new(-event.status)),
        };
        let path = end.and_then(|()| {
            let port = state.port(search.port).filter(|port| !port.broken).ok_or(Errno::ENODEV)?;
            crate::sys::alloc::try_arc(port.path(&search.id)?)
        });
        let search = state.searches.swap_remove(index);
        reactor::unregister(search.key);
        state.peers.search_finished(&search.peer, search.address, path, Instant::now());
    }
}

impl State {
    /// Ends the searches that start at a port. A later datagram starts them again from another
    /// port.
    pub(super) fn end_searches(&mut self, port: Key) {
        let State { searches, peers, .. } = self;
        searches.retain(|search| {
            let stays = search.port != port;
            if !stays {
                reactor::unregister(search.key);
                peers.search_not_started(&search.peer);
            }
            stays
        });
    }
}
