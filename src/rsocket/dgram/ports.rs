//! The ports of a socket. A port is created for the first datagram from its address, and removed
//! when its QP fails or its device is removed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::port::Port;
use super::udp::{Probe, is_same_host};
use super::{Dgram, State};
use crate::errno::{Errno, Result};
use crate::ffi::rdma_cm_event_type::{RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_DEVICE_REMOVAL};
use crate::rsocket::pollable::Notice;
use crate::rsocket::reactor::{self, Key, Role};

impl Dgram {
    /// Polls the CQs.
    pub(super) fn poll(&self, state: &mut State) {
        if state.udp_is_writable_again() {
            self.changed();
        }
        let mut edges = 0;
        for index in 0..state.ports.len() {
            edges += state.poll_port(index);
        }
        if edges > 0 {
            self.edges.fetch_add(edges, Ordering::Relaxed);
        }
    }

    /// Returns the port for datagrams to a peer, and creates it for the first one.
    pub(super) fn port_for(self: &Arc<Self>, state: &mut State, peer: &SocketAddr) -> Result<Key> {
        let local = state.source_addr(peer)?;
        self.port_at(state, local)
    }

    /// Like [`port_for`](Self::port_for), for the answer to a packet that anyone may have sent:
    /// after a failure, the port is not created again for a while.
    pub(super) fn port_to_answer(self: &Arc<Self>, state: &mut State, peer: &SocketAddr) -> Result<Key> {
        let local = state.source_addr(peer)?;
        if state.refusals.is_refused(&local.ip(), Instant::now()) {
            return Err(Errno::ENODEV);
        }
        self.port_at(state, local)
    }

    fn port_at(self: &Arc<Self>, state: &mut State, local: SocketAddr) -> Result<Key> {
        let existing = state.ports.iter().find(|port| !port.broken && is_same_host(&port.local, &local));
        if let Some(port) = existing {
            return Ok(port.key());
        }
        state.ports.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let service: Arc<dyn reactor::Service> = Arc::clone(self) as _;
        let port = Port::new(local, state.options.sizes(), |fd| reactor::register(Role::Events, fd, service));
        state.refusals.note(local.ip(), port.is_err(), Instant::now());
        let mut port = port?;
        port.list(self.fd);
        let key = port.key();
        state.ports.push(port);
        // Waiting threads have to wait for the port's descriptors, too.
        self.watchers.notify(Notice::Changed);
        Ok(key)
    }

    /// Removes the broken ports with all objects that use them, because the removal of a device
    /// waits for its users. The caller uses no path.
    pub(super) fn remove_broken_ports(&self, state: &mut State) {
        if self.watchers.is_empty() {
            state.replaced_fds.clear();
        }
        while let Some(index) = state.ports.iter().position(|port| port.broken) {
            // Threads that wait for the descriptors may use their numbers until they are notified.
            if !self.watchers.is_empty() && state.replace_fds(index).is_err() {
                return;
            }
            let port = state.ports.swap_remove(index);
            state.peers.forget(|path| path.port == port.key());
            state.end_searches(port.key());
            state.copy_received(&port);
            drop(port);
            self.changed();
        }
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
        let probe = match self.probe.take() {
            Some(probe) => probe,
            None => Probe::new(self.domain)?,
        };
        Ok(self.probe.insert(probe))
    }

    pub(super) fn port(&self, key: Key) -> Option<&Port> {
        self.ports.iter().find(|port| port.key() == key)
    }

    pub(super) fn port_mut(&mut self, key: Key) -> Option<&mut Port> {
        self.ports.iter_mut().find(|port| port.key() == key)
    }

    /// Handles an event of a port's id. Returns false if `key` is not a port's.
    pub(super) fn port_event(&mut self, key: Key) -> bool {
        let Some(port) = self.port_mut(key) else { return false };
        match port.event() {
            Err(Errno::EAGAIN | Errno::ENOMEM) => {}
            // The paths start at another interface's address.
            Ok(kind) if kind == RDMA_CM_EVENT_ADDR_CHANGE as u32 => self.peers.forget(|path| path.port == key),
            Ok(kind) if kind != RDMA_CM_EVENT_DEVICE_REMOVAL as u32 => {}
            Ok(_) | Err(_) => port.broken = true,
        }
        true
    }

    fn replace_fds(&mut self, index: usize) -> Result<()> {
        let Some(port) = self.ports.get_mut(index) else { return Ok(()) };
        self.replaced_fds.try_reserve(2).map_err(|_| Errno::ENOMEM)?;
        port.replace_fds(|number| self.replaced_fds.push(number))
    }
}
