//! Socket addresses as C programs hand them in: length by family, checked once, here.

use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr::{self, NonNull};

use libc::{AF_INET, AF_INET6, c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::errno::{Errno, Result};

/// Address family of native InfiniBand addresses (`infiniband/ib.h`).
pub const AF_IB: c_int = 27;

/// `struct sockaddr_ib` of `infiniband/ib.h`: a GID with a service id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SockaddrIb {
    /// AF_IB.
    pub family: u16,
    /// Partition key, network byte order.
    pub pkey: u16,
    /// Flow label, network byte order.
    pub flowinfo: u32,
    /// GID.
    pub addr: [u8; 16],
    /// Service id, network byte order: port space in bits 16 and up, port below.
    pub sid: u64,
    /// Which bits of `sid` count, network byte order.
    pub sid_mask: u64,
    /// Scope of a link-local GID.
    pub scope_id: u64,
}

/// Bytes of an address of `family` (a `sa_family`); `None` for families the connection manager has no use for.
pub fn len_of_family(family: c_int) -> Option<usize> {
    match family {
        AF_INET => Some(size_of::<sockaddr_in>()),
        AF_INET6 => Some(size_of::<sockaddr_in6>()),
        AF_IB => Some(size_of::<SockaddrIb>()),
        _ => None,
    }
}

/// A checked address: AF_INET, AF_INET6 or AF_IB.
#[derive(Clone, Copy)]
pub struct SockAddr {
    storage: sockaddr_storage,
    len: u16,
}

impl SockAddr {
    /// Copies the program's address; `EINVAL` for another family than AF_INET, AF_INET6 and AF_IB.
    ///
    /// # Safety
    /// `addr` points at an address as long as its family says.
    pub unsafe fn from_c(addr: NonNull<sockaddr>) -> Result<SockAddr> {
        // SAFETY: every address starts with its family, guaranteed by the caller; it may be
        // unaligned.
        let family = unsafe { (&raw const (*addr.as_ptr()).sa_family).read_unaligned() };
        let len = len_of_family(c_int::from(family)).ok_or(Errno::EINVAL)?;
        let mut storage = zeroed();
        // SAFETY: `len` bytes are readable: guaranteed by the caller. A sockaddr_storage is longer.
        unsafe { ptr::copy_nonoverlapping(addr.as_ptr().cast::<u8>(), (&raw mut storage).cast::<u8>(), len) };
        Ok(SockAddr { storage, len: len as u16 })
    }

    /// As [`from_c`](Self::from_c), with `None` for NULL.
    ///
    /// # Safety
    /// As there, unless NULL.
    pub unsafe fn from_nullable(addr: *const sockaddr) -> Result<Option<SockAddr>> {
        NonNull::new(addr.cast_mut())
            // SAFETY: as there, unless NULL: guaranteed by the caller.
            .map(|addr| unsafe { SockAddr::from_c(addr) })
            .transpose()
    }

    /// An AF_IB address.
    pub fn from_ib(ib: &SockaddrIb) -> SockAddr {
        let mut storage = zeroed();
        // SAFETY: sockaddr_ib is smaller than sockaddr_storage, which is aligned for any address.
        unsafe { (&raw mut storage).cast::<SockaddrIb>().write(*ib) };
        SockAddr { storage, len: size_of::<SockaddrIb>() as u16 }
    }

    /// An AF_INET or AF_INET6 address.
    pub fn from_inet(address: &SocketAddr) -> SockAddr {
        let mut storage = zeroed();
        let place = &raw mut storage;
        // SAFETY: the storage is large enough and aligned for either structure.
        let len = unsafe {
            match address {
                SocketAddr::V4(v4) => {
                    let place = place.cast::<sockaddr_in>();
                    (*place).sin_family = AF_INET as libc::sa_family_t;
                    (*place).sin_port = v4.port().to_be();
                    (*place).sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                    size_of::<sockaddr_in>()
                }
                SocketAddr::V6(v6) => {
                    let place = place.cast::<sockaddr_in6>();
                    (*place).sin6_family = AF_INET6 as libc::sa_family_t;
                    (*place).sin6_port = v6.port().to_be();
                    (*place).sin6_flowinfo = v6.flowinfo().to_be();
                    (*place).sin6_addr.s6_addr = v6.ip().octets();
                    (*place).sin6_scope_id = v6.scope_id();
                    size_of::<sockaddr_in6>()
                }
            }
        };
        SockAddr { storage, len: len as u16 }
    }

