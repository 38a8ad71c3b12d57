//! Makes an entry from names and hints, with the first result of getaddrinfo(3).

use std::ffi::{CStr, c_int};
use std::mem::zeroed;
use std::ptr::{self, NonNull};
use std::slice;

use base::bytes::{array, u16_at, u32_at};
use libc::{AF_INET6, IPPROTO_TCP, IPPROTO_UDP, SOCK_DGRAM, SOCK_STREAM, addrinfo, sockaddr};

use crate::acm::addr::{DEFAULT_PKEY, ib, with_port};
use crate::cm::addrinfo::list::Entry;
use crate::cm::addrinfo::{GaiError, Hints};
use crate::errno::Result;
use crate::ffi::{RAI_FAMILY, RAI_NUMERICHOST, RAI_PASSIVE, rdma_port_space};
use crate::os::alloc::CBytes;
use crate::os::cancel;
use crate::os::sockaddr::{AF_IB, SockAddr, SockaddrIb, port};
use crate::verbs::ibv_qp_type::*;

const TCP: c_int = rdma_port_space::RDMA_PS_TCP as c_int;
const UDP: c_int = rdma_port_space::RDMA_PS_UDP as c_int;
const IPOIB: c_int = rdma_port_space::RDMA_PS_IPOIB as c_int;
const IB: c_int = rdma_port_space::RDMA_PS_IB as c_int;

/// Looks up node and service. Returns an entry with the first address.
pub fn entry(
    node: Option<&CStr>,
    service: Option<&CStr>,
    hints: Option<&Hints>,
) -> std::result::Result<Entry, GaiError> {
    let found = resolve(node, service, hints.map(question)).map_err(GaiError::Gai)?;
    let (info, addr) = found.first();
    Ok(from_found(info, addr, hints)?)
}

/// Returns whether the hints declare the node to be a numeric GID.
fn is_gid(hints: &Hints) -> bool {
    hints.has(RAI_FAMILY | RAI_NUMERICHOST) && hints.family == AF_IB
}

/// Returns the hints for getaddrinfo(3). A GID is written as an IPv6 address, so only IPv6
/// addresses are requested for a GID. rdma-core takes a GID from any address, and reads beyond the
/// end of a shorter address.
fn question(hints: &Hints) -> addrinfo {
    let flag = |rai, ai| if hints.has(rai) { ai } else { 0 };
    let family = match hints.family {
        AF_IB if is_gid(hints) => AF_INET6,
        AF_IB => 0,
        family => family,
    };
    let socktype = match hints.qp_type as u32 {
        IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => SOCK_STREAM,
        IBV_QPT_UD => SOCK_DGRAM,
        _ => 0,
    };
    let protocol = match hints.port_space {
        TCP => IPPROTO_TCP,
        UDP | IPOIB => IPPROTO_UDP,
        IB if socktype == SOCK_STREAM => IPPROTO_TCP,
        IB if socktype == SOCK_DGRAM => IPPROTO_UDP,
        _ => 0,
    };
    let flags = flag(RAI_PASSIVE, libc::AI_PASSIVE) | flag(RAI_NUMERICHOST, libc::AI_NUMERICHOST);
    // SAFETY: all zeros are a valid addrinfo.
    addrinfo { ai_flags: flags, ai_family: family, ai_socktype: socktype, ai_protocol: protocol, ..unsafe { zeroed() } }
}

/// Makes an entry from the first result. RAI_PASSIVE is the only flag that the entry may have.
fn from_found(info: &addrinfo, addr: &[u8], hints: Option<&Hints>) -> Result<Entry> {
    let (qp_type, port_space) = types(info, hints);
    let mut entry = Entry { family: family_of(addr), qp_type, port_space, ..Entry::default() };
    let gid = hints.filter(|hints| is_gid(hints)).and_then(|_| gid_address(addr, port_space));
    let addr = match &gid {
        Some(gid) => {
            entry.family = AF_IB;
            CBytes::copy(gid.bytes())?
        }
        None => CBytes::copy(addr)?,
    };
    if hints.is_some_and(|hints| hints.has(RAI_PASSIVE)) {
        (entry.flags, entry.src) = (RAI_PASSIVE as c_int, addr);
    } else {
        entry.dst = addr;
    }
    Ok(entry)
}

