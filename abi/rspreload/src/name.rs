//! Addresses of IPv4 and IPv6 with a port, in the form that rsockets take.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

use crate::memory::{Plain, plain};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name(SocketAddr);

impl Name {
    pub fn new(address: IpAddr, number: u16) -> Name {
        Name(SocketAddr::new(address, number))
    }

    /// The address that a program passes to a call. `None` for other families than IPv4 and IPv6.
    ///
    /// # Safety
    /// `addr` is null or has `len` bytes.
    pub unsafe fn read(addr: *const sockaddr, len: socklen_t) -> Option<Name> {
        if addr.is_null() || (len as usize) < size_of::<sockaddr_in>() {
            return None;
        }
        // SAFETY: `len` bytes are readable: guaranteed by the caller.
        unsafe {
            match c_int::from((&raw const (*addr).sa_family).read_unaligned()) {
                AF_INET => {
                    let four = addr.cast::<sockaddr_in>().read_unaligned();
                    Some(Name::new(four.sin_addr.s_addr.to_ne_bytes().into(), u16::from_be(four.sin_port)))
                }
                AF_INET6 if len as usize >= size_of::<sockaddr_in6>() => {
                    let six = addr.cast::<sockaddr_in6>().read_unaligned();
                    let (address, number) = (Ipv6Addr::from(six.sin6_addr.s6_addr), u16::from_be(six.sin6_port));
                    Some(Name(SocketAddrV6::new(address, number, six.sin6_flowinfo, six.sin6_scope_id).into()))
                }
                _ => None,
            }
        }
    }

    /// Makes a call that takes an address.
    pub fn pass<T>(&self, call: impl FnOnce(*const sockaddr, socklen_t) -> T) -> T {
        match self.0 {
            SocketAddr::V4(four) => {
                let raw = sockaddr_in {
                    sin_family: AF_INET as libc::sa_family_t,
                    sin_port: four.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(four.ip().octets()) },
                    sin_zero: [0; 8],
                };
                call((&raw const raw).cast(), size_of::<sockaddr_in>() as socklen_t)
            }
            SocketAddr::V6(six) => {
                let raw = sockaddr_in6 {
                    sin6_family: AF_INET6 as libc::sa_family_t,
                    sin6_port: six.port().to_be(),
                    sin6_flowinfo: six.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: six.ip().octets() },
                    sin6_scope_id: six.scope_id(),
                };
                call((&raw const raw).cast(), size_of::<sockaddr_in6>() as socklen_t)
            }
        }
    }

    /// Makes a call that stores an address. `None` if it fails, or has none of IPv4 or IPv6.
    /// Returns the address as RDMA devices have it.
    pub fn take(call: impl FnOnce(*mut sockaddr, *mut socklen_t) -> c_int) -> Option<Name> {
        let (mut storage, mut len) = (sockaddr_storage::zero(), size_of::<sockaddr_storage>() as socklen_t);
        let result = call((&raw mut storage).cast(), &raw mut len);
        // SAFETY: the storage has this length.
        let name = unsafe { Name::read((&raw const storage).cast(), len) };
        name.filter(|_| result == 0).map(|name| name.of_device())
    }

    /// Stores the address as getpeername(2) does.
    ///
    /// # Safety
    /// As for getpeername(2).
    pub unsafe fn write(&self, addr: *mut sockaddr, len: *mut socklen_t) {
        // SAFETY: as for this function.
        self.pass(|from, size| unsafe { store(from, size, addr, len) });
    }

    pub fn family(&self) -> c_int {
        if self.0.is_ipv4() { AF_INET } else { AF_INET6 }
    }

    /// The IP address, as one of IPv4 if it is a mapped one.
    pub fn address(&self) -> IpAddr {
        self.0.ip().to_canonical()
    }

    /// The port.
    pub fn number(&self) -> u16 {
        self.0.port()
    }

    /// The interface of a link-local address, otherwise 0.
    pub fn scope(&self) -> u32 {
        if let SocketAddr::V6(six) = self.0 { six.scope_id() } else { 0 }
    }

    /// The address with another port.
    pub fn with_number(&self, number: u16) -> Name {
        let mut name = *self;
        name.0.set_port(number);
        name
    }

    /// The address as a socket of that family has it: an IPv6 socket maps those of IPv4.
    pub fn in_family(&self, family: c_int) -> Name {
        match self.address() {
            IpAddr::V4(address) if family == AF_INET6 => Name::new(address.to_ipv6_mapped().into(), self.number()),
            _ => *self,
        }
    }

    /// The address as RDMA devices have it: one of IPv4 where an IPv6 socket maps it
    /// (`::ffff:a.b.c.d`).
    pub fn of_device(&self) -> Name {
        match self.address() {
            address @ IpAddr::V4(_) => Name::new(address, self.number()),
            IpAddr::V6(_) => *self,
        }
    }

    /// Whether the address and the port are those of another one.
    pub fn is_at(&self, other: &Name) -> bool {
        (self.address(), self.number()) == (other.address(), other.number())
    }
}

