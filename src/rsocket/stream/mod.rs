//! Stream rsockets.
//!
//! A stream's lock guards everything behind its descriptor. It is held while data is copied, except
//! for long data while another thread uses the stream ([`data`]), and never while waiting. One of
//! the threads that wait for a connected stream, the leader, sleeps in the stream's completion
//! channel and notifies the others. The threads of the [`reactor`] handle connection manager
//! events.

mod accept;
mod backlog;
mod channel_leader;
mod close;
mod connect;
mod connection;
mod data;
mod iomap;
mod options;
mod service;
mod waiting;

use std::ffi::c_int;
use std::mem;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Weak};

use libc::sockaddr_storage;

pub use close::{in_child, wait_for_all};
#[cfg(fuzzing)]
pub use options::Options as StreamOptions;
pub use options::Value;
pub(super) use options::{number, timeout};

use super::cm_id::CmId;
use super::pollable::{Notice, Watchers};
use super::reactor::{self, Key, Role};
use crate::cm::{self, Domain};
use crate::diag::Endpoints;
use crate::errno::{Errno, Result};
use crate::ffi::rdma_port_space;
use crate::os::alloc::try_arc;
use crate::os::fork::Owner;
use crate::os::sockaddr::{self, AF_IB, SockAddr};
use crate::os::sync::{self, Changes, Lock};
use crate::os::uapi::{RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS};
use backlog::Listening;
use channel_leader::EventSource;
use close::Background;
use connect::Attempt;
use connection::{Batch, Connection, NEW_BATCH, Outcome};
use iomap::Mappings;
use options::Options;

/// TCP_MAXSEG of a stream without a path, in bytes.
const DEFAULT_MAXSEG: c_int = 2048;
/// Length of `struct tcp_info` in bytes, and the offset of its congestion window (linux/tcp.h).
const TCP_INFO: usize = 104;
const TCP_INFO_CWND: usize = 80;

/// A stream rsocket.
pub struct Stream {
    /// The program's descriptor, which is the descriptor of the id's event channel.
    pub fd: c_int,
    /// Address family.
    domain: c_int,
    /// The process that created the stream.
    owner: Owner,
    state: Lock<State>,
    /// Counts changes, for threads that do not wait in the completion channel.
    changed: Changes,
    watchers: Watchers,
    /// Descriptor of the completion channel, or -1. Read only by rclose(3) in a child of fork(),
    /// which closes the descriptor. rclose(3) in the owner leaves a stale value, which is never
    /// used: a child that is forked later does not have the stream in its table.
    channel_fd: AtomicI32,
}

/// Result of [`Stream::receive_at_once`].
pub enum Received {
    /// Data: the number of bytes that were copied.
    Data(usize),
    /// No data yet, and the call does not wait.
    WouldBlock,
    /// No data yet. The stream stays locked, for [`Stream::receive_locked`].
    Nothing,
    /// The call needs the slow path.
    Unusual,
}

/// State behind a stream's lock. The default is the state of a new socket without an id. The first
/// four fields are dropped in this order: the QP before the memory that the peer may write to, the
/// PD of both, and the id that the QP belongs to.
#[derive(Default)]
struct State {
    life: Life,
    mappings: Mappings,
    /// Protection domain of the QP and all memory regions.
    domain: Option<Domain>,
    id: Option<CmId>,
    options: Options,
    /// File status flags: O_NONBLOCK and any other flags that F_SETFL has set.
    flags: c_int,
    /// Pending error, reported by SO_ERROR or the next call.
    error: Option<Errno>,
    /// The stream's registration with the reactor, while the reactor watches the event channel.
    key: Option<Key>,
    /// A shutdown or close that the reactor completes in the background.
    background: Option<Background>,
    /// The address that the socket was bound to, with the assigned port.
    bound: Option<SockAddr>,
    /// librspreload now uses the stream, to forward data for the program ([`Stream::hand_over`]).
    handed_over: bool,
}

