//! Sends datagrams over UD if the route is known, otherwise over UDP, and queues the datagrams
//! received over UD and UDP.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use libc::{POLLIN, POLLOUT, iovec, sockaddr_storage};

use super::peers::{Qp, Route};
use super::port::{MAX_MESSAGE, Path, Port, Received};
use super::udp::{self, Udp};
use super::{Dgram, State};
use crate::errno::{Errno, Result};
use crate::os::alloc::try_copy;
use crate::os::cancel;
use crate::os::event::Deadline;
use crate::os::sockaddr::{SockAddr, canonical_inet, to_sockaddr, with_port};
use crate::rsocket::config::defaults;
use crate::rsocket::poll::wait_one;
use crate::rsocket::pollable::Pollable;
use crate::rsocket::reactor::{self, Key};
use crate::rsocket::wire::datagram::{MAX_UD_HEADER, MAX_UDP_HEADER, UD_IPV4_HEADER, UdHeader, UdpHeader, UdpOp};

/// Maximum number of UDP packets read at a time, so that the reactor serves other sockets, too.
const MAX_PACKETS: usize = 64;
/// Accounted size of a copied datagram in addition to its payload.
const OVERHEAD: usize = 128;

/// A received datagram.
pub(super) struct Datagram {
    from: SocketAddr,
    payload: Payload,
}

enum Payload {
    /// In a slot of the port with this key, after a header of this length.
    Slot(Key, Received, usize),
    /// A copy, for datagrams received over UDP or by a port that was removed.
    Copy(Vec<u8>),
}

/// The result of a receiving call.
#[derive(Clone, Copy)]
pub struct ReceivedMessage {
    /// Number of received bytes; with MSG_TRUNC, the length of the datagram.
    pub len: usize,
    /// Sender of a datagram.
    pub from: Option<sockaddr_storage>,
    /// Bits for msg_flags.
    pub flags: c_int,
}

impl Dgram {
    /// rrecv(3) and related calls.
    ///
    /// # Safety
    /// The buffers are writable.
    pub unsafe fn receive(self: &Arc<Self>, buffers: &[iovec], flags: c_int) -> Result<ReceivedMessage> {
        if flags & libc::MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // The error queue is always empty: the options that fill it are refused.
        if flags & libc::MSG_ERRQUEUE != 0 {
            return Err(Errno::EAGAIN);
        }
        let mut deadline = None;
        loop {
            let mut state = self.enter()?;
            if state.queue.is_empty() {
                self.poll(&mut state);
            }
            // SAFETY: the buffers are writable: guaranteed by the caller.
            if let Some(received) = unsafe { state.take(buffers, flags) } {
                return Ok(received);
            }
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            if state.shut_read {
                return Ok(ReceivedMessage { len: 0, from: None, flags: 0 });
            }
            if state.is_nonblocking(flags) {
                return Err(Errno::EAGAIN);
            }
            let until = *deadline.get_or_insert_with(|| Deadline::after(state.options.receive_timeout));
            drop(state);
            self.wait(POLLIN, until)?;
        }
    }

