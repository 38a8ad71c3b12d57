//! What ibacm adds to an entry: the route, the local address, and a second entry of family AF_IB,
//! which precedes it.

use crate::acm::addr::{Addr, Gid, Ib};
use crate::acm::ip_header;
use crate::acm::wire::{Answer, PATH_RECORD_LEN, Path, Query};
use crate::errno::Result;
use crate::ffi::{RAI_NOROUTE, RAI_NUMERICHOST};
use crate::os::c_alloc::CBytes;
use crate::os::sockaddr::AF_IB;

use super::list::Entry;

/// An internal flag of the reference: no AF_IB entry is added.
const ROUTE_ONLY: u32 = 0x0100_0000;

/// The query to ibacm for `entry`.
pub fn query(entry: &Entry, flags: u32, path: Option<[u8; PATH_RECORD_LEN]>) -> Query {
    let no_delay = flags & (RAI_NUMERICHOST | RAI_NOROUTE) != 0;
    Query { src: addr(&entry.src), dst: addr(&entry.dst), path, no_delay }
}

/// Adds ibacm's answer to the entry. Returns the AF_IB entry that precedes it, if there is a path
/// and the kernel supports AF_IB.
pub fn apply(entry: &mut Entry, answer: &Answer, flags: u32, af_ib: bool) -> Result<Option<Entry>> {
    if let Some(source) = answer.source.filter(|_| entry.src.is_none()) {
        let (bytes, len) = source.to_bytes();
        entry.src = CBytes::copy(bytes.get(..len).unwrap_or_default())?;
    }
    let Some(path) = answer.paths.first() else { return Ok(None) };
    entry.route = CBytes::copy(answer.paths.as_bytes())?;
    if !af_ib || flags & ROUTE_ONLY != 0 {
        return Ok(None);
    }
    ib_entry(entry, &path, answer.paths.as_bytes())
}

/// The AF_IB entry. `None` if only one end has an IP address: a peer that is addressed by IP
/// address expects both in the header.
fn ib_entry(entry: &Entry, path: &Path, route: &[u8]) -> Result<Option<Entry>> {
    let (src, dst) = (addr(&entry.src), addr(&entry.dst));
    let header = match (src, dst) {
        (Some(Addr::V4 { .. }), Some(Addr::V4 { .. })) | (Some(Addr::V6(_)), Some(Addr::V6(_))) => {
            Some(ip_header::emit(src, dst, 0))
        }
        (_, Some(Addr::Ib(_))) | (Some(Addr::Ib(_)), None) => None,
        _ => return Ok(None),
    };
    let address = |gid: Gid, port_of: Option<Addr>| {
        let ib = Ib { pkey: path.pkey(), flow: path.flow_label(), gid, ..Ib::default() };
        let port = port_of.map_or(0, |addr| addr.port());
        CBytes::copy(&ib.with_port(entry.port_space as u16, port).to_bytes())
    };
    Ok(Some(Entry {
        flags: entry.flags,
        family: AF_IB,
        qp_type: entry.qp_type,
        port_space: entry.port_space,
        src: address(path.sgid(), src)?,
        dst: address(path.dgid(), dst)?,
        route: CBytes::copy(route)?,
        connect: match header {
            Some(header) => CBytes::copy(&header)?,
            None => None,
        },
        ..Entry::default()
    }))
}

fn addr(bytes: &Option<CBytes>) -> Option<Addr> {
    Addr::from_bytes(bytes.as_ref()?.as_slice())
}
