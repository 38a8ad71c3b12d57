//! A socket in the output with its addresses, and how an rsocket is parsed from a table entry.

use std::fmt;
use std::mem::offset_of;
use std::net::{Ipv6Addr, SocketAddr};

use base::bytes::{u32_at, u64_at};
use base::socket_table as layout;
use base::socket_table::{Counters, Entry, Header};

use crate::sock_diag;

/// The state of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Listening,
    Connected,
    Closing,
    Datagram,
}

impl State {
    /// Returns the name in the output.
    pub fn name(self) -> &'static str {
        match self {
            State::Listening => "LISTEN",
            State::Connected => "ESTAB",
            State::Closing => "CLOSING",
            State::Datagram => "UNCONN",
        }
    }
}

/// A socket of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    pub pid: u32,
    pub command: String,
    pub fd: i32,
    pub state: State,
    pub local: Address,
    pub peer: Address,
    /// Bytes that have arrived and that the program has not read; `None` for a listener, and for a
    /// datagram socket, whose table entry does not count what the program reads.
    pub receive_queue: Option<u64>,
    /// Bytes that the program has sent and that are not known to have arrived; `None` for a
    /// listener.
    pub send_queue: Option<u64>,
    /// Numbers that only rsockets have; `None` for a TCP socket.
    pub details: Option<Details>,
    /// Counters that the kernel reports for a TCP connection; `None` for an rsocket.
    pub tcp: Option<sock_diag::Counters>,
}

/// Numbers of an rsocket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    pub device: String,
    pub port: u32,
    pub qp_number: u32,
    pub backlog: u32,
    pub sent_bytes: u64,
    pub sent_messages: u64,
    pub received_bytes: u64,
    pub received_messages: u64,
    pub send_waits: u64,
    pub credits: u32,
    pub send_buffer: u32,
    pub receive_buffer: u32,
}

/// Reads the header of a table. Returns the PID of the process in its own PID namespace, and the
/// number of entries to read. Returns `None` if the file is no table, or has a layout that this
/// program does not know.
pub fn parse_header(bytes: &[u8]) -> Option<(u32, usize)> {
    let known = u64_at(bytes, offset_of!(Header, magic))? == layout::MAGIC
        && u32_at(bytes, offset_of!(Header, version))? == layout::VERSION;
    let entries = (u32_at(bytes, offset_of!(Header, end))? as usize).min(layout::ENTRIES);
    known.then_some((u32_at(bytes, offset_of!(Header, pid))?, entries))
}

impl Socket {
    /// Returns the name of the transport in the output.
    pub fn way(&self) -> &'static str {
        if self.details.is_some() { "RDMA" } else { "TCP" }
    }

    /// Reads an entry of the process `pid`. Returns `None` if the entry is unused or too short.
    pub fn parse(bytes: &[u8], pid: u32, command: &str) -> Option<Socket> {
        let state = match u32_at(bytes, offset_of!(Entry, state))? {
            layout::LISTENING => State::Listening,
            layout::CONNECTED => State::Connected,
            layout::CLOSING => State::Closing,
            layout::DATAGRAM => State::Datagram,
            _ => return None,
        };
        let address = |offset: usize| bytes.get(offset..offset + layout::ADDRESS).map(Address::parse);
        let counters = offset_of!(Entry, counters);
        let number = |offset: usize| u64_at(bytes, counters + offset);
        let received_bytes = number(offset_of!(Counters, received_bytes))?;
        let read_bytes = number(offset_of!(Counters, read_bytes))?;
        let unread = received_bytes.saturating_sub(read_bytes);
        let send_queue = u32_at(bytes, counters + offset_of!(Counters, send_queued))?.into();
        let is_stream = matches!(state, State::Connected | State::Closing);
        Some(Socket {
            pid,
            command: command.to_owned(),
            fd: u32_at(bytes, offset_of!(Entry, fd))?.cast_signed(),
            state,
            local: address(offset_of!(Entry, local))?,
            peer: address(offset_of!(Entry, peer))?,
            receive_queue: Some(unread).filter(|_| is_stream),
            send_queue: Some(send_queue).filter(|_| state != State::Listening),
            details: Some(Details {
                device: device_name(bytes.get(offset_of!(Entry, device)..)?.get(..layout::DEVICE)?),
                port: u32_at(bytes, offset_of!(Entry, port))?,
                qp_number: u32_at(bytes, offset_of!(Entry, qp_number))?,
                backlog: u32_at(bytes, offset_of!(Entry, backlog))?,
                sent_bytes: number(offset_of!(Counters, sent_bytes))?,
                sent_messages: number(offset_of!(Counters, sent_messages))?,
                received_bytes,
                received_messages: number(offset_of!(Counters, received_messages))?,
                send_waits: number(offset_of!(Counters, send_waits))?,
                credits: u32_at(bytes, counters + offset_of!(Counters, credits))?,
                send_buffer: u32_at(bytes, counters + offset_of!(Counters, send_buffer))?,
                receive_buffer: u32_at(bytes, counters + offset_of!(Counters, receive_buffer))?,
            }),
            tcp: None,
        })
    }
}

