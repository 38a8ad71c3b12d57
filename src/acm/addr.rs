//! AF_IB addresses, and the header that carries the addresses of a connection to the peer.
//!
//! The header precedes the private data of a connection request (the IP addressing annex of the
//! InfiniBand specification, A11): {version and reserved bits u8 = 0, IP version in the upper half
//! of a u8, source port be16, source and destination address of 16 bytes each, an IPv4 address in
//! the last four}. For GIDs the IP version is 0: with any other version the peer's kernel looks for
//! an IPoIB interface that has the addresses, and rejects the request if there is no such
//! interface.

use libc::{AF_INET, AF_INET6};

use crate::ffi::{RDMA_IB_IP_PORT_MASK, RDMA_IB_IP_PS_MASK};
use crate::os::sockaddr::{AF_IB, SockAddr, SockaddrIb};

/// P_Key of the default partition with full membership; the same in both byte orders.
pub const DEFAULT_PKEY: u16 = 0xFFFF;

/// A GID, or an IPv6 address.
pub type Gid = [u8; 16];

/// Returns the AF_IB address of a GID, for any service id. `pkey` is in network byte order.
pub fn ib(gid: Gid, pkey: u16) -> SockaddrIb {
    SockaddrIb { family: AF_IB as u16, pkey, addr: gid, ..SockaddrIb::default() }
}

/// Returns the address with the service id and mask of `port` in `port_space` (IBTA annex A11). A
/// port or port space of 0 is left out of the mask, so that any value matches.
pub fn with_port(ib: SockaddrIb, port_space: u16, port: u16) -> SockaddrIb {
    let space_mask = if port_space == 0 { 0 } else { RDMA_IB_IP_PS_MASK };
    let port_mask = if port == 0 { 0 } else { RDMA_IB_IP_PORT_MASK };
    let sid = u64::from(port_space) << 16 | u64::from(port);
    SockaddrIb { sid: sid.to_be(), sid_mask: (space_mask | port_mask).to_be(), ..ib }
}

/// Returns the IP address or the GID in an address.
pub(crate) fn host(addr: &SockAddr) -> &[u8] {
    &addr.bytes()[if addr.family() == AF_INET { 4..8 } else { 8..24 }]
}

/// Length of the header that precedes the private data, in bytes.
pub const IP_HEADER: usize = 36;

/// Builds the header for a connection between two addresses. `port` is the source port, in network
/// byte order.
pub fn ip_header(source: &SockAddr, destination: &SockAddr, port: u16) -> [u8; IP_HEADER] {
    let version = match (source.family(), destination.family()) {
        (AF_INET, AF_INET) => 4,
        (AF_INET6, AF_INET6) => 6,
        _ => 0,
    };
    let mut header = [0; IP_HEADER];
    header[1] = version << 4;
    header[2..4].copy_from_slice(&port.to_ne_bytes());
    for (addr, end) in [(source, 20), (destination, IP_HEADER)] {
        let host = host(addr);
        header[end - host.len()..end].copy_from_slice(host);
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_cover_what_is_set() {
        let port = |ps, port| with_port(ib([7; 16], DEFAULT_PKEY), ps, port);
        let masks = |ps, number| u64::from_be(port(ps, number).sid_mask);
        assert_eq!(masks(0, 0), 0);
        assert_eq!(masks(0x106, 0), 0xFFFF_FFFF_FFFF_0000);
        assert_eq!(masks(0, 7), 0xFFFF);
        assert_eq!(masks(0x106, 7), u64::MAX);
        assert_eq!((u64::from_be(port(0x106, 7174).sid), port(0x106, 7174).addr), (0x0106_1C06, [7; 16]));
    }
}