/// Life cycle of a stream. Each variant owns what exists in that time only. The tag is a plain byte,
/// because each call compares it; the variants with a connection are the last ones, with the
/// connection at the same place.
#[derive(Default)]
#[repr(u8)]
enum Life {
    #[default]
    Idle,
    /// A listener that rshutdown(3) has stopped. Apart from the error of raccept(3) like `Idle`.
    Stopped,
    Listening(Listening),
    /// Connecting, as the active side.
    Connecting(Attempt),
    /// An attempt to connect has failed. `reported`: rconnect(3) has returned the error, so the next
    /// rconnect(3) begins another attempt. Until then the QP is kept: an answer of the peer that still
    /// arrives is rejected because of it.
    Failed {
        requested: Option<Box<Connection>>,
        reported: bool,
    },
    /// Closed by the program, without a connection.
    Closed,
    /// A connection that this listener accepts in the background, until the peer has finished the
    /// handshake.
    Accepting(Box<Connection>, Weak<Stream>),
    /// A connection; after its end there may be unread data (`Ends::over`).
    Open(Box<Connection>),
    /// Closed by the program; the connection is kept until all sent data has arrived.
    Closing(Box<Connection>),
    /// Closed; the connection is kept until the last thread has left it. `release_due`: only the
    /// reactor's threads still use the stream, and the timer releases its resources
    /// ([`Stream::release_soon`]); otherwise a call of rclose(3) does.
    Leaving {
        connection: Box<Connection>,
        release_due: bool,
    },
}

type Guard<'a> = sync::Guard<'a, State>;

impl Stream {
    /// rsocket(3) for SOCK_STREAM; `flags` may hold SOCK_NONBLOCK and SOCK_CLOEXEC.
    pub fn new(domain: c_int, flags: c_int) -> Result<Arc<Stream>> {
        let id = Some(CmId::new(port_space(domain))?);
        // Channels are close-on-exec with and without SOCK_CLOEXEC (docs/compatibility.md).
        let flags = if flags & libc::SOCK_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
        Stream::with(domain, State { id, flags, ..State::default() })
    }

    /// Creates a stream with `state`, which has an id.
    fn with(domain: c_int, state: State) -> Result<Arc<Stream>> {
        try_arc(Stream {
            fd: state.id()?.fd(),
            domain,
            owner: Owner::this_process(),
            state: Lock::new(state),
            changed: Changes::default(),
            watchers: Watchers::default(),
            channel_fd: AtomicI32::new(-1),
        })
    }

