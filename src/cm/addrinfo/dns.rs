//! From names and hints to an entry, by way of getaddrinfo(3).

use std::ffi::{CStr, c_int};

use libc::{AF_INET6, IPPROTO_TCP, IPPROTO_UDP, SOCK_DGRAM, SOCK_STREAM};

use crate::acm::addr::{Addr, DEFAULT_PKEY, Ib, SOCKADDR_IB_LEN};
use crate::errno::Result;
use crate::ffi::{RAI_FAMILY, RAI_NUMERICHOST, RAI_PASSIVE, rdma_port_space};
use crate::sys::cbox::{CBytes, CName};
use crate::sys::resolver::{First, Question, resolve};
use crate::sys::sockaddr::AF_IB;

use super::GaiError;
use super::hints::Hints;
use super::list::Entry;

/// libibverbs' `enum ibv_qp_type`.
const RC: c_int = 2;
const UC: c_int = 3;
const UD: c_int = 4;
const XRC_SEND: c_int = 9;
const XRC_RECV: c_int = 10;

const TCP: c_int = rdma_port_space::RDMA_PS_TCP as c_int;
const UDP: c_int = rdma_port_space::RDMA_PS_UDP as c_int;
const IPOIB: c_int = rdma_port_space::RDMA_PS_IPOIB as c_int;
const IB: c_int = rdma_port_space::RDMA_PS_IB as c_int;

/// Looks node and service up: an entry with the first address found.
pub fn entry(
    node: Option<&CStr>,
    service: Option<&CStr>,
    hints: Option<&Hints>,
) -> std::result::Result<Entry, GaiError> {
    let found = resolve(node, service, hints.map(question)).map_err(GaiError::Gai)?;
    Ok(from_found(&found.first(), hints)?)
}

/// Whether the node is a GID in figures.
fn is_gid(hints: &Hints) -> bool {
    hints.has(RAI_FAMILY | RAI_NUMERICHOST) && hints.family() == AF_IB
}

/// getaddrinfo(3)'s hints. A GID is written as an IPv6 address, and must be one: of what else getaddrinfo() finds the
/// reference makes a GID of bytes that are none.
fn question(hints: &Hints) -> Question {
    let flag = |rai, ai| if hints.has(rai) { ai } else { 0 };
    let family = match hints.family() {
        AF_IB if is_gid(hints) => AF_INET6,
        AF_IB => 0,
        family => family,
    };
    let socktype = match hints.qp_type() {
        RC | UC | XRC_SEND | XRC_RECV => SOCK_STREAM,
        UD => SOCK_DGRAM,
        _ => 0,
    };
    let protocol = match hints.port_space() {
        TCP => IPPROTO_TCP,
        UDP | IPOIB => IPPROTO_UDP,
        IB if socktype == SOCK_STREAM => IPPROTO_TCP,
        IB if socktype == SOCK_DGRAM => IPPROTO_UDP,
        _ => 0,
    };
    let flags = flag(RAI_PASSIVE, libc::AI_PASSIVE) | flag(RAI_NUMERICHOST, libc::AI_NUMERICHOST);
    Question { flags, family, socktype, protocol }
}

/// The entry for what was found. Of the flags it keeps RAI_PASSIVE only.
fn from_found(first: &First<'_>, hints: Option<&Hints>) -> Result<Entry> {
    let (qp_type, port_space) = types(first, hints);
    let mut entry = Entry { family: family_of(first.addr), qp_type, port_space, ..Entry::default() };
    let gid = hints.filter(|hints| is_gid(hints)).and_then(|_| gid_address(first.addr, port_space));
    let addr = match &gid {
        Some(gid) => {
            entry.family = AF_IB;
            CBytes::copy(gid)?
        }
        None => CBytes::copy(first.addr)?,
    };
    let name = first.canonname.map(CName::copy).transpose()?;
    if hints.is_some_and(|hints| hints.has(RAI_PASSIVE)) {
        (entry.flags, entry.src, entry.src_name) = (RAI_PASSIVE as c_int, addr, name);
    } else {
        (entry.dst, entry.dst_name) = (addr, name);
    }
    Ok(entry)
}

/// QP type and port space: what the hints say, else what fits the socket found.
fn types(first: &First<'_>, hints: Option<&Hints>) -> (c_int, c_int) {
    let (qp_type, port_space) = hints.map_or((0, 0), |hints| (hints.qp_type(), hints.port_space()));
    let qp_type = match (qp_type, first.socktype) {
        (0, SOCK_STREAM) => RC,
        (0, SOCK_DGRAM) => UD,
        (given, _) => given,
    };
    let port_space = match (port_space, first.protocol) {
        (0, IPPROTO_TCP) => TCP,
        (0, IPPROTO_UDP) => UDP,
        (given, _) => given,
    };
    (qp_type, port_space)
}

fn family_of(addr: &[u8]) -> c_int {
    addr.first_chunk().map_or(0, |family| c_int::from(u16::from_ne_bytes(*family)))
}

/// The AF_IB address that an IPv6 one stands for.
fn gid_address(addr: &[u8], port_space: c_int) -> Option<[u8; SOCKADDR_IB_LEN]> {
    let Addr::V6(v6) = Addr::from_bytes(addr)? else { return None };
    let ib = Ib { pkey: DEFAULT_PKEY, flow: v6.flow, gid: v6.ip, scope: u64::from(v6.scope), ..Ib::default() };
    Some(ib.with_port(port_space as u16, v6.port).to_bytes())
}
