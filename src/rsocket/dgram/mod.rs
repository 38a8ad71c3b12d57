//! Datagram rsockets.
//!
//! Behind each is a UDP socket, whose number the program knows, and a UD QP for each local address that it uses. Datagrams go
//! over UDP, with a header that tells the sender's QP, until the peer's QP and a path to it are known; then over UD.
//!
//! The reactor reads the UDP socket and follows the searches for paths, so that peers are answered while no call is under
//! way. Completions are looked at by the program's own calls. The socket's lock is held for neither kind of waiting.

mod names;
mod peers;
mod port;
mod ports;
mod receive;
mod refusals;
mod search;
mod send;
mod udp;

use std::collections::VecDeque;
use std::ffi::{c_int, c_short};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use libc::{POLLERR, POLLHUP, POLLNVAL, POLLRDHUP};

use super::bits::{IN, OUT};
use super::config::defaults;
use super::owner::Owner;
use super::reactor::{self, Key, Service};
use super::watch::{Notice, Pollable, Watchers};
use crate::errno::{Errno, Result};
use crate::sys::alloc::try_arc;
use crate::sys::lock::{self, Lock};
use crate::sys::own::{self, OwnFd};
use crate::sys::sockaddr::SockAddr;
use names::Options;
use peers::Peers;
use port::{Path, Port};
use receive::Datagram;
pub use receive::ReceivedMessage;
use refusals::Refusals;
use search::Search;
use udp::Udp;

/// A datagram rsocket.
pub struct Dgram {
    /// The number that the program knows: the UDP socket's.
    fd: c_int,
    /// Of the process that made it.
    owner: Owner,
    state: Lock<State>,
    watchers: Watchers,
    edges: AtomicU64,
}

/// What the lock guards.
struct State {
    /// None once closed.
    udp: Option<Udp>,
    domain: c_int,
    /// O_NONBLOCK, as the program has set it by rsocket() or rfcntl().
    nonblocking: bool,
    /// The reactor's name for the UDP socket.
    key: Option<Key>,
    /// The UDP socket had no room for a packet; the reactor looks out for it.
    udp_full: bool,
    options: Options,
    /// Before the ports, as the searches: what is in it belongs to their devices.
    peers: Peers<Arc<Path>>,
    searches: Vec<Search>,
    /// Local addresses that no port could be made for.
    refusals: Refusals,
    ports: Vec<Port>,
    /// Of ports that are gone: others may still wait for these descriptors, as which nothing is
    /// ever told.
    numbers: Vec<OwnFd>,
    /// Received and not yet read, and how much memory beyond the ports' it takes.
    queue: VecDeque<Datagram>,
    queued: usize,
    /// rconnect(): where datagrams without an address go, and the only ones who are heard.
    connected: Option<SocketAddr>,
    /// For SO_ERROR and the next call.
    error: Option<Errno>,
    shut_read: bool,
    shut_write: bool,
}

/// After which a path in use is resolved again.
fn lifetime() -> Duration {
    Duration::from_secs(defaults().dgram_path_lifetime.into())
}

type Guard<'a> = lock::Guard<'a, State>;

impl Dgram {
    /// rsocket(3) for SOCK_DGRAM; `flags`: SOCK_NONBLOCK, SOCK_CLOEXEC.
    pub fn new(domain: c_int, flags: c_int) -> Result<Arc<Dgram>> {
        let udp = Udp::new(domain, flags)?;
        let socket = try_arc(Dgram {
            fd: udp.fd(),
            owner: Owner::this_process(),
            state: Lock::new(State {
                udp: Some(udp),
                domain,
                nonblocking: flags & libc::SOCK_NONBLOCK != 0,
                key: None,
                udp_full: false,
                options: Options::new(),
                peers: Peers::new(lifetime()),
                refusals: Refusals::new(),
                searches: Vec::new(),
                ports: Vec::new(),
                numbers: Vec::new(),
                queue: VecDeque::new(),
                queued: 0,
                connected: None,
                error: None,
                shut_read: false,
                shut_write: false,
            }),
            watchers: Watchers::new(),
            edges: AtomicU64::new(0),
        })?;
        let service: Arc<dyn Service> = Arc::clone(&socket) as _;
        let key = reactor::watch(socket.fd, service)?;
        socket.lock().key = Some(key);
        Ok(socket)
    }

    /// The descriptor that names it.
    pub fn fd(&self) -> c_int {
        self.fd
    }

