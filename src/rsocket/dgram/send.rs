//! Sending: over UD if the route is known, otherwise over UDP.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use libc::{POLLOUT, iovec};

use super::peers::Route;
use super::port::{MAX_MESSAGE, Path, Port};
use super::udp::{self, Udp};
use super::{Dgram, State};
use crate::errno::{Errno, Result};
use crate::os::event::Deadline;
use crate::os::sockaddr::{SockAddr, canonical_inet};
use crate::rsocket::reactor::{self, Key};
use crate::rsocket::wire::datagram::{MAX_UD_HEADER, UD_IPV4_HEADER, UdHeader, UdpHeader, UdpOp};

impl Dgram {
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
            // Start the search before sending, which may fail: `route` requests it only once.
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
            state.set_udp_full();
        }
        sent
    }

    /// Sends over UD. Returns false if the path's MTU is too small, or its port was removed or has
    /// failed. Fails with `EAGAIN` if the send queue is full.
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
    /// Returns the destination for an address that the program has passed.
    pub(super) fn destination(&self, to: &SockAddr) -> Result<SocketAddr> {
        udp::with_scope(canonical_inet(to.storage())?, || self.udp()?.bound_addr())
    }

    /// Sends a UDP packet with the QP number of a port.
    pub(super) fn send_over_udp(&self, port: Key, op: UdpOp, payload: &[u8], to: &SocketAddr) -> Result<()> {
        let port = self.port(port).ok_or(Errno::EIO)?;
        let (header, len) = UdpHeader { op, qpn: port.qpn, address: port.local.ip() }.emit();
        self.udp()?.send(header.get(..len).unwrap_or_default(), payload, to)
    }

    /// The UDP socket's send buffer is full: makes the reactor wait for it to become writable.
    fn set_udp_full(&mut self) {
        if let Some(key) = self.key.filter(|_| !self.udp_full) {
            reactor::set_writable_wanted(key, true);
            self.udp_full = true;
        }
    }

    /// Returns whether the UDP socket has become writable again.
    pub(super) fn udp_is_writable_again(&mut self) -> bool {
        let writable = self.udp_full && self.udp().is_ok_and(Udp::is_writable);
        if let Some(key) = self.key.filter(|_| writable) {
            reactor::set_writable_wanted(key, false);
            self.udp_full = false;
        }
        writable
    }
}

/// Copies the buffers into one. Fails with `EMSGSIZE` if they exceed the maximum length of a
/// datagram.
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
    fn datagrams_are_gathered_from_buffers() {
        let (a, b) = (*b"abc", [7_u8; MAX_MESSAGE - 3]);
        let iovec_of = |bytes: &[u8]| iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut buffer = [0; MAX_MESSAGE];
        // SAFETY: the buffers are live.
        let all = unsafe { gather(&[iovec_of(&a), iovec_of(&[]), iovec_of(&b)], &mut buffer) }.unwrap();
        assert_eq!((&all[..4], all.len()), (&b"abc\x07"[..], MAX_MESSAGE));
        // SAFETY: the buffers are live.
        assert_eq!(
            unsafe { gather(&[iovec_of(&a), iovec_of(&b), iovec_of(&a[..1])], &mut buffer) },
            Err(Errno::EMSGSIZE)
        );
        let endless = iovec { iov_len: usize::MAX, ..iovec_of(&a) };
        // SAFETY: the length is rejected before the buffer is read.
        assert_eq!(unsafe { gather(&[iovec_of(&a), endless], &mut buffer) }, Err(Errno::EMSGSIZE));
    }
}
