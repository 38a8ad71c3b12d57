//! The log line of a TCP connection that is closed: the bytes of both directions. Librdmacm writes
//! the same for rsockets.

use core::ffi::c_int;
use core::fmt;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::log;
use super::shared::AtomicName;
use crate::fork::name::{self, Name};
use crate::fork::tcp;
use crate::table::Growing;
use crate::{errno, next_symbol, open_fds};

/// Whether this process, or the one that has forked it, has logged a connection by TCP.
static LOGGED: AtomicBool = AtomicBool::new(false);

/// By number: the peer of a connection by TCP, which the kernel forgets when both ends have shut
/// down. Made of atomic integers only.
static PEERS: Growing<AtomicName> = Growing::new();

/// The number's connection is TCP, and that was logged.
pub fn logged(fd: c_int, peer: &Name) {
    if let Ok(word) = PEERS.get_or_grow(fd) {
        word.store(peer);
        LOGGED.store(true, Relaxed);
    }
}

/// A descriptor of the kernel's is about to be closed.
#[inline(always)]
pub fn before_close(fd: c_int) {
    if LOGGED.load(Relaxed) {
        errno::keeping(|| report(fd));
    }
}

/// The process ends.
pub fn before_exit() {
    if LOGGED.load(Relaxed) {
        open_fds::each(0..c_int::MAX, report);
    }
}

#[cold]
fn report(fd: c_int) {
    let Some((sent, received)) = bytes(fd) else { return };
    let peer = || PEERS.get(fd).and_then(AtomicName::load);
    if let (Some(own), Some(peer)) = (name::own(fd), name::peer(fd).or_else(peer)) {
        log::line(format_args!(
            "close: socket {fd} {} -> {} tcp: sent {sent} bytes, received {received}",
            Shown(&own.of_device()),
            Shown(&peer.of_device())
        ));
    }
}

/// The beginning of the kernel's `struct tcp_info`.
#[repr(C)]
struct Info {
    state: u8,
    fields: [u8; 119],
    acked: u64,
    received: u64,
    segments: [u32; 2],
    not_sent: u32,
    min_rtt: u32,
    data_segments: [u32; 2],
    times: [u64; 4],
    delivered: [u32; 2],
    sent: u64,
    sent_again: u64,
}

/// The bytes that the program has sent, and those that have arrived. `None` for other descriptors.
fn bytes(fd: c_int) -> Option<(u64, u64)> {
    // SAFETY: all zeros are a value of these integers.
    let mut info: Info = unsafe { core::mem::zeroed() };
    let mut len = size_of::<Info>() as libc::socklen_t;
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: `len` bytes are writable.
    let result = unsafe { next_symbol::getsockopt(fd, level, option, (&raw mut info).cast(), &raw mut len) };
    if result != 0 || (len as usize) < size_of::<Info>() || info.state == tcp::LISTEN {
        return None;
    }
    // The kernel counts the peer's FIN as a byte. A connection that was reset has none, but is
    // closed as well.
    let end = u64::from(matches!(info.state, tcp::CLOSE_WAIT | tcp::LAST_ACK | tcp::CLOSING | tcp::CLOSED));
    let sent = info.sent.saturating_sub(info.sent_again) + u64::from(info.not_sent);
    let moved = (sent, info.received.saturating_sub(end));
    (info.state != tcp::CLOSED || moved != (0, 0)).then_some(moved)
}

struct Shown<'a>(&'a Name);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.address() {
            IpAddr::V4(address) => write!(f, "{address}:{}", self.0.number()),
            IpAddr::V6(address) => write!(f, "[{address}]:{}", self.0.number()),
        }
    }
}
