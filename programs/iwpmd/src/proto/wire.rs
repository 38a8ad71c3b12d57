//! The UDP messages between the port mappers of two hosts: 64 bytes for a request, 48 bytes for
//! other messages. This module alone parses and emits them. CP: connecting peer; AP: accepting
//! peer.
//!
//! ```text
//! 0  magic: version (bits 7-6), kind (5-4), IP version (3-0)    8  handle, 64 bits
//! 1  unused                                                     16 IP address of the CP
//! 2  port that the CP is mapped to (requests)                   32 IP address of the AP
//! 4  port of the AP                                             48 mapped IP of the CP (requests)
//! 6  port of the CP
//! ```
//! Numbers are in network byte order; an IPv4 address is in the first 4 of the field's 16 bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// UDP port of port mappers.
pub const PORT: u16 = 3935;
/// Size of a message that is not a request.
pub const MESSAGE_SIZE: usize = 48;
/// Size of a request. Older port mappers send requests of [`MESSAGE_SIZE`] bytes.
pub const REQUEST_SIZE: usize = 64;

/// Offset of the connecting peer's address.
const CP_IP: usize = 16;
/// Offset of the accepting peer's address.
const AP_IP: usize = 32;
/// Offset of the connecting peer's mapped address.
const MAPPED_CP_IP: usize = 48;

/// The kinds, indexed by their numbers in messages.
const KINDS: [Kind; 4] = [Kind::Request, Kind::Accept, Kind::Ack, Kind::Reject];

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Asks for the port to which an address is mapped.
    Request,
    /// Answers a request with the mapped address.
    Accept,
    /// Acknowledges an accept.
    Ack,
    /// Answers a request: the address is not mapped.
    Reject,
}

/// An address and port of one peer. Peers are ordered by port, then by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer {
    /// TCP port.
    pub port: u16,
    /// IP address.
    pub ip: IpAddr,
}

/// A message between two port mappers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// The kind of the message.
    pub kind: Kind,
    /// A number chosen for the request and repeated in the answers.
    pub handle: u64,
    /// The connecting peer.
    pub cp: Peer,
    /// The accepting peer: the queried address of a request, the mapped address of an accept.
    pub ap: Peer,
    /// The connecting peer's mapped address, in requests only.
    pub mapped_cp: Option<Peer>,
}

impl Message {
    /// Parses a datagram received by a socket of IPv6 if `v6` is true, of IPv4 otherwise. Returns
    /// `None` if the size, the protocol version or the IP version is wrong.
    pub fn parse(bytes: &[u8], v6: bool) -> Option<Message> {
        if ![MESSAGE_SIZE, REQUEST_SIZE].contains(&bytes.len()) || bytes[0] >> 6 != 0 || bytes[0] & 0xf != version(v6) {
            return None;
        }
        let kind = KINDS[usize::from(bytes[0] >> 4 & 3)];
        let mut handle = [0; 8];
        handle.copy_from_slice(&bytes[8..16]);
        let cp = Peer { ip: ip(bytes, CP_IP, v6), port: port(bytes, 6) };
        let mapped_cp = (kind == Kind::Request).then(|| Peer {
            ip: if bytes.len() == REQUEST_SIZE { ip(bytes, MAPPED_CP_IP, v6) } else { cp.ip },
            // Port 0: the peer's port is not mapped.
            port: if port(bytes, 2) == 0 { cp.port } else { port(bytes, 2) },
        });
        let ap = Peer { ip: ip(bytes, AP_IP, v6), port: port(bytes, 4) };
        Some(Message { kind, handle: u64::from_be_bytes(handle), cp, ap, mapped_cp })
    }

    /// Encodes the message. All its addresses must be of one family.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![0; if self.mapped_cp.is_some() { REQUEST_SIZE } else { MESSAGE_SIZE }];
        bytes[0] = (self.kind as u8) << 4 | version(self.ap.ip.is_ipv6());
        bytes[4..6].copy_from_slice(&self.ap.port.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.cp.port.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.handle.to_be_bytes());
        put(&mut bytes, CP_IP, self.cp.ip);
        put(&mut bytes, AP_IP, self.ap.ip);
        if let Some(mapped) = self.mapped_cp {
            bytes[2..4].copy_from_slice(&mapped.port.to_be_bytes());
            put(&mut bytes, MAPPED_CP_IP, mapped.ip);
        }
        bytes
    }

    /// Returns the message of `kind` that answers this one.
    pub fn answer(&self, kind: Kind) -> Message {
        Message { kind, mapped_cp: None, ..*self }
    }
}

/// Returns the IP version for the first byte of a message.
fn version(v6: bool) -> u8 {
    if v6 { 6 } else { 4 }
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

fn put(bytes: &mut [u8], at: usize, ip: IpAddr) {
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

    /// The bytes that rdma-core's iwpmd (44.0) sends.
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
        let mut expected = [0; REQUEST_SIZE];
        expected[..8].copy_from_slice(&[0x04, 0, 0xd1, 0x7b, 0x23, 0x28, 0x1f, 0x40]);
        expected[14..16].copy_from_slice(&[0x11, 0x11]);
        expected[16..20].copy_from_slice(&[10, 91, 0, 1]);
        expected[32..36].copy_from_slice(&[10, 91, 0, 2]);
        expected[48..52].copy_from_slice(&[10, 91, 0, 1]);
        assert_eq!(sent, expected);
        let accept = request.answer(Kind::Accept).emit();
        assert_eq!((accept.len(), accept[0], &accept[2..4]), (MESSAGE_SIZE, 0x14, &[0, 0][..]));
    }

    #[test]
    fn an_old_request_is_mapped_to_its_own_address() {
        let mut old = [0; MESSAGE_SIZE];
        (old[0], old[3], old[16]) = (4, 9, 10);
        let mapped = Message::parse(&old, false).unwrap().mapped_cp;
        assert_eq!(mapped, Some(peer("10.0.0.0", 9)));
        (old[3], old[7]) = (0, 8);
        assert_eq!(Message::parse(&old, false).unwrap().mapped_cp, Some(peer("10.0.0.0", 8)));
    }

    #[test]
    fn invalid_datagrams_are_rejected() {
        let message = [4; REQUEST_SIZE];
        assert_eq!(Message::parse(&message[..47], false), None);
        assert_eq!(Message::parse(&message[..49], false), None);
        assert_eq!(Message::parse(&message, true), None);
        assert_eq!(Message::parse(&[0x46; REQUEST_SIZE], true), None);
        assert!(Message::parse(&message, false).is_some() && Message::parse(&[6; REQUEST_SIZE], true).is_some());
    }

    proptest! {
        #[test]
        fn parsed_messages_are_emitted_alike(bytes in proptest::collection::vec(any::<u8>(), REQUEST_SIZE), long: bool, v6: bool) {
            let mut bytes = bytes;
            bytes.truncate(if long { REQUEST_SIZE } else { MESSAGE_SIZE });
            bytes[0] = bytes[0] & 0x30 | if v6 { 6 } else { 4 };
            let message = Message::parse(&bytes, v6).unwrap();
            let sent = message.emit();
            prop_assert_eq!(Message::parse(&sent, v6), Some(message));
            prop_assert_eq!(sent.len() == REQUEST_SIZE, message.kind == Kind::Request);
        }

        #[test]
        fn any_bytes_are_parsed_safely(bytes in proptest::collection::vec(any::<u8>(), 0..80), v6: bool) {
            let _ = Message::parse(&bytes, v6);
        }
    }
}
