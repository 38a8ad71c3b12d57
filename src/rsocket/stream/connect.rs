//! Connecting: the reactor resolves address and route, and performs the handshake.

use std::ffi::c_int;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::{AF_INET, AF_INET6};

use super::connection::{Connection, Ends};
use super::waiting::Wait;
use super::{Guard, Life, Notice, State, Stream};
use crate::cm;
use crate::diag::Cause;
use crate::errno::{Errno, Result};
use crate::ffi::rdma_cm_event_type::*;
use crate::os::sockaddr::{self, AF_IB, SockAddr};
use crate::os::uapi::{RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY};
use crate::rsocket::cm_id::{CmId, Event};
use crate::rsocket::reactor::{self, Role};
use crate::rsocket::wire::{self, ConnData};

/// Time-out of the first attempt to resolve; it doubles with each further attempt.
const FIRST_TIMEOUT_MS: u32 = 1000;
/// Maximum number of attempts to resolve the address, and of attempts to resolve the route.
const MAX_TRIES: u32 = 6;
/// Number of local ports to try. Only iWARP needs more than one: the connection manager chooses a
/// port that none of its ids uses, but a TCP socket of the kernel may use it.
const MAX_PORTS: u32 = 32;

/// An attempt to connect.
pub(super) struct Attempt {
    /// Address of the peer.
    dst: SockAddr,
    /// Number of tries of the current step.
    tries: u32,
    /// Number of local ports tried.
    ports: u32,
    /// The connection that the peer was asked for.
    pub(super) requested: Option<Box<Connection>>,
}

impl Attempt {
    pub(super) fn new(dst: SockAddr) -> Attempt {
        Attempt { dst, tries: 1, ports: 1, requested: None }
    }

    /// Returns the time-out in milliseconds for another attempt at a step that has failed with
    /// `error`, or `None` to give up.
    fn next_timeout(&mut self, error: Errno) -> Option<c_int> {
        if error != Errno::ETIMEDOUT || self.tries == MAX_TRIES {
            return None;
        }
        let time = (FIRST_TIMEOUT_MS << self.tries) as c_int;
        self.tries += 1;
        Some(time)
    }

    /// After a failure to send the request, returns whether to try again with another local port:
    /// the port was in use, and the connection manager, not the program, had chosen it.
    fn takes_next_port(&mut self, error: Errno, is_bound: bool) -> bool {
        if error != Errno::EADDRINUSE || is_bound || self.ports == MAX_PORTS {
            return false;
        }
        (self.tries, self.ports) = (1, self.ports + 1);
        true
    }
}

impl Stream {
    /// rbind(3).
    pub fn bind(&self, addr: &SockAddr) -> Result<()> {
        let mut state = self.enter()?;
        if let Life::Failed { .. } = state.life {
            self.reset(&mut state)?;
        }
        // The kernel refuses a second address.
        if !matches!(state.life, Life::Idle | Life::Stopped) {
            return Err(Errno::EINVAL);
        }
        state.bind(self.domain, addr)
    }

    /// Resets a socket that has failed to connect, or that stops listening: it becomes unconnected,
    /// with a new id on the same channel. It stays bound to its address.
    pub(super) fn reset(&self, state: &mut State) -> Result<()> {
        // The QP before the id.
        self.channel_fd.store(-1, Ordering::Relaxed);
        if let Life::Connecting(Attempt { requested, .. }) | Life::Failed { requested, .. } = &mut state.life {
            *requested = None;
        }
        state.mappings.list.clear();
        self.renew_id(state)?;
        if let Some(addr) = state.bound {
            state.bind_id(self.domain, &addr)?;
        }
        (state.life, state.error) = (Life::Idle, None);
        Ok(())
    }

    fn renew_id(&self, state: &mut State) -> Result<()> {
        state.id.as_mut().ok_or(Errno::EBADF)?.replace_id(super::port_space(self.domain))?;
        state.apply_options()
    }

