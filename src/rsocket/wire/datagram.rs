//! The wire formats of datagram rsockets (docs/protocol.md): the headers before the payload, one
//! for UDP packets until the peer's QP is known, and one for UD messages.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

const TAG: u32 = 0x5555_5555;
const IPV4: u8 = 4;
const IPV6: u8 = 6;

/// QP numbers have 24 bits.
pub const QPN_MASK: u32 = 0x00FF_FFFF;

/// Length of the longest UDP header in bytes.
pub const MAX_UDP_HEADER: usize = 28;
const UDP_IPV4_HEADER: usize = 16;
/// Length of the longest UD header in bytes.
pub const MAX_UD_HEADER: usize = 24;
/// Length of a UD header with an IPv4 address in bytes.
pub const UD_IPV4_HEADER: usize = 8;

/// The purpose of a UDP packet between rsockets, with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpOp {
    /// The payload follows. The sender requests the receiver's QP number.
    Data = 0,
    /// No payload. Answers a [`Data`](UdpOp::Data) packet.
    Control = 7,
}

/// The header of a UDP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader {
    /// The purpose of the packet.
    pub op: UdpOp,
    /// The sender's QP number.
    pub qpn: u32,
    /// The IP address of the sender's QP.
    pub address: IpAddr,
}

impl UdpHeader {
    /// Returns the header and its length.
    pub fn emit(&self) -> ([u8; MAX_UDP_HEADER], usize) {
        let mut bytes = [0; MAX_UDP_HEADER];
        bytes[..4].copy_from_slice(&TAG.to_be_bytes());
        bytes[5] = self.op as u8;
        bytes[8..12].copy_from_slice(&(self.qpn & QPN_MASK).to_be_bytes());
        let len = match self.address {
            IpAddr::V4(ip) => {
                bytes[4] = IPV4;
                bytes[12..UDP_IPV4_HEADER].copy_from_slice(&ip.octets());
                UDP_IPV4_HEADER
            }
            IpAddr::V6(ip) => {
                bytes[4] = IPV6;
                bytes[12..].copy_from_slice(&ip.octets());
                MAX_UDP_HEADER
            }
        };
        bytes[6] = len as u8;
        (bytes, len)
    }

    /// Parses and validates the header of a packet. Returns the header and the offset of the
    /// payload; `None` for an invalid header, including one with QP number 0 or 1, which belong to
    /// the port, or with a QP number of more than 24 bits.
    pub fn parse(packet: &[u8]) -> Option<(UdpHeader, usize)> {
        let ([t0, t1, t2, t3, version, op, length, _, q0, q1, q2, q3], rest) = packet.split_first_chunk()?;
        let tag = u32::from_be_bytes([*t0, *t1, *t2, *t3]);
        let op = [UdpOp::Data, UdpOp::Control].into_iter().find(|known| *known as u8 == *op)?;
        let len = length_of(*version, *length, UDP_IPV4_HEADER, MAX_UDP_HEADER)?;
        let address = ip(*version, rest)?;
        let qpn = u32::from_be_bytes([*q0, *q1, *q2, *q3]);
        (tag == TAG && (2..=QPN_MASK).contains(&qpn)).then_some((UdpHeader { op, qpn, address }, len))
    }
}

/// The header of a UD message, which contains the sender's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdHeader {
    /// The sender's address, without a scope.
    pub source: SocketAddr,
}

impl UdHeader {
    /// Returns the header and its length.
    pub fn emit(&self) -> ([u8; MAX_UD_HEADER], usize) {
        let mut bytes = [0; MAX_UD_HEADER];
        bytes[2..4].copy_from_slice(&self.source.port().to_be_bytes());
        let len = match self.source {
            SocketAddr::V4(v4) => {
                bytes[0] = IPV4;
                bytes[4..UD_IPV4_HEADER].copy_from_slice(&v4.ip().octets());
                UD_IPV4_HEADER
            }
            SocketAddr::V6(v6) => {
                bytes[0] = IPV6;
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                bytes[8..].copy_from_slice(&v6.ip().octets());
                MAX_UD_HEADER
            }
        };
        bytes[1] = len as u8;
        (bytes, len)
    }

    /// Parses and validates the header of a message. Returns the header and the offset of the
    /// payload; `None` for an invalid header.
    pub fn parse(message: &[u8]) -> Option<(UdHeader, usize)> {
        let ([version, length, p0, p1], rest) = message.split_first_chunk()?;
        let len = length_of(*version, *length, UD_IPV4_HEADER, MAX_UD_HEADER)?;
        let port = u16::from_be_bytes([*p0, *p1]);
        let source = if *version == IPV4 {
            SocketAddr::new(ip(IPV4, rest)?, port)
        } else {
            let (flow, rest) = rest.split_first_chunk()?;
            let ip = rest.first_chunk::<16>()?;
            SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(*ip), port, u32::from_be_bytes(*flow), 0))
        };
        Some((UdHeader { source }, len))
    }
}

/// Returns the length of a header with this IP version. Returns `None` for an unknown version, and
/// if the header's length field, `length`, differs.
fn length_of(version: u8, length: u8, ipv4: usize, ipv6: usize) -> Option<usize> {
    let expected = match version {
        IPV4 => ipv4,
        IPV6 => ipv6,
        _ => return None,
    };
    (usize::from(length) == expected).then_some(expected)
}

/// Returns the IP address at the beginning of `bytes`.
fn ip(version: u8, bytes: &[u8]) -> Option<IpAddr> {
    match version {
        IPV4 => bytes.first_chunk::<4>().map(|ip| IpAddr::V4(Ipv4Addr::from(*ip))),
        _ => bytes.first_chunk::<16>().map(|ip| IpAddr::V6(Ipv6Addr::from(*ip))),
    }
}
