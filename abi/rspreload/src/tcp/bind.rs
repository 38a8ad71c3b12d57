//! Binding rsockets: with the errno values of TCP, and beside TCP.

use core::ffi::c_int;

use libc::{EADDRINUSE, EADDRNOTAVAIL, SOCK_CLOEXEC, SOCK_DGRAM, SOCK_STREAM, sockaddr, socklen_t};

use super::name::{self, Name};
use super::{local_address, make_rsocket};
use crate::{errno, next_symbol, rsocket_abi};

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
    can_bind(name) && !local_address::is_foreign(name)
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
