//! Datagram rsockets.
//!
//! Each rsocket has a UDP socket, whose descriptor is returned to the program, and a UD QP for each
//! local address in use. Datagrams are sent over UDP, with a header that contains the sender's QP
//! number, until the peer's QP and a path to it are known, and over UD afterwards.
//!
//! The reactor reads the UDP socket and drives the path searches, so that peers are answered while
//! the program makes no call. The program's calls poll the CQs. The socket's lock is not held while
//! a call waits, or while a search waits for its next event.

mod data;
mod peers;
mod port;
mod ports;
mod sockopt;
mod udp;

use std::collections::VecDeque;
use std::ffi::{c_int, c_short};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::{POLLERR, POLLHUP, POLLNVAL, POLLRDHUP};

use super::config::defaults;
use super::pollable::{Descriptors, IN, Notice, OUT, Pollable, Watchers, set};
use super::reactor::{self, Key, Role, Service};
use crate::errno::{Errno, Result};
use crate::os::alloc::{try_arc, try_push_small};
use crate::os::fork::Owner;
use crate::os::library_fds::{self, OwnFd};
use crate::os::sockaddr::{SockAddr, canonical_inet, to_sockaddr};
use crate::os::sync::{Guard, Lock};
use data::Datagram;
pub use data::ReceivedMessage;
use peers::Peers;
use port::{Path, Port};
use ports::Search;
use sockopt::Options;
use udp::{Probe, Udp};

/// A datagram rsocket.
pub struct Dgram {
    /// The descriptor of the UDP socket, which is also the program's descriptor.
    pub fd: c_int,
    /// The process that created the socket.
    owner: Owner,
    state: Lock<State>,
    watchers: Watchers,
}

/// The data protected by the lock. After the close, the default.
#[derive(Default)]
struct State {
    /// Finds the local address for a destination while the socket is not bound to an address.
    probe: Option<Probe>,
    domain: c_int,
    /// O_NONBLOCK, as set with rsocket() or rfcntl().
    nonblocking: bool,
    /// The UDP socket's registration in the reactor.
    key: Option<Key>,
    /// Whether the UDP socket's send buffer is full. If set, the reactor waits until the UDP socket
    /// is writable.
    udp_full: bool,
    options: Options,
    /// Dropped before the ports, like the searches: the address handles belong to the ports'
    /// devices.
    peers: Peers<Arc<Path>>,
    searches: Vec<Search>,
    /// When a port could not be created.
    refused: Option<Instant>,
    ports: Vec<Port>,
    /// The descriptors of removed ports, which are never readable. Kept open, because other threads
    /// may still wait for them.
    replaced_fds: Vec<OwnFd>,
    /// Received datagrams that the program has not read yet, and the accounted size of the copied
    /// datagrams.
    queue: VecDeque<Datagram>,
    copied_bytes: usize,
    /// The peer set with rconnect(): the destination of datagrams without an address, and the only
    /// accepted sender.
    connected: Option<SocketAddr>,
    /// Error that SO_ERROR or the next call reports.
    error: Option<Errno>,
    shut_read: bool,
    shut_write: bool,
    /// `None` after the close. Dropped last: the descriptor is in use as long as the ports.
    udp: Option<Udp>,
}

impl Default for Peers<Arc<Path>> {
    fn default() -> Self {
        Peers::new(Duration::from_secs(defaults().dgram_path_lifetime.into()))
    }
}

impl Dgram {
    /// rsocket(3) for SOCK_DGRAM. `flags` may contain SOCK_NONBLOCK and SOCK_CLOEXEC.
    pub fn new(domain: c_int, flags: c_int) -> Result<Arc<Dgram>> {
        let udp = Udp::new(domain, flags)?;
        let socket = try_arc(Dgram {
            fd: udp.fd(),
            owner: Owner::this_process(),
            state: Lock::new(State {
                domain,
                nonblocking: flags & libc::SOCK_NONBLOCK != 0,
                udp: Some(udp),
                ..State::default()
            }),
            watchers: Watchers::default(),
        })?;
        let key = reactor::register(Role::Events, socket.fd, true, socket.clone())?;
        socket.state.lock().key = Some(key);
        Ok(socket)
    }

