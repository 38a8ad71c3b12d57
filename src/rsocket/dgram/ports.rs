//! The ports of a socket, and searches for the paths that start at them.
//!
//! A port is created when its local address is first used: by rconnect(), for a datagram, or for an
//! answer to a packet. The port is removed when its QP fails or its device is removed. A search has
//! a connection manager id. The reactor's worker handles the id's events, because resolving may
//! wait for ibacm, and creating an address handle may block in a command to the device.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::port::{Port, bound_id};
use super::udp::{Probe, is_same_host};
use super::{Dgram, State};
use crate::errno::{Errno, Result};
use crate::ffi::rdma_cm_event_type::*;
use crate::os::alloc::try_arc;
use crate::os::sockaddr::{SockAddr, with_port};
use crate::os::uapi::{RDMA_OPTION_ID, RDMA_OPTION_ID_TOS};
use crate::rsocket::cm_id::CmId;
use crate::rsocket::pollable::Notice;
use crate::rsocket::reactor::{self, Key, Role};

/// Maximum number of concurrent searches of a socket. If no further search can start, datagrams to
/// the peer go over UDP, and each of them tries to start the search again.
const MAX_SEARCHES: usize = 32;
/// Time-out in milliseconds for resolving the address, and for resolving the route.
const RESOLVE_TIMEOUT_MS: i32 = 2000;
/// Time after a failure to create a port during which received packets, which anyone may have sent,
/// create no port.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// A search in progress.
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
    /// Returns the port for datagrams to `peer`. Creates the port if there is none. If `answers` is
    /// set, the port is for the answer to a packet: within [`RETRY_DELAY`] of a failure to create a
    /// port, the call fails with `ENODEV`.
    pub(super) fn port_for(self: &Arc<Self>, state: &mut State, peer: &SocketAddr, answers: bool) -> Result<Key> {
        let local = state.source_addr(peer)?;
        let existing = state.ports.iter().find(|port| !port.broken && is_same_host(&port.local, &local));
        if let Some(port) = existing {
            return Ok(port.key);
        }
        if answers && state.refused.is_some_and(|since| since.elapsed() < RETRY_DELAY) {
            return Err(Errno::ENODEV);
        }
        state.ports.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let port = Port::new(local, state.options.port_sizes(), self.fd, self.clone())
            .inspect_err(|_| state.refused = Some(Instant::now()))?;
        let key = port.key;
        state.ports.push(port);
        // Waiting threads have to wait for the port's descriptors, too.
        self.watchers.notify(Notice::Changed);
        Ok(key)
    }

    /// Removes the broken ports with all objects that use them, because the removal of a device
    /// waits for its users. The caller holds no reference to a path. A port remains if its
    /// descriptor cannot be kept open for waiting threads.
    pub(super) fn remove_broken_ports(&self, state: &mut State) {
        if self.watchers.is_empty() {
            state.replaced_fds.clear();
        }
        while let Some(index) = state.ports.iter().position(|port| port.broken) {
            // Waiting threads may use the port's descriptors until these threads are notified.
            if !self.watchers.is_empty() && state.replace_fd(index).is_err() {
                return;
            }
            let port = state.ports.swap_remove(index);
            state.peers.forget(|path| path.port == port.key);
            // A later datagram to the peer starts a new search.
            for search in state.searches.extract_if(.., |search| search.port == port.key) {
                reactor::unregister(search.key);
                state.peers.search_not_started(&search.peer);
            }
            state.copy_received(&port);
            drop(port);
            self.changed();
        }
    }

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
        let id = bound_id(&local)?;
        let tos = state.udp()?.type_of_service(&address)?;
        if tos != 0 {
            id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &[tos])?;
        }
        id.resolve_addr(&SockAddr::from_inet(&with_port(address, peer.port(), &local)), RESOLVE_TIMEOUT_MS)?;
        let key = reactor::register(Role::Setup, id.fd(), true, self.clone())?;
        state.searches.push(Search { key, id, peer, address, port });
        Ok(())
    }

    /// Handles an event of a search's id.
    pub(super) fn continue_search(&self, state: &mut State, key: Key) {
        let mut searches = state.searches.iter().enumerate();
        let Some((index, search)) = searches.find(|(_, search)| search.key == key) else { return };
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
            try_arc(port.path(&search.id)?)
        });
        let search = state.searches.swap_remove(index);
        reactor::unregister(search.key);
        state.peers.search_finished(&search.peer, search.address, path, Instant::now());
    }
}

impl State {
    /// Returns the local address for datagrams to `to`.
    fn source_addr(&mut self, to: &SocketAddr) -> Result<SocketAddr> {
        let bound = self.udp()?.bound_addr()?;
        if !bound.ip().is_unspecified() {
            return Ok(bound);
        }
        self.probe()?;
        let mut source = self.probe.as_ref().ok_or(Errno::EIO)?.source_addr(self.udp()?, to)?;
        source.set_port(bound.port());
        Ok(source)
    }

    /// Returns the probe, and creates it the first time.
    pub(super) fn probe(&mut self) -> Result<&Probe> {
        match &mut self.probe {
            Some(probe) => Ok(probe),
            none => Ok(none.insert(Probe::new(self.domain)?)),
        }
    }

    pub(super) fn port(&self, key: Key) -> Option<&Port> {
        self.ports.iter().find(|port| port.key == key)
    }

    pub(super) fn port_mut(&mut self, key: Key) -> Option<&mut Port> {
        self.ports.iter_mut().find(|port| port.key == key)
    }

    /// Handles an event of a port's id. Returns false if `key` identifies no port.
    pub(super) fn port_event(&mut self, key: Key) -> bool {
        let Some(port) = self.port_mut(key) else { return false };
        match port.id.event().map(|event| event.kind) {
            Err(Errno::EAGAIN | Errno::ENOMEM) => {}
            // The hardware address of the port's interface has changed, so the paths are no longer
            // valid.
            Ok(kind) if kind == RDMA_CM_EVENT_ADDR_CHANGE as u32 => self.peers.forget(|path| path.port == key),
            Ok(kind) if kind != RDMA_CM_EVENT_DEVICE_REMOVAL as u32 => {}
            Ok(_) | Err(_) => port.broken = true,
        }
        true
    }

    /// Moves the channel of a port to another descriptor, and keeps the old descriptor open.
    fn replace_fd(&mut self, index: usize) -> Result<()> {
        self.replaced_fds.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        self.replaced_fds.push(self.ports[index].channel.move_to_new_fd()?);
        Ok(())
    }
}
