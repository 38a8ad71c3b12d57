//! Addresses, flags and options of a datagram rsocket. Options of levels other than SOL_RDMA are
//! options of the UDP socket.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use libc::{
    SO_ERROR, SO_RCVBUF, SO_RCVBUFFORCE, SO_RCVTIMEO, SO_SNDBUF, SO_SNDBUFFORCE, SO_SNDTIMEO, SOL_SOCKET,
    sockaddr_storage,
};

use super::port::{MAX_MESSAGE, Sizes};
use super::{Dgram, udp};
use crate::cm;
use crate::diag::Endpoints;
use crate::errno::{Errno, Result};
use crate::ffi::{RDMA_INLINE, RDMA_IOMAPSIZE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA};
use crate::os::event;
use crate::os::sockaddr::{SockAddr, canonical_inet};
use crate::rsocket::config::{Defaults, MAX_ENTRIES, defaults};
use crate::rsocket::stream::{Value, number, timeout};
use crate::rsocket::wire;

// From linux/in.h and linux/in6.h.
const IP_UNICAST_IF: c_int = 50;
const IPV6_UNICAST_IF: c_int = 76;
const IPV6_ADDR_PREFERENCES: c_int = 72;
// From linux/udp.h.
const UDP_ENCAP: c_int = 100;
const UDP_SEGMENT: c_int = 103;
const UDP_GRO: c_int = 104;

/// Sizes of new ports, and time-outs of calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// The numbers of queue entries, and the sizes of the buffers.
    pub sizes: Defaults,
    pub receive_timeout: Option<Duration>,
    pub send_timeout: Option<Duration>,
}

impl Default for Options {
    fn default() -> Options {
        Options { sizes: *defaults(), receive_timeout: None, send_timeout: None }
    }
}

impl Options {
    /// Returns the requested queue sizes, limited to the number of full datagrams that fit into the
    /// buffers.
    pub fn port_sizes(&self) -> Sizes {
        let Defaults { sq, rq, send_buffer, receive_buffer, .. } = self.sizes;
        let fit = |queue: u16, buffer: u32| queue.min(u16::try_from(buffer as usize / MAX_MESSAGE).unwrap_or(u16::MAX));
        Sizes { send: fit(sq, send_buffer), receive: fit(rq, receive_buffer) }
    }
}

impl Dgram {
    /// rgetsockname(3).
    pub fn local_name(&self) -> Result<sockaddr_storage> {
        self.enter()?.udp()?.local_name()
    }

    /// rgetpeername(3).
    pub fn peer_name(&self) -> Result<sockaddr_storage> {
        self.enter()?.udp()?.peer_name()
    }

    /// Returns the addresses and the device for log messages. Returns `None` for a closed socket,
    /// in a child of the owner, or if the socket is locked, possibly by a call that a signal
    /// handler interrupted.
    pub fn endpoints(&self) -> Option<Endpoints> {
        let state = self.state.try_lock().filter(|_| self.owner.is_this_process())?;
        let name = state.udp().ok()?.local_name().ok()?;
        let local = canonical_inet(&name).ok()?;
        let port = match state.ports.as_slice() {
            [port] => Some(port),
            ports => ports.iter().find(|port| port.local.ip() == local.ip()),
        };
        let mut endpoints = port.map_or(Endpoints::NONE, |port| cm::log::endpoints(port.id.id()));
        endpoints.src = port.map_or(name, |port| *SockAddr::from_inet(&port.local).storage());
        endpoints.dst = state.connected.map_or(Endpoints::NONE.dst, |to| *SockAddr::from_inet(&to).storage());
        Some(endpoints)
    }

    /// rgetsockopt(3).
    pub fn option(self: &Arc<Self>, level: c_int, name: c_int) -> Result<Value> {
        let mut state = self.enter()?;
        let number = match (level, name) {
            (base::private::LEVEL, base::private::READABLE_BYTES) => {
                if state.queue.is_empty() {
                    self.poll(&mut state);
                }
                state.queue.front().map_or(0, |first| state.payload(first).len() as c_int)
            }
            (SOL_SOCKET, SO_ERROR) if state.error.is_some() => state.error.take().map_or(0, Errno::get),
            _ if level as u32 == SOL_RDMA => match name {
                RDMA_SQSIZE => state.options.sizes.sq.into(),
                RDMA_RQSIZE => state.options.sizes.rq.into(),
                RDMA_INLINE => state.options.sizes.inline.into(),
                RDMA_IOMAPSIZE => state.options.sizes.iomap.into(),
                _ => return Err(Errno::ENOTSUP),
            },
            _ => {
                let mut bytes = [0; 256];
                let len = state.udp()?.option(level, name, &mut bytes)?;
                return Ok(Value::bytes(bytes.get(..len).unwrap_or_default()));
            }
        };
        Ok(Value::int(number))
    }

