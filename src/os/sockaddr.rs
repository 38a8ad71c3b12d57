//! Socket addresses of C programs. The length of an address follows from its family.

use std::marker::PhantomData;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::ptr::{self, NonNull};

use libc::{AF_INET, AF_INET6, c_int, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

use crate::errno::{Errno, Result};

/// Address family of native InfiniBand addresses.
pub use libc::AF_IB;

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
    /// Mask of the significant bits of `sid`, network byte order.
    pub sid_mask: u64,
    /// Scope of a link-local GID.
    pub scope_id: u64,
}

/// Returns the length in bytes of an address of `family`; `None` for families that the connection
/// manager does not support.
pub fn len_of_family(family: c_int) -> Option<usize> {
    match family {
        AF_INET => Some(size_of::<sockaddr_in>()),
        AF_INET6 => Some(size_of::<sockaddr_in6>()),
        AF_IB => Some(size_of::<SockaddrIb>()),
        _ => None,
    }
}

/// A validated address: AF_INET, AF_INET6 or AF_IB.
#[derive(Clone, Copy)]
pub struct SockAddr(sockaddr_storage);

/// A reference to an address of a program, which is read only when it is needed.
#[derive(Clone, Copy)]
pub struct AddrRef<'a> {
    start: NonNull<sockaddr>,
    object: PhantomData<&'a sockaddr>,
}

impl AddrRef<'_> {
    /// Returns a reference to an address; `None` for NULL.
    ///
    /// # Safety
    /// `addr` is NULL, or points to an address that is complete for its family and outlives the
    /// result.
    pub unsafe fn from_c(addr: *const sockaddr) -> Option<Self> {
        NonNull::new(addr.cast_mut()).map(|start| AddrRef { start, object: PhantomData })
    }

    /// Copies the address.
    ///
    /// # Errors
    /// Fails with `EINVAL` if its family is not AF_INET, AF_INET6 or AF_IB.
    pub fn read(self) -> Result<SockAddr> {
        // SAFETY: the address is live and complete for its family, as `from_c` requires.
        unsafe { SockAddr::from_c(self.start) }
    }
}

impl SockAddr {
    /// Copies the program's address.
    ///
    /// # Errors
    /// Fails with `EINVAL` if the family is not AF_INET, AF_INET6 or AF_IB.
    ///
    /// # Safety
    /// `addr` points to an address that is complete for its family.
    pub unsafe fn from_c(addr: NonNull<sockaddr>) -> Result<SockAddr> {
        // SAFETY: an address starts with its family, which is readable: guaranteed by the caller.
        // The address may be unaligned.
        let family = unsafe { (&raw const (*addr.as_ptr()).sa_family).read_unaligned() };
        let len = len_of_family(c_int::from(family)).ok_or(Errno::EINVAL)?;
        let mut storage = zeroed();
        // SAFETY: `len` bytes are readable: guaranteed by the caller. A sockaddr_storage is longer.
        unsafe { ptr::copy_nonoverlapping(addr.as_ptr().cast::<u8>(), (&raw mut storage).cast::<u8>(), len) };
        Ok(SockAddr(storage))
    }

    /// Copies an address without its padding.
    ///
    /// # Errors
    /// Fails with `EINVAL` if its family is not AF_INET, AF_INET6 or AF_IB.
    pub fn from_storage(storage: &sockaddr_storage) -> Result<SockAddr> {
        // SAFETY: a sockaddr_storage is longer than the address of any family.
        unsafe { SockAddr::from_c(NonNull::from(storage).cast()) }
    }

    /// Copies the address at the beginning of `bytes`.
    ///
    /// # Errors
    /// Fails with `EINVAL` if its family is not AF_INET, AF_INET6 or AF_IB, and if the address is
    /// truncated.
    pub fn from_bytes(bytes: &[u8]) -> Result<SockAddr> {
        let family = base::bytes::u16_at(bytes, 0).map_or(0, c_int::from);
        let address = len_of_family(family).and_then(|len| bytes.get(..len)).ok_or(Errno::EINVAL)?;
        let mut storage = zeroed();
        overwrite(&mut storage, address);
        Ok(SockAddr(storage))
    }

    /// Like [`from_c`](Self::from_c), but returns `None` for NULL.
    ///
    /// # Safety
    /// `addr` is NULL, or points to an address that is complete for its family.
    pub unsafe fn from_nullable(addr: *const sockaddr) -> Result<Option<SockAddr>> {
        // SAFETY: NULL, or complete for its family: guaranteed by the caller.
        unsafe { AddrRef::from_c(addr) }.map(AddrRef::read).transpose()
    }

