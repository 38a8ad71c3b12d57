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
use super::poll_waiter::Spinning;
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

/// State behind a stream's lock. The default is the state of a new socket without an id.
#[derive(Default)]
struct State {
    phase: Phase,
    options: Options,
    /// File status flags: O_NONBLOCK and any other flags that F_SETFL has set.
    flags: c_int,
    /// Pending error, reported by SO_ERROR or the next call.
    error: Option<Errno>,
    /// The stream's registration with the reactor, while the reactor watches the event channel.
    key: Option<Key>,
    /// Declared before `id`, so that the QP is destroyed before the id that it belongs to. No part of
    /// [`Phase`]: a change of the phase would destroy the QP, which takes commands, and has to come
    /// before the PD's end and after the last thread has left (`State::release`).
    connection: Option<Box<Connection>>,
    /// The connection until the peer has accepted it.
    requested: Option<Box<Connection>>,
    id: Option<CmId>,
    /// The address that the socket was bound to, with the assigned port.
    bound: Option<SockAddr>,
    /// An attempt to connect has succeeded, and no call has reported the success yet: the next
    /// rconnect(3) reports it.
    success_unreported: bool,
    /// The connection has ended with an error, which a call may have returned since.
    ended_with_error: bool,
    /// The program has shut down reading.
    shut_read: bool,
    /// The program has shut down writing.
    shut_write: bool,
    /// The peer sends no more data.
    eof: bool,
    /// librspreload now uses the stream, to forward data for the program ([`Stream::hand_over`]).
    handed_over: bool,
    /// The connection manager has reported the end of the connection, or cannot report it any more.
    cm_disconnected: bool,
    /// The disconnect message was sent or queued, or is not needed any more.
    disconnect_sent: bool,
    /// A shutdown or close that the reactor completes in the background.
    background: Option<Background>,
    /// A send after the peer's close was reported as successful, as with TCP: its data is lost.
    send_lost: bool,
    spinning: Spinning,
    /// Number of consecutive receiving calls that had to sleep.
    sleeps: u8,
    mappings: Mappings,
    /// Protection domain of the QP and all memory regions, dropped after them (`State::release`).
    domain: Option<Domain>,
}

