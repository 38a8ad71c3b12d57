//! Addresses of the three families that the connection manager knows (AF_INET, AF_INET6, AF_IB),
//! read from and written as C `sockaddr` bytes, and the header that carries them to the peer.
//!
//! Layouts: `struct sockaddr_in`, `struct sockaddr_in6` (ip(7), ipv6(7)) and `struct sockaddr_ib`
//! (infiniband/ib.h).
//!
//! The header precedes the private data of a connection request (the IP addressing annex of the
//! InfiniBand specification, A11): {version and reserved bits u8 = 0, IP version in the upper half
//! of a u8, source port be16, source and destination address of 16 bytes each, an IPv4 address in
//! the last four}. For GIDs the IP version is 0: with any other version the peer's kernel looks for
//! an IPoIB interface that has the addresses, and rejects the request if there is none.

use libc::{AF_INET, AF_INET6, sockaddr_storage};

use crate::ffi::{RDMA_IB_IP_PORT_MASK, RDMA_IB_IP_PS_MASK};
use crate::os::sockaddr::AF_IB;

/// The default partition with full membership, host byte order.
pub const DEFAULT_PKEY: u16 = 0xFFFF;

/// Bytes of a `struct sockaddr_in`.
pub const SOCKADDR_IN_LEN: usize = 16;
/// Bytes of a `struct sockaddr_in6`.
pub const SOCKADDR_IN6_LEN: usize = 28;
/// Bytes of a `struct sockaddr_ib`.
pub const SOCKADDR_IB_LEN: usize = 48;

/// A GID, or an IPv6 address.
pub type Gid = [u8; 16];

/// An address of a known family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addr {
    /// AF_INET.
    V4 {
        /// Port, host byte order.
        port: u16,
        /// The address, as on the wire.
        ip: [u8; 4],
    },
    /// AF_INET6.
    V6(V6),
    /// AF_IB.
    Ib(Ib),
}

/// The content of a `struct sockaddr_in6`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct V6 {
    /// Port, host byte order.
    pub port: u16,
    /// Flow information, host byte order.
    pub flow: u32,
    /// The address, as on the wire.
    pub ip: Gid,
    /// Index of the interface for link-local addresses, otherwise 0.
    pub scope: u32,
}

/// The content of a `struct sockaddr_ib`, with integers in host byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ib {
    /// Partition key.
    pub pkey: u16,
    /// Flow label.
    pub flow: u32,
    /// GID, as on the wire.
    pub gid: Gid,
    /// Service id.
    pub sid: u64,
    /// Mask of the bits of the service id that are significant.
    pub sid_mask: u64,
    /// Scope id.
    pub scope: u64,
}

impl Ib {
    /// Returns the address with the service id and mask of `port` in `port_space` (IBTA annex A11).
    /// The mask leaves out the port or the port space if it is 0, so that any value matches.
    pub fn with_port(self, port_space: u16, port: u16) -> Ib {
        let space_mask = if port_space == 0 { 0 } else { RDMA_IB_IP_PS_MASK };
        let port_mask = if port == 0 { 0 } else { RDMA_IB_IP_PORT_MASK };
        Ib { sid: u64::from(port_space) << 16 | u64::from(port), sid_mask: space_mask | port_mask, ..self }
    }

    /// Returns the address as a `struct sockaddr_ib`.
    pub fn to_bytes(&self) -> [u8; SOCKADDR_IB_LEN] {
        let mut bytes = [0; SOCKADDR_IB_LEN];
        bytes[..2].copy_from_slice(&(AF_IB as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.flow.to_be_bytes());
        bytes[8..24].copy_from_slice(&self.gid);
        bytes[24..32].copy_from_slice(&self.sid.to_be_bytes());
        bytes[32..40].copy_from_slice(&self.sid_mask.to_be_bytes());
        bytes[40..].copy_from_slice(&self.scope.to_ne_bytes());
        bytes
    }
}

impl Addr {
    /// Reads a `sockaddr` of `bytes.len()` bytes. Returns `None` for other families and for
    /// truncated addresses.
    pub fn from_bytes(bytes: &[u8]) -> Option<Addr> {
        match i32::from(u16::from_ne_bytes(array(bytes, 0)?)) {
            AF_INET if bytes.len() >= SOCKADDR_IN_LEN => {
                Some(Addr::V4 { port: u16::from_be_bytes(array(bytes, 2)?), ip: array(bytes, 4)? })
            }
            AF_INET6 => Some(Addr::V6(V6 {
                port: u16::from_be_bytes(array(bytes, 2)?),
                flow: u32::from_be_bytes(array(bytes, 4)?),
                ip: array(bytes, 8)?,
                scope: u32::from_ne_bytes(array(bytes, 24)?),
            })),
            AF_IB => Some(Addr::Ib(Ib {
                pkey: u16::from_be_bytes(array(bytes, 2)?),
                flow: u32::from_be_bytes(array(bytes, 4)?),
                gid: array(bytes, 8)?,
                sid: u64::from_be_bytes(array(bytes, 24)?),
                sid_mask: u64::from_be_bytes(array(bytes, 32)?),
                scope: u64::from_ne_bytes(array(bytes, 40)?),
            })),
            _ => None,
        }
    }

    /// Reads an address of an id's route. Returns `None` if the address is not set.
    pub fn from_storage(storage: &sockaddr_storage) -> Option<Addr> {
        // SAFETY: `storage` is valid for its size and has no padding: it consists of the family,
        // bytes, and an aligned integer at the end.
        let bytes: &[u8; size_of::<sockaddr_storage>()] = unsafe { &*std::ptr::from_ref(storage).cast() };
        Addr::from_bytes(bytes)
    }

