//! Netlink messages and their attributes (`linux/netlink.h`), read and written. No I/O.

/// Size of `struct nlmsghdr`.
pub const MESSAGE_HEADER: usize = 16;
/// Size of `struct nlattr`.
pub const ATTRIBUTE_HEADER: usize = 4;
/// Messages in a datagram, and attributes in a message, begin at multiples of this.
const ALIGNMENT: usize = 4;
/// The bits of an attribute's type that are not flags.
const ATTRIBUTE_TYPE: u16 = 0x3fff;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Type; the types below 16 are netlink's own (`NLMSG_*`).
    pub kind: u16,
    /// Sequence number.
    pub sequence: u32,
    /// The bytes after the header.
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// Returns the value of the first attribute of type `kind`; `None` if there is none, or if a
    /// malformed attribute precedes it.
    pub fn attribute(&self, kind: u16) -> Option<&'a [u8]> {
        let mut attributes = Attributes(self.payload).map_while(Result::ok);
        attributes.find_map(|(other, value)| (other == kind).then_some(value))
    }
}

/// Iterates over the messages of a datagram, up to the first message that is cut short. The field
/// contains the unread bytes; after the iteration, these are no complete message.
#[derive(Clone, Debug)]
pub struct Messages<'a>(pub &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let (header, _) = self.0.split_first_chunk::<MESSAGE_HEADER>()?;
        let [l0, l1, l2, l3, k0, k1, _, _, s0, s1, s2, s3, ..] = *header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let payload = self.0.get(MESSAGE_HEADER..length)?;
        self.0 = after(self.0, length);
        let (kind, sequence) = (u16::from_ne_bytes([k0, k1]), u32::from_ne_bytes([s0, s1, s2, s3]));
        Some(Message { kind, sequence, payload })
    }
}

/// The bytes are no complete attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Iterates over the attributes of a message: the type, without flags, and the value of each. The
/// bytes begin with the header of the first attribute. Bytes that are no complete attribute yield
/// an error, and end the iteration.
#[derive(Clone, Debug)]
pub struct Attributes<'a>(pub &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<(u16, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = core::mem::take(&mut self.0);
        let [l0, l1, k0, k1, ..] = *bytes else { return (!bytes.is_empty()).then_some(Err(Malformed)) };
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let Some(value) = bytes.get(ATTRIBUTE_HEADER..length) else { return Some(Err(Malformed)) };
        self.0 = after(bytes, length);
        Some(Ok((u16::from_ne_bytes([k0, k1]) & ATTRIBUTE_TYPE, value)))
    }
}

/// Returns what follows the first `length` bytes and their padding. The padding may be missing at
/// the end of `bytes`.
fn after(bytes: &[u8], length: usize) -> &[u8] {
    bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default()
}

/// Appends an attribute with its padding.
pub fn push_attribute(message: &mut impl Extend<u8>, kind: u16, value: &[u8]) {
    let length = (ATTRIBUTE_HEADER + value.len()) as u16;
    let padding = value.len().next_multiple_of(ALIGNMENT) - value.len();
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value.iter().copied().chain(core::iter::repeat_n(0, padding)));
}

/// Writes the header of `message`, a whole message that begins with room for its header. `port` is
/// stored as the netlink port of the sender.
pub fn write_header(message: &mut [u8], kind: u16, flags: u16, sequence: u32, port: u32) {
    let length = message.len() as u32;
    if let Some(header) = message.first_chunk_mut::<MESSAGE_HEADER>() {
        header[..4].copy_from_slice(&length.to_ne_bytes());
        header[4..6].copy_from_slice(&kind.to_ne_bytes());
        header[6..8].copy_from_slice(&flags.to_ne_bytes());
        header[8..12].copy_from_slice(&sequence.to_ne_bytes());
        header[12..].copy_from_slice(&port.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use super::*;

    fn message() -> Vec<u8> {
        let mut message = vec![0; MESSAGE_HEADER];
        push_attribute(&mut message, 7, b"name\0");
        push_attribute(&mut message, 8, &[]);
        write_header(&mut message, 0x1234, 5, 6, 8);
        message
    }

    #[test]
    fn a_message_with_a_padded_attribute() {
        let message = message();
        assert_eq!(message[..4], 32_u32.to_ne_bytes());
        assert_eq!(message[4..8], [0x1234_u16.to_ne_bytes(), 5_u16.to_ne_bytes()].concat());
        assert_eq!(message[8..16], [6_u32.to_ne_bytes(), 8_u32.to_ne_bytes()].concat());
        assert_eq!(message[16..20], [9_u16.to_ne_bytes(), 7_u16.to_ne_bytes()].concat());
        assert_eq!(message[20..28], *b"name\0\0\0\0");
        assert_eq!(message[28..], [4_u16.to_ne_bytes(), 8_u16.to_ne_bytes()].concat());
    }

    #[test]
    fn what_is_written_is_read() {
        let datagram = [message(), message()].concat();
        let mut messages = Messages(&datagram);
        for _ in 0..2 {
            let message = messages.next().unwrap();
            assert_eq!((message.kind, message.sequence), (0x1234, 6));
            let attributes: Vec<_> = Attributes(message.payload).collect();
            assert_eq!(attributes, [Ok((7, &b"name\0"[..])), Ok((8, &[][..]))]);
            assert_eq!((message.attribute(8), message.attribute(9)), (Some(&[][..]), None));
        }
        assert_eq!((messages.next(), messages.0), (None, &[][..]));
    }

    #[test]
    fn truncated_messages_are_left() {
        let whole = message();
        for length in 0..whole.len() {
            let mut messages = Messages(&whole[..length]);
            assert_eq!((messages.next(), messages.0.len()), (None, length));
        }
        for claimed in [0, 15, 33, u32::MAX] {
            let mut wrong = whole.clone();
            wrong[..4].copy_from_slice(&claimed.to_ne_bytes());
            assert_eq!(Messages(&wrong).next(), None, "{claimed}");
        }
    }

    #[test]
    fn truncated_attributes_are_malformed() {
        let whole = &message()[MESSAGE_HEADER..];
        for length in 1..9 {
            let mut attributes = Attributes(&whole[..length]);
            assert_eq!((attributes.next(), attributes.next()), (Some(Err(Malformed)), None), "{length} bytes");
        }
        // The padding of the last attribute may be missing. Flags are no part of the type.
        assert_eq!(Attributes(&whole[..9]).next(), Some(Ok((7, &b"name\0"[..]))));
        let flagged = [4_u16.to_ne_bytes(), 0x8007_u16.to_ne_bytes()].concat();
        assert_eq!(Attributes(&flagged).next(), Some(Ok((7, &[][..]))));
        for length in 0..4 {
            assert_eq!(Attributes(&[length, 0, 7, 0]).next(), Some(Err(Malformed)), "{length}");
        }
    }
}
