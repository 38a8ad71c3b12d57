//! Connecting: address, route, handshake, driven by the reactor.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::blocking::Wait;
use super::{Guard, Notice, Phase, State, Stream};
use crate::cm;
use crate::diag::Why;
use crate::errno::{Errno, Result};
use crate::ffi::rdma_cm_event_type::*;
use crate::rsocket::cm_id::{CmId, Event};
use crate::rsocket::reactor;
use crate::rsocket::wire::{self, ConnData};
use crate::sys::alloc::try_box;
use crate::sys::sockaddr::{AF_IB, SockAddr};
use crate::sys::uapi::{RDMA_OPTION_IB, RDMA_OPTION_IB_PATH};
use crate::sys::verbs::IBV_TRANSPORT_IWARP;

/// Time for the first try to resolve; it doubles with each further one.
const FIRST_TRY_MS: u32 = 1000;
/// Tries to resolve.
const TRIES: u32 = 6;

/// A connection that is being made.
pub(super) struct Attempt {
    to: SockAddr,
    /// Tries of the present step.
    tries: u32,
}

impl Stream {
    /// rbind(3).
    pub fn bind(&self, addr: &SockAddr) -> Result<()> {
        let mut state = self.enter()?;
        if let Phase::Failed { .. } = state.phase {
            self.start_over(&mut state)?;
        }
        if !matches!(state.phase, Phase::Idle) || state.bound.is_some() {
            return Err(Errno::EINVAL);
        }
        let id = state.id()?;
        id.bind(addr)?;
        // SAFETY: the source address of a live id, which is as long as its family says.
        let name = unsafe { SockAddr::from_c(NonNull::from(&(*id.id().addr()).src.src_storage).cast()) };
        state.bound = Some(name.unwrap_or(*addr));
        Ok(())
    }

    /// Makes a socket whose attempt to connect has failed, or that is not to listen any more, an
    /// unconnected one with a new id on the same channel. It stays bound to its address.
    pub(super) fn start_over(&self, state: &mut State) -> Result<()> {
        self.channel_fd.store(-1, Ordering::Relaxed);
        (state.connection, state.unconnected) = (None, None);
        state.mappings.clear();
        state.id.as_mut().ok_or(Errno::EBADF)?.start_over(super::port_space(self.domain))?;
        state.apply_options()?;
        if let Some(addr) = &state.bound {
            state.id()?.bind(addr)?;
        }
        state.phase = Phase::Idle;
        state.error = None;
        (state.shut_read, state.ended, state.lost) = (false, false, false);
        Ok(())
    }

    /// rconnect(3): waits for the end unless the socket is O_NONBLOCK, which gets `EINPROGRESS`.
    pub fn connect(self: &Arc<Self>, to: &SockAddr) -> Result<()> {
        let mut state = self.enter()?;
        match state.phase {
            Phase::Idle => {}
            Phase::Connecting(_) => return Err(Errno::EALREADY),
            Phase::Connected | Phase::Disconnected | Phase::Accepting(_) | Phase::Listening(_) => {
                return Err(Errno::EISCONN);
            }
            Phase::Failed { told: true } => self.start_over(&mut state)?,
            // As TCP: the failure of an attempt in the background is the result of the next call,
            // even if SO_ERROR was read.
            Phase::Failed { told: false } => return Err(state.tell_attempt().unwrap_or(Errno::ECONNABORTED)),
            Phase::Closing | Phase::Closed => return Err(Errno::EBADF),
        }
        self.watch(&mut state)?;
        let attempt = try_box(Attempt { to: *to, tries: 1 })?;
        state.id()?.resolve_addr(to, FIRST_TRY_MS as c_int)?;
        state.phase = Phase::Connecting(attempt);
        state.shut_read = false;
        if state.is_nonblocking() {
            return Err(Errno::EINPROGRESS);
        }
        let mut wait = Wait::after(state.options.send_timeout);
        while let Phase::Connecting(_) = state.phase {
            let (back, result) = self.sleep(state, &mut wait);
            state = back;
            match result {
                Ok(()) => {}
                // It goes on in the background, as TCP's does.
                Err(Errno::ETIMEDOUT) => return Err(Errno::EINPROGRESS),
                Err(error) => return Err(error),
            }
        }
        match state.phase {
            Phase::Closing | Phase::Closed => Err(Errno::EBADF),
            // Another thread has shut it down.
            Phase::Idle => Err(state.take_error().unwrap_or(Errno::ECONNABORTED)),
            Phase::Failed { .. } => Err(state.tell_attempt().unwrap_or(Errno::ECONNREFUSED)),
            // Connected, even if the peer has left already.
            _ => Ok(()),
        }
    }