    /// Locks the state. The caller has checked that the socket belongs to this process.
    #[inline]
    fn lock(&self) -> Guard<'_> {
        self.state.lock()
    }

    /// Locks the state for a call of the program. Fails with `EBADF` for a socket of the parent
    /// process or a closed socket.
    fn enter(&self) -> Result<Guard<'_>> {
        let state = self.owner.enter(&self.state)?;
        if state.life.is_closed() { Err(Errno::EBADF) } else { Ok(state) }
    }

    /// Notifies all waiting threads of a change that raises no event in a completion channel.
    fn notify(&self, notice: Notice) {
        self.watchers.edges.fetch_add(1, Ordering::Relaxed);
        self.changed.notify();
        self.watchers.notify(notice);
    }

    /// Processes completions. Returns true if there were any, or if a failure has ended the stream.
    #[inline(never)]
    fn process_completions(&self, state: &mut State) -> bool {
        self.process_completions_here(state)
    }

    /// [`process_completions`](Self::process_completions) for the fast paths: mostly there are
    /// none, which a call would double.
    #[inline(always)]
    fn process_completions_here(&self, state: &mut State) -> bool {
        let Some(connection) = state.life.connection_mut() else { return false };
        let mut batch = NEW_BATCH;
        let completed = connection.poll_recv_cq(&mut batch);
        let has_failed = connection.failure().is_some() && !connection.ends.over;
        if completed == 0 && !has_failed && !connection.needs_attention() {
            return false;
        }
        if completed == 1 && !connection.ends.over && connection.take_plain(&batch) {
            self.watchers.edges.fetch_add(1, Ordering::Relaxed);
            self.changed.notify();
            return true;
        }
        self.process_batch(state, &mut batch, completed)
    }

    /// Processes the first `completed` completions of the batch and all further ones. Returns true
    /// if there were any, or if a failure has ended the stream.
    #[inline(never)]
    fn process_batch(&self, state: &mut State, batch: &mut Batch, completed: usize) -> bool {
        if state.life.is_over() {
            return false;
        }
        let Some(connection) = state.life.connection_mut() else { return false };
        let mut outcome = connection.process(batch, completed);
        if (outcome.has(Outcome::END) || connection.failure().is_some()) && self.handle_end(state, outcome) {
            outcome.add(Outcome::ANY);
        }
        if outcome.has(Outcome::ANY) {
            self.watchers.edges.fetch_add(1, Ordering::Relaxed);
            self.changed.notify();
        }
        channel_leader::ensure_flush_scheduled(self, state);
        channel_leader::ensure_armed(self, state);
        outcome.has(Outcome::ANY)
    }

    /// Handles the end of the peer's data, the peer's disconnect, or a failure of the connection.
    /// Returns whether a failure has ended the stream.
    #[cold]
    #[inline(never)]
    fn handle_end(&self, state: &mut State, outcome: Outcome) -> bool {
        let State { life, error, .. } = state;
        let Some(connection) = life.connection_mut() else { return false };
        connection.ends.eof |= outcome.has(Outcome::EOF);
        if outcome.has(Outcome::DISCONNECT) || (outcome.has(Outcome::EOF) && connection.ends.shut_write) {
            connection.disconnect(None, error);
        }
        let Some(failure) = connection.failure() else { return false };
        let has_failed = !connection.ends.over;
        if has_failed {
            // A rejected post causes no completion: flush all work requests of the QP, which wakes
            // the leader.
            connection.flush_qp();
            self.watchers.notify(Notice::Changed);
        }
        connection.disconnect(Some(failure), error);
        self.changed.notify();
        has_failed
    }

    /// Registers the event channel with the reactor's worker thread, unless it is registered.
    fn watch(self: &Arc<Self>, state: &mut State) -> Result<()> {
        if state.key.is_none() {
            state.key = Some(reactor::register(Role::Setup, self.fd, true, self.clone())?);
        }
        Ok(())
    }
}

/// The variants with a connection that the peer has accepted, or that this side accepts.
macro_rules! with_connection {
    ($connection:ident) => {
        Life::Accepting($connection, _)
            | Life::Open($connection)
            | Life::Closing($connection)
            | Life::Leaving { connection: $connection, .. }
    };
}

impl Life {
    /// After an attempt whose failure a call reports.
    fn tried() -> Life {
        Life::Failed { requested: None, reported: true }
    }

    /// Returns the connection, unless there is none, or the peer has not accepted it yet.
    #[inline]
    fn connection(&self) -> Option<&Connection> {
        match self {
            with_connection!(connection) => Some(connection),
            _ => None,
        }
    }

    /// [`connection`](Self::connection), to be changed.
    #[inline]
    fn connection_mut(&mut self) -> Option<&mut Connection> {
        match self {
            with_connection!(connection) => Some(connection),
            _ => None,
        }
    }

    /// Returns the connection if a thread sleeps in its completion channel.
    fn with_leader(&mut self) -> Option<&mut Connection> {
        self.connection_mut().filter(|connection| connection.channel.leadership.has_leader())
    }

    /// Returns whether there is a connection that has not ended.
    fn is_connected(&self) -> bool {
        matches!(self, Life::Open(connection) if !connection.ends.over)
    }

    /// Returns whether the program has closed the stream.
    fn is_closed(&self) -> bool {
        matches!(self, Life::Closing(_)) || self.is_over()
    }

    /// Returns whether the stream is closed, and nothing more is sent.
    fn is_over(&self) -> bool {
        matches!(self, Life::Leaving { .. } | Life::Closed)
    }

