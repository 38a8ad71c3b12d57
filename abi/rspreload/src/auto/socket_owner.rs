//! Whether a process has an end of a connection of this machine with itself (sock_diag(7)).
//!
//! An end that waits for accept(2), or that every process has closed, belongs to no file: its inode
//! is 0.

use core::ffi::c_int;
use core::net::IpAddr;

use libc::{AF_INET, AF_INET6, NETLINK_SOCK_DIAG, NLM_F_REQUEST, nlmsghdr};

use crate::netlink;
use crate::tcp;
use crate::tcp::name::Name;

/// linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
/// linux/inet_diag.h, INET_DIAG_NOCOOKIE: the socket may be any with these addresses.
const NO_COOKIE: [u32; 2] = [!0; 2];

/// linux/inet_diag.h, `struct inet_diag_sockid`. Ports and addresses in network byte order.
#[repr(C)]
#[derive(Clone, Copy)]
struct SocketId {
    source_port: [u8; 2],
    destination_port: [u8; 2],
    source: [u8; 16],
    destination: [u8; 16],
    interface: u32,
    cookie: [u32; 2],
}

/// A netlink message with a `struct inet_diag_req_v2`.
#[repr(C)]
struct Request {
    header: nlmsghdr,
    family: u8,
    protocol: u8,
    extensions: u8,
    pad: u8,
    states: u32,
    id: SocketId,
}

/// A netlink message with a `struct inet_diag_msg`.
#[repr(C)]
struct Answer {
    header: nlmsghdr,
    family: u8,
    state: u8,
    timer: u8,
    retransmits: u8,
    id: SocketId,
    expires: u32,
    receive_queue: u32,
    send_queue: u32,
    uid: u32,
    inode: u32,
}

const _: () = assert!(size_of::<SocketId>() == 48 && size_of::<Request>() == 16 + 56 && size_of::<Answer>() == 16 + 72);

fn address(name: &Name) -> [u8; 16] {
    let mut bytes = [0; 16];
    match name.address() {
        IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes = address.octets(),
    }
    bytes
}

impl Request {
    fn new(local: &Name, remote: &Name) -> Request {
        let header = nlmsghdr {
            nlmsg_len: size_of::<Request>() as u32,
            nlmsg_type: SOCK_DIAG_BY_FAMILY,
            nlmsg_flags: NLM_F_REQUEST as u16,
            nlmsg_seq: 0,
            nlmsg_pid: 0,
        };
        let id = SocketId {
            source_port: local.number().to_be_bytes(),
            destination_port: remote.number().to_be_bytes(),
            source: address(local),
            destination: address(remote),
            interface: local.scope(),
            cookie: NO_COOKIE,
        };
        let family = if local.address().is_ipv4() { AF_INET } else { AF_INET6 };
        let protocol = libc::IPPROTO_TCP as u8;
        Request { header, family: family as u8, protocol, extensions: 0, pad: 0, states: !0, id }
    }
}

/// Whether a process has accepted the connection from `remote` to `local`, both of this machine.
/// False if the kernel does not tell.
pub fn has_accepted(local: &Name, remote: &Name) -> bool {
    has_owner(local, remote) == Some(true)
}

/// Whether a process has the end `local` of the connection with `remote`, both of this machine.
/// `None` if the kernel does not tell.
pub fn has_owner(local: &Name, remote: &Name) -> Option<bool> {
    let request = Request::new(local, remote);
    // SAFETY: the request is as long as its type; structures of integers in C's layout.
    let (answer, received): (Answer, usize) =
        unsafe { netlink::ask(NETLINK_SOCK_DIAG, &request, size_of::<Request>())? };
    // The kernel answers with the socket, or with ENOENT.
    match answer.header.nlmsg_type {
        // Without such a connection the kernel returns the socket that listens at the address.
        SOCK_DIAG_BY_FAMILY if received == size_of::<Answer>() => {
            Some(answer.inode != 0 && answer.state != tcp::LISTEN)
        }
        NLMSG_ERROR if received > size_of::<nlmsghdr>() + size_of::<c_int>() => {
            // `struct nlmsgerr` begins with the errno.
            let [family, state, timer, retransmits] = [answer.family, answer.state, answer.timer, answer.retransmits];
            (c_int::from_ne_bytes([family, state, timer, retransmits]) == -libc::ENOENT).then_some(false)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;

    fn name(address: SocketAddr) -> Name {
        Name::new(address.ip(), address.port())
    }

    #[test]
    fn connections_are_seen_to_be_accepted() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(at).unwrap();
            let to = listener.local_addr().unwrap();
            let client = TcpStream::connect(to).unwrap();
            let from = client.local_addr().unwrap();
            assert!(!has_accepted(&name(to), &name(from)), "{at}: waits");
            let _server = listener.accept().unwrap();
            assert!(has_accepted(&name(to), &name(from)), "{at}: accepted");
            assert!(!has_accepted(&name(from), &name(from)), "{at}: no such connection");
        }
    }

    #[test]
    fn an_end_that_is_closed_has_no_owner() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let client = TcpStream::connect(to).unwrap();
        let from = client.local_addr().unwrap();
        let _server = listener.accept().unwrap();
        let has_owner = || super::has_owner(&name(from), &name(to));
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(has_owner(), Some(true), "shut down");
        let copy = client.try_clone().unwrap();
        drop(client);
        assert_eq!(has_owner(), Some(true), "another number has it");
        drop(copy);
        assert_eq!(has_owner(), Some(false), "closed: FIN_WAIT2");
        assert_eq!(super::has_owner(&name(from), &name(from)), Some(false), "no such socket");
        assert_eq!(super::has_owner(&name(to), &name(to)), Some(false), "only a listener");
    }

    #[test]
    fn a_dual_stack_listener_accepts_ipv4() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (to, from) = (client.peer_addr().unwrap(), client.local_addr().unwrap());
        assert!(!has_accepted(&name(to), &name(from)));
        let _server = listener.accept().unwrap();
        assert!(has_accepted(&name(to), &name(from)));
    }
}