    /// rconnect(3): waits for the connection; fails with `EINPROGRESS` on a non-blocking socket.
    pub fn connect(self: &Arc<Self>, dst: &SockAddr) -> Result<()> {
        let mut state = self.enter()?;
        let mut in_progress = Errno::EINPROGRESS;
        let State { life, error, .. } = &mut *state;
        match life {
            Life::Idle | Life::Stopped => self.begin_attempt(&mut state, dst)?,
            Life::Failed { reported: true, .. } => {
                self.reset(&mut state)?;
                self.begin_attempt(&mut state, dst)?;
            }
            // As with TCP, the next call reports the failure of an attempt in the background, even
            // if SO_ERROR has returned the error.
            Life::Failed { .. } => return Err(state.report_failed_attempt().unwrap_or(Errno::ECONNABORTED)),
            // As with TCP, a blocking call waits for the attempt of an earlier call, which a signal
            // may have interrupted.
            Life::Connecting(_) => in_progress = Errno::EALREADY,
            Life::Open(connection) if connection.ends.success_unreported => {
                return connection.ends.report_success(error);
            }
            _ => return Err(Errno::EISCONN),
        }
        if state.is_nonblocking() {
            return Err(in_progress);
        }
        let mut wait = Wait::after(state.options.send_timeout);
        while let Life::Connecting(_) = state.life {
            let (back, result) = self.sleep(state, &mut wait);
            state = back;
            match result {
                Ok(()) => {}
                // As with TCP, the attempt continues in the background.
                Err(Errno::ETIMEDOUT) => return Err(in_progress),
                Err(error) => return Err(error),
            }
        }
        state.end_of_connect()
    }

    /// Begins an attempt to connect, which the reactor continues.
    fn begin_attempt(self: &Arc<Self>, state: &mut State, dst: &SockAddr) -> Result<()> {
        let dst = dst.canonical();
        let rebound = state.rebound_for(self.domain, &dst)?;
        self.watch(state)?;
        if let Some(own) = rebound {
            self.renew_id(state)?;
            state.bind_id(self.domain, &own)?;
        }
        if let Err(error) = state.id()?.resolve_addr(&dst, FIRST_TIMEOUT_MS as c_int) {
            // The next attempt needs a new id: the kernel may have bound this id to an address.
            state.life = Life::tried();
            return Err(error);
        }
        state.life = Life::Connecting(Attempt::new(dst));
        Ok(())
    }

    /// Handles an event of the connection manager. Returns the lock, or `None` if the lock was
    /// released and another thread holds it now.
    pub(super) fn handle_event<'a>(self: &'a Arc<Self>, mut state: Guard<'a>, event: Event) -> Option<Guard<'a>> {
        if let Life::Listening(_) = state.life {
            self.handle_request(&mut state, event);
            return Some(state);
        }
        let kind = crate::ffi::rdma_cm_event_type::from_number(event.kind);
        let step = match (&state.life, kind) {
            (Life::Connecting(_), Some(RDMA_CM_EVENT_ADDR_RESOLVED)) => state.resolve_route(),
            (Life::Connecting(_), Some(RDMA_CM_EVENT_ROUTE_RESOLVED)) => {
                self.send_request(&mut state).or_else(|error| self.use_another_port(&mut state, error))
            }
            (Life::Connecting(_), Some(RDMA_CM_EVENT_ESTABLISHED)) => self.established(&mut state, &event),
            (Life::Connecting(_), Some(RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR)) => {
                state.retry_resolve(&event)
            }
            (Life::Connecting(_), Some(RDMA_CM_EVENT_REJECTED)) => Err(Errno::ECONNREFUSED),
            (Life::Connecting(_), Some(_)) => Err(errno_of(event.kind, event.status)),
            (Life::Accepting(..), Some(kind)) => {
                return self.finish_handshake(state, kind == RDMA_CM_EVENT_ESTABLISHED);
            }
            (Life::Open(_) | Life::Closing(_), Some(kind)) => {
                if let Some(error) = loss_of(kind) {
                    self.connection_lost(&mut state, error);
                }
                return Some(state);
            }
            _ => return Some(state),
        };
        if let Err(error) = step {
            state.log_failure(kind, error);
            self.fail(&mut state, error);
        }
        Some(state)
    }

