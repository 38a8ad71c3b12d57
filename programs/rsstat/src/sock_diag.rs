//! What the kernel knows of its TCP connections (sock_diag(7)): bytes in both directions and sizes
//! of buffers. The kernel answers for the network namespace of the process that asks.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use base::bytes::u32_at;
use base::netlink::{Attributes, Messages};
use base::sock_diag::{
    self, ANSWER, BY_FAMILY, CLOSE_WAIT, CLOSING, ESTABLISHED, FIN_WAIT1, FIN_WAIT2, LAST_ACK, REQUEST,
};
use libc::{NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NLMSG_OVERRUN};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// Attributes of a socket (linux/inet_diag.h).
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_SKMEMINFO: u16 = 7;

const CONNECTIONS: [u8; 6] = [ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LAST_ACK, CLOSING];

/// Counters of a TCP connection. A field is `None` if the kernel does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that the program has sent, and bytes that have arrived.
    pub bytes: Option<(u64, u64)>,
    /// Sizes of the send and of the receive buffer.
    pub buffers: Option<(u32, u32)>,
}

/// The connections of this program's network namespace by inode, queried at the first use.
#[derive(Default)]
pub struct Namespace {
    connections: Option<HashMap<u64, Counters>>,
}

impl Namespace {
    /// Returns the counters of a process's connection. Returns `None` if the kernel does not list
    /// the inode, or if the process is in another network namespace.
    pub fn counters(&mut self, process: &Path, inode: u64) -> Option<Counters> {
        let namespace = |folder: &Path| -> Option<PathBuf> { fs::read_link(folder.join("ns/net")).ok() };
        if namespace(process)? != namespace(Path::new("/proc/self"))? {
            return None;
        }
        self.connections.get_or_insert_with(connections).get(&inode).copied()
    }
}

/// Returns all connections by inode. The map is empty if the kernel does not support sock_diag(7).
fn connections() -> HashMap<u64, Counters> {
    let mut found = HashMap::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        // After a failure, the connections received before it are kept.
        let _ = query(family, &mut found);
    }
    found
}

