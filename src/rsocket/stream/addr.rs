//! The addresses of a stream.

use std::ffi::c_int;

use libc::sockaddr_storage;

use super::{Phase, Stream};
use crate::cm;
use crate::diag::Place;
use crate::errno::{Errno, Result};
use crate::rsocket::cm_id::CmId;
use crate::rsocket::wire;
use crate::sys::sockaddr::{self, SockAddr};

impl Stream {
    /// rgetsockname(3).
    pub fn local_name(&self) -> Result<sockaddr_storage> {
        let state = self.enter()?;
        let id = state.id()?.id();
        // SAFETY: the route of a live id.
        let mut name = unsafe { (*id.addr()).src.src_storage };
        if name.ss_family == 0 {
            name.ss_family = self.domain as libc::sa_family_t;
        }
        Ok(name)
    }

    /// rgetpeername(3). Fails with `ENOTCONN` without a peer.
    pub fn peer_name(&self) -> Result<sockaddr_storage> {
        let state = self.enter()?;
        if !matches!(state.phase, Phase::Connected | Phase::Disconnected) {
            return Err(Errno::ENOTCONN);
        }
        // SAFETY: the route of a live id.
        Ok(unsafe { (*state.id()?.id().addr()).dst.dst_storage })
    }

    /// Returns both addresses and the device, for log lines. `None` if another call holds the lock:
    /// it may be the call that this thread's signal handler interrupted.
    pub fn place(&self) -> Option<Place> {
        let state = self.state.try_lock().ok().filter(|_| self.owner.is_this_process())?;
        Some(cm::log::place(state.id.as_ref()?.id()))
    }
}

/// Returns the IP header that precedes the private data of AF_IB connections.
pub(super) fn ip_header(id: &CmId) -> Result<[u8; wire::IP_HEADER]> {
    // SAFETY: the route of a live id; each address is as long as its family says.
    let (from, to) = unsafe {
        let addr = id.id().addr();
        (
            SockAddr::from_c(std::ptr::NonNull::from(&(*addr).src.src_storage).cast())?,
            SockAddr::from_c(std::ptr::NonNull::from(&(*addr).dst.dst_storage).cast())?,
        )
    };
    Ok(wire::ip_header(&from, &to))
}

/// Returns the length of an address in bytes, by its family.
pub fn name_len(name: &sockaddr_storage) -> usize {
    sockaddr::len_of_family(c_int::from(name.ss_family)).unwrap_or(size_of::<libc::sa_family_t>())
}