    fn lock(&self) -> Guard<'_> {
        self.state.lock()
    }

    /// The lock, for a call of the program: `EBADF` for a socket of the parent's, and for a closed
    /// one; `EAGAIN` in a signal handler over a call that holds it.
    fn enter(&self) -> Result<Guard<'_>> {
        if !self.owner.is_this_process() {
            return Err(Errno::EBADF);
        }
        let mut state = self.state.lock_unless_mine().map_err(|_| Errno::EAGAIN)?;
        if state.udp.is_none() {
            return Err(Errno::EBADF);
        }
        self.let_go(&mut state);
        Ok(state)
    }

    /// Something changed that no completion channel shows.
    fn changed(&self) {
        self.edges.fetch_add(1, Ordering::Relaxed);
        self.watchers.notify(Notice::Changed);
    }

    /// rbind(3).
    pub fn bind(&self, addr: &SockAddr) -> Result<()> {
        self.enter()?.udp()?.bind(addr)
    }

    /// rconnect(3): sets where datagrams without an address go, and whom to hear.
    pub fn connect(self: &Arc<Self>, addr: &SockAddr) -> Result<()> {
        let mut state = self.enter()?;
        let to = udp::read(addr.storage())?;
        // What cannot work is told now. The peer's QP is asked for by the first datagram.
        self.port_for(&mut state, &to)?;
        state.udp()?.connect(addr)?;
        state.connected = Some(to);
        Ok(())
    }

    /// rshutdown(3). As with UDP, for connected sockets. The UDP socket itself goes on: peers are answered, and their
    /// answers read.
    pub fn shutdown(&self, how: c_int) -> Result<()> {
        let mut state = self.enter()?;
        if !matches!(how, libc::SHUT_RD | libc::SHUT_WR | libc::SHUT_RDWR) {
            return Err(Errno::EINVAL);
        }
        if state.connected.is_none() {
            return Err(Errno::new(libc::ENOTCONN));
        }
        state.shut_read |= how != libc::SHUT_WR;
        state.shut_write |= how != libc::SHUT_RD;
        drop(state);
        self.changed();
        Ok(())
    }

    /// rclose(3). Calls that wait end with `EBADF`.
    pub fn close(&self) -> Result<()> {
        if !self.owner.is_this_process() {
            self.close_copies();
            return Ok(());
        }
        let mut state = self.lock();
        let udp = state.udp.take().ok_or(Errno::EBADF)?;
        for key in state.searches.iter().map(|search| search.key).chain(state.key) {
            reactor::forget(key);
        }
        drop(state);
        self.watchers.notify(Notice::Closed);
        // Nobody looks at these any more: every call sees that the socket is closed.
        self.lock().release();
        drop(udp);
        Ok(())
    }

    /// In a child: everything is the parent's but the copies of the descriptors.
    fn close_copies(&self) {
        own::close(self.fd);
        // A lock that a thread of the parent held is held for ever; the other copies then stay open.
        if let Ok(mut state) = self.state.try_lock() {
            for port in mem::take(&mut state.ports) {
                port.abandon();
            }
            for search in mem::take(&mut state.searches) {
                own::close(search.id.fd());
                mem::forget(search);
            }
            state.numbers = Vec::new();
            mem::forget(state.udp.take());
        }
    }
}

impl State {
    fn udp(&self) -> Result<&Udp> {
        self.udp.as_ref().ok_or(Errno::EBADF)
    }

    fn is_nonblocking(&self, flags: c_int) -> bool {
        flags & libc::MSG_DONTWAIT != 0 || self.nonblocking
    }

    /// Every bit that holds.
    fn bits(&self) -> c_short {
        if self.udp.is_none() {
            return POLLNVAL;
        }
        let set = |bits: c_short, on: bool| if on { bits } else { 0 };
        let room = !self.udp_full && self.ports.iter().all(|port| port.broken || port.can_send());
        set(IN, !self.queue.is_empty() || self.shut_read || self.error.is_some())
            | set(OUT, room || self.shut_write)
            | set(POLLRDHUP, self.shut_read)
            | set(POLLHUP, self.shut_read && self.shut_write)
            | set(POLLERR, self.error.is_some())
    }

    fn wanted(&self, wanted: c_short) -> c_short {
        self.bits() & (wanted | POLLERR | POLLHUP | POLLNVAL)
    }

    /// Gives everything back but the memory of the socket. What belongs to a port's device goes before it.
    fn release(&mut self) {
        self.queue = VecDeque::new();
        self.peers.clear();
        self.searches = Vec::new();
        self.ports = Vec::new();
        self.numbers = Vec::new();
    }
}

impl Pollable for Dgram {
    fn ready(&self, wanted: c_short) -> c_short {
        if self.is_held_here() {
            return 0;
        }
        let Ok(mut state) = self.enter() else { return POLLNVAL };
        self.poll(&mut state);
        state.wanted(wanted)
    }

    fn is_held_here(&self) -> bool {
        self.state.is_mine()
    }

    fn arm(&self, wanted: c_short) -> c_short {
        if self.is_held_here() {
            return 0;
        }
        let Ok(mut state) = self.enter() else { return POLLNVAL };
        state.ports.iter_mut().for_each(Port::arm);
        self.poll(&mut state);
        state.wanted(wanted)
    }

    fn take_event(&self) {
        if let Ok(mut state) = self.enter() {
            state.ports.iter_mut().for_each(Port::take_event);
        }
    }

    fn descriptors(&self, add: &mut dyn FnMut(c_int)) {
        if let Ok(state) = self.enter() {
            state.ports.iter().filter(|port| !port.broken).flat_map(Port::fds).for_each(add);
        }
    }

    fn edges(&self) -> u64 {
        self.edges.load(Ordering::Relaxed)
    }

    fn watchers(&self) -> &Watchers {
        &self.watchers
    }
}

impl Service for Dgram {
    fn service(self: Arc<Self>, key: Key) {
        let mut state = self.lock();
        if state.udp.is_none() {
            return;
        }
        if state.key.is_none_or(|own| own == key) {
            self.read_udp(&mut state);
            if state.udp_has_room_again() {
                self.changed();
            }
        } else if !state.port_event(key) {
            self.search_on(&mut state, key);
        }
        self.let_go(&mut state);
    }

    fn expired(self: Arc<Self>, _: Key) {}
}

impl Drop for Dgram {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if !self.owner.is_this_process() {
            mem::forget((mem::take(&mut state.ports), mem::take(&mut state.searches), state.udp.take()));
            mem::forget(mem::replace(&mut state.peers, Peers::new(lifetime())));
            return;
        }
        state.release();
    }
}
