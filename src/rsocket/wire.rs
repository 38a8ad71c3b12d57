//! The wire formats of stream rsockets, and in [`datagram`] of datagram rsockets
//! (docs/protocol.md). No I/O.
//!
//! In a connection request with AF_IB addresses, a header precedes the private data; for IP
//! addresses the kernel adds the header. The receiver ignores the header's content: rdma-core sends
//! uninitialized memory, and the addresses are not authenticated. Everything received from a peer
//! is validated by a `parse` function of this module.

use crate::acm::addr;
pub use crate::acm::addr::IP_HEADER;
use crate::os::sockaddr::{SockAddr, port};

pub mod datagram;

#[cfg(test)]
mod tests;

/// Memory that the peer may write to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Start address.
    pub addr: u64,
    /// Remote key of the memory region.
    pub rkey: u32,
    /// Length in bytes. For a target SGL, the number of entries.
    pub length: u32,
}

impl Region {
    /// Returns the region as it is in private data: all fields in network byte order.
    fn to_be(self) -> [u8; SGL_ENTRY] {
        (u128::from(self.addr) << 64 | u128::from(self.rkey) << 32 | u128::from(self.length)).to_be_bytes()
    }

    fn from_be(bytes: [u8; SGL_ENTRY]) -> Region {
        let fields = u128::from_be_bytes(bytes);
        Region { addr: (fields >> 64) as u64, rkey: (fields >> 32) as u32, length: fields as u32 }
    }

    /// Returns the region with the bytes of each field in the opposite order.
    fn swapped(self) -> Region {
        Region { addr: self.addr.swap_bytes(), rkey: self.rkey.swap_bytes(), length: self.length.swap_bytes() }
    }
}

/// The private data of a connection request and of its reply.
///
/// The fields are filled in as by rdma-core: `target_sgl.length` is 2, the number of entries.
/// `data_buf` is the part of the receive buffer that is advertised first. The number of iomap
/// entries is always given, even if it is 0. Reserved bytes are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnData {
    /// Whether the sender's target SGL and iomap are in big-endian byte order.
    pub big_endian: bool,
    /// Number of messages that the sender can receive before its first credit update.
    pub credits: u16,
    /// Number of entries in the sender's iomap, which follows the target SGL; 0 if the sender does
    /// not state it.
    pub iomap_size: u16,
    /// The sender's target SGL.
    pub target_sgl: Region,
    /// The part of the sender's receive buffer that is advertised first: the receiver of this
    /// structure uses it as entry 0 of its own target SGL.
    pub data_buf: Region,
}

const VERSION: u8 = 1;
const FLAG_BIG_ENDIAN: u8 = 1;
const FLAG_IOMAP_SIZE: u8 = 2;

/// Number of entries in a target SGL.
pub const SGL_ENTRIES: u32 = 2;

impl ConnData {
    /// Length in bytes.
    pub const LEN: usize = 40;

    /// Returns whether the sender has another byte order than this machine.
    pub fn is_swapped(&self) -> bool {
        self.big_endian != cfg!(target_endian = "big")
    }

    /// Returns the private data to send.
    pub fn emit(&self) -> [u8; ConnData::LEN] {
        let mut bytes = [0; ConnData::LEN];
        bytes[0] = VERSION;
        bytes[1] = FLAG_IOMAP_SIZE | if self.big_endian { FLAG_BIG_ENDIAN } else { 0 };
        bytes[7] = encode_iomap_size(self.iomap_size);
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[8..24].copy_from_slice(&self.target_sgl.to_be());
        bytes[24..].copy_from_slice(&self.data_buf.to_be());
        bytes
    }

    /// Parses and validates a peer's private data, which the kernel pads to the transport's length.
    /// Returns `None` if the data is too short, has another protocol version, or is unusable.
    pub fn parse(bytes: &[u8]) -> Option<ConnData> {
        let ([version, flags, c0, c1, _, _, _, scaled], rest) = bytes.split_first_chunk()?;
        let (sgl, rest) = rest.split_first_chunk()?;
        let data = ConnData {
            big_endian: flags & FLAG_BIG_ENDIAN != 0,
            credits: u16::from_be_bytes([*c0, *c1]),
            iomap_size: if flags & FLAG_IOMAP_SIZE != 0 { decode_iomap_size(*scaled) } else { 0 },
            target_sgl: Region::from_be(*sgl),
            data_buf: Region::from_be(*rest.first_chunk()?),
        };
        (*version == VERSION && data.is_usable()).then_some(data)
    }

    /// Returns whether data can be sent to the peer, and no region extends beyond the end of the
    /// address space.
    fn is_usable(&self) -> bool {
        let tables = (SGL_ENTRIES as usize * SGL_ENTRY + usize::from(self.iomap_size) * IOMAP_ENTRY) as u64;
        self.credits > 0
            && self.target_sgl.length == SGL_ENTRIES
            && self.data_buf.length > 0
            && self.target_sgl.addr.checked_add(tables).is_some()
            && self.data_buf.addr.checked_add(self.data_buf.length.into()).is_some()
    }
}

/// Maximum number of iomap entries that eight bits can represent.
pub const MAX_IOMAP_ENTRIES: u16 = 0x7F << 8;

/// Encodes `entries` in eight bits, rounded down: exactly up to 128, in units of 256 above.
pub fn encode_iomap_size(entries: u16) -> u8 {
    let entries = entries.min(MAX_IOMAP_ENTRIES);
    if entries <= 0x80 { entries as u8 } else { 0x80 | (entries >> 8) as u8 }
}

