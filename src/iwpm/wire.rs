//! The messages that port mappers of two hosts exchange over UDP: 48 bytes, a request 64. Parsed and emitted here, nowhere
//! else. No I/O.
//!
//! ```text
//! 0  magic: version (bits 7-6), kind (5-4), IP version (3-0)    8  handle, 64 bits
//! 1  unused                                                     16 IP address of the connecting peer
//! 2  port that the connecting peer is mapped to (requests)      32 IP address of the accepting peer
//! 4  port of the accepting peer                                 48 mapped IP address of the connecting peer (requests)
//! 6  port of the connecting peer
//! ```
//! Numbers are in network byte order; an IPv4 address is in the first 4 of its 16 bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The UDP port of every port mapper.
pub const PORT: u16 = 3935;
/// Bytes of a message.
pub const SHORT: usize = 48;
/// Bytes of a request. Older port mappers sent requests of [`SHORT`] bytes.
pub const LONG: usize = 64;

const CP: usize = 16;
const AP: usize = 32;
const MAPPED_CP: usize = 48;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// To which port is this address mapped?
    Request,
    /// The answer.
    Accept,
    /// The answer was received.
    Ack,
    /// The answer: to none.
    Reject,
}

/// An address and port of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Address.
    pub ip: IpAddr,
    /// TCP port.
    pub port: u16,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// Chosen by whoever asks; the answer has the same.
    pub handle: u64,
    /// The connecting peer.
    pub cp: Peer,
    /// The accepting peer: what a request asks for, what an accept answers with.
    pub ap: Peer,
    /// What the connecting peer is mapped to; only requests say so.
    pub mapped_cp: Option<Peer>,
}

/// What is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Neither 48 bytes nor 64.
    Size,
    /// Another version of the protocol than 0.
    Version,
    /// Addresses of neither IPv4 nor IPv6, or of another family than the socket's.
    Family,
}

/// A message as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    bytes: [u8; LONG],
    len: usize,
}

impl Bytes {
    /// The message.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Message {
    /// Reads what a socket received; `v6`: whether it is one of IPv6.
    pub fn parse(bytes: &[u8], v6: bool) -> Result<Message, Malformed> {
        if bytes.len() != SHORT && bytes.len() != LONG {
            return Err(Malformed::Size);
        }
        if bytes[0] >> 6 != 0 {
            return Err(Malformed::Version);
        }
        if bytes[0] & 0xf != if v6 { 6 } else { 4 } {
            return Err(Malformed::Family);
        }
        let kind = match bytes[0] >> 4 & 3 {
            0 => Kind::Request,
            1 => Kind::Accept,
            2 => Kind::Ack,
            _ => Kind::Reject,
        };
        let mut handle = [0; 8];
        handle.copy_from_slice(&bytes[8..16]);
        let cp = Peer { ip: ip(bytes, CP, v6), port: port(bytes, 6) };
        let mapped_cp = (kind == Kind::Request).then(|| Peer {
            ip: if bytes.len() == LONG { ip(bytes, MAPPED_CP, v6) } else { cp.ip },
            // 0 from peers that don't say: then it is not mapped.
            port: if port(bytes, 2) == 0 { cp.port } else { port(bytes, 2) },
        });
        let ap = Peer { ip: ip(bytes, AP, v6), port: port(bytes, 4) };
        Ok(Message { kind, handle: u64::from_be_bytes(handle), cp, ap, mapped_cp })
    }

    /// As it is sent. Its addresses are of one family.
    pub fn emit(&self) -> Bytes {
        let mut bytes = [0; LONG];
        let version = if self.ap.ip.is_ipv6() { 6 } else { 4 };
        let kind = match self.kind {
            Kind::Request => 0,
            Kind::Accept => 1,
            Kind::Ack => 2,
            Kind::Reject => 3,
        };
        bytes[0] = kind << 4 | version;
        bytes[4..6].copy_from_slice(&self.ap.port.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.cp.port.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.handle.to_be_bytes());
        put(&mut bytes, CP, self.cp.ip);
        put(&mut bytes, AP, self.ap.ip);
        let Some(mapped) = self.mapped_cp else { return Bytes { bytes, len: SHORT } };
        bytes[2..4].copy_from_slice(&mapped.port.to_be_bytes());
        put(&mut bytes, MAPPED_CP, mapped.ip);
        Bytes { bytes, len: LONG }
    }

