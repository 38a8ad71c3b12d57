//! The queries that librdmacm sends to ibacm, and the parts of the answers that it uses.
//! [`base::ibacm`] defines the format of both. No I/O.
//!
//! Every answer is validated: it must consist of a header and up to eight whole records. Records
//! that are neither an address nor a path are ignored. Path records may be in any position.

use std::net::IpAddr;

use base::bytes::{array, u16_at, u32_at};
use base::ibacm::{FLAG_DEST, FLAG_NODELAY, FLAG_SOURCE, INFO, PATH_DGID, PATH_SGID, TYPE_IPV4, TYPE_IPV6, TYPE_PATH};
pub use base::ibacm::{HEADER_LEN, Header, MAX_RECORDS, Malformed, PATH_RECORD_LEN, RECORD_LEN, Request};
use libc::{AF_INET, AF_INET6};

use crate::os::sockaddr::{AF_IB, SockAddr};
use crate::os::uapi::{ibv_path_data, ibv_sa_path_rec};

use super::addr::host;

/// Bytes of a `struct ibv_path_data`: flags, a reserved word and the path record. An endpoint
/// record, the unit of ibacm's messages, has the same size.
pub const PATH_DATA_LEN: usize = RECORD_LEN;

/// A query for the paths between two addresses.
#[derive(Clone, Copy, Default)]
pub struct Query {
    /// Local address.
    pub src: Option<SockAddr>,
    /// Remote address.
    pub dst: Option<SockAddr>,
    /// Fields that the path must have, as a `struct ibv_path_record`.
    pub path: Option<[u8; PATH_RECORD_LEN]>,
    /// Whether ibacm may answer from its cache only.
    pub no_delay: bool,
}

impl Query {
    /// Returns the path record of `route`, a hint from the program: a `struct ibv_path_record` or a
    /// `struct ibv_path_data`, distinguished by length. Returns `None` for any other length.
    pub fn path_hint(route: &[u8]) -> Option<[u8; PATH_RECORD_LEN]> {
        match route.len() {
            PATH_RECORD_LEN => array(route, 0),
            PATH_DATA_LEN => array(route, PATH_DATA_LEN - PATH_RECORD_LEN),
            _ => None,
        }
    }

    /// Builds the request, whose answer will carry `tid`. Returns `None` if there is neither an
    /// address nor a path.
    pub fn request(&self, tid: u64) -> Option<Request> {
        let mut request = Request::new(tid);
        let delay = if self.no_delay { FLAG_NODELAY } else { 0 };
        push_addr(&mut request, FLAG_SOURCE, self.src);
        push_addr(&mut request, FLAG_DEST | delay, self.dst);
        if let Some(path) = self.path_record() {
            request.push(0, TYPE_PATH, &path);
        }
        (!request.is_empty()).then_some(request)
    }

    /// Returns the path record to send: the hint (or zeros), with its GIDs replaced by those of
    /// AF_IB addresses. Returns `None` if there is neither a hint nor an AF_IB address.
    fn path_record(&self) -> Option<[u8; PATH_RECORD_LEN]> {
        let mut path = self.path;
        for (at, addr) in [(PATH_SGID, self.src), (PATH_DGID, self.dst)] {
            if let Some(addr) = addr.filter(|addr| addr.family() == AF_IB) {
                path.get_or_insert([0; PATH_RECORD_LEN])[at..at + 16].copy_from_slice(host(&addr));
            }
        }
        path
    }
}

fn push_addr(request: &mut Request, flags: u32, addr: Option<SockAddr>) {
    match addr {
        Some(addr) if addr.family() == AF_INET => request.push(flags, TYPE_IPV4, host(&addr)),
        Some(addr) if addr.family() == AF_INET6 => request.push(flags, TYPE_IPV6, host(&addr)),
        _ => {}
    }
}

/// The content of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The paths, in the order of the answer.
    pub paths: Paths,
    /// The local address.
    pub source: Option<IpAddr>,
}

/// Path records of an answer, each in the layout and alignment of `struct ibv_path_data`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Paths {
    bytes: [u8; MAX_RECORDS * PATH_DATA_LEN],
    count: usize,
}

impl Default for Paths {
    fn default() -> Paths {
        Paths { bytes: [0; MAX_RECORDS * PATH_DATA_LEN], count: 0 }
    }
}

