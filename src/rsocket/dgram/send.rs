//! Sending: over UD where the way is known, otherwise over UDP.

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
use crate::rsocket::reactor::{self, Key};
use crate::rsocket::wire::datagram::{UD_IPV4, UD_MOST, UdHeader, UdpHeader, UdpOp};
use crate::sys::event::Deadline;
use crate::sys::sockaddr::SockAddr;

impl Dgram {
    /// rsend(3) and its relatives.
    ///
    /// # Safety
    /// Buffers readable for their lengths.
    pub unsafe fn send(self: &Arc<Self>, buffers: &[iovec], flags: c_int, to: Option<&SockAddr>) -> Result<usize> {
        if flags & libc::MSG_OOB != 0 {
            return Err(Errno::new(libc::EOPNOTSUPP));
        }
        let mut payload = [0; MAX_MESSAGE];
        // SAFETY: buffers readable for their lengths: guaranteed by the caller.
        let payload = unsafe { gather(buffers, &mut payload)? };
        let (mut deadline, mut asked) = (None, false);
        loop {
            let mut state = self.enter()?;
            if state.shut_write {
                return Err(Errno::new(libc::EPIPE));
            }
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            let to = match to {
                Some(to) => udp::read(to.storage())?,
                None => state.connected.ok_or(Errno::new(libc::EDESTADDRREQ))?,
            };
            if to.is_ipv6() && state.domain == libc::AF_INET {
                return Err(Errno::EAFNOSUPPORT);
            }
            match self.send_one(&mut state, payload, to) {
                Err(Errno::EAGAIN) if !state.is_nonblocking(flags) => {
                    let until = *deadline.get_or_insert_with(|| Deadline::after(state.options.send_timeout));
                    drop(state);
                    self.wait(POLLOUT, until)?;
                }
                // Who watches for edges looked before the queue was full: from here on a free slot tells.
                Err(Errno::EAGAIN) if !asked && !self.watchers.is_empty() => {
                    asked = true;
                    state.ports.iter_mut().for_each(Port::arm);
                }
                result => return result.map(|()| payload.len()),
            }
        }
    }

    fn send_one(self: &Arc<Self>, state: &mut State, payload: &[u8], to: SocketAddr) -> Result<()> {
        if payload.len() > MAX_MESSAGE - if to.is_ipv4() { UD_IPV4 } else { UD_MOST } {
            return Err(too_long());
        }
        let (route, wanted) = state.peers.route(to, Instant::now())?;
        if let Route::Ud(path, qpn) = &route
            && self.send_over_ud(state, payload, path, *qpn)?
        {
            return Ok(());
        }
        let port = self.port_for(state, &to).inspect_err(|_| state.peers.not_now(&to))?;
        if let Some(address) = wanted {
            self.search(state, port, to, address);
        }
        let header = state.header(port, UdpOp::Data).ok_or(Errno::EIO)?;
        let (bytes, len) = header.emit();
        let sent = state.udp()?.send(bytes.get(..len).unwrap_or_default(), payload, &to);
        if sent == Err(Errno::EAGAIN) {
            state.udp_is_full();
        }
        sent
    }

    /// Whether it went: not over a path for shorter packets, nor from a QP that failed. `EAGAIN` when the queue is full.
    fn send_over_ud(&self, state: &mut State, payload: &[u8], path: &Arc<Path>, qpn: u32) -> Result<bool> {
        if state.port(path.port).is_some_and(|port| !port.broken && !port.can_send()) {
            self.poll(state);
        }
        let Some(port) = state.port_mut(path.port) else { return Ok(false) };
        let (header, len) = UdHeader { source: port.local }.emit();
        let whole = len + payload.len();
        if whole > MAX_MESSAGE.min(path.mtu) {
            return Ok(false);
        }
        let sent = if port.broken {
            Err(Errno::EIO)
        } else {
            port.send(path, qpn, |slot| {
                slot[..len].copy_from_slice(&header[..len]);
                slot[len..whole].copy_from_slice(payload);
                whole
            })
        };
        match sent {
            Ok(()) => Ok(true),
            Err(error @ (Errno::EAGAIN | Errno::ENOMEM)) => Err(error),
            Err(_) => {
                port.broken = true;
                state.peers.forget(|other| other.port == path.port);
                Ok(false)
            }
        }
    }
}

impl State {
    /// The header of UDP packets from a port.
    fn header(&self, port: Key, op: UdpOp) -> Option<UdpHeader> {
        self.port(port).map(|port| UdpHeader { op, qpn: port.qpn(), address: port.local.ip() })
    }

    /// There is no room for more UDP packets: the reactor looks out for it.
    fn udp_is_full(&mut self) {
        if let Some(key) = self.key.filter(|_| !self.udp_full) {
            self.udp_full = true;
            reactor::watch_room(key, true);
        }
    }

    /// Whether there is room for UDP packets again, after there was none.
    pub(super) fn udp_has_room_again(&mut self) -> bool {
        let again = self.udp_full && self.udp().is_ok_and(Udp::has_room);
        if let Some(key) = self.key.filter(|_| again) {
            self.udp_full = false;
            reactor::watch_room(key, false);
        }
        again
    }

    /// Tells a peer our QP. If it gets lost, the peer asks again with its next datagram.
    pub(super) fn answer(&self, port: Key, to: &SocketAddr) {
        let (Some(header), Ok(udp)) = (self.header(port, UdpOp::Control), self.udp()) else { return };
        let (bytes, len) = header.emit();
        let _ = udp.send(bytes.get(..len).unwrap_or_default(), &[], to);
    }
}

fn too_long() -> Errno {
    Errno::new(libc::EMSGSIZE)
}

/// The buffers' bytes in one piece; `EMSGSIZE` when they are more than any datagram has.
///
/// # Safety
/// Buffers readable for their lengths.
unsafe fn gather<'a>(buffers: &[iovec], into: &'a mut [u8; MAX_MESSAGE]) -> Result<&'a [u8]> {
    let mut len = 0_usize;
    for buffer in buffers.iter().filter(|buffer| buffer.iov_len > 0) {
        let end = len.checked_add(buffer.iov_len).ok_or_else(too_long)?;
        let place = into.get_mut(len..end).ok_or_else(too_long)?;
        // SAFETY: buffers readable for their lengths: guaranteed by the caller; the place is as
        // long.
        unsafe { std::ptr::copy_nonoverlapping(buffer.iov_base.cast(), place.as_mut_ptr(), place.len()) };
        len = end;
    }
    Ok(&into[..len])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathered_from_buffers() {
        let (a, b) = (*b"abc", [7_u8; MAX_MESSAGE - 3]);
        let piece = |bytes: &[u8]| iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut room = [0; MAX_MESSAGE];
        // SAFETY: live buffers.
        let all = unsafe { gather(&[piece(&a), piece(&[]), piece(&b)], &mut room) }.unwrap();
        assert_eq!((&all[..4], all.len()), (&b"abc\x07"[..], MAX_MESSAGE));
        // SAFETY: live buffers.
        assert_eq!(unsafe { gather(&[piece(&a), piece(&b), piece(&a[..1])], &mut room) }, Err(too_long()));
        let endless = iovec { iov_len: usize::MAX, ..piece(&a) };
        // SAFETY: refused before it is read.
        assert_eq!(unsafe { gather(&[piece(&a), endless], &mut room) }, Err(too_long()));
    }
}
