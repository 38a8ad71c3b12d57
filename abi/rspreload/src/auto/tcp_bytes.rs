//! The log line of a TCP connection that is closed: the bytes of both directions, or that it was
//! never made. Librdmacm writes the former for rsockets.

use core::ffi::c_int;
use core::fmt;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::log;
use super::shared::AtomicName;
use crate::table::Growing;
use crate::tcp;
use crate::tcp::name::{self, Name};
use crate::{errno, next_symbol, open_fds};

/// Whether this process, or the one that has forked it, has logged a connection by TCP.
static LOGGED: AtomicBool = AtomicBool::new(false);

/// By number: the peer of a connection by TCP, which the kernel forgets when both ends have shut
/// down, or if it was never made. Made of atomic integers only.
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
    let Some(info) = info(fd) else { return };
    let logged = PEERS.get(fd).and_then(AtomicName::take);
    let (Some(own), Some(peer)) = (name::own(fd), name::peer(fd).or(logged)) else { return };
    let (own, peer) = (own.of_device(), peer.of_device());
    let (own, peer) = (Shown(&own), Shown(&peer));
    if info.was_made() {
        let (sent, received) = info.bytes();
        log::line(format_args!("close: socket {fd} {own} -> {peer} tcp: sent {sent} bytes, received {received}"));
    } else {
        log::line(format_args!("close: socket {fd} {own} -> {peer} tcp: not connected"));
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

impl Info {
    /// The bytes that the program has sent, and those that have arrived.
    fn bytes(&self) -> (u64, u64) {
        // The kernel counts the peer's FIN as a byte. A connection that was reset has none, but is
        // closed as well.
        let end = matches!(self.state, tcp::CLOSE_WAIT | tcp::LAST_ACK | tcp::CLOSING | tcp::CLOSED);
        let sent = self.sent.saturating_sub(self.sent_again) + u64::from(self.not_sent);
        (sent, self.received.saturating_sub(end.into()))
    }

    /// Whether the peer has answered: its answer is one to a segment of the handshake.
    fn was_made(&self) -> bool {
        self.delivered[0] != 0
    }
}

/// The state of a TCP socket that does not listen. `None` for other descriptors.
fn info(fd: c_int) -> Option<Info> {
    // SAFETY: all zeros are a value of these integers.
    let mut info: Info = unsafe { core::mem::zeroed() };
    let mut len = size_of::<Info>() as libc::socklen_t;
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: `len` bytes are writable.
    let result = unsafe { next_symbol::getsockopt(fd, level, option, (&raw mut info).cast(), &raw mut len) };
    (result == 0 && len as usize >= size_of::<Info>() && info.state != tcp::LISTEN).then_some(info)
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
