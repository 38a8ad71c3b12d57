//! Binding rsockets, with the errno values of TCP.

use core::ffi::c_int;

use libc::{EADDRINUSE, EADDRNOTAVAIL, SOCK_CLOEXEC, SOCK_DGRAM, sockaddr, socklen_t};

use super::local_address;
use super::name::{self, Name};
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