/// Returns the QP type and port space of the hints. A QP type of 0 is replaced by the type that
/// matches the result's socket type, and a port space of 0 by the port space that matches the
/// result's protocol.
fn types(info: &addrinfo, hints: Option<&Hints>) -> (c_int, c_int) {
    let (qp_type, port_space) = hints.map_or((0, 0), |hints| (hints.qp_type, hints.port_space));
    let qp_type = match (qp_type, info.ai_socktype) {
        (0, SOCK_STREAM) => IBV_QPT_RC as c_int,
        (0, SOCK_DGRAM) => IBV_QPT_UD as c_int,
        (given, _) => given,
    };
    let port_space = match (port_space, info.ai_protocol) {
        (0, IPPROTO_TCP) => TCP,
        (0, IPPROTO_UDP) => UDP,
        (given, _) => given,
    };
    (qp_type, port_space)
}

fn family_of(addr: &[u8]) -> c_int {
    u16_at(addr, 0).map_or(0, c_int::from)
}

/// Converts an IPv6 address to an AF_IB address. Returns `None` for any other address.
fn gid_address(addr: &[u8], port_space: c_int) -> Option<SockAddr> {
    let addr = SockAddr::from_bytes(addr).ok().filter(|addr| addr.family() == AF_INET6)?;
    let ib = SockaddrIb {
        flowinfo: u32_at(addr.bytes(), 4)?,
        scope_id: u32_at(addr.bytes(), 24)?.into(),
        ..ib(array(addr.bytes(), 8)?, DEFAULT_PKEY)
    };
    Some(SockAddr::from_ib(&with_port(ib, port_space as u16, u16::from_be(port(addr.storage())))))
}

/// The results of getaddrinfo(3), at least one; freed when dropped.
pub struct Found(NonNull<addrinfo>);

/// Calls getaddrinfo(3). Returns the EAI_* code on failure, and leaves `errno` as getaddrinfo(3)
/// set it.
///
/// Without `question` getaddrinfo(3) uses AI_V4MAPPED and AI_ADDRCONFIG: a host without IPv6
/// addresses gets no IPv6 results.
pub fn resolve(
    node: Option<&CStr>,
    service: Option<&CStr>,
    question: Option<addrinfo>,
) -> std::result::Result<Found, c_int> {
    let hints = question.as_ref().map_or(ptr::null(), ptr::from_ref);
    let mut list = ptr::null_mut();
    let name = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: the names are C strings or NULL; the hints are NULL or have all fields set that
    // getaddrinfo() reads; `list` is writable.
    let ask = || unsafe { libc::getaddrinfo(name(node), name(service), hints, &raw mut list) };
    // getaddrinfo() may wait for servers. No lock is held.
    match cancel::sleep(ask) {
        0 => NonNull::new(list).map(Found).ok_or(libc::EAI_NONAME),
        code => Err(code),
    }
}

impl Found {
    /// Returns the first result and its address, a `sockaddr`.
    fn first(&self) -> (&addrinfo, &[u8]) {
        // SAFETY: getaddrinfo()'s list lives until drop, and its addresses are `ai_addrlen` bytes.
        unsafe {
            let info = self.0.as_ref();
            let bytes = |addr: NonNull<sockaddr>| slice::from_raw_parts(addr.as_ptr().cast(), info.ai_addrlen as usize);
            (info, NonNull::new(info.ai_addr).map_or(&[], bytes))
        }
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: the list is from getaddrinfo() and is freed once.
        unsafe { libc::freeaddrinfo(self.0.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numeric(family: c_int) -> Option<addrinfo> {
        Some(question(&Hints { flags: RAI_NUMERICHOST, family, qp_type: IBV_QPT_RC as c_int, ..Hints::default() }))
    }

    #[test]
    fn first_of_several() {
        let found = resolve(Some(c"127.0.0.1"), Some(c"7174"), numeric(0)).ok().unwrap();
        let (first, addr) = found.first();
        assert_eq!((first.ai_socktype, first.ai_protocol), (libc::SOCK_STREAM, libc::IPPROTO_TCP));
        assert_eq!(addr, [2, 0, 0x1C, 6, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn codes_as_they_are() {
        assert_eq!(resolve(None, None, numeric(0)).err(), Some(libc::EAI_NONAME));
        assert_eq!(resolve(Some(c"localhost"), None, numeric(0)).err(), Some(libc::EAI_NONAME));
        assert_eq!(resolve(Some(c"1.1.1.1"), None, numeric(77)).err(), Some(libc::EAI_FAMILY));
    }
}
