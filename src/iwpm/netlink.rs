//! The messages between kernel and port mapper over NETLINK_RDMA (`rdma/rdma_netlink.h`). Parsed and emitted here, nowhere
//! else. No I/O. A malformed message is an error; it can still be told which request it was meant to be.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use netlink_packet_core::{NLM_F_REQUEST, NLMSG_ERROR, NetlinkBuffer, NlaBuffer, NlasIterator};

use crate::sys::uapi::*;

/// The protocol spoken with kernels that know `HELLO`.
pub const VERSION: u16 = IWPM_UABI_VERSION as u16;
/// The protocol spoken with kernels that don't: no flags.
pub const VERSION_MIN: u16 = IWPM_UABI_VERSION_MIN as u16;
/// The name under which the kernel knows port mappers.
pub const LIBRARY: &[u8] = b"iWarpPortMapperUser";

/// nlmsghdr and nlattr of `linux/netlink.h`, and what both are aligned to.
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;
const ALIGN: usize = 4;
/// Types below this are netlink's own: acknowledgement, error, end of a list.
const OWN_TYPES: u16 = 16;
/// Addresses are sent in the whole space of a `sockaddr_storage`: the kernel insists.
const ADDRESS: usize = 128;
/// Longer names are no device's and no library's.
const NAME: usize = 64;
/// Attributes of the message that has most.
const MOST_ATTRIBUTES: usize = IWPM_NLA_RQUERY_MAPPING_MAX as usize;

/// Why the port mapper refuses a request of the kernel, or says that it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Code {
    /// No message of the protocol.
    InvalidMessage = 10,
    /// No port can be had.
    CreateMapping = 11,
    /// The address is mapped already.
    DuplicateMapping = 12,
    /// There is no such mapping, or no answer about one.
    UnknownMapping = 13,
    /// The client has not registered its device.
    ClientDevice = 14,
    /// The client has registered for another library.
    UserLibrary = 15,
    /// The peer's port mapper knows no mapping.
    QueryRejected = 16,
    /// The kernel speaks a newer protocol.
    Version = 17,
}

/// Who sent a message of the kernel, and the number by which it knows the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kernel's client, `RDMA_NL_IWCM` for all drivers of today.
    pub client: u8,
    /// `RDMA_NL_IWPM_*`.
    pub op: u16,
    /// Sequence number.
    pub seq: u32,
}

/// What the kernel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// The protocol's version to use.
    Hello(u16),
    /// A client registers its device.
    Register {
        /// Name of the network interface.
        interface: Vec<u8>,
        /// Name of the RDMA device.
        device: Vec<u8>,
        /// Name of the library it expects.
        library: Vec<u8>,
    },
    /// A local address is to be mapped.
    Add {
        /// The address.
        local: SocketAddr,
        /// `IWPM_FLAGS_*`.
        flags: u32,
    },
    /// A local address is to be mapped, and to be asked for what a remote one is mapped to.
    Query {
        /// The connecting peer's address.
        local: SocketAddr,
        /// The accepting peer's.
        remote: SocketAddr,
        /// `IWPM_FLAGS_*`.
        flags: u32,
    },
    /// A local address need not be mapped any longer.
    Remove(SocketAddr),
    /// A mapping that an earlier port mapper made.
    MapInfo {
        /// The address.
        local: SocketAddr,
        /// What it is mapped to.
        mapped: SocketAddr,
        /// `IWPM_FLAGS_*`.
        flags: u32,
    },
    /// How many of them the kernel has sent.
    MapInfoNumber(u32),
    /// The kernel refuses something.
    Error(u16),
}

/// A message of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming<'a> {
    /// A message of the protocol.
    Said(Header, Said),
    /// One that cannot be read.
    Malformed(Header),
    /// What was sent to the kernel met an error.
    Failed {
        /// errno, above zero.
        errno: i32,
        /// What was sent.
        message: &'a [u8],
    },
}

/// The messages in a datagram of the kernel, without netlink's own that mean nothing here.
pub fn messages(datagram: &[u8]) -> Messages<'_> {
    Messages { rest: datagram }
}

/// See [`messages`].
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = Incoming<'a>;

    fn next(&mut self) -> Option<Incoming<'a>> {
        loop {
            let message = NetlinkBuffer::new_checked(self.rest).ok()?;
            let length = message.length() as usize;
            let now = self.rest;
            self.rest = now.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
            if let Some(incoming) = read(&message, now.get(HEADER..length)?) {
                return Some(incoming);
            }
        }
    }
}

fn read<'a>(message: &NetlinkBuffer<&'a [u8]>, payload: &'a [u8]) -> Option<Incoming<'a>> {
    let kind = message.message_type();
    if kind == NLMSG_ERROR {
        let (code, message) = payload.split_first_chunk()?;
        let errno = i32::from_ne_bytes(*code).checked_neg().filter(|&errno| errno > 0)?;
        return Some(Incoming::Failed { errno, message });
    }
    if kind < OWN_TYPES {
        return None;
    }
    let header = Header { client: (kind >> 10) as u8, op: kind & 0x3ff, seq: message.sequence_number() };
    Some(match Attributes::read(payload).and_then(|attributes| attributes.said(header.op)) {
        Some(said) => Incoming::Said(header, said),
        None => Incoming::Malformed(header),
    })
}

/// Whether `message`, which came back with an error, is what this port mapper greeted the kernel with.
pub fn is_hello(message: &[u8]) -> bool {
    message.get(4..6).is_some_and(|kind| u16::from_ne_bytes([kind[0], kind[1]]) & 0x3ff == RDMA_NL_IWPM_HELLO as u16)
}

