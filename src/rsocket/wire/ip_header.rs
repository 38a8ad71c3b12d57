//! The header before the private data of a connection request with AF_IB addresses, as defined in
//! the IP addressing annex of the InfiniBand specification (A11). The kernel adds it itself for IP
//! addresses.
//!
//! {version and reserved bits u8 = 0, IP version in the upper half of a u8, source port be16,
//! source and destination address of 16 bytes each, an IPv4 address in the last four}. Between GIDs
//! the IP version is 0: with another one the peer's kernel looks for an IPoIB interface that has the
//! addresses, and rejects the request if there is none.

use crate::acm::addr::Addr;
use crate::sys::sockaddr::SockAddr;

/// Length of the header in bytes.
pub const IP_HEADER: usize = 36;

/// Returns the header for a connection between two addresses.
pub fn ip_header(source: &SockAddr, destination: &SockAddr) -> [u8; IP_HEADER] {
    let (source, destination) = (Addr::from_bytes(source.bytes()), Addr::from_bytes(destination.bytes()));
    let version = match (source, destination) {
        (Some(Addr::V4 { .. }), Some(Addr::V4 { .. })) => 4,
        (Some(Addr::V6(_)), Some(Addr::V6(_))) => 6,
        _ => 0,
    };
    let mut header = [0; IP_HEADER];
    header[1] = version << 4;
    header[2..4].copy_from_slice(&source.map_or(0, |addr| addr.port()).to_be_bytes());
    header[4..20].copy_from_slice(&address(source));
    header[20..].copy_from_slice(&address(destination));
    header
}

/// Returns the bytes after the header, `None` if it is incomplete. Its content is ignored: the
/// reference sends uninitialized memory, and the addresses are not authenticated.
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
