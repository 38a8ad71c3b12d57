//! Receiving: what completed and what came over UDP, in one queue.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use libc::{POLLIN, iovec, sockaddr_storage};

use super::peers::Qp;
use super::port::{MAX_MESSAGE, Port, Received};
use super::{Dgram, State, udp};
use crate::errno::{Errno, Result};
use crate::rsocket::config::defaults;
use crate::rsocket::poll::wait_one;
use crate::rsocket::reactor::Key;
use crate::rsocket::watch::Pollable;
use crate::rsocket::wire::datagram::{UDP_MOST, UdHeader, UdpHeader, UdpOp};
use crate::sys::alloc::try_copy;
use crate::sys::event::Deadline;
use crate::sys::signals;
use crate::sys::sockaddr::with_port;

/// UDP packets read at a time: the reactor serves other sockets too.
const BATCH: usize = 64;
/// What a datagram in memory of its own costs beside its bytes.
const OVERHEAD: usize = 128;

/// A received datagram.
#[derive(Debug)]
pub(super) struct Datagram {
    from: SocketAddr,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// In a slot of this port, behind so many bytes of header.
    Slot(Key, Received, usize),
    /// What came over UDP.
    Copy(Vec<u8>),
}

/// What a receiving call returns besides the data.
#[derive(Clone, Copy)]
pub struct ReceivedMessage {
    /// Bytes.
    pub len: usize,
    /// Source of a datagram.
    pub from: Option<sockaddr_storage>,
    /// For msg_flags.
    pub flags: c_int,
}