    /// Returns an AF_IB address.
    pub fn from_ib(ib: &SockaddrIb) -> SockAddr {
        let mut storage = zeroed();
        // SAFETY: sockaddr_ib is smaller than sockaddr_storage, which is aligned for any address.
        unsafe { (&raw mut storage).cast::<SockaddrIb>().write(*ib) };
        SockAddr(storage)
    }

    /// Returns an AF_INET or AF_INET6 address.
    pub fn from_inet(address: &SocketAddr) -> SockAddr {
        let mut storage = zeroed();
        let place = &raw mut storage;
        // SAFETY: the storage is large enough and aligned for either structure.
        unsafe {
            match address {
                SocketAddr::V4(v4) => {
                    let place = place.cast::<sockaddr_in>();
                    (*place).sin_family = AF_INET as libc::sa_family_t;
                    (*place).sin_port = v4.port().to_be();
                    (*place).sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                }
                SocketAddr::V6(v6) => {
                    let place = place.cast::<sockaddr_in6>();
                    (*place).sin6_family = AF_INET6 as libc::sa_family_t;
                    (*place).sin6_port = v6.port().to_be();
                    (*place).sin6_flowinfo = v6.flowinfo().to_be();
                    (*place).sin6_addr.s6_addr = v6.ip().octets();
                    (*place).sin6_scope_id = v6.scope_id();
                }
            }
        }
        SockAddr(storage)
    }

    /// Returns an IPv4-mapped IPv6 address as an IPv4 address, and any other address unchanged: the
    /// connection manager reaches the peer by this address.
    pub fn canonical(&self) -> SockAddr {
        match canonical_inet(&self.0) {
            Ok(v4 @ SocketAddr::V4(_)) => SockAddr::from_inet(&v4),
            _ => *self,
        }
    }

    /// Returns the address family.
    pub fn family(&self) -> c_int {
        c_int::from(self.0.ss_family)
    }

    /// Returns the length in bytes of the family's structure.
    pub fn len(&self) -> u16 {
        len_of_family(self.family()).unwrap_or_default() as u16
    }

    /// Always false: every address has a family.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the whole storage; the bytes after the address are 0.
    pub fn storage(&self) -> &sockaddr_storage {
        &self.0
    }

    /// Returns the bytes of the address.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the length is at most the size of the storage, all of which is initialised.
        unsafe { std::slice::from_raw_parts((&raw const self.0).cast(), usize::from(self.len())) }
    }

    /// Returns whether this is the wildcard address of the family.
    pub fn is_any(&self) -> bool {
        let address = match self.family() {
            AF_INET => 4..8,
            _ => 8..24,
        };
        self.bytes()[address].iter().all(|&byte| byte == 0)
    }
}

/// Returns the port of an address in network byte order: the low 16 bits of the service id for
/// AF_IB, 0 for unknown families.
pub fn port(storage: &sockaddr_storage) -> u16 {
    let address: *const sockaddr_storage = storage;
    // SAFETY: the storage is large enough and aligned for each of the three structures, and any
    // bytes are valid values of their fields.
    unsafe {
        match c_int::from(storage.ss_family) {
            AF_INET => (*address.cast::<sockaddr_in>()).sin_port,
            AF_INET6 => (*address.cast::<sockaddr_in6>()).sin6_port,
            AF_IB => (u64::from_be((*address.cast::<SockaddrIb>()).sid) as u16).to_be(),
            _ => 0,
        }
    }
}

/// Returns an AF_INET or AF_INET6 address without its flow label; `None` for other families.
pub fn inet(storage: &sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: a sockaddr_storage is initialised in its whole length.
    base::sockaddr::parse(unsafe { std::slice::from_raw_parts(ptr::from_ref(storage).cast(), size_of_val(storage)) })
}

/// Returns an AF_INET or AF_INET6 address; an IPv4-mapped IPv6 address becomes an IPv4 address.
///
/// # Errors
/// Fails with `EAFNOSUPPORT` for other families.
pub fn canonical_inet(name: &sockaddr_storage) -> Result<SocketAddr> {
    let full = inet(name).ok_or(Errno::EAFNOSUPPORT)?;
    Ok(match full.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, full.port()),
        IpAddr::V6(_) => full,
    })
}