    /// Creates the QP and sends the connection request, after the route was resolved.
    fn send_request(&self, state: &mut State) -> Result<()> {
        let connection = state.make_connection()?;
        let id = state.id()?;
        let offer = connection.connection_data().emit();
        let mut data = [0; wire::IP_HEADER + ConnData::LEN];
        let start = if self.domain == AF_IB {
            data[..wire::IP_HEADER].copy_from_slice(&ip_header(id)?);
            wire::IP_HEADER
        } else {
            0
        };
        data[start..start + ConnData::LEN].copy_from_slice(&offer);
        id.connect_or_accept(true, &data[..start + ConnData::LEN])?;
        self.channel_fd.store(connection.channel.completions.fd(), Ordering::Relaxed);
        let Life::Connecting(attempt) = &mut state.life else { return Err(Errno::EIO) };
        attempt.requested = Some(connection);
        Ok(())
    }

    /// Handles a failure to send the request: begins again with a new id if another port may help.
    #[cold]
    fn use_another_port(&self, state: &mut State, error: Errno) -> Result<()> {
        let is_bound = state.bound.is_some();
        let Life::Connecting(attempt) = &mut state.life else { return Err(error) };
        if !attempt.takes_next_port(error, is_bound) {
            return Err(error);
        }
        let dst = attempt.dst;
        self.renew_id(state)?;
        state.id()?.resolve_addr(&dst, FIRST_TIMEOUT_MS as c_int)
    }

    /// Completes the connection when the peer has accepted the request.
    fn established(&self, state: &mut State, event: &Event) -> Result<()> {
        // A peer that accepts with other private data does not use the rsocket protocol.
        let peer = ConnData::parse(event.data()).ok_or(Errno::ECONNREFUSED)?;
        let Life::Connecting(attempt) = &mut state.life else { return Err(Errno::EIO) };
        let mut connection = attempt.requested.take().ok_or(Errno::EIO)?;
        connection.set_peer(&peer, event.takes_reads);
        connection.ends.success_unreported = true;
        state.life = Life::Open(connection);
        state.move_to(Role::Events);
        self.on_connected(state);
        Ok(())
    }

    /// Completes the setup of a connection, on the active or the passive side.
    pub(super) fn on_connected(&self, state: &mut State) {
        if let (Life::Open(connection), Some(id)) = (&mut state.life, &state.id) {
            connection.begin_sending(state.options.inline);
            connection.list(self.fd, id.id());
            connection.set_nodelay(state.options.nodelay);
        }
        self.process_completions(state);
        state.set_keep_alive();
        self.notify(Notice::Changed);
    }

    /// Handles the end of the connection, or the removal of the device.
    fn connection_lost(&self, state: &mut State, error: Errno) {
        // Data that has arrived before stays readable, and the peer's last message takes effect.
        self.process_completions(state);
        let State { life, error: pending, .. } = state;
        if let Some(connection) = life.connection_mut() {
            connection.disconnect(Some(error), pending);
            connection.ends.cm_disconnected = true;
        }
        state.flush_and_disconnect();
        self.notify(Notice::Changed);
    }

    /// Handles the loss of the event channel: the process has changed its credentials, and may not
    /// open another channel, so no event can be read any more. A connection is treated as ended,
    /// because its next event would usually report its end.
    #[cold]
    pub(super) fn event_channel_lost(&self, mut state: Guard<'_>, error: Errno) {
        // The channel stays readable, so it must not be watched.
        state.key.take().into_iter().for_each(reactor::unregister);
        match &state.life {
            Life::Accepting(..) => drop(self.finish_handshake(state, false)),
            Life::Open(_) | Life::Closing(_) => self.connection_lost(&mut state, Errno::ECONNRESET),
            Life::Listening(_) => self.listener_lost(&mut state, error),
            _ => self.fail(&mut state, error),
        }
    }

    /// Ends an attempt to connect that has failed.
    fn fail(&self, state: &mut State, error: Errno) {
        state.flush_and_disconnect();
        let requested = if let Life::Connecting(attempt) = &mut state.life { attempt.requested.take() } else { None };
        (state.life, state.error) = (Life::Failed { requested, reported: false }, Some(error));
        self.notify(Notice::Changed);
    }

