//! The TCP connection's addresses, as an rsocket is to have them.

use core::ffi::c_int;
use core::mem;

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::{r, real};

type Call = unsafe fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

/// An address and its length.
#[derive(Clone, Copy)]
pub struct Name {
    pub storage: sockaddr_storage,
    pub len: socklen_t,
}

/// The end's own address.
pub fn own(tcp: c_int) -> Option<Name> {
    ask(real::getsockname, tcp)
}

/// The other end's.
pub fn peer(tcp: c_int) -> Option<Name> {
    ask(real::getpeername, tcp)
}

/// The other end's of an rsocket.
pub fn rsocket_peer(inner: c_int) -> Option<Name> {
    unsafe fn call(inner: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // SAFETY: `len` bytes at `name` are writable: guaranteed by `ask`.
        unsafe { r::rgetpeername(inner, name, len) }
    }
    ask(call, inner)
}

/// The address with a port that is still to be found.
pub fn any_port(name: &Name) -> Name {
    let mut name = Name { storage: name.storage, len: name.len };
    let storage = &raw mut name.storage;
    // SAFETY: the family says what it is, and the storage has room and alignment for it.
    unsafe {
        match c_int::from(name.storage.ss_family) {
            AF_INET => (*storage.cast::<sockaddr_in>()).sin_port = 0,
            AF_INET6 => (*storage.cast::<sockaddr_in6>()).sin6_port = 0,
            _ => {}
        }
    }
    name
}

/// Whether two addresses differ in nothing but the port.
pub fn same_host(one: &Name, other: &Name) -> bool {
    let family = one.storage.ss_family;
    let (one, other) = (&raw const one.storage, &raw const other.storage);
    // SAFETY: the family says what they are, and the storage has room and alignment for it.
    unsafe {
        if (*other).ss_family != family {
            return false;
        }
        match c_int::from(family) {
            AF_INET => (*one.cast::<sockaddr_in>()).sin_addr.s_addr == (*other.cast::<sockaddr_in>()).sin_addr.s_addr,
            AF_INET6 => {
                (*one.cast::<sockaddr_in6>()).sin6_addr.s6_addr == (*other.cast::<sockaddr_in6>()).sin6_addr.s6_addr
            }
            _ => false,
        }
    }
}

/// Whether two addresses and their ports are equal.
pub fn same_end(one: &Name, other: &Name) -> bool {
    same_host(one, other) && port(one) == port(other)
}

/// The port, in network byte order.
fn port(name: &Name) -> u16 {
    let storage = &raw const name.storage;
    // SAFETY: the family says what it is, and the storage has room and alignment for it.
    unsafe {
        match c_int::from(name.storage.ss_family) {
            AF_INET => (*storage.cast::<sockaddr_in>()).sin_port,
            AF_INET6 => (*storage.cast::<sockaddr_in6>()).sin6_port,
            _ => 0,
        }
    }
}

fn ask(call: Call, tcp: c_int) -> Option<Name> {
    // SAFETY: all zeros are an address, of no family.
    let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    // SAFETY: the storage is as long as it says.
    let result = unsafe { call(tcp, (&raw mut storage).cast(), &raw mut len) };
    match c_int::from(storage.ss_family) {
        AF_INET | AF_INET6 if result == 0 => Some(unmapped(Name { storage, len })),
        _ => None,
    }
}

/// An IPv4 address that an IPv6 socket has (`::ffff:a.b.c.d`) is one of IPv4 for RDMA devices.
fn unmapped(name: Name) -> Name {
    if c_int::from(name.storage.ss_family) != AF_INET6 {
        return name;
    }
    // SAFETY: the family says what it is, and the storage has room and alignment for it.
    let six = unsafe { (&raw const name.storage).cast::<sockaddr_in6>().read() };
    let [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, address @ ..] = six.sin6_addr.s6_addr else { return name };
    // SAFETY: all zeros are an address, of no family.
    let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
    let four = sockaddr_in {
        sin_family: AF_INET as libc::sa_family_t,
        sin_port: six.sin6_port,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address) },
        sin_zero: [0; 8],
    };
    // SAFETY: the storage has room and alignment for every kind of address.
    unsafe { (&raw mut storage).cast::<sockaddr_in>().write(four) };
    Name { storage, len: size_of::<sockaddr_in>() as socklen_t }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn six(address: [u8; 16]) -> Name {
        // SAFETY: zeros are an address, and the storage has room and alignment for all.
        unsafe {
            let mut storage: sockaddr_storage = mem::zeroed();
            let mut name: sockaddr_in6 = mem::zeroed();
            name.sin6_family = AF_INET6 as libc::sa_family_t;
            name.sin6_port = 7471u16.to_be();
            name.sin6_addr.s6_addr = address;
            (&raw mut storage).cast::<sockaddr_in6>().write(name);
            Name { storage, len: size_of::<sockaddr_in6>() as socklen_t }
        }
    }

    #[test]
    fn mapped_addresses_are_of_ipv4() {
        let name = unmapped(six([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 1, 2, 3]));
        assert_eq!(c_int::from(name.storage.ss_family), AF_INET);
        assert_eq!(name.len as usize, size_of::<sockaddr_in>());
        // SAFETY: the family says so.
        let four = unsafe { (&raw const name.storage).cast::<sockaddr_in>().read() };
        assert_eq!((four.sin_port, four.sin_addr.s_addr.to_ne_bytes()), (7471u16.to_be(), [10, 1, 2, 3]));
    }

    #[test]
    fn others_stay() {
        let name = unmapped(six([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 1, 2, 3]));
        assert_eq!(c_int::from(name.storage.ss_family), AF_INET6);
        assert_eq!(name.len as usize, size_of::<sockaddr_in6>());
    }
}