/// Decodes a number of iomap entries.
pub fn decode_iomap_size(scaled: u8) -> u16 {
    if scaled <= 0x80 { u16::from(scaled) } else { u16::from(scaled & 0x7F) << 8 }
}

/// Returns the number of iomap entries for a socket that requests `wanted`: the greatest number up
/// to `wanted` that private data can represent. Above [`MAX_IOMAP_ENTRIES`], rdma-core wraps around
/// instead.
pub fn round_iomap_size(wanted: u32) -> u16 {
    decode_iomap_size(encode_iomap_size(u16::try_from(wanted).unwrap_or(u16::MAX)))
}

/// A control message, with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Ends both directions.
    Disconnect = 0,
    /// Shows that the sender is alive.
    Keepalive = 1,
    /// The sender will send no more data.
    Shutdown = 2,
}

/// All control messages, in the order of their numbers.
const CONTROLS: [Control; 3] = [Control::Disconnect, Control::Keepalive, Control::Shutdown];

/// The meaning of a completion's immediate data (for iWARP, of the four bytes of a SEND).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// This number of stream bytes was written after the previous ones.
    Data(u32),
    /// Credit update: messages up to this number (exclusive) may be sent.
    CreditUpdate(u16),
    /// This entry of the iomap was written.
    Iomap(u16),
    /// A control message.
    Control(Control),
}

const OP_SHIFT: u32 = 29;
const OP_DATA: u32 = 0;
const OP_CREDIT_UPDATE: u32 = 4;
const OP_IOMAP: u32 = 6;
const OP_CONTROL: u32 = 7;

/// Maximum number of bytes of one DATA message.
pub const MAX_DATA: u32 = (1 << OP_SHIFT) - 1;

impl Message {
    /// Returns the immediate data in host byte order.
    pub fn word(self) -> u32 {
        let (op, data) = match self {
            Message::Data(length) => (OP_DATA, length),
            Message::CreditUpdate(number) => (OP_CREDIT_UPDATE, u32::from(number)),
            Message::Iomap(index) => (OP_IOMAP, u32::from(index)),
            Message::Control(control) => (OP_CONTROL, control as u32),
        };
        debug_assert!(data <= MAX_DATA);
        op << OP_SHIFT | data & MAX_DATA
    }

    /// Parses immediate data in host byte order. Returns `None` for an undefined operation, an
    /// undefined control message, and an iomap index of more than 16 bits. The caller validates the
    /// numbers against the connection.
    #[inline]
    pub fn parse(word: u32) -> Option<Message> {
        if word <= MAX_DATA {
            return Some(Message::Data(word));
        }
        Message::parse_other(word)
    }

    fn parse_other(word: u32) -> Option<Message> {
        let data = word & MAX_DATA;
        match word >> OP_SHIFT {
            // Sequence numbers have 16 bits. A carry above them is ignored.
            OP_CREDIT_UPDATE => Some(Message::CreditUpdate(data as u16)),
            OP_IOMAP => u16::try_from(data).ok().map(Message::Iomap),
            OP_CONTROL => CONTROLS.get(data as usize).copied().map(Message::Control),
            _ => None,
        }
    }
}

/// Length of a target SGL entry in bytes.
pub const SGL_ENTRY: usize = 16;

/// Returns a target SGL entry in its owner's byte order, which differs from the host's if `swap` is
/// set.
pub fn emit_sgl(region: Region, swap: bool) -> [u8; SGL_ENTRY] {
    let is_big_endian = swap != cfg!(target_endian = "big");
    if is_big_endian { region.to_be() } else { region.swapped().to_be() }
}

/// Parses an entry of the local target SGL.
pub fn parse_sgl(bytes: &[u8; SGL_ENTRY]) -> Region {
    let region = Region::from_be(*bytes);
    if cfg!(target_endian = "big") { region } else { region.swapped() }
}

/// An entry of the iomap: the region that a riowrite() to an offset writes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Offset of the region's first byte.
    pub offset: u64,
    /// The mapped region.
    pub region: Region,
}

/// Length of an iomap entry in bytes.
pub const IOMAP_ENTRY: usize = 24;

/// Returns an iomap entry in its owner's byte order, like [`emit_sgl`].
pub fn emit_iomap(mapping: Mapping, swap: bool) -> [u8; IOMAP_ENTRY] {
    let mut bytes = [0; IOMAP_ENTRY];
    let offset = if swap { mapping.offset.swap_bytes() } else { mapping.offset };
    bytes[..8].copy_from_slice(&offset.to_ne_bytes());
    bytes[8..].copy_from_slice(&emit_sgl(mapping.region, swap));
    bytes
}

/// Parses an entry of the local iomap.
pub fn parse_iomap(bytes: &[u8; IOMAP_ENTRY]) -> Mapping {
    let [o0, o1, o2, o3, o4, o5, o6, o7, region @ ..] = *bytes;
    Mapping { offset: u64::from_ne_bytes([o0, o1, o2, o3, o4, o5, o6, o7]), region: parse_sgl(&region) }
}

/// Returns the IP header for the private data of a request from `source` to `destination`.
pub fn ip_header(source: &SockAddr, destination: &SockAddr) -> [u8; IP_HEADER] {
    addr::ip_header(source, destination, port(source.storage()))
}
