//! The messages of ibacm (infiniband/acm.h), in host byte order: a header of 16 bytes and up to
//! eight endpoint records of 72 bytes. No I/O.
//!
//! Every answer is validated: its length must be that of whole records, eight at most. Records that
//! are neither an address nor a path are ignored. Path records are collected from any position.

use std::fmt;

use crate::sys::uapi::ibv_path_data;

use super::addr::{Addr, Gid, V6, array};

const VERSION: u8 = 1;
const OP_RESOLVE: u8 = 0x01;
const OP_ACK: u8 = 0x80;
const STATUS_SUCCESS: u8 = 0;

/// Bytes of a header.
pub const HEADER_LEN: usize = 16;
/// Bytes of an endpoint record.
pub const RECORD_LEN: usize = 72;
/// Records of the largest message.
pub const MAX_RECORDS: usize = 8;
/// Bytes of the largest message.
pub const MAX_MESSAGE: usize = HEADER_LEN + MAX_RECORDS * RECORD_LEN;

/// Bytes of a `struct ibv_path_record`.
pub const PATH_RECORD_LEN: usize = 64;
/// Bytes of a `struct ibv_path_data`: flags, a reserved word and the record. An endpoint record has
/// the same size.
pub const PATH_DATA_LEN: usize = RECORD_LEN;

const TYPE_IPV4: u16 = 2;
const TYPE_IPV6: u16 = 3;
const TYPE_PATH: u16 = 0x10;

const FLAG_SOURCE: u32 = 1 << 0;
const FLAG_DEST: u32 = 1 << 1;
/// Answer from the cache only.
const FLAG_NODELAY: u32 = 1 << 30;

/// Offset of the info in a record: after flags (32 bits), type and a reserved word (16 bits each).
const INFO: usize = 8;

/// Offsets in a path record (infiniband/sa.h, `struct ibv_path_record`).
const PATH_DGID: usize = 8;
const PATH_SGID: usize = 24;
const PATH_FLOW_HOP: usize = 44;
const PATH_PKEY: usize = 50;

/// A query.
#[derive(Clone, Copy, Debug, Default)]
pub struct Query {
    /// Local address.
    pub src: Option<Addr>,
    /// Remote address.
    pub dst: Option<Addr>,
    /// Fields that the path must have, as a `struct ibv_path_record`.
    pub path: Option<[u8; PATH_RECORD_LEN]>,
    /// Whether ibacm may answer from its cache only.
    pub no_delay: bool,
}

impl Query {
    /// Returns the record of a route that was given as hint: a `struct ibv_path_record` or a
    /// `struct ibv_path_data`, which differ in length.
    pub fn path_hint(route: &[u8]) -> Option<[u8; PATH_RECORD_LEN]> {
        match route.len() {
            PATH_RECORD_LEN => array(route, 0),
            PATH_DATA_LEN => array(route, PATH_DATA_LEN - PATH_RECORD_LEN),
            _ => None,
        }
    }

    /// Returns the path record to send: the hint, with its GIDs replaced by those of AF_IB
    /// addresses.
    fn path_record(&self) -> Option<[u8; PATH_RECORD_LEN]> {
        let (sgid, dgid) = (ib_gid(self.src), ib_gid(self.dst));
        if self.path.is_none() && sgid.is_none() && dgid.is_none() {
            return None;
        }
        let mut path = self.path.unwrap_or([0; PATH_RECORD_LEN]);
        if let Some(gid) = sgid {
            path[PATH_SGID..PATH_SGID + 16].copy_from_slice(&gid);
        }
        if let Some(gid) = dgid {
            path[PATH_DGID..PATH_DGID + 16].copy_from_slice(&gid);
        }
        Some(path)
    }
}

fn ib_gid(addr: Option<Addr>) -> Option<Gid> {
    match addr {
        Some(Addr::Ib(ib)) => Some(ib.gid),
        _ => None,
    }
}

/// A resolve request.
pub struct Request {
    bytes: [u8; HEADER_LEN + 3 * RECORD_LEN],
    len: usize,
}

impl Request {
    /// Builds the request for `query`; `None` if it has neither address nor path. The answer
    /// carries `tid`.
    pub fn new(tid: u64, query: &Query) -> Option<Request> {
        let mut request = Request { bytes: [0; HEADER_LEN + 3 * RECORD_LEN], len: HEADER_LEN };
        let delay = if query.no_delay { FLAG_NODELAY } else { 0 };
        request.push_addr(FLAG_SOURCE, query.src);
        request.push_addr(FLAG_DEST | delay, query.dst);
        if let Some(path) = query.path_record() {
            request.push(0, TYPE_PATH, &path);
        }
        if request.len == HEADER_LEN {
            return None;
        }
        request.bytes[0] = VERSION;
        request.bytes[1] = OP_RESOLVE;
        request.bytes[6..8].copy_from_slice(&(request.len as u16).to_ne_bytes());
        request.bytes[8..HEADER_LEN].copy_from_slice(&tid.to_ne_bytes());
        Some(request)
    }

    /// The message.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push_addr(&mut self, flags: u32, addr: Option<Addr>) {
        match addr {
            Some(Addr::V4 { ip, .. }) => self.push(flags, TYPE_IPV4, &ip),
            Some(Addr::V6(a)) => self.push(flags, TYPE_IPV6, &a.ip),
            Some(Addr::Ib(_)) | None => {}
        }
    }

    fn push(&mut self, flags: u32, kind: u16, info: &[u8]) {
        let record = &mut self.bytes[self.len..self.len + RECORD_LEN];
        record[..4].copy_from_slice(&flags.to_ne_bytes());
        record[4..6].copy_from_slice(&kind.to_ne_bytes());
        record[INFO..INFO + info.len()].copy_from_slice(info);
        self.len += RECORD_LEN;
    }
}