    /// Handles the keepalive timer: sends a keepalive if the connection has not ended.
    pub(super) fn keep_alive(&self, state: &mut State) {
        self.process_completions(state);
        // A thread that held the lock may have disabled keepalive after the timer expired.
        if state.options.keepalive
            && let Life::Open(connection) = &mut state.life
            && !connection.ends.over
            && let Err(error) = connection.keep_alive()
        {
            connection.fail(error);
            self.process_completions(state);
        }
        if !state.life.is_connected() {
            self.notify(Notice::Changed);
        }
        state.set_keep_alive();
    }
}

impl Ends {
    /// For the first rconnect(3) after an attempt that has succeeded in the background: returns
    /// success or, as with TCP, the error with which the connection has ended since; `ECONNABORTED`
    /// if another call has returned this error.
    fn report_success(&mut self, error: &mut Option<Errno>) -> Result<()> {
        self.success_unreported = false;
        if self.with_error { Err(error.take().unwrap_or(Errno::ECONNABORTED)) } else { Ok(()) }
    }
}

impl State {
    /// Binds a socket of `domain` that is not bound.
    pub(super) fn bind(&mut self, domain: c_int, addr: &SockAddr) -> Result<()> {
        let canonical = addr.canonical();
        if canonical.family() != addr.family() && self.options.is_v6only() {
            return Err(Errno::EINVAL);
        }
        self.bind_id(domain, &canonical)?;
        self.bound = Some(SockAddr::from_storage(&self.id()?.id().source()).unwrap_or(canonical));
        Ok(())
    }