    /// The address family.
    pub fn family(&self) -> c_int {
        c_int::from(self.storage.ss_family)
    }

    /// Length in bytes: that of the family's structure.
    pub fn len(&self) -> u16 {
        self.len
    }

    /// Never: an address without a family is none.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The whole space, zero behind the address.
    pub fn storage(&self) -> &sockaddr_storage {
        &self.storage
    }

    /// The address in bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` ≤ size of the storage, all of it initialised.
        unsafe { std::slice::from_raw_parts((&raw const self.storage).cast(), usize::from(self.len)) }
    }

    /// Whether it is the family's wildcard address.
    pub fn is_any(&self) -> bool {
        let address = match self.family() {
            AF_INET => 4..8,
            AF_INET6 => 8..24,
            _ => 8..24,
        };
        self.bytes()[address].iter().all(|&byte| byte == 0)
    }
}

/// The port of an address in network byte order: the low 16 bits of the service id for AF_IB, 0 for other families.
pub fn port(storage: &sockaddr_storage) -> u16 {
    let address: *const sockaddr_storage = storage;
    // SAFETY: the storage is large enough and aligned for each of the three, and any bytes are a value of their fields.
    unsafe {
        match c_int::from(storage.ss_family) {
            AF_INET => (*address.cast::<sockaddr_in>()).sin_port,
            AF_INET6 => (*address.cast::<sockaddr_in6>()).sin6_port,
            AF_IB => (u64::from_be((*address.cast::<SockaddrIb>()).sid) as u16).to_be(),
            _ => 0,
        }
    }
}

/// An AF_INET or AF_INET6 address, without its flow label; `None` for other families.
pub fn inet(storage: &sockaddr_storage) -> Option<SocketAddr> {
    let port = u16::from_be(port(storage));
    let address: *const sockaddr_storage = storage;
    // SAFETY: as above.
    unsafe {
        match c_int::from(storage.ss_family) {
            AF_INET => {
                let ip = Ipv4Addr::from((*address.cast::<sockaddr_in>()).sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, port).into())
            }
            AF_INET6 => {
                let address = &*address.cast::<sockaddr_in6>();
                let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(ip, port, 0, address.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// `ip` on the link of `like`: a link-local address says nothing without its scope.
pub fn with_port(ip: IpAddr, port: u16, like: &SocketAddr) -> SocketAddr {
    match (ip, like) {
        (IpAddr::V6(ip), SocketAddr::V6(like)) if ip.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(ip, port, 0, like.scope_id()))
        }
        _ => SocketAddr::new(ip, port),
    }
}

/// An address of all zeros.
pub fn zeroed() -> sockaddr_storage {
    // SAFETY: all zeros are a valid sockaddr_storage.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ib(sid: u64) -> SockaddrIb {
        SockaddrIb { family: AF_IB as u16, sid: sid.to_be(), ..Default::default() }
    }

    #[test]
    fn sizes_are_those_of_the_headers() {
        assert_eq!(size_of::<SockaddrIb>(), 48);
        assert_eq!(len_of_family(AF_INET), Some(16));
        assert_eq!(len_of_family(AF_INET6), Some(28));
        assert_eq!(len_of_family(libc::AF_UNIX), None);
    }

    #[test]
    fn ib_port_is_the_low_half_word_of_the_service_id() {
        let address = SockAddr::from_ib(&ib(0x0106_1234));
        assert_eq!(u16::from_be(port(address.storage())), 0x1234);
        assert_eq!(port(&zeroed()), 0);
    }

    #[test]
    fn unknown_family_is_refused() {
        let mut storage = zeroed();
        storage.ss_family = libc::AF_UNIX as u16;
        // SAFETY: a whole sockaddr_storage.
        let parsed = unsafe { SockAddr::from_c(NonNull::from(&storage).cast()) };
        assert_eq!(parsed.err(), Some(Errno::EINVAL));
        // SAFETY: NULL is allowed.
        assert!(unsafe { SockAddr::from_nullable(ptr::null()) }.is_ok_and(|none| none.is_none()));
    }

    #[test]
    fn wildcard() {
        assert!(SockAddr::from_ib(&ib(7)).is_any());
        assert!(!SockAddr::from_ib(&SockaddrIb { addr: [1; 16], ..ib(7) }).is_any());
    }
}
