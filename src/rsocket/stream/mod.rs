//! Stream rsockets.
//!
//! A stream's lock guards everything behind its descriptor. It is held while data is copied, never
//! while waiting. One of the threads that wait for a connected stream, the leader, sleeps in its
//! completion channel; the others wait to be notified by it. Connection manager events come through
//! the reactor.

mod accept;
mod addr;
mod background_close;
mod backlog;
mod blocking;
mod channel_leader;
mod close;
mod connect;
mod connection;
mod data;
mod domain;
mod iomap;
mod options;
mod readiness;
mod sockopt;

use std::ffi::c_int;
use std::mem::{self, ManuallyDrop};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use addr::name_len;
pub use background_close::wait_for_all;
pub use options::Value;
#[cfg(fuzzing)]
pub use options::after_calls;
pub(super) use options::{number, timeout};

use super::cm_id::CmId;
use super::owner::Owner;
use super::reactor::{self, Key, Service};
use super::watch::{Notice, Watchers};
use crate::cm::Domain;
use crate::errno::{Errno, Result};
use crate::ffi::rdma_port_space;
use crate::sys::alloc::try_arc;
use crate::sys::futex::Changes;
use crate::sys::lock::{self, Lock};
use crate::sys::sockaddr::{AF_IB, SockAddr};
use background_close::BackgroundClose;
use backlog::Listening;
use connect::Attempt;
use connection::{Batch, Connection, News, Unconnected};
use iomap::Mappings;
use options::Options;

/// A stream rsocket.
pub struct Stream {
    /// The program's descriptor: that of the id's event channel.
    fd: c_int,
    domain: c_int,
    /// The process that made it.
    owner: Owner,
    state: Lock<State>,
    /// Counts changes, for threads that wait outside of the completion channel.
    changed: Changes,
    watchers: Watchers,
    edges: AtomicU64,
    /// Descriptor of the completion channel, which a child of fork() closes; -1 without one.
    channel_fd: AtomicI32,
}

/// State behind a stream's lock.
struct State {
    phase: Phase,
    options: Options,
    /// File status flags: O_NONBLOCK and whatever else F_SETFL was given.
    flags: c_int,
    /// For SO_ERROR and the next call.
    error: Option<Errno>,
    /// Registration at the reactor, while it watches the event channel.
    key: Option<Key>,
    /// Before `id`: a QP is destroyed before the id that it belongs to (see `close`).
    connection: Option<Box<Connection>>,
    /// While connecting, until the peer has accepted.
    unconnected: Option<Box<Unconnected>>,
    id: Option<CmId>,
    /// The address that the program has bound, with the port that it got.
    bound: Option<SockAddr>,
    /// The program has shut down reading or writing; the peer sends no more.
    shut_read: bool,
    shut_write: bool,
    ended: bool,
    /// The connection manager has reported the end of the connection.
    lost: bool,
    /// A disconnect message was sent, is about to be sent, or was received.
    said_all: bool,
    /// Work that a call which did not wait has left to the reactor.
    closing: Option<BackgroundClose>,
    /// Calls that failed with `EPIPE`.
    pipes: u8,
    mappings: Mappings,
    /// Protection domain of the QP and all memory regions, dropped after them (see `close`).
    domain: Option<Domain>,
}

/// State of a stream's life cycle.
enum Phase {
    Idle,
    Listening(Listening),
    /// Connecting, as the active side.
    Connecting(Box<Attempt>),
    /// Accepted in the background, until the peer has finished the handshake.
    Accepting(Weak<Stream>),
    Connected,
    /// The connection is over; there may be unread data.
    Disconnected,
    /// Connecting failed. `told`: a call of rconnect(3) has reported it, so that the next one
    /// starts over.
    Failed {
        told: bool,
    },
    /// Closed by the program; the connection lives until everything that was sent has arrived.
    Closing,
    Closed,
}

type Guard<'a> = lock::Guard<'a, State>;

impl Stream {
    /// rsocket(3) for SOCK_STREAM; `flags`: SOCK_NONBLOCK, SOCK_CLOEXEC.
    pub fn new(domain: c_int, flags: c_int) -> Result<Arc<Stream>> {
        let id = CmId::new(port_space(domain))?;
        let stream = Stream::with(domain, id, Options::new(), Phase::Idle)?;
        stream.lock().flags = if flags & libc::SOCK_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
        // Channels are close-on-exec whether SOCK_CLOEXEC asks for it or not (docs/quirks.md).
        Ok(stream)
    }