/// Attributes by number. Those that the protocol does not know are passed over.
struct Attributes<'a>([Option<&'a [u8]>; MOST_ATTRIBUTES]);

impl<'a> Attributes<'a> {
    fn read(payload: &'a [u8]) -> Option<Attributes<'a>> {
        let mut found = Attributes([None; MOST_ATTRIBUTES]);
        let mut at = 0;
        for attribute in NlasIterator::new(payload) {
            let attribute = attribute.ok()?;
            let length = usize::from(attribute.length());
            let value = payload.get(at + ATTRIBUTE..at + length)?;
            at += length.next_multiple_of(ALIGN);
            if let Some(place) = found.0.get_mut(usize::from(attribute.kind())) {
                *place = Some(value);
            }
        }
        Some(found)
    }

    fn said(&self, op: u16) -> Option<Said> {
        Some(match u32::from(op) {
            RDMA_NL_IWPM_HELLO => Said::Hello(self.u16(IWPM_NLA_HELLO_ABI_VERSION)?),
            RDMA_NL_IWPM_REG_PID => Said::Register {
                interface: self.text(IWPM_NLA_REG_IF_NAME)?,
                device: self.text(IWPM_NLA_REG_IBDEV_NAME)?,
                library: self.text(IWPM_NLA_REG_ULIB_NAME)?,
            },
            RDMA_NL_IWPM_ADD_MAPPING => {
                Said::Add { local: self.address(IWPM_NLA_MANAGE_ADDR)?, flags: self.flags(IWPM_NLA_MANAGE_FLAGS)? }
            }
            RDMA_NL_IWPM_QUERY_MAPPING => Said::Query {
                local: self.address(IWPM_NLA_QUERY_LOCAL_ADDR)?,
                remote: self.address(IWPM_NLA_QUERY_REMOTE_ADDR)?,
                flags: self.flags(IWPM_NLA_QUERY_FLAGS)?,
            },
            RDMA_NL_IWPM_REMOVE_MAPPING => Said::Remove(self.address(IWPM_NLA_MANAGE_ADDR)?),
            RDMA_NL_IWPM_MAPINFO => Said::MapInfo {
                local: self.address(IWPM_NLA_MAPINFO_LOCAL_ADDR)?,
                mapped: self.address(IWPM_NLA_MAPINFO_MAPPED_ADDR)?,
                flags: self.flags(IWPM_NLA_MAPINFO_FLAGS)?,
            },
            RDMA_NL_IWPM_MAPINFO_NUM => Said::MapInfoNumber(self.u32(IWPM_NLA_MAPINFO_SEND_NUM)?),
            RDMA_NL_IWPM_HANDLE_ERR => Said::Error(self.u16(IWPM_NLA_ERR_CODE)?),
            _ => return None,
        })
    }

    fn get(&self, kind: u32) -> Option<&'a [u8]> {
        self.0.get(kind as usize).copied().flatten()
    }

    fn u16(&self, kind: u32) -> Option<u16> {
        self.get(kind)?.try_into().ok().map(u16::from_ne_bytes)
    }

    fn u32(&self, kind: u32) -> Option<u32> {
        self.get(kind)?.try_into().ok().map(u32::from_ne_bytes)
    }

    /// None in version 3 of the protocol.
    fn flags(&self, kind: u32) -> Option<u32> {
        if self.get(kind).is_none() { Some(0) } else { self.u32(kind) }
    }

    /// Up to a NUL, which need not be there.
    fn text(&self, kind: u32) -> Option<Vec<u8>> {
        let text = self.get(kind)?.split(|&byte| byte == 0).next()?;
        (!text.is_empty() && text.len() < NAME).then(|| text.to_vec())
    }

    fn address(&self, kind: u32) -> Option<SocketAddr> {
        parse_address(self.get(kind)?)
    }
}

/// A `sockaddr_in` or `sockaddr_in6`.
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

fn emit_address(address: &SocketAddr) -> [u8; ADDRESS] {
    let mut bytes = [0; ADDRESS];
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

/// The value of an attribute to send.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// A number of 16 bits.
    U16(u16),
    /// A number of 32 bits.
    U32(u32),
    /// A string, without its NUL.
    Text(&'a [u8]),
    /// An address.
    Address(SocketAddr),
}

/// A message to the kernel; its attributes are numbered from 1, as in all messages of the protocol. pid: what the kernel
/// will know the port mapper by.
pub fn emit(header: Header, pid: u32, values: &[Value<'_>]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    for (kind, value) in (1u16..).zip(values) {
        match value {
            Value::U16(number) => put(&mut bytes, kind, &number.to_ne_bytes()),
            Value::U32(number) => put(&mut bytes, kind, &number.to_ne_bytes()),
            Value::Text(text) => put(&mut bytes, kind, &[text, &b"\0"[..]].concat()),
            Value::Address(address) => put(&mut bytes, kind, &emit_address(address)),
        }
    }
    let length = bytes.len() as u32;
    let mut message = NetlinkBuffer::new(&mut bytes[..]);
    message.set_length(length);
    message.set_message_type(u16::from(header.client) << 10 | header.op);
    // Answers, too: the kernel reads nothing else.
    message.set_flags(NLM_F_REQUEST);
    message.set_sequence_number(header.seq);
    message.set_port_number(pid);
    bytes
}

fn put(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let at = bytes.len();
    let length = ATTRIBUTE + value.len();
    bytes.resize(at + length.next_multiple_of(ALIGN), 0);
    let mut attribute = NlaBuffer::new(&mut bytes[at..]);
    attribute.set_kind(kind);
    attribute.set_length(length as u16);
    bytes[at + ATTRIBUTE..at + length].copy_from_slice(value);
}

#[cfg(test)]
#[path = "netlink_tests.rs"]
mod tests;
