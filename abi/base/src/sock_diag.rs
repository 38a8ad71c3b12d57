//! The kernel's reports of its TCP sockets: sock_diag(7) requests and answers (linux/inet_diag.h),
//! and `struct tcp_info` (linux/tcp.h). No I/O.

use crate::bytes::{u32_at, u64_at};
use crate::netlink::{MESSAGE_HEADER, write_header};

/// Message type of requests and answers (linux/sock_diag.h).
pub const BY_FAMILY: u16 = 20;
/// Length of a request: a netlink message with a `struct inet_diag_req_v2`.
pub const REQUEST: usize = MESSAGE_HEADER + 56;
/// Offset of the socket's identifier, `struct inet_diag_sockid`, in a request.
pub const SOCKET_ID: usize = MESSAGE_HEADER + 8;
/// Length of `struct inet_diag_msg`, with which the payload of an answer begins.
pub const ANSWER: usize = 72;
/// Length of the part of `struct tcp_info` that is read here; kernels before 4.19 have less.
pub const TCP_INFO: usize = 216;

/// States of a TCP socket (`<net/tcp_states.h>`).
#[expect(missing_docs, reason = "the names are the kernel's")]
mod states {
    pub const ESTABLISHED: u8 = 1;
    pub const FIN_WAIT1: u8 = 4;
    pub const FIN_WAIT2: u8 = 5;
    pub const CLOSED: u8 = 7;
    pub const CLOSE_WAIT: u8 = 8;
    pub const LAST_ACK: u8 = 9;
    pub const LISTEN: u8 = 10;
    pub const CLOSING: u8 = 11;
}

pub use states::*;

/// Returns a request for the TCP sockets of a family in the states of the bit set `states`, with
/// the attributes of the bit set `attributes` (attribute 1 is bit 0). `flags` are netlink's.
pub fn request(family: i32, flags: i32, states: u32, attributes: u8) -> [u8; REQUEST] {
    let mut request = [0; REQUEST];
    write_header(&mut request, BY_FAMILY, flags as u16, 0, 0);
    request[MESSAGE_HEADER..][..3].copy_from_slice(&[family as u8, libc::IPPROTO_TCP as u8, attributes]);
    request[MESSAGE_HEADER + 4..][..4].copy_from_slice(&states.to_ne_bytes());
    request
}

/// Returns the state and the inode in the payload of an answer; `None` if the payload is too short.
/// The inode is 0 if no descriptor refers to the socket.
pub fn state_and_inode(payload: &[u8]) -> Option<(u8, u32)> {
    Some((*payload.get(1)?, u32_at(payload, ANSWER - 4)?))
}

/// Returns how many bytes the program has sent and how many have arrived, from a `struct tcp_info`.
/// Returns `None` if the structure is too short.
pub fn bytes(info: &[u8]) -> Option<(u64, u64)> {
    let (received, not_sent) = (u64_at(info, 128)?, u32_at(info, 144)?);
    let (sent, sent_again) = (u64_at(info, 200)?, u64_at(info, 208)?);
    // The kernel counts the peer's FIN as a byte. A connection that was reset has no FIN, but is
    // CLOSED, too, so its count is one too low.
    let end = matches!(info.first()?, &(CLOSED | CLOSE_WAIT | LAST_ACK | CLOSING));
    Some((sent.saturating_sub(sent_again) + u64::from(not_sent), received.saturating_sub(end.into())))
}

/// Returns whether the connection of a `struct tcp_info` was established: the peer has acknowledged
/// a segment.
pub fn was_established(info: &[u8]) -> bool {
    u32_at(info, 192).is_some_and(|delivered| delivered != 0)
}