    /// An event of the connection manager.
    pub(super) fn handle<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, event: Event) -> Guard<'a> {
        if let Phase::Listening(_) = state.phase {
            return self.request(state, event);
        }
        let kind = crate::ffi::rdma_cm_event_type::from_number(event.kind);
        let step = match (&state.phase, kind) {
            (Phase::Connecting(_), Some(RDMA_CM_EVENT_ADDR_RESOLVED)) => state.resolve_route(),
            (Phase::Connecting(_), Some(RDMA_CM_EVENT_ROUTE_RESOLVED)) => self.shake_hands(&mut state),
            (Phase::Connecting(_), Some(RDMA_CM_EVENT_ESTABLISHED)) => self.established(&mut state, event.data()),
            (Phase::Connecting(_), Some(RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR)) => {
                state.try_again(&event)
            }
            (Phase::Connecting(_), Some(RDMA_CM_EVENT_REJECTED)) => Err(Errno::ECONNREFUSED),
            (Phase::Connecting(_), Some(_)) => Err(errno_of(&event)),
            (Phase::Accepting(_), Some(RDMA_CM_EVENT_ESTABLISHED)) => {
                return self.accepted(state, Ok(()));
            }
            (Phase::Accepting(_), Some(_)) => return self.accepted(state, Err(errno_of(&event))),
            (Phase::Connected | Phase::Disconnected | Phase::Closing, Some(kind)) => {
                self.lost(&mut state, kind);
                return state;
            }
            _ => return state,
        };
        if let Err(error) = step {
            state.tell_failure(kind, error);
            self.fail(&mut state, error);
        }
        state
    }

    /// The route is there: makes the QP and sends the request.
    fn shake_hands(&self, state: &mut State) -> Result<()> {
        let unconnected = state.make_unconnected()?;
        let id = state.id()?;
        let offer = unconnected.connection_data().emit();
        let mut data = [0; wire::IP_HEADER + ConnData::LEN];
        let start = if self.domain == AF_IB {
            data[..wire::IP_HEADER].copy_from_slice(&super::addr::ip_header(id)?);
            wire::IP_HEADER
        } else {
            0
        };
        data[start..start + ConnData::LEN].copy_from_slice(&offer);
        id.shake_hands(true, depth(id), &data[..start + ConnData::LEN])?;
        self.channel_fd.store(unconnected.channel_fd(), Ordering::Relaxed);
        state.unconnected = Some(unconnected);
        Ok(())
    }

    /// The peer has accepted.
    fn established(&self, state: &mut State, data: &[u8]) -> Result<()> {
        // A peer that accepts without our protocol is not one of ours.
        let peer = ConnData::parse(data).map_err(|_| Errno::ECONNREFUSED)?;
        let unconnected = state.unconnected.take().ok_or(Errno::EIO)?;
        let connection = unconnected.connect(&peer).inspect_err(|_| {
            // The peer believes that there is a connection.
            let _ = state.id().and_then(CmId::disconnect);
        })?;
        state.connection = Some(connection);
        state.phase = Phase::Connected;
        self.opened(state);
        Ok(())
    }

    /// A connection came into being, on either side.
    pub(super) fn opened(&self, state: &mut State) {
        self.process_completions(state);
        self.set_keep_alive(state);
        self.notify(Notice::Changed);
    }

    /// The connection manager says that the connection is over, or its device gone.
    fn lost(&self, state: &mut State, kind: crate::ffi::rdma_cm_event_type) {
        if !matches!(
            kind,
            RDMA_CM_EVENT_DISCONNECTED
                | RDMA_CM_EVENT_DEVICE_REMOVAL
                | RDMA_CM_EVENT_CONNECT_ERROR
                | RDMA_CM_EVENT_UNREACHABLE
                | RDMA_CM_EVENT_REJECTED
        ) {
            return;
        }
        let error = if let RDMA_CM_EVENT_DEVICE_REMOVAL = kind { Errno::ENETDOWN } else { Errno::ECONNRESET };
        self.lose(state, error);
    }

    fn lose(&self, state: &mut State, error: Errno) {
        // What had come before stays readable, the peer's last message included.
        self.process_completions(state);
        // A peer that has sent its last message leaves in order: reading ends as it does with TCP,
        // with 0.
        let orderly = state.ended && error == Errno::ECONNRESET;
        state.disconnect((!orderly).then_some(error));
        state.lost = true;
        state.hang_up();
        self.notify(Notice::Changed);
    }

    /// The connection manager has an event that can't be had, nor any after it: the channel is refused to a process that has changed
    /// its user, and it may open no other. For a connection it is the end, which is what such events say.
    #[cold]
    pub(super) fn event_channel_lost(&self, mut state: Guard<'_>, error: Errno) {
        if let Some(key) = state.key.take() {
            // It would show for ever.
            reactor::forget(key);
        }
        match &state.phase {
            Phase::Accepting(_) => drop(self.accepted(state, Err(error))),
            Phase::Connected | Phase::Disconnected | Phase::Closing => self.lose(&mut state, Errno::ECONNRESET),
            Phase::Listening(_) => {
                state.error = Some(error);
                state.shut_read = true;
                self.notify(Notice::Changed);
            }
            _ => self.fail(&mut state, error),
        }
    }

    /// A connection that was not made.
    fn fail(&self, state: &mut State, error: Errno) {
        state.phase = Phase::Failed { told: false };
        state.error = Some(error);
        state.hang_up();
        self.notify(Notice::Changed);
    }

    /// Sets the time of the next keepalive, or none.
    pub(super) fn set_keep_alive(&self, state: &mut State) {
        // The timer is used for closing.
        let Some(key) = state.key.filter(|_| state.closing.is_none()) else { return };
        let on = state.options.keepalive && matches!(state.phase, Phase::Connected);
        let time = Duration::from_secs(state.options.keep_idle.into());
        reactor::expire(key, on.then(|| Instant::now() + time));
    }

    /// The time for a keepalive has come. What became of the last one shows, too.
    pub(super) fn keep_alive(&self, state: &mut State) {
        self.process_completions(state);
        if let (Phase::Connected, Some(connection)) = (&state.phase, &mut state.connection)
            && let Err(error) = connection.keep_alive()
        {
            connection.fail(error);
            self.process_completions(state);
        }
        if !matches!(state.phase, Phase::Connected) {
            self.notify(Notice::Changed);
        }
        self.set_keep_alive(state);
    }
}

