//! Whether rsockets can listen at a port on which TCP listens: fork mode depends on it.
//!
//! They can't without RDMA, nor with soft-iWARP, whose listeners are TCP sockets of the kernel and
//! conflict with the program's own. Both ends find this out in the same way. So neither waits for a
//! peer that can't come, and no word is sent to an end that does not expect it.

use core::ffi::c_int;

use libc::{SOCK_CLOEXEC, SOCK_STREAM};

use super::name::{self, Name};
use super::{bind, make_rsocket};
use crate::{errno, next_symbol, rsocket_abi};

/// Tries with a TCP listener of the library's own, at the local address of a connection.
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
            if bind::like_tcp(inner, name.as_ptr(), name.len) == 0 {
                rsocket_abi::rlisten(inner, 1) == 0
            } else {
                // Another rsocket happens to have the port: so there are rsockets.
                errno::get() == libc::EADDRINUSE
            }
        };
        true
    });
    if let Some(inner) = inner {
        // SAFETY: no other thread knows the number.
        unsafe { rsocket_abi::rclose(inner) };
    }
    can
}
