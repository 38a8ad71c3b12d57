//! The NETLINK_RDMA messages between the kernel and the port mapper (`rdma/rdma_netlink.h`). This
//! module alone parses and emits them. The header of a malformed message is returned, so that the
//! request can be rejected.

use std::net::SocketAddr;

use base::netlink::{self, Attributes, MESSAGE_HEADER, Message, Messages};
use base::sockaddr;

use super::uapi::*;

/// Protocol version of kernels that support `HELLO`.
pub const VERSION: u16 = 4;
/// Protocol version of kernels that do not support `HELLO`: messages have no flags.
pub const VERSION_MIN: u16 = 3;
/// The name by which the kernel knows port mappers.
pub const LIBRARY: &[u8] = b"iWarpPortMapperUser";

/// Lower types are those of netlink control messages: acknowledgement, error, end of a list.
const OWN_TYPES: u16 = 16;
/// Size of an address attribute: the kernel requires a whole `sockaddr_storage`.
const ADDRESS_SIZE: usize = 128;
/// Maximum size of a name, including its NUL.
const MAX_NAME: usize = 64;

/// Error codes of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum ErrorCode {
    /// The message is invalid.
    InvalidMessage = 10,
    /// No port can be bound.
    CreateMapping = 11,
    /// The address is mapped already.
    DuplicateMapping = 12,
    /// There is no mapping of the address, or the peer did not answer.
    UnknownMapping = 13,
    /// The client has not registered.
    ClientDevice = 14,
    /// The client has registered for another library.
    UserLibrary = 15,
    /// The peer's port mapper has no mapping of the queried address.
    QueryRejected = 16,
    /// The protocol version is not supported.
    Version = 17,
}

/// The fields of a netlink header that the port mapper uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The client of RDMA netlink: `RDMA_NL_IWCM` for all current drivers.
    pub client: u8,
    /// The operation: `RDMA_NL_IWPM_*`.
    pub op: u16,
    /// Sequence number.
    pub seq: u32,
}

/// A message from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelMessage {
    /// Announces the kernel's protocol version.
    Hello(u16),
    /// Registers a device of a client.
    Register {
        /// Name of the network interface.
        interface: Vec<u8>,
        /// Name of the RDMA device.
        device: Vec<u8>,
        /// Name of the port mapper's library.
        library: Vec<u8>,
    },
    /// Requests a mapping of a local address.
    Add {
        /// The address to map.
        local: SocketAddr,
        /// `IWPM_FLAGS_*`.
        flags: u32,
    },
    /// Requests a mapping of a local address, and a query for the mapped address of a remote
    /// address.
    Query {
        /// The connecting peer's address.
        local: SocketAddr,
        /// The accepting peer's address.
        remote: SocketAddr,
        /// `IWPM_FLAGS_*`.
        flags: u32,
    },
    /// Removes the mapping of a local address.
    Remove(SocketAddr),
    /// Lists a mapping that the kernel uses.
    MapInfo {
        /// The local address.
        local: SocketAddr,
        /// The mapped address.
        mapped: SocketAddr,
        /// `IWPM_FLAGS_*`.
        flags: u32,
    },
    /// Ends the list, with the number of mappings that the kernel has sent.
    MapInfoNumber(u32),
    /// Reports an error, with its code.
    Error(u16),
}

/// A message in a datagram from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming<'a> {
    /// A valid message.
    Message(Header, KernelMessage),
    /// A malformed message.
    Malformed(Header),
    /// The kernel returned an error for a message from the port mapper.
    Failed {
        /// The errno value, greater than zero.
        errno: i32,
        /// The port mapper's message.
        message: &'a [u8],
    },
}

/// Returns the messages in a datagram from the kernel, except netlink control messages that are not
/// errors.
pub fn messages(datagram: &[u8]) -> impl Iterator<Item = Incoming<'_>> {
    Messages(datagram).filter_map(read)
}

