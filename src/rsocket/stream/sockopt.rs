//! Attributes of a stream: socket options (rgetsockopt(3), rsetsockopt(3)), the flags of rfcntl(3),
//! and the addresses.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;

use libc::sockaddr_storage;

use super::options::Value;
use super::watching::Watchable;
use super::{Phase, State, Stream};
use crate::cm;
use crate::diag::Endpoints;
use crate::errno::{Errno, Result};
use crate::os::sockaddr;
use crate::os::uapi::{RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS};

/// TCP_MAXSEG of a stream without a path, in bytes.
const DEFAULT_MAXSEG: c_int = 2048;
/// Length of `struct tcp_info` in bytes, and the offset of its congestion window (linux/tcp.h).
const TCP_INFO: usize = 104;
const TCP_INFO_CWND: usize = 80;

impl Stream {
    /// Returns the flags of rfcntl(F_GETFL).
    pub fn flags(&self) -> Result<c_int> {
        Ok(self.enter()?.flags)
    }

    /// rfcntl(F_SETFL): only O_NONBLOCK has an effect.
    pub fn set_flags(&self, flags: c_int) -> Result<()> {
        self.enter()?.flags = flags & (libc::O_NONBLOCK | libc::O_APPEND | libc::O_ASYNC);
        Ok(())
    }

    /// rgetsockopt(3): returns the value of an option.
    pub fn option(&self, level: c_int, name: c_int) -> Result<Value> {
        let mut state = self.enter()?;
        let number = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                self.process_completions(&mut state);
                state.take_error().map_or(0, Errno::get)
            }
            (base::private::LEVEL, base::private::READABLE_BYTES) => {
                self.process_completions(&mut state);
                c_int::try_from(state.available(false, 0)).unwrap_or(c_int::MAX)
            }
            (base::private::LEVEL, base::private::UNSENT_BYTES) => {
                state.connection.as_mut().map_or(0, |connection| connection.unsent() as c_int)
            }
            (base::private::LEVEL, base::private::LAST_CONNECTIONS) => {
                let Phase::Listening(listening) = &mut state.phase else { return Err(Errno::EINVAL) };
                listening.answer_no_more() as c_int
            }
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => self.domain,
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => matches!(state.phase, Phase::Listening(_)).into(),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                let mtu = state.id()?.id().first_path().map(|path| path.mtu);
                mtu.filter(|mtu| (1..=5).contains(mtu)).map_or(DEFAULT_MAXSEG, |mtu| 128 << c_int::from(mtu))
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
                return Ok(Value::bytes(&info));
            }
            _ => return state.options.get(level, name),
        };
        Ok(Value::int(number))
    }

    /// rsetsockopt(3): sets an option.
    pub fn set_option(self: &Arc<Self>, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
        let mut state = self.enter()?;
        // Accepted connections inherit the listener's options.
        let fixed = !matches!(state.phase, Phase::Idle | Phase::Listening(_));
        if (level, name) == (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) && (state.bound.is_some() || fixed) {
            return Err(Errno::EINVAL);
        }
        state.options.set(level, name, value, fixed)?;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) | (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => state.set_keep_alive(),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => {
                self.send_held(&mut state);
                let nodelay = state.options.nodelay;
                state.connection.iter_mut().for_each(|connection| connection.set_nodelay(nodelay));
            }
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => {
                let on = c_int::from(state.options.reuse);
                state.id()?.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on.to_ne_bytes())?;
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                state.id()?.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &[state.options.tos])?;
            }
            _ => {}
        }
        Ok(())
    }
}

impl State {
    /// Applies the id's options, SO_REUSEADDR and IP_TOS, to a new id if the program has set them.
    pub(super) fn apply_options(&self) -> Result<()> {
        let id = self.id()?;
        if self.options.reuse {
            id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &1_i32.to_ne_bytes())?;
        }
        if self.options.tos != 0 {
            id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &[self.options.tos])?;
        }
        Ok(())
    }
}

impl Stream {
    /// rgetsockname(3): returns the local address.
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

    /// Returns an address of the id as the program sees it: an IPv4 address is IPv4-mapped on an
    /// IPv6 socket.
    fn shown(&self, name: sockaddr_storage) -> sockaddr_storage {
        sockaddr::inet(&name)
            .filter(SocketAddr::is_ipv4)
            .map_or(name, |v4| *sockaddr::to_sockaddr(self.domain, &v4).storage())
    }

    /// Returns both addresses and the device, for log lines. Returns `None` without an id, in a
    /// child of fork(), or if the lock is held: the calling thread may be in a signal handler that
    /// has interrupted the holder.
    pub fn endpoints(&self) -> Option<Endpoints> {
        let state = self.state.try_lock().filter(|_| self.owner.is_this_process())?;
        Some(cm::log::endpoints(state.id.as_ref()?.id()))
    }
}
