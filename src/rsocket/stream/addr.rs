//! The addresses of a stream.

use std::ffi::c_int;
use std::net::SocketAddr;

use libc::sockaddr_storage;

use super::{Phase, Stream};
use crate::cm;
use crate::diag::Endpoints;
use crate::errno::{Errno, Result};
use crate::rsocket::cm_id::CmId;
use crate::rsocket::wire;
use crate::sys::sockaddr::{self, SockAddr};

impl Stream {
    /// rgetsockname(3).
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

    /// Returns an address of the id as the program sees it.
    fn shown(&self, name: sockaddr_storage) -> sockaddr_storage {
        sockaddr::inet(&name)
            .filter(SocketAddr::is_ipv4)
            .map_or(name, |v4| *sockaddr::to_sockaddr(self.domain, &v4).storage())
    }

    /// Returns both addresses and the device, for log lines. Returns `None` if the lock is held:
    /// the calling thread may be in a signal handler that has interrupted the holder.
    pub fn endpoints(&self) -> Option<Endpoints> {
        let state = self.state.try_lock().ok().filter(|_| self.owner.is_this_process())?;
        Some(cm::log::endpoints(state.id.as_ref()?.id()))
    }
}

/// Returns the IP header that precedes the private data of AF_IB connections.
pub(super) fn ip_header(id: &CmId) -> Result<[u8; wire::IP_HEADER]> {
    let id = id.id();
    let (from, to) = (SockAddr::from_storage(&id.source())?, SockAddr::from_storage(&id.destination())?);
    Ok(wire::ip_header(&from, &to))
}

/// Returns the length of an address in bytes, by its family.
pub fn name_len(name: &sockaddr_storage) -> usize {
    sockaddr::len_of_family(c_int::from(name.ss_family)).unwrap_or(size_of::<libc::sa_family_t>())
}
