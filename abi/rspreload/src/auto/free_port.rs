//! bind(2) to port 0: a port that is free for TCP and for RDMA.

use core::ffi::c_int;

use super::route;
use crate::tcp::name::{self, Name};
use crate::tcp::{self, make_rsocket};
use crate::{errno, next_symbol, rsocket_abi};

/// The most ports that are tried.
pub const MAX_PORT_TRIES: usize = 8;

/// A number with port 0 is about to be bound: finds a port that is free for TCP and for RDMA.
/// Returns the address with the port, or `None` if any port will do.
pub fn find(fd: c_int, at: &Name) -> Option<Name> {
    let device = at.of_device();
    if device.address().is_loopback() || !device.address().is_unspecified() && !route::is_rdma(&device) {
        return None;
    }
    for _ in 0..MAX_PORT_TRIES {
        let own = errno::keeping(|| probe_port(fd, at))?;
        let mut free = false;
        let inner = make_rsocket::for_address(&device, |inner| {
            let own = device.with_number(own);
            // SAFETY: an address and its length.
            free = unsafe { rsocket_abi::rbind(inner, own.as_ptr(), own.len) == 0 };
            true
        })?;
        // SAFETY: no other thread knows the number.
        errno::keeping(|| unsafe { rsocket_abi::rclose(inner) });
        if free {
            return Some(at.with_number(own));
        }
    }
    None
}

/// A port that is free for TCP.
fn probe_port(fd: c_int, at: &Name) -> Option<u16> {
    let family = tcp::family(fd)?;
    // SAFETY: an address and its length; a descriptor that no other thread knows.
    unsafe {
        let probe = next_symbol::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if probe < 0 {
            return None;
        }
        let bound = next_symbol::bind(probe, at.as_ptr(), at.len) == 0;
        let port = if bound { name::own(probe).map(|own| own.number()) } else { None };
        next_symbol::close(probe);
        port
    }
}
