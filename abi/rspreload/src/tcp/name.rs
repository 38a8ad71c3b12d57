//! The addresses of a TCP connection, in the form that an rsocket takes.

use core::ffi::c_int;
use core::mem;
use core::net::IpAddr;

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::{next_symbol, rsocket_abi};

type Call = unsafe fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

/// An address and its length.
#[derive(Clone, Copy)]
pub struct Name {
    pub storage: sockaddr_storage,
    pub len: socklen_t,
}

impl Name {
    /// The address as the calls take it.
    pub fn as_ptr(&self) -> *const sockaddr {
        (&raw const self.storage).cast()
    }

    /// The address that a program passes to a call. `None` for other families than IPv4 and IPv6.
    ///
    /// # Safety
    /// `addr` is null or has `len` bytes.
    pub unsafe fn read(addr: *const sockaddr, len: socklen_t) -> Option<Name> {
        if addr.is_null() || (len as usize) < size_of::<sockaddr_in>() {
            return None;
        }
        // SAFETY: not null, so it has `len` bytes, which include the family: guaranteed by the
        // caller.
        let family = unsafe { (&raw const (*addr).sa_family).read_unaligned() };
        let need = match c_int::from(family) {
            AF_INET => size_of::<sockaddr_in>(),
            AF_INET6 => size_of::<sockaddr_in6>(),
            _ => return None,
        };
        if (len as usize) < need {
            return None;
        }
        // SAFETY: all zeros are an address, of no family.
        let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
        // SAFETY: `need` bytes are readable at `addr`, and the storage has room for them.
        unsafe { core::ptr::copy_nonoverlapping(addr.cast::<u8>(), (&raw mut storage).cast::<u8>(), need) };
        Some(Name { storage, len: need as socklen_t })
    }

    /// Stores the address as getpeername(2) does.
    ///
    /// # Safety
    /// As for getpeername(2).
    pub unsafe fn write(&self, addr: *mut sockaddr, len: *mut socklen_t) {
        // SAFETY: as for this function: `len` bytes at `addr` are writable.
        unsafe {
            let room = (len.read() as usize).min(self.len as usize);
            core::ptr::copy_nonoverlapping((&raw const self.storage).cast::<u8>(), addr.cast::<u8>(), room);
            len.write(self.len);
        }
    }

    /// The family.
    pub fn family(&self) -> c_int {
        c_int::from(self.storage.ss_family)
    }

    fn v4(&self) -> Option<sockaddr_in> {
        // SAFETY: the family says what it is, and the storage has room and alignment for it.
        (self.family() == AF_INET).then(|| unsafe { (&raw const self.storage).cast::<sockaddr_in>().read() })
    }

    fn v6(&self) -> Option<sockaddr_in6> {
        // SAFETY: the family says what it is, and the storage has room and alignment for it.
        (self.family() == AF_INET6).then(|| unsafe { (&raw const self.storage).cast::<sockaddr_in6>().read() })
    }

    /// The IP address, as one of IPv4 if it is a mapped one.
    pub fn address(&self) -> IpAddr {
        let four = self.v4().map(|name| IpAddr::from(name.sin_addr.s_addr.to_ne_bytes()));
        let six = self.v6().map(|name| IpAddr::from(name.sin6_addr.s6_addr));
        four.or(six).unwrap_or(IpAddr::from([0; 4])).to_canonical()
    }

    /// The port, as a number.
    pub fn number(&self) -> u16 {
        u16::from_be(port(self))
    }

    /// The interface of a link-local address, otherwise 0.
    pub fn scope(&self) -> u32 {
        self.v6().map_or(0, |name| name.sin6_scope_id)
    }

    /// The address with another port.
    pub fn with_number(&self, number: u16) -> Name {
        let mut name = *self;
        let storage = &raw mut name.storage;
        // SAFETY: the family says what it is, and the storage has room and alignment for it.
        unsafe {
            match self.family() {
                AF_INET => (*storage.cast::<sockaddr_in>()).sin_port = number.to_be(),
                AF_INET6 => (*storage.cast::<sockaddr_in6>()).sin6_port = number.to_be(),
                _ => {}
            }
        }
        name
    }

    /// An address of IPv4 or IPv6.
    pub fn new(address: IpAddr, number: u16) -> Name {
        // SAFETY: all zeros are an address, of no family.
        let mut storage: sockaddr_storage = unsafe { mem::zeroed() };
        let len = match address {
            IpAddr::V4(address) => {
                // SAFETY: all zeros are an address, and the storage has room and alignment for it.
                let name = unsafe { &mut *(&raw mut storage).cast::<sockaddr_in>() };
                name.sin_family = AF_INET as libc::sa_family_t;
                name.sin_addr.s_addr = u32::from_ne_bytes(address.octets());
                size_of::<sockaddr_in>()
            }
            IpAddr::V6(address) => {
                // SAFETY: all zeros are an address, and the storage has room and alignment for it.
                let name = unsafe { &mut *(&raw mut storage).cast::<sockaddr_in6>() };
                name.sin6_family = AF_INET6 as libc::sa_family_t;
                name.sin6_addr.s6_addr = address.octets();
                size_of::<sockaddr_in6>()
            }
        };
        Name { storage, len: len as socklen_t }.with_number(number)
    }

    /// The address as a socket of that family has it: an IPv6 socket maps those of IPv4.
    pub fn in_family(&self, family: c_int) -> Name {
        match self.address() {
            IpAddr::V4(address) if family == AF_INET6 => {
                Name::new(IpAddr::from(address.to_ipv6_mapped()), self.number())
            }
            _ => *self,
        }
    }

    /// The address as RDMA devices have it ([`unmapped`]).
    pub fn of_device(&self) -> Name {
        unmapped(*self)
    }
}

/// The local address.
pub fn own(tcp: c_int) -> Option<Name> {
    ask(next_symbol::getsockname, tcp)
}

/// The peer's address.
pub fn peer(tcp: c_int) -> Option<Name> {
    ask(next_symbol::getpeername, tcp)
}

/// The local address of an rsocket.
pub fn rsocket_own(inner: c_int) -> Option<Name> {
    unsafe fn call(inner: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // SAFETY: `len` bytes at `name` are writable: guaranteed by `ask`.
        unsafe { rsocket_abi::rgetsockname(inner, name, len) }
    }
    ask(call, inner)
}

/// The peer's address of an rsocket.
pub fn rsocket_peer(inner: c_int) -> Option<Name> {
    unsafe fn call(inner: c_int, name: *mut sockaddr, len: *mut socklen_t) -> c_int {
        // SAFETY: `len` bytes at `name` are writable: guaranteed by `ask`.
        unsafe { rsocket_abi::rgetpeername(inner, name, len) }
    }
    ask(call, inner)
}

/// The address with port 0, for any free port.
pub fn any_port(name: &Name) -> Name {
    name.with_number(0)
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

/// RDMA devices have an IPv4 address of an IPv6 socket (`::ffff:a.b.c.d`) as one of IPv4.
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