    /// rsetsockopt(3). Sizes apply to ports that are created later. Options of level SOL_RDMA fail
    /// with `EINVAL` once a port exists.
    pub fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
        let mut state = self.enter()?;
        if level as u32 != SOL_RDMA {
            check_is_allowed(level, name)?;
            if chooses_source(level, name) {
                // Create the probe before the option is set, because creating it may fail for lack
                // of a descriptor.
                state.probe()?;
            }
            let udp = state.udp()?;
            udp.set_option(level, name, value)?;
            // The kernel doubles and limits the sizes of buffers.
            let size = |name| udp.int_option(SOL_SOCKET, name).map(|size| size.max(0) as u32);
            // The UDP socket has validated the value.
            let mut options = state.options;
            match (level, name) {
                (SOL_SOCKET, SO_SNDBUF | SO_SNDBUFFORCE) => options.sizes.send_buffer = size(SO_SNDBUF)?,
                (SOL_SOCKET, SO_RCVBUF | SO_RCVBUFFORCE) => options.sizes.receive_buffer = size(SO_RCVBUF)?,
                (SOL_SOCKET, SO_RCVTIMEO) => options.receive_timeout = timeout(value)?,
                (SOL_SOCKET, SO_SNDTIMEO) => options.send_timeout = timeout(value)?,
                _ => {}
            }
            state.options = options;
            if chooses_source(level, name) {
                state.probe()?.set_option(level, name, value)?;
            }
            if [true, false].map(udp::service_option).contains(&(level, name)) {
                // Drop all paths: each was resolved for the old type of service.
                state.peers.forget(|_| true);
            }
            return Ok(());
        }
        if !state.ports.is_empty() {
            return Err(Errno::EINVAL);
        }
        let wanted = number(value)?;
        let entries = wanted.clamp(0, MAX_ENTRIES.into()) as u16;
        let sizes = &mut state.options.sizes;
        match name {
            RDMA_SQSIZE => sizes.sq = entries,
            RDMA_RQSIZE => sizes.rq = entries,
            RDMA_INLINE => sizes.inline = entries,
            RDMA_IOMAPSIZE => sizes.iomap = wire::round_iomap_size(wanted.max(0) as u32),
            _ => return Err(Errno::ENOTSUP),
        }
        Ok(())
    }

    /// rfcntl(3) for flags. Fails with `ENOTSUP` for other commands.
    pub fn control(&self, command: c_int, argument: c_int) -> Result<c_int> {
        let mut state = self.enter()?;
        if !matches!(command, libc::F_GETFL | libc::F_SETFL | libc::F_GETFD | libc::F_SETFD) {
            return Err(Errno::ENOTSUP);
        }
        let result = event::fcntl(self.fd, command, argument)?;
        // As for streams, the library keeps its own copy of O_NONBLOCK: reading the UDP socket's
        // flag would cost a system call for each wait.
        match command {
            libc::F_SETFL => state.nonblocking = argument & libc::O_NONBLOCK != 0,
            libc::F_GETFL => {
                return Ok(result & !libc::O_NONBLOCK | if state.nonblocking { libc::O_NONBLOCK } else { 0 });
            }
            _ => {}
        }
        Ok(result)
    }
}

/// Fails for options of the UDP socket that the program must not set.
fn check_is_allowed(level: c_int, name: c_int) -> Result<()> {
    match (level, name) {
        // These options add messages to the socket's error queue, which the program cannot read.
        (libc::IPPROTO_IP, libc::IP_RECVERR)
        | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
        | (SOL_SOCKET, libc::SO_TIMESTAMPING) => Err(Errno::ENOTSUP),
        // These options join or split packets: headers would appear in the middle of the data.
        (libc::IPPROTO_UDP, libc::UDP_CORK | UDP_ENCAP | UDP_SEGMENT | UDP_GRO) => Err(Errno::new(libc::ENOPROTOOPT)),
        _ => Ok(()),
    }
}

/// Returns whether an option influences the local address that the kernel chooses, so the option
/// has to be set on the probe, too. Returns false for SO_BINDTODEVICE, which `Probe::source_addr`
/// copies.
fn chooses_source(level: c_int, name: c_int) -> bool {
    matches!(
        (level, name),
        (SOL_SOCKET, libc::SO_MARK | libc::SO_DONTROUTE)
            | (libc::IPPROTO_IP, libc::IP_MULTICAST_IF | IP_UNICAST_IF | libc::IP_TOS)
            | (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF | IPV6_UNICAST_IF | IPV6_ADDR_PREFERENCES)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_converted() {
        let bytes = |s: i64, us: i64| [s.to_ne_bytes(), us.to_ne_bytes()].concat();
        assert_eq!(timeout(&bytes(1, 500_000)), Ok(Some(Duration::from_millis(1500))));
        assert_eq!(timeout(&bytes(0, 0)), Ok(None));
        assert_eq!(timeout(&bytes(-1, 5)), Ok(Some(Duration::ZERO)));
        assert_eq!(timeout(&bytes(-1, 5)[..15]), Err(Errno::EINVAL));
    }

    #[test]
    fn queues_are_limited_by_the_buffers() {
        let mut options = Options::default();
        options.sizes = Defaults { sq: 384, rq: 10, send_buffer: 1 << 17, receive_buffer: 1 << 17, ..options.sizes };
        let sizes = options.port_sizes();
        assert_eq!((sizes.send, sizes.receive), (64, 10));
    }
}