fn read(message: Message<'_>) -> Option<Incoming<'_>> {
    let (kind, payload) = (message.kind, message.payload);
    if i32::from(kind) == libc::NLMSG_ERROR {
        let (code, message) = payload.split_first_chunk()?;
        let errno = i32::from_ne_bytes(*code).checked_neg().filter(|&errno| errno > 0)?;
        return Some(Incoming::Failed { errno, message });
    }
    if kind < OWN_TYPES {
        return None;
    }
    let header = Header { client: (kind >> 10) as u8, op: kind & 0x3ff, seq: message.sequence };
    Some(match parse(&message, header.op) {
        Some(message) => Incoming::Message(header, message),
        None => Incoming::Malformed(header),
    })
}

/// Returns whether `message`, for which the kernel returned an error, is the port mapper's `HELLO`.
pub fn is_hello(message: &[u8]) -> bool {
    message.get(4..6).is_some_and(|kind| u16::from_ne_bytes([kind[0], kind[1]]) & 0x3ff == RDMA_NL_IWPM_HELLO)
}

/// Parses a message of operation `op`. Unknown attributes are ignored.
fn parse(message: &Message<'_>, op: u16) -> Option<KernelMessage> {
    if Attributes(message.payload).any(|attribute| attribute.is_err()) {
        return None;
    }
    let u16 = |kind| message.attribute(kind)?.try_into().ok().map(u16::from_ne_bytes);
    let u32 = |kind| message.attribute(kind)?.try_into().ok().map(u32::from_ne_bytes);
    // Messages of protocol version 3 have no flags.
    let flags = |kind| if message.attribute(kind).is_none() { Some(0) } else { u32(kind) };
    let address = |kind| sockaddr::parse(message.attribute(kind)?);
    // A string, which may have a terminating NUL.
    let text = |kind| {
        let text = message.attribute(kind)?.split(|&byte| byte == 0).next()?;
        (!text.is_empty() && text.len() < MAX_NAME).then(|| text.to_vec())
    };
    Some(match op {
        RDMA_NL_IWPM_HELLO => KernelMessage::Hello(u16(IWPM_NLA_HELLO_ABI_VERSION)?),
        RDMA_NL_IWPM_REG_PID => KernelMessage::Register {
            interface: text(IWPM_NLA_REG_IF_NAME)?,
            device: text(IWPM_NLA_REG_IBDEV_NAME)?,
            library: text(IWPM_NLA_REG_ULIB_NAME)?,
        },
        RDMA_NL_IWPM_ADD_MAPPING => {
            KernelMessage::Add { local: address(IWPM_NLA_MANAGE_ADDR)?, flags: flags(IWPM_NLA_MANAGE_FLAGS)? }
        }
        RDMA_NL_IWPM_QUERY_MAPPING => KernelMessage::Query {
            local: address(IWPM_NLA_QUERY_LOCAL_ADDR)?,
            remote: address(IWPM_NLA_QUERY_REMOTE_ADDR)?,
            flags: flags(IWPM_NLA_QUERY_FLAGS)?,
        },
        RDMA_NL_IWPM_REMOVE_MAPPING => KernelMessage::Remove(address(IWPM_NLA_MANAGE_ADDR)?),
        RDMA_NL_IWPM_MAPINFO => KernelMessage::MapInfo {
            local: address(IWPM_NLA_MAPINFO_LOCAL_ADDR)?,
            mapped: address(IWPM_NLA_MAPINFO_MAPPED_ADDR)?,
            flags: flags(IWPM_NLA_MAPINFO_FLAGS)?,
        },
        RDMA_NL_IWPM_MAPINFO_NUM => KernelMessage::MapInfoNumber(u32(IWPM_NLA_MAPINFO_SEND_NUM)?),
        RDMA_NL_IWPM_HANDLE_ERR => KernelMessage::Error(u16(IWPM_NLA_ERR_CODE)?),
        _ => return None,
    })
}

fn emit_address(address: &SocketAddr) -> [u8; ADDRESS_SIZE] {
    let mut bytes = [0; ADDRESS_SIZE];
    let family = if address.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => bytes[4..8].copy_from_slice(&v4.ip().octets()),
        SocketAddr::V6(v6) => {
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
        }
    }
    bytes
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// A 16-bit number.
    U16(u16),
    /// A 32-bit number.
    U32(u32),
    /// A string, without its NUL.
    Text(&'a [u8]),
    /// An address.
    Address(SocketAddr),
}

/// Encodes a message to the kernel. `values` become attributes numbered from 1, as in all messages
/// of the protocol. `pid` is the netlink port of the port mapper.
pub fn emit(header: Header, pid: u32, values: &[Value<'_>]) -> Vec<u8> {
    let mut bytes = vec![0; MESSAGE_HEADER];
    for (kind, value) in (1u16..).zip(values) {
        match value {
            Value::U16(number) => netlink::push_attribute(&mut bytes, kind, &number.to_ne_bytes()),
            Value::U32(number) => netlink::push_attribute(&mut bytes, kind, &number.to_ne_bytes()),
            Value::Text(text) => netlink::push_attribute(&mut bytes, kind, &[text, &b"\0"[..]].concat()),
            Value::Address(address) => netlink::push_attribute(&mut bytes, kind, &emit_address(address)),
        }
    }
    let kind = u16::from(header.client) << 10 | header.op;
    // Answers carry NLM_F_REQUEST, too: the kernel ignores messages without this flag.
    netlink::write_header(&mut bytes, kind, libc::NLM_F_REQUEST as u16, header.seq, pid);
    bytes
}

#[cfg(test)]
#[path = "netlink_tests.rs"]
mod tests;