/// Returns the name of a device. Another process wrote it: unprintable characters are replaced.
fn device_name(bytes: &[u8]) -> String {
    let name = bytes.iter().take_while(|&&byte| byte != 0);
    name.map(|&byte| if byte.is_ascii_graphic() { byte.into() } else { '?' }).collect()
}

const AF_IB: u16 = 27;

/// An address with its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// No address yet, or an address of an unknown family.
    None,
    /// IPv4 or IPv6.
    Ip(SocketAddr),
    /// A GID, and the port that the service ID contains.
    Gid(Ipv6Addr, u16),
}

impl Address {
    /// Parses `sockaddr_in`, `sockaddr_in6` or `sockaddr_ib`; returns [`Address::None`] for other
    /// bytes.
    pub fn parse(bytes: &[u8]) -> Address {
        if let Some(address) = base::sockaddr::parse(bytes) {
            return Address::Ip(SocketAddr::new(address.ip(), address.port()));
        }
        let gid = || Some(Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?));
        // The service ID is in network byte order, and ends with the port.
        let port = || Some(u16::from_be_bytes(*bytes.get(30..)?.first_chunk()?));
        let is_ib = bytes.starts_with(&AF_IB.to_ne_bytes());
        gid().zip(port()).filter(|_| is_ib).map_or(Address::None, |(gid, port)| Address::Gid(gid, port))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Address::None => "-".to_owned(),
            Address::Ip(address) if address.port() == 0 && address.ip().is_unspecified() => "*".to_owned(),
            Address::Ip(address) if address.ip().is_unspecified() => format!("*:{}", address.port()),
            Address::Ip(address) => address.to_string(),
            Address::Gid(gid, port) => format!("gid[{gid}]:{port}"),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read() {
        let mut bytes = [0; size_of::<Entry>()];
        assert_eq!(Socket::parse(&bytes, 1, "x"), None, "unused");
        let mut set = |offset: usize, value: &[u8]| bytes[offset..offset + value.len()].copy_from_slice(value);
        set(offset_of!(Entry, state), &layout::CONNECTED.to_ne_bytes());
        set(offset_of!(Entry, fd), &7_i32.to_ne_bytes());
        set(offset_of!(Entry, device), b"rxe\x1b0");
        let counters = offset_of!(Entry, counters);
        set(counters + offset_of!(Counters, received_bytes), &100_u64.to_ne_bytes());
        set(counters + offset_of!(Counters, read_bytes), &60_u64.to_ne_bytes());
        let socket = Socket::parse(&bytes, 1, "x").unwrap();
        assert_eq!((socket.fd, socket.state, socket.receive_queue), (7, State::Connected, Some(40)));
        assert_eq!(socket.details.unwrap().device, "rxe?0", "nothing for the terminal");
        assert_eq!(Socket::parse(&bytes[..100], 1, "x"), None, "too short");
    }

    #[test]
    fn only_tables_of_this_layout_are_read() {
        let mut bytes = [0xff; size_of::<Header>()];
        assert_eq!(parse_header(&bytes), None);
        bytes[..8].copy_from_slice(&layout::MAGIC.to_ne_bytes());
        assert_eq!(parse_header(&bytes), None);
        bytes[8..12].copy_from_slice(&layout::VERSION.to_ne_bytes());
        bytes[12..16].copy_from_slice(&5_u32.to_ne_bytes());
        assert_eq!(parse_header(&bytes), Some((5, layout::ENTRIES)), "no more than there are");
    }

    #[test]
    fn addresses_of_each_family() {
        let show = |bytes: &[u8]| Address::parse(bytes).to_string();
        let of_family = |family: u16| {
            let mut bytes = [0; layout::ADDRESS];
            bytes[..2].copy_from_slice(&family.to_ne_bytes());
            bytes
        };
        let mut ip4 = of_family(2);
        ip4[2..8].copy_from_slice(&[0x1b, 0x58, 10, 77, 1, 1]);
        assert_eq!(show(&ip4), "10.77.1.1:7000");
        ip4[4..8].fill(0);
        assert_eq!(show(&ip4), "*:7000");
        let mut ip6 = of_family(10);
        (ip6[3], ip6[23]) = (80, 1);
        assert_eq!(show(&ip6), "[::1]:80");
        (ip6[8], ip6[9], ip6[24]) = (0xfe, 0x80, 1);
        assert_eq!(show(&ip6), "[fe80::1]:80", "without the scope");
        let mut ib = of_family(AF_IB);
        (ib[8], ib[9], ib[23], ib[31]) = (0xfe, 0x80, 7, 9);
        assert_eq!(show(&ib), "gid[fe80::7]:9");
        assert_eq!((show(&[]), show(&[0; 48]), show(&ip4[..15])), ("-".into(), "-".into(), "-".into()));
    }
}