/// Why a message is not a valid answer. The connection that it came on must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Fewer bytes than a header.
    Short,
    /// Another version of the protocol.
    Version(u8),
    /// Not the answer to a resolve request.
    Opcode(u8),
    /// A length that is not that of a header and up to eight records, or not that of the message.
    Length(u16),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Short => f.write_str("message shorter than its header"),
            Malformed::Version(version) => write!(f, "version {version}"),
            Malformed::Opcode(opcode) => write!(f, "opcode {opcode:#x}"),
            Malformed::Length(length) => write!(f, "length {length}"),
        }
    }
}

/// The validated header of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The `tid` of the request.
    pub tid: u64,
    /// Whether ibacm found an answer.
    pub success: bool,
    /// Bytes of records that follow, a multiple of [`RECORD_LEN`] up to [`MAX_RECORDS`] times that.
    pub body_len: usize,
}

impl Header {
    /// Parses and validates the first bytes of an answer.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Header, Malformed> {
        let [version, opcode, status, _, _, _, len0, len1, tid @ ..] = *bytes;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        // ibacm sets the bit in some answers only: not in those that it gives at once.
        if opcode & !OP_ACK != OP_RESOLVE {
            return Err(Malformed::Opcode(opcode));
        }
        let length = u16::from_ne_bytes([len0, len1]);
        match usize::from(length).checked_sub(HEADER_LEN) {
            Some(body_len) if body_len % RECORD_LEN == 0 && body_len <= MAX_RECORDS * RECORD_LEN => {
                Ok(Header { tid: u64::from_ne_bytes(tid), success: status == STATUS_SUCCESS, body_len })
            }
            _ => Err(Malformed::Length(length)),
        }
    }
}

/// The content of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The paths, in the order of the answer.
    pub paths: Paths,
    /// The local address, with port 0.
    pub source: Option<Addr>,
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
    /// An array of `struct ibv_path_data`: what `ai_route` and the option RDMA_OPTION_IB_PATH hold.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.count * PATH_DATA_LEN]
    }

    /// Returns them as an array of the C structure.
    pub fn records(&self) -> &[ibv_path_data] {
        const {
            assert!(size_of::<ibv_path_data>() == PATH_DATA_LEN);
            assert!(align_of::<ibv_path_data>() <= align_of::<Paths>());
        }
        // SAFETY: the structure begins with `count` aligned records, of which any bytes are a valid
        // value.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().cast(), self.count) }
    }

    /// Returns whether there is no path.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The first path.
    pub fn first(&self) -> Option<Path> {
        array(self.as_bytes(), PATH_DATA_LEN - PATH_RECORD_LEN).map(|record| Path { record })
    }

    /// Appends an endpoint record, without its type, which is in the reserved word of `struct
    /// ibv_path_data`.
    fn push(&mut self, record: &[u8]) {
        let at = self.count * PATH_DATA_LEN;
        if let Some(slot) = self.bytes.get_mut(at..at + PATH_DATA_LEN) {
            slot[..4].copy_from_slice(&record[..4]);
            slot[INFO..].copy_from_slice(&record[INFO..]);
            self.count += 1;
        }
    }
}

/// A path record.
#[derive(Clone, Copy)]
pub struct Path {
    record: [u8; PATH_RECORD_LEN],
}

impl Path {
    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        array(&self.record, at).unwrap_or([0; N])
    }

    /// Source GID.
    pub fn sgid(&self) -> Gid {
        self.field(PATH_SGID)
    }

    /// Destination GID.
    pub fn dgid(&self) -> Gid {
        self.field(PATH_DGID)
    }

    /// Partition key, host byte order.
    pub fn pkey(&self) -> u16 {
        u16::from_be_bytes(self.field(PATH_PKEY))
    }

    /// Flow label, 20 bits, host byte order.
    pub fn flow_label(&self) -> u32 {
        (u32::from_be_bytes(self.field(PATH_FLOW_HOP)) >> 8) & 0xF_FFFF
    }
}

/// Collects the records of an answer. Unknown records and an incomplete last record are ignored.
pub fn parse_records(body: &[u8]) -> Answer {
    let mut answer = Answer { paths: Paths::default(), source: None };
    for record in body.chunks_exact(RECORD_LEN) {
        let flags = u32::from_ne_bytes(array(record, 0).unwrap_or_default());
        let kind = u16::from_ne_bytes(array(record, 4).unwrap_or_default());
        match kind {
            TYPE_PATH => answer.paths.push(record),
            _ if flags & FLAG_SOURCE != 0 && answer.source.is_none() => answer.source = inet(kind, record),
            _ => {}
        }
    }
    answer
}

/// Returns the address in a record, if it has one.
fn inet(kind: u16, record: &[u8]) -> Option<Addr> {
    match kind {
        TYPE_IPV4 => Some(Addr::V4 { port: 0, ip: array(record, INFO)? }),
        TYPE_IPV6 => Some(Addr::V6(V6 { ip: array(record, INFO)?, ..V6::default() })),
        _ => None,
    }
}

/// Parses a whole message: header and records.
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