    /// Closes the stream, at once. Returns the queues of a listener.
    fn close(&mut self, release_due: bool) -> Option<Listening> {
        let connection = match mem::replace(self, Life::Closed) {
            with_connection!(connection) => Some(connection),
            Life::Connecting(attempt) => attempt.requested,
            Life::Failed { requested, .. } => requested,
            Life::Listening(listening) => return Some(listening),
            _ => None,
        };
        if let Some(mut connection) = connection {
            connection.end();
            *self = Life::Leaving { connection, release_due };
        }
        None
    }
}

impl State {
    /// Makes the reactor's thread for `role` serve the stream. Returns whether the role has
    /// changed.
    fn move_to(&mut self, role: Role) -> bool {
        self.key.is_some_and(|key| reactor::set_role(key, role))
    }

    fn id(&self) -> Result<&CmId> {
        self.id.as_ref().ok_or(Errno::EBADF)
    }

    fn is_nonblocking(&self) -> bool {
        self.flags & libc::O_NONBLOCK != 0
    }

    /// Returns whether a call with these MSG_* flags must not wait.
    #[inline]
    fn returns_at_once(&self, flags: c_int) -> bool {
        self.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0
    }
}

impl Stream {
    /// Returns the flags of rfcntl(F_GETFL).
    pub fn flags(&self) -> Result<c_int> {
        Ok(self.enter()?.flags)
    }

    /// rfcntl(F_SETFL): only O_NONBLOCK has an effect.
    pub fn set_flags(&self, flags: c_int) -> Result<()> {
        self.enter()?.flags = flags & (libc::O_NONBLOCK | libc::O_APPEND | libc::O_ASYNC);
        Ok(())
    }

    /// rgetsockopt(3): returns the value of an option.
    pub fn option(&self, level: c_int, name: c_int) -> Result<Value> {
        let mut state = self.enter()?;
        let number = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                self.process_completions(&mut state);
                state.error.take().map_or(0, Errno::get)
            }
            (base::private::LEVEL, base::private::READABLE_BYTES) => {
                self.process_completions(&mut state);
                c_int::try_from(state.life.connection().map_or(0, Connection::available)).unwrap_or(c_int::MAX)
            }
            (base::private::LEVEL, base::private::UNSENT_BYTES) => {
                state.life.connection_mut().map_or(0, |connection| connection.unsent() as c_int)
            }
            (base::private::LEVEL, base::private::LAST_CONNECTIONS) => {
                let Life::Listening(listening) = &mut state.life else { return Err(Errno::EINVAL) };
                listening.answer_no_more() as c_int
            }
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => self.domain,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => matches!(state.life, Life::Listening(_)).into(),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                let mtu = state.id()?.id().first_path().map(|path| path.mtu);
                mtu.filter(|mtu| (1..=5).contains(mtu)).map_or(DEFAULT_MAXSEG, |mtu| 128 << c_int::from(mtu))
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => {
                let mut info = [0; TCP_INFO];
                // The states of netinet/tcp.h.
                info[0] = match &state.life {
                    life if life.is_connected() => 1,
                    Life::Connecting(_) => 2,
                    Life::Accepting(..) => 3,
                    Life::Listening(_) => 10,
                    _ => 7,
                };
                let window = state.life.connection().map_or(0, Connection::credits);
                info[TCP_INFO_CWND..TCP_INFO_CWND + 4].copy_from_slice(&window.to_ne_bytes());
                return Ok(Value::bytes(&info));
            }
            _ => return state.options.get(level, name),
        };
        Ok(Value::int(number))
    }

    /// rsetsockopt(3): sets an option.
    pub fn set_option(self: &Arc<Self>, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
        let mut state = self.enter()?;
        // Accepted connections inherit the listener's options.
        let fixed = !matches!(state.life, Life::Idle | Life::Stopped | Life::Listening(_));
        if (level, name) == (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) && (state.bound.is_some() || fixed) {
            return Err(Errno::EINVAL);
        }
        state.options.set(level, name, value, fixed)?;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) | (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => state.set_keep_alive(),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
                self.send_held(&mut state);
                let nodelay = state.options.nodelay;
                state.life.connection_mut().into_iter().for_each(|connection| connection.set_nodelay(nodelay));
            }
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
                let on = c_int::from(state.options.reuse);
                state.id()?.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on.to_ne_bytes())?;
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                state.id()?.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &[state.options.tos])?;
            }
            _ => {}
        }
        Ok(())
    }
}