/// Stores an address of `size` bytes as getpeername(2) does.
///
/// # Safety
/// `from` has `size` bytes; for the rest as for getpeername(2).
pub unsafe fn store(from: *const sockaddr, size: socklen_t, addr: *mut sockaddr, len: *mut socklen_t) {
    // SAFETY: as for this function: `len` bytes at `addr` are writable.
    unsafe {
        core::ptr::copy_nonoverlapping(from.cast::<u8>(), addr.cast::<u8>(), len.read().min(size) as usize);
        len.write(size);
    }
}

/// A [`Name`], or none, in words.
pub struct AtomicName([AtomicU64; 4]);

plain! { AtomicName }

impl AtomicName {
    pub const fn new() -> AtomicName {
        AtomicName([const { AtomicU64::new(0) }; 4])
    }

    pub fn store(&self, name: &Name) {
        let (address, rest) = match name.0 {
            SocketAddr::V4(four) => (four.ip().to_bits().into(), 0),
            SocketAddr::V6(six) => (six.ip().to_bits(), u64::from(six.flowinfo()) << 32 | u64::from(six.scope_id())),
        };
        let kind = (name.family() as u64) << 16 | u64::from(name.number());
        for (word, value) in self.0.iter().zip([kind, (address >> 64) as u64, address as u64, rest]) {
            word.store(value, SeqCst);
        }
    }

    pub fn load(&self) -> Option<Name> {
        let [kind, high, low, rest] = self.0.each_ref().map(|word| word.load(SeqCst));
        let (number, address) = (kind as u16, u128::from(high) << 64 | u128::from(low));
        match (kind >> 16) as c_int {
            AF_INET => Some(Name::new((low as u32).to_be_bytes().into(), number)),
            AF_INET6 => Some(Name(SocketAddrV6::new(address.into(), number, (rest >> 32) as u32, rest as u32).into())),
            _ => None,
        }
    }

    /// Returns the name, and forgets it.
    pub fn take(&self) -> Option<Name> {
        let name = self.load();
        self.0.iter().for_each(|word| word.store(0, SeqCst));
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_are_of_ipv4() {
        let mapped = Name::new("::ffff:10.1.2.3".parse().unwrap(), 7471);
        let four = mapped.of_device();
        assert_eq!((four.family(), four.number(), four), (AF_INET, 7471, Name::new("10.1.2.3".parse().unwrap(), 7471)));
        assert_eq!((four.in_family(AF_INET6), four.in_family(AF_INET)), (mapped, four));
        let six = Name::new("fe80::ffff:10.1.2.3".parse().unwrap(), 7471);
        assert_eq!((six.of_device(), six.in_family(AF_INET6)), (six, six));
    }

    #[test]
    fn names_survive_calls_and_words() {
        let scoped = Name(SocketAddrV6::new("fe80::1".parse().unwrap(), 80, 7, 3).into());
        for name in [scoped, Name::new("10.1.2.3".parse().unwrap(), 7471)] {
            // SAFETY: an address of this length.
            assert_eq!(name.pass(|addr, len| unsafe { Name::read(addr, len) }), Some(name));
            // SAFETY: an address of less than this length.
            assert_eq!(name.pass(|addr, len| unsafe { Name::read(addr, len - 1) }), None);
            let (mut storage, mut len) = (sockaddr_storage::zero(), 4);
            // SAFETY: room for more than this length.
            unsafe { name.write((&raw mut storage).cast(), &raw mut len) };
            assert!(c_int::from(storage.ss_family) == name.family() && len > 4);
            let words = AtomicName::new();
            words.store(&name);
            assert_eq!((words.load(), words.take(), words.load()), (Some(name), Some(name), None));
        }
    }
}