    /// Takes the lock for a call of the program, and removes broken ports. Fails with `EBADF` for a
    /// closed socket and in a child of the owner.
    fn enter(&self) -> Result<Guard<'_, State>> {
        let mut state = self.owner.enter(&self.state)?;
        if state.udp.is_none() {
            return Err(Errno::EBADF);
        }
        self.remove_broken_ports(&mut state);
        Ok(state)
    }

    /// Counts an edge and notifies the watchers of a change that makes no completion channel
    /// readable.
    fn changed(&self) {
        self.watchers.edges.fetch_add(1, Ordering::Relaxed);
        self.watchers.notify(Notice::Changed);
    }

    /// rbind(3).
    pub fn bind(&self, addr: &SockAddr) -> Result<()> {
        self.enter()?.udp()?.bind(addr)
    }

    /// rconnect(3): sets the destination of datagrams without an address, and the only accepted
    /// sender.
    pub fn connect(self: &Arc<Self>, addr: &SockAddr) -> Result<()> {
        let mut state = self.enter()?;
        let to = state.destination(addr)?;
        // Create the port now, which fails for an unreachable peer. The first datagram requests the
        // peer's QP number.
        self.port_for(&mut state, &to, false)?;
        state.udp()?.connect(addr)?;
        state.connected = Some(to);
        Ok(())
    }

    /// rconnect(3) with AF_UNSPEC: dissolves the association, as udp(7) specifies.
    pub fn disconnect(&self) -> Result<()> {
        let mut state = self.enter()?;
        let before = canonical_inet(&state.udp()?.local_name()?)?;
        state.udp()?.disconnect()?;
        state.connected = None;
        // The kernel has given up the UDP port number, unless the program had chosen it. Bind to
        // the same number again, because peers know the socket's QPs by this number.
        let mut after = canonical_inet(&state.udp()?.local_name()?)?;
        if after.port() == before.port() {
            return Ok(());
        }
        after.set_port(before.port());
        // The kernel has also given up the scope of a link-local address, which `before` still has.
        let own = if after.ip() == before.ip() { before } else { after };
        if state.udp()?.bind(&to_sockaddr(state.domain, &own)).is_err() {
            state.ports.iter_mut().for_each(|port| port.broken = true);
            self.remove_broken_ports(&mut state);
        }
        Ok(())
    }

    /// rshutdown(3). As with UDP, a socket that is not connected is shut down, too, although the
    /// call fails with `ENOTCONN`. The UDP socket itself is not shut down: answers are still sent
    /// to peers, and read from peers.
    pub fn shutdown(&self, how: c_int) -> Result<()> {
        let mut state = self.enter()?;
        if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
            return Err(Errno::EINVAL);
        }
        state.shut_read |= how != libc::SHUT_WR;
        state.shut_write |= how != libc::SHUT_RD;
        let connected = state.connected.is_some();
        drop(state);
        self.changed();
        if connected { Ok(()) } else { Err(Errno::ENOTCONN) }
    }

    /// rclose(3). Waiting calls fail with `EBADF`.
    pub fn close(&self) -> Result<()> {
        if !self.owner.is_this_process() {
            self.close_copies();
            return Ok(());
        }
        let state = self.state.lock().take_all();
        if state.udp.is_none() {
            return Err(Errno::EBADF);
        }
        for key in state.searches.iter().map(|search| search.key).chain(state.key) {
            reactor::unregister(key);
        }
        // Afterwards no call uses the objects in `state`, because every call finds the socket
        // closed.
        self.watchers.notify(Notice::Closed);
        Ok(())
    }

    /// Closes the copies of the descriptors in a child. Everything else belongs to the parent.
    fn close_copies(&self) {
        library_fds::close(self.fd);
        // If a thread of the parent held the lock at the fork, the lock stays held in this process,
        // and the other copies stay open.
        if let Some(mut state) = self.state.try_lock() {
            state.ports.iter().for_each(Port::close_copies);
            state.searches.iter().for_each(|search| library_fds::close(search.id.fd()));
            state.replaced_fds = Vec::new();
            state.probe = None;
            mem::forget(state.take_all());
        }
    }
}

impl State {
    /// Takes everything, for a socket that is closed.
    #[inline(never)] // long, and called from three places
    fn take_all(&mut self) -> State {
        mem::take(self)
    }

    fn udp(&self) -> Result<&Udp> {
        self.udp.as_ref().ok_or(Errno::EBADF)
    }

    fn is_nonblocking(&self, flags: c_int) -> bool {
        flags & libc::MSG_DONTWAIT != 0 || self.nonblocking
    }

    /// Returns the current poll bits of those in `wanted`, POLLERR and POLLHUP.
    fn bits(&self, wanted: c_short) -> c_short {
        let writable = !self.udp_full && self.ports.iter().all(|port| port.broken || port.can_send());
        let all = set(IN, !self.queue.is_empty() || self.shut_read || self.error.is_some())
            | set(OUT, writable || self.shut_write)
            | set(POLLRDHUP, self.shut_read)
            | set(POLLHUP, self.shut_read && self.shut_write)
            | set(POLLERR, self.error.is_some());
        all & (wanted | POLLERR | POLLHUP)
    }
}

impl Pollable for Dgram {
    fn ready(&self, wanted: c_short) -> c_short {
        let Ok(mut state) = self.enter() else { return POLLNVAL };
        self.poll(&mut state);
        state.bits(wanted)
    }

    fn arm(&self, wanted: c_short) -> c_short {
        let Ok(mut state) = self.enter() else { return POLLNVAL };
        state.ports.iter_mut().for_each(Port::arm);
        self.poll(&mut state);
        state.bits(wanted)
    }

    fn take_event(&self) {
        if let Ok(mut state) = self.enter() {
            state.ports.iter_mut().for_each(Port::take_event);
        }
    }

    fn descriptors(&self) -> Result<Descriptors> {
        let mut all = Descriptors::new();
        if let Ok(state) = self.enter() {
            for port in state.ports.iter().filter(|port| !port.broken) {
                try_push_small(&mut all, port.channel.fd())?;
            }
        }
        Ok(all)
    }

    fn watchers(&self) -> &Watchers {
        &self.watchers
    }
}

impl Service for Dgram {
    fn service(self: Arc<Self>, key: Key) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        if state.udp.is_none() {
            return true;
        }
        if state.key.is_none_or(|own| own == key) {
            self.read_udp(&mut state);
            self.check_udp_full(&mut state);
        } else if !state.port_event(key) {
            self.continue_search(&mut state, key);
        }
        self.remove_broken_ports(&mut state);
        true
    }
}

impl Drop for Dgram {
    fn drop(&mut self) {
        // In a child, leak the objects, because they belong to the parent. Otherwise the fields are
        // dropped in order.
        if !self.owner.is_this_process() {
            mem::forget(self.state.get_mut().take_all());
        }
    }
}