    /// Waits for one of `events`. Fails with `EAGAIN` at the deadline, as socket(7) specifies for
    /// SO_RCVTIMEO. After a signal handler has run, the wait continues or fails with `EINTR` as
    /// specified in signal(7): a wait with a deadline always fails.
    fn wait(self: &Arc<Self>, events: i16, deadline: Deadline) -> Result<()> {
        let pollable: Arc<dyn Pollable> = Arc::clone(self) as _;
        loop {
            match wait_one(&pollable, events, deadline) {
                Ok(0) => return Err(Errno::EAGAIN),
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) if deadline.left().is_none() && cancel::ask_for_restart() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads the UDP socket. Called by the reactor when the socket is readable.
    pub(super) fn read_udp(self: &Arc<Self>, state: &mut State) {
        let before = state.queue.len();
        for _ in 0..MAX_PACKETS {
            let mut packet = [0; MAX_UDP_HEADER + MAX_MESSAGE];
            let Ok(udp) = state.udp() else { return };
            match udp.receive(&mut packet) {
                Ok((len, from)) => {
                    // A truncated packet is not from an rsocket.
                    if let Some(packet) = packet.get(..len) {
                        self.handle(state, from, packet);
                    }
                }
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR | Errno::ENOMEM) => {}
                // An earlier datagram has caused an error, for example because the peer's port is
                // closed.
                Err(error) => {
                    state.error = Some(error);
                    self.changed();
                    break;
                }
            }
        }
        if state.queue.len() > before {
            self.changed();
        }
    }

    /// Handles a UDP packet: delivers the payload, learns the sender's QP, and answers.
    fn handle(self: &Arc<Self>, state: &mut State, from: SocketAddr, packet: &[u8]) {
        let Some((header, start)) = UdpHeader::parse(packet) else { return };
        if header.address.is_ipv4() != from.is_ipv4() {
            return;
        }
        let wants_answer = header.op == UdpOp::Data;
        if wants_answer {
            // Datagrams that arrived over UD before this packet are delivered before it.
            self.poll(state);
            state.push_copy(from, packet.get(start..).unwrap_or_default());
        }
        let qp = Qp { number: header.qpn, address: header.address, confirmed: Instant::now() };
        // A sender that states a QP at another address could direct datagrams to that address, so
        // such a sender is reached over UDP only, unless `dgram_any_address` is set.
        let credible = header.address == from.ip() || defaults().dgram_any_address;
        let wanted = if credible { state.peers.header_received(from, qp, wants_answer).unwrap_or(None) } else { None };
        if wanted.is_none() && !wants_answer {
            return;
        }
        // Without a port (the device was removed, or never existed), start no search and send no
        // answer.
        let port = self.port_for(state, &from, true);
        match (wanted, &port) {
            (Some(address), Ok(port)) => self.search(state, *port, from, address),
            (Some(_), Err(_)) => state.peers.search_not_started(&from),
            (None, _) => {}
        }
        if wants_answer && let Ok(port) = port {
            // If the answer is not sent or is lost, the peer's next datagram requests another.
            let _ = state.send_over_udp(port, UdpOp::Control, &[], &from);
        }
    }

    /// rsend(3) and related calls.
    ///
    /// # Safety
    /// The buffers are readable.
    pub unsafe fn send(self: &Arc<Self>, buffers: &[iovec], flags: c_int, to: Option<&SockAddr>) -> Result<usize> {
        if flags & libc::MSG_OOB != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut payload = [0; MAX_MESSAGE];
        // SAFETY: the buffers are readable: guaranteed by the caller.
        let payload = unsafe { gather(buffers, &mut payload)? };
        let (mut deadline, mut armed) = (None, false);
        loop {
            let mut state = self.enter()?;
            if state.shut_write {
                return Err(Errno::EPIPE);
            }
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            let to = match to {
                Some(to) => state.destination(to)?,
                None => state.connected.ok_or(Errno::new(libc::EDESTADDRREQ))?,
            };
            match self.send_one(&mut state, payload, to) {
                Err(Errno::EAGAIN) if !state.is_nonblocking(flags) => {
                    let until = *deadline.get_or_insert_with(|| Deadline::after(state.options.send_timeout));
                    drop(state);
                    self.wait(POLLOUT, until)?;
                }
                // An edge-triggered watcher polled before the queue filled up; arm the CQs so that
                // it is notified of a free slot.
                Err(Errno::EAGAIN) if !armed && !self.watchers.is_empty() => {
                    armed = true;
                    state.ports.iter_mut().for_each(Port::arm);
                }
                result => return result.map(|()| payload.len()),
            }
        }
    }

    fn send_one(self: &Arc<Self>, state: &mut State, payload: &[u8], to: SocketAddr) -> Result<()> {
        if payload.len() > MAX_MESSAGE - if to.is_ipv4() { UD_IPV4_HEADER } else { MAX_UD_HEADER } {
            return Err(Errno::EMSGSIZE);
        }
        let (route, mut wanted) = state.peers.route(to, Instant::now())?;
        if let Route::Ud(path, qpn) = &route {
            // Start the search before sending: sending may fail, and `route` requests the search
            // only once.
            if let Some(address) = wanted.take() {
                self.search(state, path.port, to, address);
            }
            if self.send_over_ud(state, payload, path, *qpn)? {
                return Ok(());
            }
        }
        let port = self.port_for(state, &to, false).inspect_err(|_| state.peers.search_not_started(&to))?;
        if let Some(address) = wanted {
            self.search(state, port, to, address);
        }
        let sent = state.send_over_udp(port, UdpOp::Data, payload, &to);
        if sent == Err(Errno::EAGAIN) {
            state.set_udp_full(true);
        }
        sent
    }

    /// Polls the CQs of all ports, and counts the edges: one for each received datagram, and one
    /// for each port that had no free send slot before and has one now.
    pub(super) fn poll(&self, state: &mut State) {
        self.check_udp_full(state);
        let State { ports, queue, peers, connected, shut_read, domain, .. } = state;
        let (before, mut writable) = (queue.len(), 0);
        for port in ports.iter_mut().filter(|port| !port.broken) {
            let could_send = port.can_send();
            port.poll(|port, received| {
                let Some((mut from, start)) = read_header(port, &received, *domain) else { return false };
                if from.port() == 0 {
                    // rdma-core states port number 0 as long as its UDP socket is not bound.
                    from = peers.find_by_qp(from.ip(), received.qpn).unwrap_or(from);
                }
                let is_wanted = !*shut_read && connected.is_none_or(|peer| peer == from);
                let is_queued = is_wanted && queue.try_reserve(1).is_ok();
                if is_queued {
                    queue.push_back(Datagram { from, payload: Payload::Slot(port.key, received, start) });
                }
                is_queued
            });
            writable += u64::from(!could_send && port.can_send());
        }
        let edges = (queue.len() - before) as u64 + writable;
        if edges > 0 {
            self.watchers.edges.fetch_add(edges, Ordering::Relaxed);
        }
    }

    /// Notices that the UDP socket was full and is writable again.
    pub(super) fn check_udp_full(&self, state: &mut State) {
        if state.udp_full && state.udp().is_ok_and(Udp::is_writable) {
            state.set_udp_full(false);
            self.changed();
        }
    }

    /// Sends over UD. Returns true after sending, false if the path's MTU is too small, or the
    /// path's port was removed or has failed. Fails with `EAGAIN` if the send queue is full, and
    /// with `ENOMEM` if there is no memory.
    fn send_over_ud(&self, state: &mut State, payload: &[u8], path: &Arc<Path>, qpn: u32) -> Result<bool> {
        if state.port(path.port).is_some_and(|port| !port.broken && !port.can_send()) {
            self.poll(state);
        }
        let Some(port) = state.port_mut(path.port).filter(|port| !port.broken) else { return Ok(false) };
        let (header, len) = UdHeader { source: port.local }.emit();
        let total = len + payload.len();
        if total > MAX_MESSAGE.min(path.mtu) {
            return Ok(false);
        }
        let sent = port.send(path, qpn, |slot| {
            slot[..len].copy_from_slice(&header[..len]);
            slot[len..total].copy_from_slice(payload);
            total
        });
        match sent {
            Ok(()) => Ok(true),
            Err(error @ (Errno::EAGAIN | Errno::ENOMEM)) => Err(error),
            Err(_) => {
                port.broken = true;
                Ok(false)
            }
        }
    }
}

impl State {
    /// Returns the bytes of a datagram in the queue.
    pub(super) fn payload<'a>(&'a self, datagram: &'a Datagram) -> &'a [u8] {
        let in_slot = |port, received, start| self.port(port)?.bytes(received).get(start..);
        match &datagram.payload {
            // The port exists: before a port is removed, its datagrams are copied.
            Payload::Slot(port, received, start) => in_slot(*port, received, *start).unwrap_or_default(),
            Payload::Copy(bytes) => bytes,
        }
    }