/// Converts an address to the C structure for a socket of `domain`: for an IPv6 socket, an IPv4
/// address is mapped into IPv6.
pub fn to_sockaddr(domain: c_int, addr: &SocketAddr) -> SockAddr {
    match (addr, domain) {
        (SocketAddr::V4(v4), AF_INET6) => SockAddr::from_inet(&(v4.ip().to_ipv6_mapped(), v4.port()).into()),
        _ => SockAddr::from_inet(addr),
    }
}

/// Returns `ip` with `port`, and for a link-local address with the scope of `like`.
pub fn with_port(ip: IpAddr, port: u16, like: &SocketAddr) -> SocketAddr {
    match (ip, like) {
        (IpAddr::V6(ip), SocketAddr::V6(like)) if ip.is_unicast_link_local() => {
            SocketAddr::V6(SocketAddrV6::new(ip, port, 0, like.scope_id()))
        }
        _ => SocketAddr::new(ip, port),
    }
}

/// Copies `bytes` to the beginning of a storage, truncated to its size.
pub fn overwrite(storage: &mut sockaddr_storage, bytes: &[u8]) {
    let len = bytes.len().min(size_of::<sockaddr_storage>());
    // SAFETY: `len` bytes of both are in bounds, and any bytes are a valid sockaddr_storage.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), ptr::from_mut(storage).cast::<u8>(), len) };
}

/// Returns a storage of zeros.
pub const fn zeroed() -> sockaddr_storage {
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
        assert_eq!(SockAddr::from_storage(&storage).err(), Some(Errno::EINVAL));
        // SAFETY: NULL is allowed.
        assert!(unsafe { SockAddr::from_nullable(ptr::null()) }.is_ok_and(|none| none.is_none()));
    }

    #[test]
    fn addresses_in_bytes() {
        let address = SockAddr::from_ib(&SockaddrIb { addr: [1; 16], ..ib(7) });
        let bytes = [address.bytes(), &[9]].concat();
        assert_eq!(SockAddr::from_bytes(&bytes).map(|copy| copy.bytes().to_vec()), Ok(address.bytes().to_vec()));
        for len in [0, 1, 2, 47] {
            assert_eq!(SockAddr::from_bytes(&bytes[..len]).err(), Some(Errno::EINVAL), "{len}");
        }
        assert_eq!(SockAddr::from_bytes(&[0xff; 128]).err(), Some(Errno::EINVAL));
    }

    #[test]
    fn mapped_addresses_are_converted_to_ipv4() {
        let v4 = SocketAddr::from(([10, 77, 1, 1], 7471));
        let mapped = to_sockaddr(AF_INET6, &v4);
        assert_eq!((mapped.family(), canonical_inet(mapped.storage())), (AF_INET6, Ok(v4)));
        assert_eq!(mapped.canonical().bytes(), to_sockaddr(AF_INET, &v4).bytes());
        let other = SockAddr::from_ib(&SockaddrIb { addr: [1; 16], ..ib(7) });
        assert_eq!(other.canonical().bytes(), other.bytes());
    }

    #[test]
    fn link_local_addresses_keep_their_scope() {
        let here: SocketAddr = "[fe80::1%3]:5".parse().unwrap();
        let there = with_port("fe80::2".parse().unwrap(), 7, &here);
        assert_eq!(there, "[fe80::2%3]:7".parse().unwrap());
        assert_eq!(canonical_inet(to_sockaddr(AF_INET6, &there).storage()), Ok(there));
        assert_eq!(with_port("fd00::2".parse().unwrap(), 7, &here), "[fd00::2]:7".parse().unwrap());
    }

    #[test]
    fn bytes_replace_the_beginning_only() {
        let old = SockAddr::from_ib(&SockaddrIb { addr: [1; 16], ..ib(7) });
        let (mut new, family) = (old, &old.bytes()[..2]);
        overwrite(&mut new.0, &[family, &[2; 8]].concat());
        assert_eq!((&new.bytes()[2..10], &new.bytes()[10..]), (&[2; 8][..], &old.bytes()[10..]));
        overwrite(&mut new.0, &[family, &[3; 200]].concat());
        assert_eq!(new.bytes()[2..], [3; 46]);
    }

    #[test]
    fn wildcard() {
        let v4 = |address: [u8; 4]| SockAddr::from_inet(&(address, 7).into());
        assert!(v4([0; 4]).is_any() && !v4([0, 0, 0, 1]).is_any());
        assert!(SockAddr::from_ib(&ib(7)).is_any());
        assert!(!SockAddr::from_ib(&SockaddrIb { addr: [1; 16], ..ib(7) }).is_any());
    }
}
