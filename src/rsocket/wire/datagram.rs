//! The formats of datagram rsockets (docs/protocol.md): headers in front of the payload, one over
//! UDP until the peer's QP is known, another one in UD messages.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

const TAG: u32 = 0x5555_5555;
const OP_DATA: u8 = 0;
const OP_CONTROL: u8 = 7;
const IPV4: u8 = 4;
const IPV6: u8 = 6;

/// Numbers of QPs have 24 bits.
pub const QPN_MASK: u32 = 0x00FF_FFFF;

/// Bytes of the longest UDP header.
pub const UDP_MOST: usize = 28;
const UDP_IPV4: usize = 16;
/// Bytes of the longest UD header.
pub const UD_MOST: usize = 24;
/// Bytes of a UD header with an IPv4 address.
pub const UD_IPV4: usize = 8;

/// What makes a packet none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHeader {
    /// The packet ends before its header does.
    Short,
    /// It starts with something else.
    Tag(u32),
    /// Neither IPv4 nor IPv6.
    Version(u8),
    /// An unknown operation.
    Op(u8),
    /// Not the length that a header of its version has.
    Length(u8),
    /// Number of a QP that no sender has: 0 and 1 are the port's own, and 24 bits is all there is.
    Qpn(u32),
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadHeader::Short => f.write_str("packet is shorter than its header"),
            BadHeader::Tag(tag) => write!(f, "tag {tag:#x}"),
            BadHeader::Version(version) => write!(f, "IP version {version}"),
            BadHeader::Op(op) => write!(f, "operation {op}"),
            BadHeader::Length(length) => write!(f, "header length {length}"),
            BadHeader::Qpn(qpn) => write!(f, "QP number {qpn:#x}"),
        }
    }
}

/// What a UDP packet between rsockets is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpOp {
    /// Payload follows; the sender wants to know our QP.
    Data,
    /// Nothing follows: it answers a [`Data`](UdpOp::Data) packet.
    Control,
}

/// The header of a UDP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader {
    /// What it is for.
    pub op: UdpOp,
    /// The sender's QP.
    pub qpn: u32,
    /// Address of the sender's QP.
    pub address: IpAddr,
}

impl UdpHeader {
    /// The header's bytes, and how many of them count.
    pub fn emit(&self) -> ([u8; UDP_MOST], usize) {
        let mut bytes = [0; UDP_MOST];
        bytes[..4].copy_from_slice(&TAG.to_be_bytes());
        bytes[5] = match self.op {
            UdpOp::Data => OP_DATA,
            UdpOp::Control => OP_CONTROL,
        };
        bytes[8..12].copy_from_slice(&(self.qpn & QPN_MASK).to_be_bytes());
        let len = match self.address {
            IpAddr::V4(ip) => {
                bytes[4] = IPV4;
                bytes[12..UDP_IPV4].copy_from_slice(&ip.octets());
                UDP_IPV4
            }
            IpAddr::V6(ip) => {
                bytes[4] = IPV6;
                bytes[12..].copy_from_slice(&ip.octets());
                UDP_MOST
            }
        };
        bytes[6] = len as u8;
        (bytes, len)
    }

    /// Reads and checks the header of a packet; the payload begins at the second value.
    pub fn parse(packet: &[u8]) -> Result<(UdpHeader, usize), BadHeader> {
        let Some(([t0, t1, t2, t3, version, op, length, _, q0, q1, q2, q3], rest)) = packet.split_first_chunk() else {
            return Err(BadHeader::Short);
        };
        let tag = u32::from_be_bytes([*t0, *t1, *t2, *t3]);
        if tag != TAG {
            return Err(BadHeader::Tag(tag));
        }
        let op = match *op {
            OP_DATA => UdpOp::Data,
            OP_CONTROL => UdpOp::Control,
            op => return Err(BadHeader::Op(op)),
        };
        let len = length_of(*version, *length, UDP_IPV4, UDP_MOST)?;
        let address = ip(*version, rest).ok_or(BadHeader::Short)?;
        let qpn = u32::from_be_bytes([*q0, *q1, *q2, *q3]);
        if !(2..=QPN_MASK).contains(&qpn) {
            return Err(BadHeader::Qpn(qpn));
        }
        Ok((UdpHeader { op, qpn, address }, len))
    }
}

/// The header of a UD message: the address that the sender is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdHeader {
    /// The sender's address. Its scope is the receiver's business.
    pub source: SocketAddr,
}

impl UdHeader {
    /// The header's bytes, and how many of them count.
    pub fn emit(&self) -> ([u8; UD_MOST], usize) {
        let mut bytes = [0; UD_MOST];
        bytes[2..4].copy_from_slice(&self.source.port().to_be_bytes());
        let len = match self.source {
            SocketAddr::V4(v4) => {
                bytes[0] = IPV4;
                bytes[4..UD_IPV4].copy_from_slice(&v4.ip().octets());
                UD_IPV4
            }
            SocketAddr::V6(v6) => {
                bytes[0] = IPV6;
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                bytes[8..].copy_from_slice(&v6.ip().octets());
                UD_MOST
            }
        };
        bytes[1] = len as u8;
        (bytes, len)
    }

    /// Reads and checks the header of a message; the payload begins at the second value.
    pub fn parse(message: &[u8]) -> Result<(UdHeader, usize), BadHeader> {
        let Some(([version, length, p0, p1], rest)) = message.split_first_chunk() else { return Err(BadHeader::Short) };
        let len = length_of(*version, *length, UD_IPV4, UD_MOST)?;
        let port = u16::from_be_bytes([*p0, *p1]);
        let source = if *version == IPV4 {
            SocketAddr::new(ip(IPV4, rest).ok_or(BadHeader::Short)?, port)
        } else {
            let (flow, rest) = rest.split_first_chunk().ok_or(BadHeader::Short)?;
            let ip = rest.first_chunk::<16>().ok_or(BadHeader::Short)?;
            SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(*ip), port, u32::from_be_bytes(*flow), 0))
        };
        Ok((UdHeader { source }, len))
    }
}

/// The length of a header of `version`, if it says that length.
fn length_of(version: u8, length: u8, ipv4: usize, ipv6: usize) -> Result<usize, BadHeader> {
    let expected = match version {
        IPV4 => ipv4,
        IPV6 => ipv6,
        version => return Err(BadHeader::Version(version)),
    };
    if usize::from(length) == expected { Ok(expected) } else { Err(BadHeader::Length(length)) }
}

/// The IP address at the front of `bytes`.
fn ip(version: u8, bytes: &[u8]) -> Option<IpAddr> {
    match version {
        IPV4 => bytes.first_chunk::<4>().map(|ip| IpAddr::V4(Ipv4Addr::from(*ip))),
        _ => bytes.first_chunk::<16>().map(|ip| IpAddr::V6(Ipv6Addr::from(*ip))),
    }
}