    /// Copies the first datagram to the buffers. Without MSG_PEEK, removes the datagram from the
    /// queue. Returns `None` if the queue is empty.
    ///
    /// # Safety
    /// The buffers are writable.
    unsafe fn take(&mut self, buffers: &[iovec], flags: c_int) -> Option<ReceivedMessage> {
        let datagram = self.queue.front()?;
        let bytes = self.payload(datagram);
        // SAFETY: the buffers are writable: guaranteed by the caller.
        let copied = unsafe { scatter(bytes, buffers) };
        let truncated = copied < bytes.len();
        let len = if flags & libc::MSG_TRUNC != 0 { bytes.len() } else { copied };
        let from = *to_sockaddr(self.domain, &datagram.from).storage();
        if flags & libc::MSG_PEEK == 0 {
            self.drop_first();
        }
        let flags = if truncated { libc::MSG_TRUNC } else { 0 };
        Some(ReceivedMessage { len, from: Some(from), flags })
    }

    fn drop_first(&mut self) {
        match self.queue.pop_front().map(|datagram| datagram.payload) {
            Some(Payload::Slot(port, received, _)) => {
                if let Some(port) = self.port(port).filter(|port| !port.broken) {
                    // Fails only if the QP has failed, which its completions report.
                    let _ = port.repost(received.slot);
                }
            }
            Some(Payload::Copy(bytes)) => self.copied_bytes = self.copied_bytes.saturating_sub(bytes.len() + OVERHEAD),
            None => {}
        }
    }

