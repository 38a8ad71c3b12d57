//! Whether a process has an end of a connection of this machine with itself (sock_diag(7)).
//!
//! An end that waits for accept(2), or that every process has closed, belongs to no file: its inode
//! is 0.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libc::{
    AF_INET, AF_INET6, AF_NETLINK, MSG_DONTWAIT, NETLINK_SOCK_DIAG, NLM_F_REQUEST, SOCK_CLOEXEC, SOCK_RAW, nlmsghdr,
};

use crate::memory::{Plain, plain};
use crate::name::Name;
use crate::sockets::kernel;
use crate::{errno, next_symbol, tcp};

/// linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
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

plain! { Request, Answer }

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

/// Whether the kernel tells about its sockets: it finds the one that listens at `own`. Without
/// tcp_diag it fails as for a socket that does not exist.
pub fn tells(own: &Name) -> bool {
    let at = match (own.address().is_unspecified(), own.address()) {
        (true, IpAddr::V4(_)) => Name::new(Ipv4Addr::LOCALHOST.into(), own.number()),
        (true, IpAddr::V6(_)) => Name::new(Ipv6Addr::LOCALHOST.into(), own.number()),
        _ => *own,
    };
    find(&at, &at).is_some_and(|answer| answer.state == tcp::LISTEN)
}

/// Whether a process has accepted the connection from `remote` to `local`, both of this machine.
/// False if the kernel does not tell.
pub fn has_accepted(local: &Name, remote: &Name) -> bool {
    // Without such a connection the kernel returns the socket that listens at the address.
    find(local, remote).is_some_and(|answer| answer.inode != 0 && answer.state != tcp::LISTEN)
}

/// The kernel answers in the call that sends the request.
fn find(local: &Name, remote: &Name) -> Option<Answer> {
    let request = Request::new(local, remote);
    errno::keeping(|| {
        let fd = next_symbol::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
        if fd < 0 {
            return None;
        }
        let mut answer = Answer::zero();
        kernel::send(fd, bytes_of(&mut { request }), MSG_DONTWAIT);
        let received = kernel::receive(fd, bytes_of(&mut answer), MSG_DONTWAIT);
        next_symbol::close(fd);
        (answer.header.nlmsg_type == SOCK_DIAG_BY_FAMILY && received == size_of::<Answer>() as isize).then_some(answer)
    })
}

/// The bytes of a message, which is made of integers without gaps.
fn bytes_of<T: Plain>(message: &mut T) -> &mut [u8] {
    // SAFETY: any bytes are a value of the integers.
    unsafe { core::slice::from_raw_parts_mut((&raw mut *message).cast(), size_of::<T>()) }
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
            assert!(tells(&name(to)) && !tells(&name(from)), "{at}");
            assert!(!has_accepted(&name(to), &name(from)), "{at}: waits");
            let _server = listener.accept().unwrap();
            assert!(has_accepted(&name(to), &name(from)), "{at}: accepted");
            assert!(!has_accepted(&name(from), &name(from)), "{at}: no such connection");
        }
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
