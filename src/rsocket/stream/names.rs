//! Addresses, flags and options of a stream as the program sees them.

use std::ffi::c_int;
use std::sync::Arc;

use libc::sockaddr_storage;

use super::options::{Effect, Value};
use super::{Phase, State, Stream};
use crate::cm;
use crate::diag::Place;
use crate::errno::{Errno, Result};
use crate::rsocket::cm_id::CmId;
use crate::rsocket::wire;
use crate::sys::sockaddr::{self, SockAddr};
use crate::sys::uapi::{RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS};

/// What TCP_MAXSEG says before there is a path, bytes.
const SEGMENT: c_int = 2048;
/// Length of a struct tcp_info, and where its congestion window is (linux/tcp.h).
const TCP_INFO: usize = 104;
const TCP_INFO_CWND: usize = 80;

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

    /// rgetpeername(3): `ENOTCONN` without a peer.
    pub fn peer_name(&self) -> Result<sockaddr_storage> {
        let state = self.enter()?;
        if !matches!(state.phase, Phase::Connected | Phase::Disconnected) {
            return Err(Errno::ENOTCONN);
        }
        // SAFETY: the route of a live id.
        Ok(unsafe { (*state.id()?.id().addr()).dst.dst_storage })
    }

    /// Both addresses and the device, for messages; `None` while another call works on the stream, which it may be that a signal
    /// interrupted.
    pub fn place(&self) -> Option<Place> {
        let state = self.state.try_lock().ok().filter(|_| self.owner.is_this_process())?;
        Some(cm::log::place(state.id.as_ref()?.id()))
    }

    /// The flags of rfcntl(F_GETFL).
    pub fn flags(&self) -> Result<c_int> {
        Ok(self.enter()?.flags)
    }

    /// rfcntl(F_SETFL): O_NONBLOCK counts.
    pub fn set_flags(&self, flags: c_int) -> Result<()> {
        self.enter()?.flags = flags & (libc::O_NONBLOCK | libc::O_APPEND | libc::O_ASYNC);
        Ok(())
    }

    /// rgetsockopt(3).
    pub fn option(&self, level: c_int, name: c_int) -> Result<Value> {
        let mut state = self.enter()?;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                self.process_completions(&mut state);
                Ok(Value::int(state.take_error().map_or(0, Errno::get)))
            }
            (libc::SOL_SOCKET, libc::SO_TYPE) => Ok(Value::int(libc::SOCK_STREAM)),
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => Ok(Value::int(self.domain)),
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => Ok(Value::int(libc::IPPROTO_TCP)),
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
                Ok(Value::int(matches!(state.phase, Phase::Listening(_)).into()))
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                let mtu = state.id()?.id().first_path().map(|path| path.mtu);
                Ok(Value::int(mtu.filter(|mtu| (1..=5).contains(mtu)).map_or(SEGMENT, |mtu| 128 << c_int::from(mtu))))
            }
            (libc::IPPROTO_TCP, libc::TCP_INFO) => {
                let mut info = [0; TCP_INFO];
                // The states of netinet/tcp.h.
                info[0] = match state.phase {
                    Phase::Connected => 1,
                    Phase::Connecting(_) => 2,
                    Phase::Accepting(_) => 3,
                    Phase::Listening(_) => 10,
                    _ => 7,
                };
                let window = state.connection.as_ref().map_or(0, |connection| connection.credits());
                info[TCP_INFO_CWND..TCP_INFO_CWND + 4].copy_from_slice(&window.to_ne_bytes());
                Ok(Value::bytes(&info))
            }
            _ => state.options.get(level, name),
        }
    }

    /// rsetsockopt(3).
    pub fn set_option(self: &Arc<Self>, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
        let mut state = self.enter()?;
        // A listener's options are those of connections to come.
        let fixed = !matches!(state.phase, Phase::Idle | Phase::Listening(_));
        match state.options.set(level, name, value, fixed)? {
            Effect::None => Ok(()),
            Effect::Keepalive => {
                self.set_keep_alive(&mut state);
                Ok(())
            }
            Effect::Reuse => {
                let on = c_int::from(state.options.reuse);
                state.id()?.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on.to_ne_bytes())
            }
            Effect::Tos => state.id()?.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &[state.options.tos]),
            Effect::V6Only => {
                let on = c_int::from(state.options.v6only);
                state.id()?.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on.to_ne_bytes())
            }
        }
    }
}

impl State {
    /// Sets the options on a new id that are the id's, as far as the program has set them.
    pub(super) fn apply_options(&self) -> Result<()> {
        let id = self.id()?;
        let on: c_int = 1;
        if self.options.reuse {
            id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on.to_ne_bytes())?;
        }
        if self.options.tos != 0 {
            id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &[self.options.tos])?;
        }
        if self.options.v6only {
            id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on.to_ne_bytes())?;
        }
        Ok(())
    }
}

/// The header that goes in front of the private data of AF_IB connections.
pub(super) fn ip_header(id: &CmId) -> Result<[u8; wire::IP_HEADER]> {
    // SAFETY: the route of a live id, as long as its families say.
    let (from, to) = unsafe {
        let addr = id.id().addr();
        (
            SockAddr::from_c(std::ptr::NonNull::from(&(*addr).src.src_storage).cast())?,
            SockAddr::from_c(std::ptr::NonNull::from(&(*addr).dst.dst_storage).cast())?,
        )
    };
    Ok(wire::ip_header(&from, &to))
}

/// Bytes of an address, by its family.
pub fn name_len(name: &sockaddr_storage) -> usize {
    sockaddr::len_of_family(c_int::from(name.ss_family)).unwrap_or(size_of::<libc::sa_family_t>())
}