    /// Binds the id of a socket of `domain` to a canonical address.
    fn bind_id(&self, domain: c_int, addr: &SockAddr) -> Result<()> {
        let id = self.id()?;
        if let Some(v6only) = self.options.v6only {
            // Also on for an IPv4 address of an IPv6 socket: otherwise the wildcard address would
            // include IPv6.
            let on = c_int::from(v6only || domain == AF_INET6 && addr.family() == AF_INET);
            id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on.to_ne_bytes())?;
        }
        id.bind(addr)
    }

    /// Returns the address that replaces `bound` for a connection to `dst`, or `None` to keep
    /// `bound`: an IPv6 socket that is bound to the wildcard address can connect to IPv4 peers,
    /// too. Fails with `ENETUNREACH` or `EAFNOSUPPORT` if the socket cannot reach `dst`.
    fn rebound_for(&self, domain: c_int, dst: &SockAddr) -> Result<Option<SockAddr>> {
        let to_ipv4 = domain == AF_INET6 && dst.family() == AF_INET;
        match &self.bound {
            _ if to_ipv4 && self.options.is_v6only() => Err(Errno::ENETUNREACH),
            Some(own) if domain == AF_INET6 && own.family() != dst.family() => {
                if !to_ipv4 {
                    return Err(Errno::EAFNOSUPPORT);
                }
                if !own.is_any() {
                    return Err(Errno::ENETUNREACH);
                }
                let port = u16::from_be(sockaddr::port(own.storage()));
                Ok(Some(SockAddr::from_inet(&(Ipv4Addr::UNSPECIFIED, port).into())))
            }
            _ => Ok(None),
        }
    }

    /// Returns the result of a call of rconnect(3) that has waited for the end of the attempt.
    fn end_of_connect(&mut self) -> Result<()> {
        match &mut self.life {
            Life::Closing(_) | Life::Leaving { .. } | Life::Closed => Err(Errno::EBADF),
            Life::Failed { .. } => Err(self.report_failed_attempt().unwrap_or(Errno::ECONNREFUSED)),
            // Even if the connection has ended already.
            Life::Open(connection) => {
                connection.ends.success_unreported = false;
                Ok(())
            }
            // Another thread has shut the socket down, or has seen the failure and now listens.
            _ => Err(self.error.take().unwrap_or(Errno::ECONNABORTED)),
        }
    }

    /// Logs a failure on this side, after an event that has reported success.
    #[cold]
    fn log_failure(&self, kind: Option<crate::ffi::rdma_cm_event_type>, error: Errno) {
        match kind {
            Some(RDMA_CM_EVENT_ESTABLISHED) if error == Errno::ECONNREFUSED => self.log(error, Cause::BadConnData),
            Some(RDMA_CM_EVENT_ADDR_RESOLVED | RDMA_CM_EVENT_ROUTE_RESOLVED | RDMA_CM_EVENT_ESTABLISHED) => {
                self.log(error, Cause::Connecting);
            }
            _ => {}
        }
    }

    /// Logs a failure that no call reports at once.
    #[cold]
    pub(super) fn log(&self, error: Errno, cause: Cause) {
        if let Some(id) = &self.id {
            cm::log::background(id.id(), error, cause);
        }
    }

    /// Sets the timer for the next keepalive, or clears the timer, unless the timer serves a
    /// background shutdown or the requests of a listener.
    pub(super) fn set_keep_alive(&self) {
        if let (Life::Open(connection), Some(key), None) = (&self.life, self.key, &self.background) {
            let time = Duration::from_secs(self.options.keep_idle.into());
            let on = self.options.keepalive && !connection.ends.over;
            reactor::set_timer(key, on.then(|| Instant::now() + time));
        }
    }

    /// Takes the error of a failed attempt to connect, for the call of rconnect(3) that returns
    /// this error.
    fn report_failed_attempt(&mut self) -> Option<Errno> {
        if let Life::Failed { reported, .. } = &mut self.life {
            *reported = true;
        }
        self.error.take()
    }

    /// Flushes the QP and disconnects, or answers the peer's disconnect request.
    fn flush_and_disconnect(&mut self) {
        self.with_qp().into_iter().for_each(Connection::flush_qp);
        self.disconnect_id();
    }

    /// Returns the connection, even if the peer has not accepted it yet.
    fn with_qp(&self) -> Option<&Connection> {
        match &self.life {
            Life::Connecting(attempt) => attempt.requested.as_deref(),
            Life::Failed { requested, .. } => requested.as_deref(),
            life => life.connection(),
        }
    }

    /// Disconnects the id if it has a QP. Notifies the peer at once.
    pub(super) fn disconnect_id(&self) {
        if self.with_qp().is_some() {
            // Fails harmlessly if the id is not connected.
            let _ = self.id().and_then(CmId::disconnect);
        }
    }

    fn resolve_route(&mut self) -> Result<()> {
        if let Life::Connecting(attempt) = &mut self.life {
            attempt.tries = 1;
        }
        let id = self.id()?;
        if !self.options.route.is_empty() {
            return id.set_option(RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &self.options.route);
        }
        id.resolve_route(FIRST_TIMEOUT_MS as c_int)
    }

    /// Handles a failure to resolve address or route: after a time-out, tries again with more time.
    fn retry_resolve(&mut self, event: &Event) -> Result<()> {
        let error = errno_of(event.kind, event.status);
        let Life::Connecting(attempt) = &mut self.life else { return Err(error) };
        let time = attempt.next_timeout(error).ok_or(error)?;
        let dst = attempt.dst;
        let id = self.id()?;
        if event.kind == RDMA_CM_EVENT_ADDR_ERROR as u32 { id.resolve_addr(&dst, time) } else { id.resolve_route(time) }
    }
}

/// Returns the error with which an event ends a connection, or `None` if the connection continues:
/// for example, `RDMA_CM_EVENT_UNREACHABLE` only reports that the peer's neighbour entry has a new
/// hardware address.
fn loss_of(kind: crate::ffi::rdma_cm_event_type) -> Option<Errno> {
    match kind {
        RDMA_CM_EVENT_DEVICE_REMOVAL => Some(Errno::ENETDOWN),
        RDMA_CM_EVENT_DISCONNECTED | RDMA_CM_EVENT_CONNECT_ERROR | RDMA_CM_EVENT_REJECTED => Some(Errno::ECONNRESET),
        _ => None,
    }
}

/// Returns the errno of a failure: `-status` if `status` is negative, otherwise an errno for the
/// `kind` of event. A positive status is the transport's reject reason.
fn errno_of(kind: u32, status: c_int) -> Errno {
    match status {
        status if status < 0 => Errno::new(-status),
        _ if kind == RDMA_CM_EVENT_DEVICE_REMOVAL as u32 => Errno::ENETDOWN,
        _ if kind == RDMA_CM_EVENT_UNREACHABLE as u32 => Errno::ETIMEDOUT,
        _ => Errno::ECONNREFUSED,
    }
}

