//! Binding rsockets: with the errno values of TCP, and beside TCP.

use core::ffi::c_int;
use core::net::IpAddr;

use libc::{
    AF_INET, AF_INET6, EADDRINUSE, EADDRNOTAVAIL, NETLINK_ROUTE, NLM_F_REQUEST, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_STREAM,
    nlmsghdr, sockaddr, socklen_t,
};

use super::name::Name;
use super::{make_rsocket, name};
use crate::{errno, netlink, next_symbol, rsocket_abi};

// Binding rsockets: with the errno values of TCP, and beside TCP.

/// Binds an rsocket. Returns 0, or -1 with `errno`.
///
/// If the port is in use, and either address is a wildcard, the kernel's RDMA CM fails with
/// EADDRNOTAVAIL, as for the address of another host. Programs expect EADDRINUSE for ports.
///
/// # Safety
/// As for bind(2).
pub unsafe fn like_tcp(inner: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as for this function.
    unsafe {
        let result = rsocket_abi::rbind(inner, addr, len);
        if result != 0 && errno::get() == EADDRNOTAVAIL && Name::read(addr, len).is_some_and(|name| is_local(&name)) {
            return errno::fail(EADDRINUSE);
        }
        result
    }
}

/// Whether the kernel's sockets can be bound to the address because it is this host's.
#[cold]
fn is_local(name: &Name) -> bool {
    can_bind(name) && !is_foreign(name)
}

fn can_bind(name: &Name) -> bool {
    let any = name::any_port(name);
    // SAFETY: an address and its length; a descriptor that no other thread knows.
    errno::keeping(|| unsafe {
        let udp = next_symbol::socket(any.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if udp < 0 {
            return false;
        }
        let is_bound = next_symbol::bind(udp, any.as_ptr(), any.len) == 0;
        next_symbol::close(udp);
        is_bound
    })
}

/// Whether rsockets can listen at a port on which TCP listens, at the local address of a
/// connection.
///
/// They can't without RDMA, nor with soft-iWARP, whose listeners are TCP sockets of the kernel and
/// conflict with the program's own. Both ends find this out in the same way, each with a TCP
/// listener of the library's own. So neither waits for a peer that can't come.
pub fn shares_port(own: &Name) -> bool {
    let own = name::any_port(own);
    // SAFETY: an address and its length; a descriptor that no other thread knows.
    unsafe {
        let tcp = next_symbol::socket(c_int::from(own.storage.ss_family), SOCK_STREAM | SOCK_CLOEXEC, 0);
        if tcp < 0 {
            return false;
        }
        let listens = next_symbol::bind(tcp, own.as_ptr(), own.len) == 0 && next_symbol::listen(tcp, 1) == 0;
        let shared = listens && name::own(tcp).is_some_and(|name| can_listen(&name));
        next_symbol::close(tcp);
        shared
    }
}

fn can_listen(name: &Name) -> bool {
    let mut can = false;
    let inner = make_rsocket::for_address(name, |inner| {
        // SAFETY: an address and its length.
        can = unsafe {
            if like_tcp(inner, name.as_ptr(), name.len) == 0 {
                rsocket_abi::rlisten(inner, 1) == 0
            } else {
                // Another rsocket happens to have the port: so there are rsockets.
                errno::get() == libc::EADDRINUSE
            }
        };
        true
    });
    if let Some(inner) = inner {
        rsocket_abi::rclose(inner);
    }
    can
}

// Whether an address is this host's (rtnetlink(7)). bind(2) does not tell: with IP_FREEBIND or
// ip_nonlocal_bind it accepts the addresses of others.

/// linux/rtnetlink.h, `struct rtmsg`.
#[repr(C)]
struct Route {
    family: u8,
    destination_bits: u8,
    source_bits: u8,
    service: u8,
    table: u8,
    protocol: u8,
    scope: u8,
    kind: u8,
    flags: u32,
}

/// A netlink message with the attributes RTA_OIF and RTA_DST. A shorter address leaves the end
/// unused.
#[repr(C)]
struct Request {
    header: nlmsghdr,
    route: Route,
    interface_len: u16,
    interface_kind: u16,
    interface: u32,
    address_len: u16,
    address_kind: u16,
    address: [u8; 16],
}

/// The beginning of a netlink message that describes a route.
#[repr(C)]
struct Answer {
    header: nlmsghdr,
    route: Route,
}

const _: () = assert!(size_of::<Route>() == 12 && size_of::<Request>() == 56 && size_of::<Answer>() == 28);

impl Request {
    fn new(name: &Name) -> Request {
        let mut bytes = [0; 16];
        let (family, count) = match name.address() {
            IpAddr::V4(address) => {
                bytes[..4].copy_from_slice(&address.octets());
                (AF_INET, 4)
            }
            IpAddr::V6(address) => {
                bytes = address.octets();
                (AF_INET6, 16)
            }
        };
        let header = nlmsghdr {
            nlmsg_len: (size_of::<Request>() - 16 + count) as u32,
            nlmsg_type: libc::RTM_GETROUTE,
            nlmsg_flags: NLM_F_REQUEST as u16,
            nlmsg_seq: 0,
            nlmsg_pid: 0,
        };
        let route = Route {
            family: family as u8,
            destination_bits: count as u8 * 8,
            source_bits: 0,
            service: 0,
            table: 0,
            protocol: 0,
            scope: 0,
            kind: 0,
            flags: 0,
        };
        Request {
            header,
            route,
            interface_len: 8,
            interface_kind: libc::RTA_OIF,
            // 0 for any.
            interface: name.scope(),
            address_len: 4 + count as u16,
            address_kind: libc::RTA_DST,
            address: bytes,
        }
    }
}

/// Whether the address is one of another host, or of none. False if the kernel does not tell.
pub fn is_foreign(name: &Name) -> bool {
    if name.address().is_unspecified() {
        return false;
    }
    let kind = ask(&Request::new(name));
    kind.is_some_and(|kind| !matches!(kind, libc::RTN_LOCAL | libc::RTN_BROADCAST | libc::RTN_MULTICAST))
}

/// Returns the kind of the route to an address. The kernel answers by an error if there is no
/// route.
fn ask(request: &Request) -> Option<u8> {
    let len = request.header.nlmsg_len as usize;
    // SAFETY: the request is at least as long as it says; structures of integers in C's layout.
    let (answer, received): (Answer, usize) = unsafe { netlink::ask(NETLINK_ROUTE, request, len)? };
    let is_whole = received == size_of::<Answer>();
    match answer.header.nlmsg_type {
        libc::RTM_NEWROUTE if is_whole => Some(answer.route.kind),
        kind if is_whole && c_int::from(kind) == libc::NLMSG_ERROR => Some(libc::RTN_UNREACHABLE),
        _ => None,
    }
}

#[cfg(test)]
mod tests_of_local_address {
    use super::*;

    #[test]
    fn addresses_of_this_host_are_known() {
        for (address, foreign) in [
            ("127.0.0.1", false),
            ("127.1.2.3", false),
            ("::1", false),
            ("0.0.0.0", false),
            ("::", false),
            ("::ffff:127.0.0.1", false),
            ("192.0.2.77", true),
            ("2001:db8::77", true),
        ] {
            assert_eq!(is_foreign(&Name::new(address.parse().unwrap(), 80)), foreign, "{address}");
        }
    }
}