/// Phase of a stream's life cycle. The tag is a plain byte, because each call compares it.
#[derive(Default)]
#[repr(u8)]
enum Phase {
    #[default]
    Idle,
    Listening(Listening),
    /// Connecting, as the active side.
    Connecting(Box<Attempt>),
    /// A connection that this listener accepts in the background, until the peer has finished the
    /// handshake.
    Accepting(Weak<Stream>),
    /// Connecting, or the handshake of an accepted connection, has failed. `reported`: rconnect(3)
    /// has returned the error, so the next rconnect(3) begins another attempt.
    Failed {
        reported: bool,
    },
    Connected,
    /// The connection has ended; there may be unread data.
    Disconnected,
    /// Closed by the program; the connection is kept until all sent data has arrived.
    Closing,
    /// `release_due`: only the reactor's threads still use the stream, and the timer releases its
    /// resources ([`Stream::release_soon`]); otherwise a call of rclose(3) does.
    Closed {
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
        if state.is_closed() { Err(Errno::EBADF) } else { Ok(state) }
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
        let Some(connection) = &mut state.connection else { return false };
        let mut batch = NEW_BATCH;
        let completed = connection.poll_recv_cq(&mut batch);
        let has_failed = connection.failure().is_some() && matches!(state.phase, Phase::Connected);
        if completed == 0 && !has_failed && !connection.needs_attention() {
            return false;
        }
        if completed == 1 && matches!(state.phase, Phase::Connected) && connection.take_plain(&batch) {
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
        let Some(connection) = &mut state.connection else { return false };
        if let Phase::Closed { .. } = state.phase {
            return false;
        }
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
        state.eof |= outcome.has(Outcome::EOF);
        if outcome.has(Outcome::DISCONNECT) || (outcome.has(Outcome::EOF) && state.shut_write) {
            state.disconnect(None);
        }
        let Some(connection) = &mut state.connection else { return false };
        let Some(failure) = connection.failure() else { return false };
        let has_failed = matches!(state.phase, Phase::Connected);
        if has_failed {
            // A rejected post causes no completion: flush all work requests of the QP, which wakes
            // the leader.
            connection.flush_qp();
            self.watchers.notify(Notice::Changed);
        }
        state.disconnect(Some(failure));
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

impl State {
    /// Returns the connection if a thread sleeps in its completion channel.
    fn with_leader(&mut self) -> Option<&mut Connection> {
        self.connection.as_deref_mut().filter(|connection| connection.channel.leadership.has_leader())
    }

    /// Marks the connection as ended, with `error` unless the end is orderly.
    fn disconnect(&mut self, error: Option<Errno>) {
        if let Phase::Connected = self.phase {
            self.end(Phase::Disconnected);
            // After both sides have shut down writing, any failure is orderly: the first side that
            // learns of both shutdowns may close at once. If only the peer has sent its last
            // message, a disconnect is orderly: as with TCP, reading then returns 0.
            let is_orderly = self.eof && (self.shut_write || error == Some(Errno::ECONNRESET));
            if !is_orderly {
                self.ended_with_error = error.is_some();
                self.error = self.error.or(error);
            }
        }
        self.eof = true;
        if let Some(connection) = &self.connection {
            connection.list_as_closing();
        }
    }

    /// Enters `phase`, in which no data is sent. Returns the previous phase.
    fn end(&mut self, phase: Phase) -> Phase {
        self.connection.iter_mut().for_each(|connection| connection.end_sending());
        mem::replace(&mut self.phase, phase)
    }

    /// Makes the reactor's thread for `role` serve the stream. Returns whether the role has
    /// changed.
    fn move_to(&mut self, role: Role) -> bool {
        self.key.is_some_and(|key| reactor::set_role(key, role))
    }

    /// Returns whether the program has closed the stream.
    fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closing | Phase::Closed { .. })
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

    /// Returns whether the program may still write.
    fn can_write(&self) -> bool {
        matches!(self.phase, Phase::Connected) && !self.shut_write
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
                c_int::try_from(state.available(false, 0)).unwrap_or(c_int::MAX)
            }
            (base::private::LEVEL, base::private::UNSENT_BYTES) => {
                state.connection.as_mut().map_or(0, |connection| connection.unsent() as c_int)
            }
            (base::private::LEVEL, base::private::LAST_CONNECTIONS) => {
                let Phase::Listening(listening) = &mut state.phase else { return Err(Errno::EINVAL) };
                listening.answer_no_more() as c_int
            }
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => self.domain,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => matches!(state.phase, Phase::Listening(_)).into(),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                let mtu = state.id()?.id().first_path().map(|path| path.mtu);
                mtu.filter(|mtu| (1..=5).contains(mtu)).map_or(DEFAULT_MAXSEG, |mtu| 128 << c_int::from(mtu))
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => {
                let mut info = [0; TCP_INFO];
                // The states of netinet/tcp.h.
                info[0] = match state.phase {
                    Phase::Connected => 1,
                    Phase::Connecting(_) => 2,
                    Phase::Accepting(_) => 3,
                    Phase::Listening(_) => 10,
                    _ => 7,
                };
                let window = state.connection.as_ref().map_or(0, |connection| connection.credits());
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
        let fixed = !matches!(state.phase, Phase::Idle | Phase::Listening(_));
        if (level, name) == (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) && (state.bound.is_some() || fixed) {
            return Err(Errno::EINVAL);
        }
        state.options.set(level, name, value, fixed)?;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) | (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => state.set_keep_alive(),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
                self.send_held(&mut state);
                let nodelay = state.options.nodelay;
                state.connection.iter_mut().for_each(|connection| connection.set_nodelay(nodelay));
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
        if !matches!(state.phase, Phase::Connected | Phase::Disconnected) {
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
        if let Phase::Listening(listening) = state.phase {
            mem::forget(listening.waiting);
        }
        mem::forget((state.connection, state.requested, state.id, state.mappings, state.domain, state.background));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of a stream that has neither a device nor a data path.
    pub fn state(phase: Phase) -> State {
        State { phase, ..State::default() }
    }

    /// A listener without connections.
    pub fn listening() -> Phase {
        Phase::Listening(Listening::new(1, None))
    }

    /// An attempt to connect.
    pub fn connecting() -> Phase {
        let peer = SockAddr::from_inet(&"10.0.0.1:7471".parse().unwrap());
        Phase::Connecting(Box::new(Attempt::new(peer)))
    }

    /// A failed attempt.
    pub fn failed(reported: bool) -> Phase {
        Phase::Failed { reported }
    }

    /// A closed stream.
    pub fn closed() -> Phase {
        Phase::Closed { release_due: false }
    }

    /// The end of a connection that both sides have shut down is no error, as with TCP.
    #[test]
    fn an_orderly_end_is_no_error() {
        let reset = Some(Errno::ECONNRESET);
        for (eof, shut_write, cause, error) in [
            (false, false, None, None),
            (false, false, reset, reset),
            (false, true, reset, reset),
            (true, false, reset, None),
            (true, true, reset, None),
            (true, false, Some(Errno::ETIMEDOUT), Some(Errno::ETIMEDOUT)),
            (true, true, Some(Errno::ETIMEDOUT), None),
        ] {
            let mut state = state(Phase::Connected);
            (state.eof, state.shut_write) = (eof, shut_write);
            state.disconnect(cause);
            assert!(matches!(state.phase, Phase::Disconnected) && state.eof);
            assert_eq!((state.error, state.ended_with_error), (error, error.is_some()));
            state.disconnect(Some(Errno::ENETDOWN));
            assert_eq!(state.error, error, "the first cause is reported");
        }
    }
}
