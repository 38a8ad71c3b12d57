//! Headers of netlink messages and their attributes (`linux/netlink.h`): sizes, and how they are
//! written. No I/O.

use netlink_packet_core::{NetlinkBuffer, NlaBuffer};

/// Size of `struct nlmsghdr`.
pub const MESSAGE_HEADER: usize = 16;
/// Size of `struct nlattr`.
pub const ATTRIBUTE_HEADER: usize = 4;
/// Messages in a datagram, and attributes in a message, begin at multiples of this.
pub const ALIGNMENT: usize = 4;

/// Returns the size of an attribute with a value of `len` bytes, including padding.
pub const fn attribute_size(len: usize) -> usize {
    ATTRIBUTE_HEADER + len.next_multiple_of(ALIGNMENT)
}

/// Writes the header of `message`, which is a whole message. The kernel's port is 0.
pub fn write_header(message: &mut [u8], kind: u16, flags: u16, sequence: u32, port: u32) {
    let length = message.len() as u32;
    let mut header = NetlinkBuffer::new(message);
    header.set_length(length);
    header.set_message_type(kind);
    header.set_flags(flags);
    header.set_sequence_number(sequence);
    header.set_port_number(port);
}

/// Writes an attribute into `bytes`, zeros of its [`attribute_size`].
pub fn write_attribute(bytes: &mut [u8], kind: u16, value: &[u8]) {
    let mut attribute = NlaBuffer::new(&mut *bytes);
    attribute.set_kind(kind);
    attribute.set_length((ATTRIBUTE_HEADER + value.len()) as u16);
    attribute.value_mut()[..value.len()].copy_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_with_a_padded_attribute() {
        let mut message = [0; MESSAGE_HEADER + attribute_size(5)];
        write_attribute(&mut message[MESSAGE_HEADER..], 7, b"name\0");
        write_header(&mut message, 0x1234, 5, 6, 8);
        assert_eq!(message[..4], 28_u32.to_ne_bytes());
        assert_eq!(message[4..8], [0x1234_u16.to_ne_bytes(), 5_u16.to_ne_bytes()].concat());
        assert_eq!(message[8..16], [6_u32.to_ne_bytes(), 8_u32.to_ne_bytes()].concat());
        assert_eq!(message[16..20], [9_u16.to_ne_bytes(), 7_u16.to_ne_bytes()].concat());
        assert_eq!(message[20..], *b"name\0\0\0\0");
    }
}