    fn with(domain: c_int, id: CmId, options: Options, phase: Phase) -> Result<Arc<Stream>> {
        try_arc(Stream {
            fd: id.fd(),
            domain,
            owner: Owner::this_process(),
            state: Lock::new(State {
                phase,
                options,
                flags: 0,
                error: None,
                key: None,
                connection: None,
                unconnected: None,
                id: Some(id),
                bound: None,
                shut_read: false,
                shut_write: false,
                ended: false,
                lost: false,
                said_all: false,
                closing: None,
                pipes: 0,
                mappings: Mappings::default(),
                domain: None,
            }),
            changed: Changes::default(),
            watchers: Watchers::default(),
            edges: AtomicU64::new(0),
            channel_fd: AtomicI32::new(-1),
        })
    }

    /// The program's descriptor.
    pub fn fd(&self) -> c_int {
        self.fd
    }

    /// Locks the state. The caller knows that the socket is this process's, and is no signal
    /// handler over the lock's holder.
    fn lock(&self) -> Guard<'_> {
        self.state.lock()
    }

    /// Locks the state for a call of the program. Fails with `EBADF` for a socket of the parent and
    /// for a closed one, and with `EAGAIN` in a signal handler over a call that holds the lock.
    fn enter(&self) -> Result<Guard<'_>> {
        if !self.owner.is_this_process() {
            return Err(Errno::EBADF);
        }
        let state = self.state.lock_unless_mine().map_err(|_| Errno::EAGAIN)?;
        if state.is_closed() { Err(Errno::EBADF) } else { Ok(state) }
    }

    /// Notifies all waiting threads of a change that raises no event in a completion channel.
    fn notify(&self, notice: Notice) {
        self.edges.fetch_add(1, Ordering::Relaxed);
        self.changed.notify();
        self.watchers.notify(notice);
    }

    /// Processes completions. Returns whether there were any.
    #[inline]
    fn process_completions(&self, state: &mut State) -> bool {
        let Some(connection) = &mut state.connection else { return false };
        let mut batch = Batch::new();
        let completed = connection.poll_recv_cq(&mut batch);
        let over = connection.failure().is_some() && matches!(state.phase, Phase::Connected);
        if completed == 0 && !over && !connection.needs_send_completions() {
            return false;
        }
        self.handle_completed(state, &mut batch, completed)
    }

    #[inline(never)]
    fn handle_completed(&self, state: &mut State, batch: &mut Batch, completed: usize) -> bool {
        let Some(connection) = &mut state.connection else { return false };
        if let Phase::Closed = state.phase {
            return false;
        }
        let news = connection.process(batch, completed);
        let failure = connection.failure();
        let over = failure.is_some() && matches!(state.phase, Phase::Connected);
        if news.end || news.disconnect || failure.is_some() {
            self.conclude(state, news, failure);
        }
        if news.edge {
            self.edges.fetch_add(1, Ordering::Relaxed);
        }
        if news.any || failure.is_some() {
            self.changed.notify();
        }
        news.any || over
    }

    #[cold]
    #[inline(never)]
    fn conclude(&self, state: &mut State, news: News, failure: Option<Errno>) {
        state.ended |= news.end;
        if news.disconnect || (news.end && state.shut_write) {
            state.disconnect(None);
        }
        if failure.is_some() {
            // A post that was refused shows in no completion: everything else of the QP is to end as well, which wakes who sleeps.
            if let (Phase::Connected, Some(connection)) = (&state.phase, &mut state.connection) {
                connection.flush_qp();
                self.watchers.notify(Notice::Changed);
            }
            state.disconnect(failure);
        }
    }

    /// Has the reactor look after the channel.
    fn watch(self: &Arc<Self>, state: &mut State) -> Result<()> {
        if state.key.is_none() {
            state.id()?.set_nonblocking()?;
            let service: Arc<dyn Service> = self.clone();
            state.key = Some(reactor::watch(self.fd, service)?);
        }
        Ok(())
    }
}

