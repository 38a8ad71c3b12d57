//! The NETLINK_RDMA messages between the kernel and the port mapper (`rdma/rdma_netlink.h`). This
//! module alone parses and emits them. The header of a malformed message is returned, so that the
//! request can be rejected.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use base::netlink::{self, MESSAGE_HEADER, Message, Messages};

use super::uapi::*;

/// Protocol version of kernels that support `HELLO`.
pub const VERSION: u16 = IWPM_UABI_VERSION;
/// Protocol version of kernels that do not support `HELLO`: messages have no flags.
pub const VERSION_MIN: u16 = IWPM_UABI_VERSION_MIN;
/// The name by which the kernel knows port mappers.
pub const LIBRARY: &[u8] = b"iWarpPortMapperUser";

/// Types below this are netlink's own: acknowledgement, error, end of a list.
const OWN_TYPES: u16 = 16;
/// Size of an address attribute: the kernel requires a whole `sockaddr_storage`.
const ADDRESS_SIZE: usize = 128;
/// Maximum size of a name, including its NUL.
const MAX_NAME: usize = 64;
/// One more than the highest attribute number in a message.
const MAX_ATTRIBUTES: usize = IWPM_NLA_RQUERY_MAPPING_MAX;

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
    /// There is no such mapping, or the peer did not answer.
    UnknownMapping = 13,
    /// The client has not registered.
    ClientDevice = 14,
    /// The client has registered for another library.
    UserLibrary = 15,
    /// The peer's port mapper has no such mapping.
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
        /// The address.
        local: SocketAddr,
        /// `IWPM_FLAGS_*`.
        flags: u32,
    },
    /// Requests a mapping of a local address, and a query for the mapped address of a remote one.
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
        /// The address.
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
    Messages::new(datagram).filter_map(read)
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
    Some(match Attributes::read(payload).and_then(|attributes| attributes.message(header.op)) {
        Some(message) => Incoming::Message(header, message),
        None => Incoming::Malformed(header),
    })
}

/// Returns whether `message`, for which the kernel returned an error, is the port mapper's `HELLO`.
pub fn is_hello(message: &[u8]) -> bool {
    message.get(4..6).is_some_and(|kind| u16::from_ne_bytes([kind[0], kind[1]]) & 0x3ff == RDMA_NL_IWPM_HELLO)
}

/// The attributes of a message by number. Unknown attributes are ignored.
struct Attributes<'a>([Option<&'a [u8]>; MAX_ATTRIBUTES]);

impl<'a> Attributes<'a> {
    fn read(payload: &'a [u8]) -> Option<Attributes<'a>> {
        let mut found = Attributes([None; MAX_ATTRIBUTES]);
        for attribute in netlink::Attributes::new(payload) {
            let (kind, value) = attribute.ok()?;
            if let Some(slot) = found.0.get_mut(usize::from(kind)) {
                *slot = Some(value);
            }
        }
        Some(found)
    }

    fn message(&self, op: u16) -> Option<KernelMessage> {
        Some(match op {
            RDMA_NL_IWPM_HELLO => KernelMessage::Hello(self.u16(IWPM_NLA_HELLO_ABI_VERSION)?),
            RDMA_NL_IWPM_REG_PID => KernelMessage::Register {
                interface: self.text(IWPM_NLA_REG_IF_NAME)?,
                device: self.text(IWPM_NLA_REG_IBDEV_NAME)?,
                library: self.text(IWPM_NLA_REG_ULIB_NAME)?,
            },
            RDMA_NL_IWPM_ADD_MAPPING => KernelMessage::Add {
                local: self.address(IWPM_NLA_MANAGE_ADDR)?,
                flags: self.flags(IWPM_NLA_MANAGE_FLAGS)?,
            },
            RDMA_NL_IWPM_QUERY_MAPPING => KernelMessage::Query {
                local: self.address(IWPM_NLA_QUERY_LOCAL_ADDR)?,
                remote: self.address(IWPM_NLA_QUERY_REMOTE_ADDR)?,
                flags: self.flags(IWPM_NLA_QUERY_FLAGS)?,
            },
            RDMA_NL_IWPM_REMOVE_MAPPING => KernelMessage::Remove(self.address(IWPM_NLA_MANAGE_ADDR)?),
            RDMA_NL_IWPM_MAPINFO => KernelMessage::MapInfo {
                local: self.address(IWPM_NLA_MAPINFO_LOCAL_ADDR)?,
                mapped: self.address(IWPM_NLA_MAPINFO_MAPPED_ADDR)?,
                flags: self.flags(IWPM_NLA_MAPINFO_FLAGS)?,
            },
            RDMA_NL_IWPM_MAPINFO_NUM => KernelMessage::MapInfoNumber(self.u32(IWPM_NLA_MAPINFO_SEND_NUM)?),
            RDMA_NL_IWPM_HANDLE_ERR => KernelMessage::Error(self.u16(IWPM_NLA_ERR_CODE)?),
            _ => return None,
        })
    }

    fn get(&self, kind: u16) -> Option<&'a [u8]> {
        self.0.get(usize::from(kind)).copied().flatten()
    }

    fn u16(&self, kind: u16) -> Option<u16> {
        self.get(kind)?.try_into().ok().map(u16::from_ne_bytes)
    }

    fn u32(&self, kind: u16) -> Option<u32> {
        self.get(kind)?.try_into().ok().map(u32::from_ne_bytes)
    }

    /// Returns the flags: 0 if missing, as in protocol version 3; `None` if malformed.
    fn flags(&self, kind: u16) -> Option<u32> {
        if self.get(kind).is_none() { Some(0) } else { self.u32(kind) }
    }

    /// Returns a string, which may have a terminating NUL; `None` if it is empty or too long.
    fn text(&self, kind: u16) -> Option<Vec<u8>> {
        let text = self.get(kind)?.split(|&byte| byte == 0).next()?;
        (!text.is_empty() && text.len() < MAX_NAME).then(|| text.to_vec())
    }

    fn address(&self, kind: u16) -> Option<SocketAddr> {
        parse_address(self.get(kind)?)
    }
}

/// Parses a `sockaddr_in` or `sockaddr_in6`.
fn parse_address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    match i32::from(family) {
        libc::AF_INET if bytes.len() >= size_of::<libc::sockaddr_in>() => {
            let ip: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
            Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
            let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into())
        }
        _ => None,
    }
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
    // NLM_F_REQUEST in answers, too: the kernel ignores messages without it.
    netlink::write_header(&mut bytes, kind, libc::NLM_F_REQUEST as u16, header.seq, pid);
    bytes
}

#[cfg(test)]
#[path = "netlink_tests.rs"]
mod tests;