impl Paths {
    /// Returns an array of `struct ibv_path_data`, as in `ai_route` and RDMA_OPTION_IB_PATH.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.count * PATH_DATA_LEN]
    }

    /// Returns the paths as an array of the C structure.
    pub fn records(&self) -> &[ibv_path_data] {
        const {
            assert!(size_of::<ibv_path_data>() == PATH_DATA_LEN);
            assert!(align_of::<ibv_path_data>() <= align_of::<Paths>());
        }
        // SAFETY: `bytes`, which is aligned, begins with `count` records, and any bytes are a valid
        // record.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.count) }
    }

    /// Returns whether there is no path.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends an endpoint record. The record's type is left out: `struct ibv_path_data` has a
    /// reserved field in its place, which stays 0.
    fn push(&mut self, record: &[u8]) {
        let at = self.count * PATH_DATA_LEN;
        if let Some(slot) = self.bytes.get_mut(at..at + PATH_DATA_LEN) {
            slot[..4].copy_from_slice(&record[..4]);
            slot[INFO..].copy_from_slice(&record[INFO..]);
            self.count += 1;
        }
    }
}

/// The SA's selector for "exactly" (IBTA 15.2.5.16), which applies to MTU, rate and packet life
/// time of a path record in an answer.
const EXACTLY: u8 = 2;
/// Bits of an MTU, a rate and a packet life time that programs see (docs/compatibility.md).
const VALUE: u8 = 0x1f;

/// Unpacks a path record (IBTA 15.2.5.16, PathRecord).
pub fn unpack(data: &ibv_path_data) -> ibv_sa_path_rec {
    let packed = &data.path;
    let flow_and_hops = u32::from_be(packed.flowlabel_hoplimit);
    ibv_sa_path_rec {
        dgid: packed.dgid,
        sgid: packed.sgid,
        dlid: packed.dlid,
        slid: packed.slid,
        raw_traffic: 0,
        flow_label: (flow_and_hops >> 8).to_be(),
        hop_limit: flow_and_hops as u8,
        traffic_class: packed.tclass,
        reversible: i32::from(packed.reversible_numpath >> 7),
        // A record is one path. The number in this byte is the number of requested paths
        // (docs/compatibility.md).
        numb_path: 1,
        pkey: packed.pkey,
        sl: (u16::from_be(packed.qosclass_sl) & 0xf) as u8,
        mtu_selector: EXACTLY,
        mtu: packed.mtu & VALUE,
        rate_selector: EXACTLY,
        rate: packed.rate & VALUE,
        packet_life_time_selector: EXACTLY,
        packet_life_time: packed.packetlifetime & VALUE,
        // Not in the wire format: the flags tell the use of the path (docs/compatibility.md).
        preference: data.flags as u8,
    }
}

/// Collects the records of an answer. Unknown records and an incomplete last record are ignored.
pub fn parse_records(body: &[u8]) -> Answer {
    let mut answer = Answer { paths: Paths::default(), source: None };
    for record in body.chunks_exact(RECORD_LEN) {
        let flags = u32_at(record, 0).unwrap_or_default();
        let kind = u16_at(record, 4).unwrap_or_default();
        match kind {
            TYPE_PATH => answer.paths.push(record),
            _ if flags & FLAG_SOURCE != 0 && answer.source.is_none() => answer.source = inet(kind, record),
            _ => {}
        }
    }
    answer
}

/// Returns the address in a record, or `None` if the record is not an address.
fn inet(kind: u16, record: &[u8]) -> Option<IpAddr> {
    match kind {
        TYPE_IPV4 => Some(IpAddr::from(array::<4>(record, INFO)?)),
        TYPE_IPV6 => Some(IpAddr::from(array::<16>(record, INFO)?)),
        _ => None,
    }
}

/// Parses a whole message: header and records.
#[cfg(test)]
pub fn parse_answer(message: &[u8]) -> Result<(Header, Answer), Malformed> {
    let (head, body) = message.split_first_chunk::<HEADER_LEN>().ok_or(Malformed::Short)?;
    let header = Header::parse(head)?;
    if body.len() != header.body_len {
        return Err(Malformed::Length((HEADER_LEN + header.body_len) as u16));
    }
    Ok((header, parse_records(body)))
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