    /// The message of `kind` that answers this one.
    pub fn answer(&self, kind: Kind) -> Message {
        Message { kind, mapped_cp: None, ..*self }
    }
}

fn port(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn ip(bytes: &[u8], at: usize, v6: bool) -> IpAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[at..at + 16]);
    if v6 {
        return Ipv6Addr::from(octets).into();
    }
    Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into()
}

fn put(bytes: &mut [u8; LONG], at: usize, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => bytes[at..at + 4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes[at..at + 16].copy_from_slice(&ip.octets()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer(ip: &str, port: u16) -> Peer {
        Peer { ip: ip.parse().unwrap(), port }
    }

    /// As the reference sends and answers a request (44.0).
    #[test]
    fn request_and_accept_byte_by_byte() {
        let request = Message {
            kind: Kind::Request,
            handle: 0x1111,
            cp: peer("10.91.0.1", 8000),
            ap: peer("10.91.0.2", 9000),
            mapped_cp: Some(peer("10.91.0.1", 0xd17b)),
        };
        let sent = request.emit();
        let mut expected = [0; LONG];
        expected[..8].copy_from_slice(&[0x04, 0, 0xd1, 0x7b, 0x23, 0x28, 0x1f, 0x40]);
        expected[14..16].copy_from_slice(&[0x11, 0x11]);
        expected[16..20].copy_from_slice(&[10, 91, 0, 1]);
        expected[32..36].copy_from_slice(&[10, 91, 0, 2]);
        expected[48..52].copy_from_slice(&[10, 91, 0, 1]);
        assert_eq!(sent.as_slice(), expected);
        let accept = request.answer(Kind::Accept).emit();
        assert_eq!(
            (accept.as_slice().len(), accept.as_slice()[0], &accept.as_slice()[2..4]),
            (SHORT, 0x14, &[0, 0][..])
        );
    }

    #[test]
    fn an_old_request_is_mapped_to_its_own_address() {
        let mut old = [0; SHORT];
        (old[0], old[3], old[16]) = (4, 9, 10);
        let mapped = Message::parse(&old, false).unwrap().mapped_cp;
        assert_eq!(mapped, Some(peer("10.0.0.0", 9)));
        (old[3], old[7]) = (0, 8);
        assert_eq!(Message::parse(&old, false).unwrap().mapped_cp, Some(peer("10.0.0.0", 8)));
    }

    #[test]
    fn what_is_refused() {
        let message = [4; LONG];
        assert_eq!(Message::parse(&message[..47], false), Err(Malformed::Size));
        assert_eq!(Message::parse(&message[..49], false), Err(Malformed::Size));
        assert_eq!(Message::parse(&message, true), Err(Malformed::Family));
        assert_eq!(Message::parse(&[0x46; LONG], true), Err(Malformed::Version));
    }

    proptest! {
        #[test]
        fn what_is_read_is_sent_again(bytes in proptest::collection::vec(any::<u8>(), LONG), long: bool, v6: bool) {
            let mut bytes = bytes;
            bytes.truncate(if long { LONG } else { SHORT });
            bytes[0] = bytes[0] & 0x30 | if v6 { 6 } else { 4 };
            let message = Message::parse(&bytes, v6).unwrap();
            let sent = message.emit();
            prop_assert_eq!(Message::parse(sent.as_slice(), v6), Ok(message));
            prop_assert_eq!(sent.as_slice().len() == LONG, message.kind == Kind::Request);
        }

        #[test]
        fn any_bytes_are_read_safely(bytes in proptest::collection::vec(any::<u8>(), 0..80), v6: bool) {
            let _ = Message::parse(&bytes, v6);
        }
    }
}
