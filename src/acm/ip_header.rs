//! The header that tells the IP addresses of a connection to the peer, before the private data of
//! the request: the IP addressing annex of the InfiniBand specification (A11).
//!
//! {version and reserved bits u8 = 0, IP version in the upper half of a u8, source port be16,
//! source and destination address of 16 bytes each, an IPv4 address in the last four}. Between GIDs
//! the IP version is 0: with another one the peer's kernel looks for an IPoIB interface that has
//! the addresses, and rejects the request if there is none.

use super::addr::Addr;

/// Length of the header in bytes.
pub const IP_HEADER: usize = 36;

/// Builds the header for a connection between two addresses. `port` is that of the source.
pub fn emit(source: Option<Addr>, destination: Option<Addr>, port: u16) -> [u8; IP_HEADER] {
    let version = match (source, destination) {
        (Some(Addr::V4 { .. }), Some(Addr::V4 { .. })) => 4,
        (Some(Addr::V6(_)), Some(Addr::V6(_))) => 6,
        _ => 0,
    };
    let mut header = [0; IP_HEADER];
    header[1] = version << 4;
    header[2..4].copy_from_slice(&port.to_be_bytes());
    header[4..20].copy_from_slice(&address(source));
    header[20..].copy_from_slice(&address(destination));
    header
}

fn address(addr: Option<Addr>) -> [u8; 16] {
    match addr {
        Some(Addr::V4 { ip: [a, b, c, d], .. }) => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d],
        Some(Addr::V6(v6)) => v6.ip,
        Some(Addr::Ib(ib)) => ib.gid,
        None => [0; 16],
    }
}