impl Dgram {
    /// rrecv(3) and its relatives.
    ///
    /// # Safety
    /// Buffers writable for their lengths.
    pub unsafe fn receive(self: &Arc<Self>, buffers: &[iovec], flags: c_int) -> Result<ReceivedMessage> {
        if flags & libc::MSG_OOB != 0 {
            return Err(Errno::new(libc::EOPNOTSUPP));
        }
        let mut deadline = None;
        loop {
            let mut state = self.enter()?;
            if state.queue.is_empty() {
                self.poll(&mut state);
            }
            // SAFETY: buffers writable for their lengths: guaranteed by the caller.
            if let Some(received) = unsafe { state.take(buffers, flags)? } {
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

    /// Waits until one of `events` holds; `EAGAIN` at the deadline, as socket(7) has it for SO_RCVTIMEO. After a signal it goes
    /// on or fails with `EINTR`, as signal(7) says: a wait with a deadline never goes on.
    pub(super) fn wait(self: &Arc<Self>, events: i16, deadline: Deadline) -> Result<()> {
        let pollable: Arc<dyn Pollable> = Arc::clone(self) as _;
        loop {
            match wait_one(&pollable, events, deadline) {
                Ok(0) => return Err(Errno::EAGAIN),
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) if deadline.left().is_none() && signals::ask_for_restart() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// For the reactor: the UDP socket is readable.
    pub(super) fn read_udp(self: &Arc<Self>, state: &mut State) {
        let before = state.queue.len();
        for _ in 0..BATCH {
            let mut packet = [0; UDP_MOST + MAX_MESSAGE];
            let Ok(udp) = state.udp() else { return };
            match udp.receive(&mut packet) {
                Ok((len, from)) => {
                    // One that was cut off is none of ours.
                    if let Some(packet) = packet.get(..len) {
                        self.handle(state, from, packet);
                    }
                }
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR | Errno::ENOMEM) => {}
                // What a datagram sent before led to: nobody listens there.
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

    /// A UDP packet: delivers its payload, learns the sender's QP, and answers.
    fn handle(self: &Arc<Self>, state: &mut State, from: SocketAddr, packet: &[u8]) {
        let Ok((header, start)) = UdpHeader::parse(packet) else { return };
        if header.address.is_ipv4() != from.is_ipv4() {
            return;
        }
        let asked = header.op == UdpOp::Data;
        if asked {
            state.push_copy(from, packet.get(start..).unwrap_or_default());
        }
        let qp = Qp { number: header.qpn, address: header.address, confirmed: Instant::now() };
        // Who names a QP at somebody else's address may not send datagrams there: it stays with
        // UDP.
        let credible = header.address == from.ip() || defaults().dgram_any_address;
        let wanted = if credible { state.peers.heard(from, qp, asked).unwrap_or(None) } else { None };
        if wanted.is_none() && !asked {
            return;
        }
        // Without a port (the device is gone, or there never was one) the peer stays with UDP.
        let port = self.port_to_answer(state, &from);
        match (wanted, &port) {
            (Some(address), Ok(port)) => self.search(state, *port, from, address),
            (Some(_), Err(_)) => state.peers.not_now(&from),
            (None, _) => {}
        }
        if asked && let Ok(port) = port {
            state.answer(port, &from);
        }
    }
}

impl State {
    /// Takes what completed at a port; how many datagrams became readable, or slots writable after none was.
    pub(super) fn poll_port(&mut self, index: usize) -> u64 {
        let State { ports, queue, peers, connected, shut_read, domain, .. } = self;
        let Some(port) = ports.get_mut(index).filter(|port| !port.broken) else { return 0 };
        let (before, could_send) = (queue.len(), port.can_send());
        port.poll(|port, received| {
            let datagram = (!*shut_read).then(|| read_header(port, &received, *domain)).flatten();
            let datagram = datagram.map(|(mut from, start)| {
                if from.port() == 0 {
                    // What the reference sends before its UDP socket has a port.
                    from = peers.behind(from.ip(), received.qpn).unwrap_or(from);
                }
                Datagram { from, place: Place::Slot(port.key(), received, start) }
            });
            match datagram.filter(|datagram| connected.is_none_or(|peer| same(&peer, &datagram.from))) {
                Some(datagram) if queue.try_reserve(1).is_ok() => {
                    queue.push_back(datagram);
                    true
                }
                _ => false,
            }
        });
        let writable = !could_send && port.can_send();
        if port.broken {
            let key = port.key();
            peers.forget(|path| path.port == key);
        }
        (queue.len() - before) as u64 + u64::from(writable)
    }

    /// Hands out the first datagram, if there is one.
    ///
    /// # Safety
    /// Buffers writable for their lengths.
    unsafe fn take(&mut self, buffers: &[iovec], flags: c_int) -> Result<Option<ReceivedMessage>> {
        let Some(datagram) = self.queue.front() else { return Ok(None) };
        let bytes = match &datagram.place {
            Place::Slot(port, received, start) => {
                let port = self.port(*port).ok_or(Errno::EIO)?;
                port.bytes(received).get(*start..).unwrap_or_default()
            }
            Place::Copy(bytes) => bytes,
        };
        // SAFETY: buffers writable for their lengths: guaranteed by the caller.
        let copied = unsafe { scatter(bytes, buffers) };
        let cut = copied < bytes.len();
        let len = if flags & libc::MSG_TRUNC != 0 { bytes.len() } else { copied };
        let from = *udp::write(self.domain, &datagram.from).storage();
        if flags & libc::MSG_PEEK == 0 {
            self.drop_first();
        }
        let flags = if cut { libc::MSG_TRUNC } else { 0 };
        Ok(Some(ReceivedMessage { len, from: Some(from), flags }))
    }

    fn drop_first(&mut self) {
        match self.queue.pop_front().map(|datagram| datagram.place) {
            Some(Place::Slot(port, received, _)) => {
                if let Some(port) = self.port(port).filter(|port| !port.broken) {
                    // As above.
                    let _ = port.repost(received.slot);
                }
            }
            Some(Place::Copy(bytes)) => self.queued = self.queued.saturating_sub(bytes.len() + OVERHEAD),
            None => {}
        }
    }

    /// Copies what was received at a port that goes and not yet read; drops what there is no memory
    /// for.
    pub(super) fn keep_received(&mut self, port: &Port) {
        let State { queue, queued, .. } = self;
        queue.retain_mut(|datagram| {
            let Place::Slot(key, received, start) = &datagram.place else { return true };
            if *key != port.key() {
                return true;
            }
            let Ok(bytes) = try_copy(port.bytes(received).get(*start..).unwrap_or_default()) else { return false };
            *queued += bytes.len() + OVERHEAD;
            datagram.place = Place::Copy(bytes);
            true
        });
    }

    /// Queues what came over UDP; drops it, as UDP does, when that takes too much memory.
    fn push_copy(&mut self, from: SocketAddr, payload: &[u8]) {
        let cost = payload.len() + OVERHEAD;
        if self.shut_read || self.queued + cost > self.options.receive_buffer as usize {
            return;
        }
        if let Ok(bytes) = try_copy(payload)
            && self.queue.try_reserve(1).is_ok()
        {
            self.queue.push_back(Datagram { from, place: Place::Copy(bytes) });
            self.queued += cost;
        }
    }
}

/// The sender by its header, and where the payload begins; `None` for what is none of ours.
fn read_header(port: &Port, received: &Received, domain: c_int) -> Option<(SocketAddr, usize)> {
    let (header, start) = UdHeader::parse(port.bytes(received)).ok()?;
    let source = with_port(header.source.ip(), header.source.port(), &port.local);
    (source.is_ipv4() || domain == libc::AF_INET6).then_some((source, start))
}

fn same(peer: &SocketAddr, from: &SocketAddr) -> bool {
    (peer.ip(), peer.port()) == (from.ip(), from.port())
}

/// Copies as much as there is room for; how much.
///
/// # Safety
/// Buffers writable for their lengths.
unsafe fn scatter(mut bytes: &[u8], buffers: &[iovec]) -> usize {
    let whole = bytes.len();
    for buffer in buffers {
        let (now, rest) = bytes.split_at(bytes.len().min(buffer.iov_len));
        if !now.is_empty() {
            // SAFETY: buffers writable for their lengths: guaranteed by the caller; no more than
            // its length.
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
    fn scattered_over_buffers() {
        let (mut a, mut b) = ([0_u8; 3], [0_u8; 4]);
        let piece = |bytes: &mut [u8]| iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let buffers = [piece(&mut a), iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }, piece(&mut b)];
        // SAFETY: live buffers.
        assert_eq!(unsafe { scatter(b"abcde", &buffers) }, 5);
        // SAFETY: live buffers.
        assert_eq!(unsafe { scatter(b"0123456789", &buffers[..1]) }, 3);
        assert_eq!((&a, &b), (b"012", b"de\0\0"));
    }
}
