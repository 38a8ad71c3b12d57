//! The header that a connection request of AF_IB addresses carries in front of its private data: what the IP addressing
//! annex of the InfiniBand specification (A11) has there, and the kernel fills in for IP addresses.
//!
//! {version and reserved bits u8 = 0, IP version in the upper half of a u8, source port be16, source and destination
//! address of 16 bytes each, an IPv4 address in the last four}.

use crate::acm::addr::Addr;
use crate::sys::sockaddr::SockAddr;

/// Bytes of it.
pub const IP_HEADER: usize = 36;

/// The header for a connection between these addresses. A GID counts as an IPv6 address, which it is in form.
pub fn ip_header(source: &SockAddr, destination: &SockAddr) -> [u8; IP_HEADER] {
    let (source, destination) = (Addr::from_bytes(source.bytes()), Addr::from_bytes(destination.bytes()));
    let v4 = matches!(source, Some(Addr::V4 { .. })) && matches!(destination, Some(Addr::V4 { .. }));
    let mut header = [0; IP_HEADER];
    header[1] = if v4 { 4 << 4 } else { 6 << 4 };
    header[2..4].copy_from_slice(&source.map_or(0, |addr| addr.port()).to_be_bytes());
    header[4..20].copy_from_slice(&address(source));
    header[20..].copy_from_slice(&address(destination));
    header
}

/// What follows the header; `None` if there is no whole one. Nothing in it is looked at: the reference sends whatever its
/// memory holds, and addresses are the sender's claim.
pub fn skip_ip_header(data: &[u8]) -> Option<&[u8]> {
    data.get(IP_HEADER..)
}

fn address(addr: Option<Addr>) -> [u8; 16] {
    match addr {
        Some(Addr::V4 { ip: [a, b, c, d], .. }) => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d],
        Some(Addr::V6(v6)) => v6.ip,
        Some(Addr::Ib(ib)) => ib.gid,
        None => [0; 16],
    }
}