/// Returns the IP header that precedes the private data of AF_IB connections.
fn ip_header(id: &CmId) -> Result<[u8; wire::IP_HEADER]> {
    let id = id.id();
    let (from, to) = (SockAddr::from_storage(&id.source())?, SockAddr::from_storage(&id.destination())?);
    Ok(wire::ip_header(&from, &to))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{connecting, failed, listening, state};
    use super::*;

    const REFUSED: Errno = Errno::ECONNREFUSED;
    const ABORTED: Errno = Errno::ECONNABORTED;
    const TIMEOUT: Errno = Errno::ETIMEDOUT;

    #[test]
    fn errors_of_events() {
        for (kind, status, error) in [
            (RDMA_CM_EVENT_ADDR_ERROR, -libc::ENODEV, Errno::ENODEV),
            (RDMA_CM_EVENT_UNREACHABLE, -libc::EHOSTUNREACH, Errno::new(libc::EHOSTUNREACH)),
            (RDMA_CM_EVENT_UNREACHABLE, 0, TIMEOUT),
            (RDMA_CM_EVENT_DEVICE_REMOVAL, 0, Errno::ENETDOWN),
            (RDMA_CM_EVENT_CONNECT_ERROR, 0, REFUSED),
            (RDMA_CM_EVENT_REJECTED, 28, REFUSED),
        ] {
            assert_eq!(errno_of(kind as u32, status), error, "{kind:?} {status}");
        }
        let ends = [RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_REJECTED];
        assert_eq!(ends.map(loss_of), [Some(Errno::ECONNRESET); 3]);
        assert_eq!(loss_of(RDMA_CM_EVENT_DEVICE_REMOVAL), Some(Errno::ENETDOWN));
        let others = [RDMA_CM_EVENT_TIMEWAIT_EXIT, RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_UNREACHABLE];
        assert_eq!(others.map(loss_of), [None; 3]);
    }

    #[test]
    fn a_step_is_repeated_with_more_time() {
        let Life::Connecting(mut attempt) = connecting() else { unreachable!() };
        assert_eq!(attempt.next_timeout(Errno::ENODEV), None);
        let times: Vec<_> = std::iter::from_fn(|| attempt.next_timeout(TIMEOUT)).collect();
        assert_eq!(times, [2000, 4000, 8000, 16_000, 32_000]);
        assert!(!attempt.takes_next_port(Errno::EADDRINUSE, true) && !attempt.takes_next_port(TIMEOUT, false));
        assert!(attempt.next_timeout(TIMEOUT).is_none());
        let ports = 1 + (0..100).take_while(|_| attempt.takes_next_port(Errno::EADDRINUSE, false)).count();
        assert_eq!((ports, attempt.next_timeout(TIMEOUT)), (32, Some(2000)));
    }

    #[test]
    fn results_of_connect() {
        let (none, in_use) = (None, Some(Errno::EADDRINUSE));
        for (life, error, end) in [
            (Life::Idle, none, ABORTED),
            (Life::Stopped, in_use, Errno::EADDRINUSE),
            (listening(), none, ABORTED),
            (failed(true), none, REFUSED),
            (failed(false), none, REFUSED),
            (failed(false), in_use, Errno::EADDRINUSE),
            (Life::Closed, none, Errno::EBADF),
        ] {
            let mut state = State { error, ..state(life) };
            assert_eq!(state.end_of_connect(), Err(end));
            if let Life::Failed { reported, .. } = state.life {
                assert!(reported, "the next call starts over");
            }
        }
    }

    #[test]
    fn a_success_is_reported_once() {
        let reset = Some(Errno::ECONNRESET);
        for (with_error, error, result) in [
            (false, None, Ok(())),
            (false, reset, Ok(())),
            (true, reset, Err(Errno::ECONNRESET)),
            (true, None, Err(ABORTED)),
        ] {
            let mut ends = Ends { with_error, success_unreported: true, ..Ends::default() };
            assert_eq!(ends.report_success(&mut error.clone()), result);
            assert!(!ends.success_unreported);
        }
    }
}
