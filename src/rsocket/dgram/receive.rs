//! Receiving: datagrams from UD and UDP in one queue.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use libc::{POLLIN, iovec, sockaddr_storage};

use super::peers::Qp;
use super::port::{MAX_MESSAGE, Port, Received};
use super::{Dgram, State};
use crate::errno::{Errno, Result};
use crate::os::alloc::try_copy;
use crate::os::cancel;
use crate::os::event::Deadline;
use crate::os::sockaddr::{to_sockaddr, with_port};
use crate::rsocket::config::defaults;
use crate::rsocket::poll::wait_one;
use crate::rsocket::pollable::Pollable;
use crate::rsocket::reactor::Key;
use crate::rsocket::wire::datagram::{MAX_UDP_HEADER, UdHeader, UdpHeader, UdpOp};

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
    /// In a slot of this port, after a header of this length.
    Slot(Key, Received, usize),
    /// A copy, for datagrams received over UDP.
    Copy(Vec<u8>),
}

/// The result of a receiving call.
#[derive(Clone, Copy)]
pub struct ReceivedMessage {
    /// Number of received bytes.
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
    /// SO_RCVTIMEO. After a signal, the wait continues or fails with `EINTR` as specified in
    /// signal(7): with a deadline it always fails.
    pub(super) fn wait(self: &Arc<Self>, events: i16, deadline: Deadline) -> Result<()> {
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
        // A sender that states a QP at another address could direct datagrams there, so it is
        // reached over UDP only.
        let credible = header.address == from.ip() || defaults().dgram_any_address;
        let wanted = if credible { state.peers.header_received(from, qp, wants_answer).unwrap_or(None) } else { None };
        if wanted.is_none() && !wants_answer {
            return;
        }
        // Without a port (the device is removed, or has never existed), the peer is reached over
        // UDP.
        let port = self.port_for(state, &from, true);
        match (wanted, &port) {
            (Some(address), Ok(port)) => self.search(state, *port, from, address),
            (Some(_), Err(_)) => state.peers.search_not_started(&from),
            (None, _) => {}
        }
        if wants_answer && let Ok(port) = port {
            // If the packet is lost, the peer's next datagram requests it again.
            let _ = state.send_over_udp(port, UdpOp::Control, &[], &from);
        }
    }
}

impl State {
    /// Polls all ports. Returns the number of edges: received datagrams, and free send slots after
    /// there was none.
    pub(super) fn poll_ports(&mut self) -> u64 {
        let State { ports, queue, peers, connected, shut_read, domain, .. } = self;
        let (before, mut writable) = (queue.len(), 0);
        for port in ports.iter_mut().filter(|port| !port.broken) {
            let could_send = port.can_send();
            port.poll(|port, received| {
                let datagram = (!*shut_read).then(|| read_header(port, &received, *domain)).flatten();
                let datagram = datagram.map(|(mut from, start)| {
                    if from.port() == 0 {
                        // rdma-core sends datagrams without port number before its UDP socket is
                        // bound.
                        from = peers.find_by_qp(from.ip(), received.qpn).unwrap_or(from);
                    }
                    Datagram { from, payload: Payload::Slot(port.key, received, start) }
                });
                match datagram.filter(|datagram| connected.is_none_or(|peer| peer == datagram.from)) {
                    Some(datagram) if queue.try_reserve(1).is_ok() => {
                        queue.push_back(datagram);
                        true
                    }
                    _ => false,
                }
            });
            writable += u64::from(!could_send && port.can_send());
        }
        (queue.len() - before) as u64 + writable
    }

    /// Returns the length of the first datagram, 0 if there is none.
    pub(super) fn first_len(&self) -> usize {
        self.queue.front().map_or(0, |datagram| self.payload(datagram).len())
    }

    fn payload<'a>(&'a self, datagram: &'a Datagram) -> &'a [u8] {
        let in_slot = |port, received, start| self.port(port)?.bytes(received).get(start..);
        match &datagram.payload {
            // The port exists: before a port is removed, its datagrams are copied.
            Payload::Slot(port, received, start) => in_slot(*port, received, *start).unwrap_or_default(),
            Payload::Copy(bytes) => bytes,
        }
    }

    /// Copies the first datagram, if there is one, to the buffers. Without MSG_PEEK, removes it.
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

    /// Queues a datagram received over UDP. Drops it, as UDP does, if earlier ones already exceed
    /// the receive buffer.
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
}

/// Returns the sender in the header and the offset of the payload. `None` if the header is invalid.
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
}
