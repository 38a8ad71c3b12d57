//! The ports of a socket: they are made for the first datagram from an address, and go when their
//! QP or their device does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::port::Port;
use super::{Dgram, State};
use crate::errno::{Errno, Result};
use crate::ffi::rdma_cm_event_type::{RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_DEVICE_REMOVAL};
use crate::rsocket::reactor::{self, Key};
use crate::rsocket::watch::Notice;

impl Dgram {
    /// Looks at what completed.
    pub(super) fn poll(&self, state: &mut State) {
        if state.udp_has_room_again() {
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

    /// The port for datagrams to a peer; made when it is the first one from its address.
    pub(super) fn port_for(self: &Arc<Self>, state: &mut State, peer: &SocketAddr) -> Result<Key> {
        let local = state.udp()?.source(peer)?;
        self.port_at(state, local)
    }

    /// As [`port_for`](Self::port_for), to answer a packet that anybody may have sent: where no
    /// port could be made, none is tried again for a while.
    pub(super) fn port_to_answer(self: &Arc<Self>, state: &mut State, peer: &SocketAddr) -> Result<Key> {
        let local = state.udp()?.source(peer)?;
        if state.refusals.refused(&local.ip(), Instant::now()) {
            return Err(Errno::ENODEV);
        }
        self.port_at(state, local)
    }

    fn port_at(self: &Arc<Self>, state: &mut State, local: SocketAddr) -> Result<Key> {
        let known = state.ports.iter().find(|port| !port.broken && port.local.ip() == local.ip());
        if let Some(port) = known {
            return Ok(port.key());
        }
        state.ports.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        let service: Arc<dyn reactor::Service> = Arc::clone(self) as _;
        let port = Port::new(local, state.options.sizes(), |fd| reactor::watch(fd, service));
        state.refusals.note(local.ip(), port.is_err(), Instant::now());
        let port = port?;
        let key = port.key();
        state.ports.push(port);
        // There is one more descriptor to wait for.
        self.watchers.notify(Notice::Changed);
        Ok(key)
    }

    /// Lets the broken ports go, with all that refers to them: a device that is to be removed waits
    /// for its users. Nobody may have a path in hand.
    pub(super) fn let_go(&self, state: &mut State) {
        if self.watchers.is_empty() {
            state.numbers.clear();
        }
        while let Some(index) = state.ports.iter().position(|port| port.broken) {
            // What waits for the descriptors may use their numbers until it is told.
            if !self.watchers.is_empty() && state.leave_numbers(index).is_err() {
                return;
            }
            let port = state.ports.swap_remove(index);
            state.peers.forget(|path| path.port == port.key());
            state.end_searches(port.key());
            state.keep_received(&port);
            drop(port);
            self.changed();
        }
    }
}

impl State {
    pub(super) fn port(&self, key: Key) -> Option<&Port> {
        self.ports.iter().find(|port| port.key() == key)
    }

    pub(super) fn port_mut(&mut self, key: Key) -> Option<&mut Port> {
        self.ports.iter_mut().find(|port| port.key() == key)
    }

    /// Whether `key` is a port's: its id has an event.
    pub(super) fn port_event(&mut self, key: Key) -> bool {
        let Some(port) = self.port_mut(key) else { return false };
        match port.event() {
            Err(Errno::EAGAIN | Errno::ENOMEM) => {}
            // The paths begin at another interface's address.
            Ok(kind) if kind == RDMA_CM_EVENT_ADDR_CHANGE as u32 => self.peers.forget(|path| path.port == key),
            Ok(kind) if kind != RDMA_CM_EVENT_DEVICE_REMOVAL as u32 => {}
            Ok(_) | Err(_) => port.broken = true,
        }
        true
    }

    fn leave_numbers(&mut self, index: usize) -> Result<()> {
        let Some(port) = self.ports.get_mut(index) else { return Ok(()) };
        self.numbers.try_reserve(2).map_err(|_| Errno::ENOMEM)?;
        port.leave_numbers(|number| self.numbers.push(number))
    }
}