impl State {
    /// Logs a failure that no event tells of.
    #[cold]
    fn tell_failure(&self, kind: Option<crate::ffi::rdma_cm_event_type>, error: Errno) {
        let why = match kind {
            Some(RDMA_CM_EVENT_ESTABLISHED) if error == Errno::ECONNREFUSED => Why::NoRsockets,
            Some(RDMA_CM_EVENT_ADDR_RESOLVED | RDMA_CM_EVENT_ROUTE_RESOLVED | RDMA_CM_EVENT_ESTABLISHED) => {
                Why::Connecting
            }
            _ => return,
        };
        if let Ok(id) = self.id() {
            cm::log::background(id.id(), error, why);
        }
    }

    /// Takes the error of a failed attempt to connect for the call of rconnect(3) that reports it.
    fn tell_attempt(&mut self) -> Option<Errno> {
        self.phase = Phase::Failed { told: true };
        self.take_error()
    }

    /// Ends what there is of a connection, or answers a peer that did.
    fn hang_up(&mut self) {
        match (&self.connection, &self.unconnected) {
            (Some(connection), _) => connection.flush_qp(),
            (None, Some(unconnected)) => unconnected.flush_qp(),
            (None, None) => return,
        }
        if let Ok(id) = self.id() {
            // It fails when there is nothing to end.
            let _ = id.disconnect();
        }
    }

    fn resolve_route(&mut self) -> Result<()> {
        if let Phase::Connecting(attempt) = &mut self.phase {
            attempt.tries = 1;
        }
        let id = self.id()?;
        if !self.options.route.is_empty() {
            return id.set_option(RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &self.options.route);
        }
        id.resolve_route(FIRST_TRY_MS as c_int)
    }

    /// Address or route could not be resolved: again with more time, if that was what it lacked.
    fn try_again(&mut self, event: &Event) -> Result<()> {
        let error = errno_of(event);
        let Phase::Connecting(attempt) = &mut self.phase else { return Err(error) };
        if error != Errno::ETIMEDOUT || attempt.tries == TRIES {
            return Err(error);
        }
        let time = (FIRST_TRY_MS << attempt.tries) as c_int;
        attempt.tries += 1;
        let to = attempt.to;
        let id = self.id()?;
        if event.kind == RDMA_CM_EVENT_ADDR_ERROR as u32 { id.resolve_addr(&to, time) } else { id.resolve_route(time) }
    }
}

/// RDMA reads that the handshake asks for: none, but iWARP peers need one to begin with.
pub(super) fn depth(id: &CmId) -> u8 {
    u8::from(id.id().transport() == Some(IBV_TRANSPORT_IWARP))
}

/// What an event's status says; a reason of the transport's says that nobody was there to answer.
fn errno_of(event: &Event) -> Errno {
    match event.status {
        status if status < 0 => Errno::new(-status),
        _ if event.kind == RDMA_CM_EVENT_DEVICE_REMOVAL as u32 => Errno::ENETDOWN,
        _ if event.kind == RDMA_CM_EVENT_UNREACHABLE as u32 => Errno::ETIMEDOUT,
        _ => Errno::ECONNREFUSED,
    }
}