impl State {
    /// Applies the id's options, SO_REUSEADDR and IP_TOS, to a new id if the program has set them.
    pub(super) fn apply_options(&self) -> Result<()> {
        let id = self.id()?;
        if self.options.reuse {
            id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &1_i32.to_ne_bytes())?;
        }
        if self.options.tos != 0 {
            id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &[self.options.tos])?;
        }
        Ok(())
    }
}

impl Stream {
    /// rgetsockname(3): returns the local address.
    pub fn local_name(&self) -> Result<sockaddr_storage> {
        let state = self.enter()?;
        let id = state.id()?.id();
        let mut name = id.source();
        if name.ss_family == 0 {
            name.ss_family = self.domain as libc::sa_family_t;
        }
        Ok(self.shown(name))
    }

    /// rgetpeername(3). Fails with `ENOTCONN` on a socket without a peer.
    pub fn peer_name(&self) -> Result<sockaddr_storage> {
        let state = self.enter()?;
        if !matches!(state.life, Life::Open(_)) {
            return Err(Errno::ENOTCONN);
        }
        Ok(self.shown(state.id()?.id().destination()))
    }

    /// Returns an address of the id as the program sees it: an IPv4 address is IPv4-mapped on an
    /// IPv6 socket.
    fn shown(&self, name: sockaddr_storage) -> sockaddr_storage {
        sockaddr::inet(&name)
            .filter(SocketAddr::is_ipv4)
            .map_or(name, |v4| *sockaddr::to_sockaddr(self.domain, &v4).storage())
    }

    /// Returns both addresses and the device, for log lines. Returns `None` without an id, in a
    /// child of fork(), or if the lock is held: the calling thread may be in a signal handler that
    /// has interrupted the holder.
    pub fn endpoints(&self) -> Option<Endpoints> {
        let state = self.state.try_lock().filter(|_| self.owner.is_this_process())?;
        Some(cm::log::endpoints(state.id.as_ref()?.id()))
    }
}

/// Returns the port space for ids of streams in `domain`.
fn port_space(domain: c_int) -> u32 {
    let port_space = if domain == AF_IB { rdma_port_space::RDMA_PS_IB } else { rdma_port_space::RDMA_PS_TCP };
    port_space as u32
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.owner.is_this_process() {
            // Releases a stream that was not released before: the program never got the stream, or
            // a signal handler that had interrupted the leader has closed it.
            return self.state.get_mut().release();
        }
        // The stream belongs to the parent process: this process owns only copies of the
        // descriptors, which rclose(3) has closed.
        let state = mem::take(self.state.get_mut());
        match state.life {
            Life::Listening(listening) => mem::forget(listening.waiting),
            life => mem::forget(life),
        }
        mem::forget((state.id, state.mappings, state.domain, state.background));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of a stream that has neither a device nor a data path.
    pub fn state(life: Life) -> State {
        State { life, ..State::default() }
    }

    /// A listener without connections.
    pub fn listening() -> Life {
        Life::Listening(Listening::new(1, None))
    }

    /// An attempt to connect.
    pub fn connecting() -> Life {
        let peer = SockAddr::from_inet(&"10.0.0.1:7471".parse().unwrap());
        Life::Connecting(Attempt::new(peer))
    }

    /// A failed attempt.
    pub fn failed(reported: bool) -> Life {
        Life::Failed { requested: None, reported }
    }

    /// A closed stream has no place for what it was before, except for its connection.
    #[test]
    fn only_a_listener_leaves_something_to_close() {
        for life in [Life::Idle, Life::Stopped, connecting(), failed(true), Life::Closed] {
            let mut life = life;
            assert!(life.close(true).is_none() && life.is_closed() && life.connection().is_none());
        }
        let mut listener = listening();
        assert!(listener.close(false).is_some() && listener.is_closed());
    }
}
