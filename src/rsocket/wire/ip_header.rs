//! The header before the private data of a connection request with AF_IB addresses
//! ([`crate::acm::ip_header`]). The kernel adds it itself for IP addresses.

use crate::acm::addr::Addr;
pub use crate::acm::ip_header::IP_HEADER;
use crate::os::sockaddr::SockAddr;

/// Returns the header for a connection between two addresses.
pub fn ip_header(source: &SockAddr, destination: &SockAddr) -> [u8; IP_HEADER] {
    let (source, destination) = (Addr::from_bytes(source.bytes()), Addr::from_bytes(destination.bytes()));
    crate::acm::ip_header::emit(source, destination, source.map_or(0, |addr| addr.port()))
}

/// Returns the bytes after the header, `None` if it is incomplete. Its content is ignored: the
/// reference sends uninitialized memory, and the addresses are not authenticated.
pub fn skip_ip_header(data: &[u8]) -> Option<&[u8]> {
    data.get(IP_HEADER..)
}