    /// Copies the unread datagrams of a port that is about to be removed. Drops a datagram if there
    /// is no memory for it.
    pub(super) fn copy_received(&mut self, port: &Port) {
        let State { queue, copied_bytes, .. } = self;
        queue.retain_mut(|datagram| {
            let Payload::Slot(key, received, start) = &datagram.payload else { return true };
            if *key != port.key {
                return true;
            }
            let Ok(bytes) = try_copy(port.bytes(received).get(*start..).unwrap_or_default()) else { return false };
            *copied_bytes += bytes.len() + OVERHEAD;
            datagram.payload = Payload::Copy(bytes);
            true
        });
    }

    /// Queues a datagram received over UDP. Drops the datagram, as UDP does, if earlier datagrams
    /// already exceed the receive buffer.
    fn push_copy(&mut self, from: SocketAddr, payload: &[u8]) {
        if self.shut_read || self.copied_bytes > self.options.sizes.receive_buffer as usize {
            return;
        }
        if let Ok(bytes) = try_copy(payload)
            && self.queue.try_reserve(1).is_ok()
        {
            self.queue.push_back(Datagram { from, payload: Payload::Copy(bytes) });
            self.copied_bytes += payload.len() + OVERHEAD;
        }
    }

    /// Returns the destination for an address that the program has passed.
    pub(super) fn destination(&self, to: &SockAddr) -> Result<SocketAddr> {
        udp::with_scope(canonical_inet(to.storage())?, || self.udp()?.bound_addr())
    }

    /// Sends a UDP packet with the QP number of a port.
    fn send_over_udp(&self, port: Key, op: UdpOp, payload: &[u8], to: &SocketAddr) -> Result<()> {
        let port = self.port(port).ok_or(Errno::EIO)?;
        let (header, len) = UdpHeader { op, qpn: port.qpn, address: port.local.ip() }.emit();
        self.udp()?.send(header.get(..len).unwrap_or_default(), payload, to)
    }

