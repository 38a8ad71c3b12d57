//! Whether rsockets can listen where TCP sockets do, which is what fork mode rests on.
//!
//! They can not where there is no RDMA, nor with soft-iWARP, whose listeners are TCP sockets of the kernel: there the
//! program's own listener is in the way. Both ends find that out in the same manner. So neither waits for what can not
//! come, and no word meets an end that does not expect one.

use core::ffi::c_int;

use libc::{SOCK_CLOEXEC, SOCK_STREAM};

use super::decide;
use super::name::{self, Name};
use crate::{errno, r, real};

/// Asked for the local address of a connection, with a TCP listener of our own.
pub fn is_shared(own: &Name) -> bool {
    let own = name::any_port(own);
    // SAFETY: an address and its length; a descriptor that nobody else knows.
    unsafe {
        let tcp = real::socket(c_int::from(own.storage.ss_family), SOCK_STREAM | SOCK_CLOEXEC, 0);
        if tcp < 0 {
            return false;
        }
        let listens = real::bind(tcp, decide::address(&own.storage), own.len) == 0 && real::listen(tcp, 1) == 0;
        let shared = listens && name::own(tcp).is_some_and(|name| can_listen(&name));
        real::close(tcp);
        shared
    }
}

fn can_listen(name: &Name) -> bool {
    let mut can = false;
    let inner = decide::rsocket_for((&name.storage, name.len), |inner| {
        // SAFETY: an address and its length.
        can = unsafe {
            if r::rbind(inner, decide::address(&name.storage), name.len) == 0 {
                r::rlisten(inner, 1) == 0
            } else {
                // Another rsocket has the port, by chance: so there are rsockets.
                errno::get() == libc::EADDRINUSE
            }
        };
        true
    });
    if let Some(inner) = inner {
        // SAFETY: nobody else knows it.
        unsafe { r::rclose(inner) };
    }
    can
}