    /// Returns the address as a C `sockaddr`: a buffer, and the length of the address in it.
    pub fn to_bytes(&self) -> ([u8; SOCKADDR_IB_LEN], usize) {
        let mut bytes = [0; SOCKADDR_IB_LEN];
        let len = match self {
            Addr::V4 { port, ip } => {
                bytes[..2].copy_from_slice(&(AF_INET as u16).to_ne_bytes());
                bytes[2..4].copy_from_slice(&port.to_be_bytes());
                bytes[4..8].copy_from_slice(ip);
                SOCKADDR_IN_LEN
            }
            Addr::V6(a) => {
                bytes[..2].copy_from_slice(&(AF_INET6 as u16).to_ne_bytes());
                bytes[2..4].copy_from_slice(&a.port.to_be_bytes());
                bytes[4..8].copy_from_slice(&a.flow.to_be_bytes());
                bytes[8..24].copy_from_slice(&a.ip);
                bytes[24..28].copy_from_slice(&a.scope.to_ne_bytes());
                SOCKADDR_IN6_LEN
            }
            Addr::Ib(a) => return (a.to_bytes(), SOCKADDR_IB_LEN),
        };
        (bytes, len)
    }

    /// Returns the port in host byte order: for AF_IB, the low 16 bits of the service id.
    pub fn port(&self) -> u16 {
        match self {
            Addr::V4 { port, .. } => *port,
            Addr::V6(a) => a.port,
            Addr::Ib(a) => a.sid as u16,
        }
    }
}

/// Returns the `N` bytes at offset `at`, or `None` if `bytes` is too short.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Length of the header that precedes the private data, in bytes.
pub const IP_HEADER: usize = 36;

/// Builds the header for a connection between two addresses. `port` is the source port.
pub fn ip_header(source: Option<Addr>, destination: Option<Addr>, port: u16) -> [u8; IP_HEADER] {
    let version = match (source, destination) {
        (Some(Addr::V4 { .. }), Some(Addr::V4 { .. })) => 4,
        (Some(Addr::V6(_)), Some(Addr::V6(_))) => 6,
        _ => 0,
    };
    let mut header = [0; IP_HEADER];
    header[1] = version << 4;
    header[2..4].copy_from_slice(&port.to_be_bytes());
    header[4..20].copy_from_slice(&header_address(source));
    header[20..].copy_from_slice(&header_address(destination));
    header
}

fn header_address(addr: Option<Addr>) -> [u8; 16] {
    match addr {
        Some(Addr::V4 { ip: [a, b, c, d], .. }) => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d],
        Some(Addr::V6(v6)) => v6.ip,
        Some(Addr::Ib(ib)) => ib.gid,
        None => [0; 16],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn v4_reads_a_sockaddr_in() {
        let bytes = [2, 0, 0x1C, 6, 10, 77, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(Addr::from_bytes(&bytes), Some(Addr::V4 { port: 7174, ip: [10, 77, 1, 1] }));
        assert_eq!(Addr::from_bytes(&bytes[..15]), None);
    }

    #[test]
    fn other_families_and_short_ones_are_none() {
        assert_eq!(Addr::from_bytes(&[]), None);
        assert_eq!(Addr::from_bytes(&[2]), None);
        assert_eq!(Addr::from_bytes(&[0; 48]), None);
        assert_eq!(Addr::from_bytes(&[1, 0, b'/', b'x', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn masks_cover_what_is_set() {
        let masks = |ps, port| Ib::default().with_port(ps, port).sid_mask;
        assert_eq!(masks(0, 0), 0);
        assert_eq!(masks(0x106, 0), 0xFFFF_FFFF_FFFF_0000);
        assert_eq!(masks(0, 7), 0xFFFF);
        assert_eq!(masks(0x106, 7), u64::MAX);
        assert_eq!(Ib::default().with_port(0x106, 7174).sid, 0x0106_1C06);
    }

    #[test]
    fn storage_is_read_whole() {
        // SAFETY: all bytes zero is a valid sockaddr_storage.
        let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
        assert_eq!(Addr::from_storage(&storage), None);
        storage.ss_family = AF_INET6 as u16;
        assert_eq!(Addr::from_storage(&storage), Some(Addr::V6(V6::default())));
    }

    fn any_addr() -> impl Strategy<Value = Addr> {
        prop_oneof![
            (any::<u16>(), any::<[u8; 4]>()).prop_map(|(port, ip)| Addr::V4 { port, ip }),
            (any::<u16>(), any::<u32>(), any::<Gid>(), any::<u32>()).prop_map(|(port, flow, ip, scope)| Addr::V6(V6 {
                port,
                flow,
                ip,
                scope
            })),
            (any::<u16>(), any::<u32>(), any::<Gid>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
                |(pkey, flow, gid, sid, sid_mask, scope)| Addr::Ib(Ib { pkey, flow, gid, sid, sid_mask, scope })
            ),
        ]
    }

    proptest! {
        #[test]
        fn bytes_and_back(addr in any_addr()) {
            let (bytes, len) = addr.to_bytes();
            prop_assert_eq!(Addr::from_bytes(&bytes[..len]), Some(addr));
            prop_assert_eq!(Addr::from_bytes(&bytes[..len - 1]), None);
        }

        #[test]
        fn any_bytes_are_read_safely(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Addr::from_bytes(&bytes);
        }
    }
}