    /// Notes whether the UDP socket's send buffer is full. While it is, the reactor waits until the
    /// socket is writable.
    fn set_udp_full(&mut self, full: bool) {
        if let Some(key) = self.key.filter(|_| self.udp_full != full) {
            reactor::set_writable_wanted(key, full);
            self.udp_full = full;
        }
    }
}

/// Returns the sender in the header and the offset of the payload. Returns `None` if the header is
/// invalid, or if the sender has an IPv6 address and the socket is an IPv4 socket.
fn read_header(port: &Port, received: &Received, domain: c_int) -> Option<(SocketAddr, usize)> {
    let (header, start) = UdHeader::parse(port.bytes(received))?;
    let source = with_port(header.source.ip(), header.source.port(), &port.local);
    (source.is_ipv4() || domain == libc::AF_INET6).then_some((source, start))
}

/// Copies `bytes` to the buffers. Returns the number of bytes that fit.
///
/// # Safety
/// The buffers are writable.
unsafe fn scatter(mut bytes: &[u8], buffers: &[iovec]) -> usize {
    let whole = bytes.len();
    for buffer in buffers {
        let (now, rest) = bytes.split_at(bytes.len().min(buffer.iov_len));
        if !now.is_empty() {
            // SAFETY: the buffers are writable: guaranteed by the caller; `now` is at most as long
            // as this buffer.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), buffer.iov_base.cast(), now.len()) };
        }
        bytes = rest;
    }
    whole - bytes.len()
}

/// Copies the contents of the buffers to `into`. Returns the copied bytes. Fails with `EMSGSIZE` if
/// they exceed [`MAX_MESSAGE`].
///
/// # Safety
/// The buffers are readable.
unsafe fn gather<'a>(buffers: &[iovec], into: &'a mut [u8; MAX_MESSAGE]) -> Result<&'a [u8]> {
    let mut len = 0_usize;
    for buffer in buffers.iter().filter(|buffer| buffer.iov_len > 0) {
        let free = into[len..].get_mut(..buffer.iov_len).ok_or(Errno::EMSGSIZE)?;
        // SAFETY: the buffers are readable: guaranteed by the caller; `free` has the same length.
        unsafe { std::ptr::copy_nonoverlapping(buffer.iov_base.cast(), free.as_mut_ptr(), free.len()) };
        len += buffer.iov_len;
    }
    Ok(&into[..len])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_scattered_over_buffers() {
        let (mut a, mut b) = ([0_u8; 3], [0_u8; 4]);
        let iovec_of = |bytes: &mut [u8]| iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let buffers = [iovec_of(&mut a), iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }, iovec_of(&mut b)];
        // SAFETY: the buffers are live.
        assert_eq!(unsafe { scatter(b"abcde", &buffers) }, 5);
        // SAFETY: the buffers are live.
        assert_eq!(unsafe { scatter(b"0123456789", &buffers[..1]) }, 3);
        assert_eq!((&a, &b), (b"012", b"de\0\0"));
    }

    #[test]
    fn datagrams_are_gathered_from_buffers() {
        let (a, b) = (*b"abc", [7_u8; MAX_MESSAGE - 3]);
        let iovec_of = |bytes: &[u8]| iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut buffer = [0; MAX_MESSAGE];
        // SAFETY: the buffers are live.
        let all = unsafe { gather(&[iovec_of(&a), iovec_of(&[]), iovec_of(&b)], &mut buffer) }.unwrap();
        assert_eq!((&all[..4], all.len()), (&b"abc\x07"[..], MAX_MESSAGE));
        // SAFETY: the buffers are live.
        let one_too_long = unsafe { gather(&[iovec_of(&a), iovec_of(&b), iovec_of(&a[..1])], &mut buffer) };
        assert_eq!(one_too_long, Err(Errno::EMSGSIZE));
        let endless = iovec { iov_len: usize::MAX, ..iovec_of(&a) };
        // SAFETY: the length is rejected before the buffer is read.
        assert_eq!(unsafe { gather(&[iovec_of(&a), endless], &mut buffer) }, Err(Errno::EMSGSIZE));
    }
}
