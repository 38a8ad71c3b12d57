//! A connection between two rsockets, with one message in each direction.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::thread;

use libc::{size_t, sockaddr, socklen_t, ssize_t};
use nix::sys::socket::{SockaddrLike, SockaddrStorage};

use crate::library::{Library, functions};
use crate::loopback::done;

functions!(Calls {
    rsocket(c_int, c_int, c_int) -> c_int;
    rbind(c_int, *const sockaddr, socklen_t) -> c_int;
    rlisten(c_int, c_int) -> c_int;
    raccept(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    rconnect(c_int, *const sockaddr, socklen_t) -> c_int;
    rsend(c_int, *const c_void, size_t, c_int) -> ssize_t;
    rrecv(c_int, *mut c_void, size_t, c_int) -> ssize_t;
    rgetsockname(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    rclose(c_int) -> c_int;
});

const MESSAGE: [u8; 16] = *b"rdmacm-doctor 1\n";

/// Connects to `address`, sends a message, receives it back, and closes.
pub fn connect(library: Library, address: IpAddr) -> Result<(), String> {
    // SAFETY: the functions have the types that rdma/rsocket.h declares.
    let calls = unsafe { Calls::load(library)? };
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut name = SockaddrStorage::from(SocketAddr::new(address, 0));
    let mut len = name.len();
    // SAFETY: the addresses are readable and writable for the lengths that are passed.
    let (listener, client) = unsafe {
        let listener = done("rsocket", (calls.rsocket)(family, libc::SOCK_STREAM, 0))?;
        done("rbind", (calls.rbind)(listener, name.as_ptr(), len))?;
        done("rlisten", (calls.rlisten)(listener, 1))?;
        done("rgetsockname", (calls.rgetsockname)(listener, (&raw mut name).cast(), &raw mut len))?;
        (listener, done("rsocket", (calls.rsocket)(family, libc::SOCK_STREAM, 0))?)
    };
    let server = thread::spawn(move || echo(calls, listener));
    // SAFETY: `name` is readable for `len` bytes, and the buffers have the lengths that are passed.
    unsafe {
        done("rconnect", (calls.rconnect)(client, name.as_ptr(), len))?;
        whole("rsend", (calls.rsend)(client, MESSAGE.as_ptr().cast(), MESSAGE.len(), 0))?;
        let mut echoed = [0_u8; MESSAGE.len()];
        whole("rrecv", (calls.rrecv)(client, echoed.as_mut_ptr().cast(), echoed.len(), libc::MSG_WAITALL))?;
        if echoed != MESSAGE {
            return Err("the received data is not the data that was sent".to_owned());
        }
        done("rclose", (calls.rclose)(client))?;
    }
    server.join().map_err(|_| "the other side crashed")?
}

/// Accepts a connection, and sends the message back.
fn echo(calls: Calls, listener: c_int) -> Result<(), String> {
    // SAFETY: the buffers have the lengths that are passed; raccept(3) allows NULL addresses.
    unsafe {
        let peer = done("raccept", (calls.raccept)(listener, ptr::null_mut(), ptr::null_mut()))?;
        let mut bytes = [0_u8; MESSAGE.len()];
        whole("rrecv", (calls.rrecv)(peer, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_WAITALL))?;
        whole("rsend", (calls.rsend)(peer, bytes.as_ptr().cast(), bytes.len(), 0))?;
        done("rclose", (calls.rclose)(peer))?;
    }
    Ok(())
}

/// Fails unless a call has transferred the whole message.
fn whole(name: &str, result: ssize_t) -> Result<(), String> {
    match usize::try_from(result) {
        Ok(len) if len == MESSAGE.len() => Ok(()),
        Ok(len) => Err(format!("{name}: {len} of {} bytes", MESSAGE.len())),
        Err(_) => done(name, -1).map(drop),
    }
}