fn query(family: c_int, found: &mut HashMap<u64, Counters>) -> nix::Result<()> {
    let protocol = SockProtocol::NetlinkSockDiag;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    send(socket.as_raw_fd(), &request(family), MsgFlags::empty())?;
    let mut answer = vec![0; 64 << 10];
    loop {
        match recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty()) {
            Ok(len) if is_last(answer.get(..len).unwrap_or_default(), found) => return Ok(()),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns a request for all connections of a family, with both attributes.
fn request(family: c_int) -> [u8; REQUEST] {
    let states = CONNECTIONS.iter().fold(0_u32, |states, state| states | 1 << state);
    let attributes = 1 << (INET_DIAG_INFO - 1) | 1 << (INET_DIAG_SKMEMINFO - 1);
    sock_diag::request(family, NLM_F_REQUEST | NLM_F_DUMP, states, attributes)
}

/// Adds the connections in a datagram. Returns whether the datagram is the last one of the answer,
/// or is not valid.
fn is_last(datagram: &[u8], found: &mut HashMap<u64, Counters>) -> bool {
    let mut messages = Messages(datagram);
    for message in &mut messages {
        match i32::from(message.kind) {
            NLMSG_DONE | NLMSG_ERROR | NLMSG_OVERRUN => return true,
            kind if kind == i32::from(BY_FAMILY) => found.extend(connection(message.payload)),
            _ => {}
        }
    }
    datagram.is_empty() || !messages.0.is_empty()
}

/// Parses a connection: its inode and its counters. Returns `None` if the message is too short, or
/// the connection belongs to no descriptor (inode 0).
fn connection(message: &[u8]) -> Option<(u64, Counters)> {
    let (_, inode) = sock_diag::state_and_inode(message)?;
    let mut counters = Counters::default();
    for attribute in Attributes(message.get(ANSWER..)?) {
        match attribute.ok()? {
            (INET_DIAG_INFO, value) => counters.bytes = sock_diag::bytes(value),
            (INET_DIAG_SKMEMINFO, value) => counters.buffers = buffers(value),
            _ => {}
        }
    }
    (inode != 0).then_some((inode.into(), counters))
}

/// Reads the sizes of the send and of the receive buffer (SK_MEMINFO_SNDBUF, SK_MEMINFO_RCVBUF).
fn buffers(memory: &[u8]) -> Option<(u32, u32)> {
    Some((u32_at(memory, 12)?, u32_at(memory, 4)?))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use base::netlink::{self, MESSAGE_HEADER};

    use super::*;

    const INODE: usize = ANSWER - 4;

    fn info(state: u8) -> Vec<u8> {
        let mut info = vec![0; 232];
        info[0] = state;
        for (offset, value) in [(128, 70_u64), (200, 110), (208, 20)] {
            info[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
        }
        info[144..148].copy_from_slice(&10_u32.to_ne_bytes());
        info
    }

    /// A message with both attributes and one that is not known.
    fn message(state: u8) -> Vec<u8> {
        let memory: Vec<u8> = [1_u32, 131_072, 3, 46_080, 5].iter().flat_map(|number| number.to_ne_bytes()).collect();
        let mut message = vec![0; MESSAGE_HEADER + ANSWER];
        message[MESSAGE_HEADER + INODE..].copy_from_slice(&17_u32.to_ne_bytes());
        netlink::push_attribute(&mut message, INET_DIAG_SKMEMINFO, &memory);
        netlink::push_attribute(&mut message, 8, &[0; 4]);
        netlink::push_attribute(&mut message, INET_DIAG_INFO, &info(state));
        finish(message, BY_FAMILY)
    }

    fn finish(mut message: Vec<u8>, kind: u16) -> Vec<u8> {
        netlink::write_header(&mut message, kind, 0, 0, 0);
        message
    }

    fn read(datagram: &[u8]) -> (bool, Option<Counters>) {
        let mut found = HashMap::new();
        let last = is_last(datagram, &mut found);
        assert!(found.keys().all(|&inode| inode == 17), "{found:?}");
        (last, found.get(&17).copied())
    }

    #[test]
    fn a_connection_is_read() {
        let counters = Counters { bytes: Some((100, 70)), buffers: Some((46_080, 131_072)) };
        assert_eq!(read(&message(ESTABLISHED)), (false, Some(counters)));
        // The peer's FIN is no byte.
        assert_eq!(read(&message(CLOSE_WAIT)).1.unwrap().bytes, Some((100, 69)));
        let done = finish(vec![0; MESSAGE_HEADER + 4], NLMSG_DONE as u16);
        assert_eq!(read(&[message(ESTABLISHED), done.clone()].concat()), (true, Some(counters)));
        assert_eq!(read(&done), (true, None));
    }

    #[test]
    fn truncated_messages_are_refused() {
        let whole = message(ESTABLISHED);
        for len in 0..whole.len() {
            assert_eq!(read(&whole[..len]), (true, None), "{len} bytes");
        }
        // The message says that it is shorter.
        for len in MESSAGE_HEADER..whole.len() {
            let (last, found) = read(&finish(whole[..len].to_vec(), BY_FAMILY));
            assert!(!last && found.is_none_or(|found| found.bytes.is_none()), "{len} bytes: {found:?}");
        }
    }

    #[test]
    fn attributes_of_older_kernels_are_left_out() {
        let whole = info(ESTABLISHED);
        assert_eq!(sock_diag::bytes(&whole[..216]), Some((100, 70)));
        for len in 0..216 {
            assert_eq!(sock_diag::bytes(&whole[..len]), None, "{len} bytes");
        }
        assert_eq!(buffers(&[0; 15]), None);
    }

    #[test]
    fn sockets_without_a_descriptor_are_left_out() {
        let mut message = message(ESTABLISHED);
        message[MESSAGE_HEADER + INODE..MESSAGE_HEADER + INODE + 4].fill(0);
        assert_eq!(read(&message), (false, None));
    }

    #[test]
    fn the_request_is_that_of_the_kernels_header() {
        let request = request(libc::AF_INET6);
        assert_eq!(request[..8], [72_u32.to_ne_bytes(), [20, 0, 1, 3]].concat());
        assert_eq!(request[16..24], [&[10, 6, 0x42, 0][..], &0xb32_u32.to_ne_bytes()].concat());
    }

    #[test]
    fn a_connection_of_this_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        client.write_all(b"12345").unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
        let inode = |stream: &TcpStream| {
            let link = fs::read_link(format!("/proc/self/fd/{}", stream.as_fd().as_raw_fd())).unwrap();
            crate::tcp::inode(&link).unwrap()
        };
        let mut namespace = Namespace::default();
        let Some(sent) = namespace.counters(Path::new("/proc/self"), inode(&client)) else {
            eprintln!("skipped: this kernel has no sock_diag(7)");
            return;
        };
        let received = namespace.counters(Path::new("/proc/self"), inode(&server)).unwrap();
        assert_eq!((sent.bytes, received.bytes), (Some((5, 0)), Some((0, 5))));
        assert!(sent.buffers.is_some_and(|(send, receive)| send > 0 && receive > 0), "{sent:?}");
        assert_eq!(namespace.counters(Path::new("/proc/nobody"), inode(&client)), None);
    }
}
