//! Looking for paths to peers, in the background: an id of the connection manager for each, whose events come through the
//! reactor.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use super::port;
use super::{Dgram, State, udp};
use crate::errno::{Errno, Result};
use crate::ffi::rdma_cm_event_type;
use crate::rsocket::cm_id::CmId;
use crate::rsocket::reactor::{self, Key};
use crate::sys::sockaddr::with_port;

/// Most at a time; further peers stay with UDP until they are sent to again.
const MAX_SEARCHES: usize = 32;
/// Milliseconds for each of the two steps.
const RESOLVE_TIMEOUT_MS: i32 = 2000;

/// A search under way.
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
    /// Starts looking for the path from a port to `address`, where the QP of `peer` is.
    pub(super) fn search(self: &Arc<Self>, state: &mut State, port: Key, peer: SocketAddr, address: IpAddr) {
        if let Err(error) = self.start_search(state, port, peer, address) {
            match error {
                Errno::EAGAIN => state.peers.not_now(&peer),
                error => state.peers.found(&peer, address, Err(error), Instant::now()),
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
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        id.resolve_addr(&udp::write(family, &with_port(address, peer.port(), &local)), RESOLVE_TIMEOUT_MS)?;
        let service: Arc<dyn reactor::Service> = Arc::clone(self) as _;
        let key = reactor::watch(id.fd(), service)?;
        state.searches.push(Search { key, id, peer, address, port });
        Ok(())
    }

    /// An event of a search's id is there.
    pub(super) fn search_on(&self, state: &mut State, key: Key) {
        let Some(index) = state.searches.iter().position(|search| search.key == key) else { return };
        let Some(search) = state.searches.get(index) else { return };
        let end = match search.id.event() {
            Err(Errno::EAGAIN | Errno::ENOMEM) => return,
            Err(error) => Err(error),
            Ok(event) if event.kind == rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED as u32 => {
                match search.id.resolve_route(RESOLVE_TIMEOUT_MS) {
                    Ok(()) => return,
                    Err(error) => Err(error),
                }
            }
            Ok(event) if event.kind == rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED as u32 => Ok(()),
            Ok(event) => Err(Errno::new(-event.status)),
        };
        let path = end.and_then(|()| {
            let port = state.port(search.port).filter(|port| !port.broken).ok_or(Errno::ENODEV)?;
            crate::sys::alloc::try_arc(port.path(&search.id)?)
        });
        let search = state.searches.swap_remove(index);
        reactor::forget(search.key);
        state.peers.found(&search.peer, search.address, path, Instant::now());
    }
}

impl State {
    /// Ends the searches from a port: a later datagram begins them anew, from another one.
    pub(super) fn end_searches(&mut self, port: Key) {
        let State { searches, peers, .. } = self;
        searches.retain(|search| {
            let stays = search.port != port;
            if !stays {
                reactor::forget(search.key);
                peers.not_now(&search.peer);
            }
            stays
        });
    }
}