impl State {
    /// The connection is over, with an error or by agreement.
    fn disconnect(&mut self, error: Option<Errno>) {
        if let Phase::Connected = self.phase {
            self.phase = Phase::Disconnected;
            // When both sides have said their last word, the one who hears the other's first may leave at once.
            if !(self.ended && self.shut_write) {
                self.error = self.error.or(error);
            }
        }
        self.ended = true;
    }

    /// Whether the program has closed it.
    fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closing | Phase::Closed)
    }

    fn id(&self) -> Result<&CmId> {
        self.id.as_ref().ok_or(Errno::EBADF)
    }

    fn is_nonblocking(&self) -> bool {
        self.flags & libc::O_NONBLOCK != 0
    }

    /// Whether the program may still read and write.
    fn can_write(&self) -> bool {
        matches!(self.phase, Phase::Connected) && !self.shut_write
    }

    /// Takes the error for a call that reports it.
    fn take_error(&mut self) -> Option<Errno> {
        self.error.take()
    }
}

/// The port space of the ids of a domain's streams.
fn port_space(domain: c_int) -> u32 {
    let port_space = if domain == AF_IB { rdma_port_space::RDMA_PS_IB } else { rdma_port_space::RDMA_PS_TCP };
    port_space as u32
}

/// How long the reactor leaves a lack of something alone before it looks again.
const RETRY_DELAY: Duration = Duration::from_millis(1);
/// Events of one stream that the reactor handles before it looks at others.
const EVENTS_PER_TURN: usize = 4;

impl Service for Stream {
    fn service(self: Arc<Self>, key: Key) {
        let mut state = self.make_room(self.lock());
        for _ in 0..EVENTS_PER_TURN {
            let Some(id) = state.id.as_ref().filter(|_| !matches!(state.phase, Phase::Closed)) else { return };
            match id.event() {
                Ok(event) => state = self.handle(state, event),
                Err(Errno::EAGAIN | Errno::EINTR) => return,
                // Lack of memory or of numbers loses nothing: the event is still there, and shows
                // again after the rest.
                Err(Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE) => return reactor::rest(key, RETRY_DELAY),
                Err(error) => return self.event_channel_lost(state, error),
            }
            if let Phase::Listening(_) = state.phase {
                // A request has its connection's memory made: others' events come before the next
                // one.
                return;
            }
        }
    }

    fn expired(self: Arc<Self>, _: Key) {
        let mut state = self.lock();
        if state.closing.is_some() {
            return self.continue_close(state);
        }
        match state.phase {
            Phase::Connected => self.keep_alive(&mut state),
            // The peer does not answer: the deadline of this end, whatever the peer has asked for.
            Phase::Accepting(_) => drop(self.accepted(state, Err(Errno::ETIMEDOUT))),
            _ => {}
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if !self.owner.is_this_process() {
            // The parent's: nothing but the descriptors is ours to end, and those went with rclose().
            let mappings = ManuallyDrop::new(mem::take(&mut state.mappings));
            let _ = (ManuallyDrop::new(state.connection.take()), mappings);
            let _ = ManuallyDrop::new(state.unconnected.take());
            let _ = (ManuallyDrop::new(state.domain.take()), ManuallyDrop::new(state.id.take()));
            return;
        }
        // Streams that never reached the program: a listener's that is gone, or one whose making failed.
        state.release();
    }
}

/// A child of fork() has none of the connections that its parent counts.
pub fn in_child() {
    backlog::in_child();
    background_close::in_child();
}

/// The program's address, checked against its length: `EINVAL` when it is shorter than its
/// family's.
///
/// # Safety
/// Readable for `len` bytes, unless NULL.
pub unsafe fn address(addr: *const libc::sockaddr, len: libc::socklen_t) -> Result<SockAddr> {
    let addr = std::ptr::NonNull::new(addr.cast_mut()).ok_or(Errno::EFAULT)?;
    if (len as usize) < size_of::<libc::sa_family_t>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the family is within the length.
    let family = unsafe { (&raw const (*addr.as_ptr()).sa_family).read_unaligned() };
    let needed = crate::sys::sockaddr::len_of_family(c_int::from(family)).ok_or(Errno::EAFNOSUPPORT)?;
    if (len as usize) < needed {
        return Err(Errno::EINVAL);
    }
    // SAFETY: as long as its family says.
    unsafe { SockAddr::from_c(addr) }
}
