//! The messages of ibacm (infiniband/acm.h), in host byte order: a header of 16 bytes and up to
//! eight endpoint records of 72 bytes. No I/O.
//!
//! librdmacm asks ibacm for paths; rdmacm-doctor checks whether ibacm answers. Each of the two
//! interprets the records of an answer itself.
#![forbid(unsafe_code)]

const VERSION: u8 = 1;
const OP_RESOLVE: u8 = 0x01;
const OP_ACK: u8 = 0x80;
const STATUS_SUCCESS: u8 = 0;

/// Bytes of a header.
pub const HEADER_LEN: usize = 16;
/// Bytes of an endpoint record.
pub const RECORD_LEN: usize = 72;
/// Maximum number of records in a message.
pub const MAX_RECORDS: usize = 8;
/// Bytes of the largest message.
pub const MAX_MESSAGE: usize = HEADER_LEN + MAX_RECORDS * RECORD_LEN;

/// Record type: an IPv4 address.
pub const TYPE_IPV4: u16 = 2;
/// Record type: an IPv6 address.
pub const TYPE_IPV6: u16 = 3;
/// Record type: a path.
pub const TYPE_PATH: u16 = 0x10;

/// Flag of an address record: this is the local address.
pub const FLAG_SOURCE: u32 = 1 << 0;
/// Flag of an address record: this is the remote address.
pub const FLAG_DEST: u32 = 1 << 1;
/// Flag of the remote address: ibacm may answer from its cache only.
pub const FLAG_NODELAY: u32 = 1 << 30;

/// Offset of the info in a record: after flags (32 bits), type and a reserved word (16 bits each).
pub const INFO: usize = 8;

/// Bytes of a `struct ibv_path_record` (infiniband/sa.h), the info of a path.
pub const PATH_RECORD_LEN: usize = 64;
/// Offset of the destination GID in a path record.
pub const PATH_DGID: usize = 8;
/// Offset of the source GID in a path record.
pub const PATH_SGID: usize = 24;

/// A resolve request: two addresses and a path at most.
pub struct Request {
    bytes: [u8; HEADER_LEN + Request::MAX_RECORDS * RECORD_LEN],
    len: usize,
}

impl Request {
    const MAX_RECORDS: usize = 3;

    /// Creates a request without records. The answer carries `tid`.
    pub fn new(tid: u64) -> Request {
        let mut request = Request { bytes: [0; HEADER_LEN + Request::MAX_RECORDS * RECORD_LEN], len: HEADER_LEN };
        request.bytes[0] = VERSION;
        request.bytes[1] = OP_RESOLVE;
        request.bytes[8..HEADER_LEN].copy_from_slice(&tid.to_ne_bytes());
        request.set_length();
        request
    }

    /// Appends a record with `flags`, the type `kind` (`TYPE_*`) and `info`, which is truncated if
    /// it is too long. A fourth record is ignored.
    pub fn push(&mut self, flags: u32, kind: u16, info: &[u8]) {
        let Some(record) = self.bytes.get_mut(self.len..self.len + RECORD_LEN) else { return };
        record[..4].copy_from_slice(&flags.to_ne_bytes());
        record[4..6].copy_from_slice(&kind.to_ne_bytes());
        for (to, from) in record[INFO..].iter_mut().zip(info) {
            *to = *from;
        }
        self.len += RECORD_LEN;
        self.set_length();
    }

    /// Returns whether the request has no records, so that ibacm has nothing to resolve.
    pub fn is_empty(&self) -> bool {
        self.len == HEADER_LEN
    }

    /// Returns the message to send.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn set_length(&mut self) {
        self.bytes[6..8].copy_from_slice(&(self.len as u16).to_ne_bytes());
    }
}

/// Why a message is not a valid answer. The connection on which it arrived must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Fewer bytes than a header.
    Short,
    /// Another version of the protocol.
    Version(u8),
    /// Not the answer to a resolve request.
    Opcode(u8),
    /// The length field is not the size of a header and up to eight records, or does not match the
    /// size of the message.
    Length(u16),
}

/// The validated header of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The `tid` of the request.
    pub tid: u64,
    /// 0 if ibacm found an answer, otherwise its error code.
    pub status: u8,
    /// Number of bytes of the records that follow: a multiple of [`RECORD_LEN`], at most
    /// [`MAX_RECORDS`] records.
    pub body_len: usize,
}

impl Header {
    /// Parses and validates the first bytes of an answer.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Header, Malformed> {
        let [version, opcode, status, _, _, _, len0, len1, tid @ ..] = *bytes;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        // OP_ACK is ignored: ibacm does not set it in answers that it gives at once.
        if opcode & !OP_ACK != OP_RESOLVE {
            return Err(Malformed::Opcode(opcode));
        }
        let length = u16::from_ne_bytes([len0, len1]);
        match usize::from(length).checked_sub(HEADER_LEN) {
            Some(body_len) if body_len % RECORD_LEN == 0 && body_len <= MAX_RECORDS * RECORD_LEN => {
                Ok(Header { tid: u64::from_ne_bytes(tid), status, body_len })
            }
            _ => Err(Malformed::Length(length)),
        }
    }

    /// Returns whether ibacm found an answer.
    pub fn success(&self) -> bool {
        self.status == STATUS_SUCCESS
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    fn header(version: u8, opcode: u8, status: u8, length: u16) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        (bytes[0], bytes[1], bytes[2], bytes[8]) = (version, opcode, status, 7);
        bytes[6..8].copy_from_slice(&length.to_ne_bytes());
        bytes
    }

    #[test]
    fn request_has_its_records_in_order() {
        let mut request = Request::new(u64::from_ne_bytes([7, 0, 0, 0, 0, 0, 0, 0]));
        assert!(request.is_empty());
        assert_eq!(request.as_bytes(), header(1, 1, 0, 16));
        request.push(FLAG_SOURCE, TYPE_IPV4, &[10, 0, 0, 1]);
        request.push(0, TYPE_PATH, &[5; PATH_RECORD_LEN]);
        let bytes = request.as_bytes();
        assert_eq!(bytes[..HEADER_LEN], header(1, 1, 0, 160));
        assert_eq!(bytes[16..29], [&1u32.to_ne_bytes()[..], &2u16.to_ne_bytes(), &[0, 0, 10, 0, 0, 1, 0]].concat());
        assert_eq!(bytes[88..97], [&0u32.to_ne_bytes()[..], &16u16.to_ne_bytes(), &[0, 0, 5]].concat());
        assert_eq!(bytes.len(), 160);
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let mut request = Request::new(0);
        for _ in 0..4 {
            request.push(0, TYPE_PATH, &[1; RECORD_LEN]);
        }
        assert_eq!(request.as_bytes().len(), HEADER_LEN + 3 * RECORD_LEN);
        assert_eq!(request.as_bytes()[HEADER_LEN + RECORD_LEN..][..4], [0; 4]);
    }

    #[test]
    fn status_is_reported() {
        for (status, success) in [(0, true), (3, false)] {
            let found = Header::parse(&header(1, 0x81, status, 88)).unwrap();
            assert_eq!((found.status, found.success(), found.body_len), (status, success, RECORD_LEN));
        }
    }

    #[test]
    fn other_headers_are_malformed() {
        assert_eq!(Header::parse(&header(2, 1, 0, 16)), Err(Malformed::Version(2)));
        assert_eq!(Header::parse(&header(1, 2, 0, 16)), Err(Malformed::Opcode(2)));
        for length in [0, 15, 17, 89, 16 + 9 * 72] {
            assert_eq!(Header::parse(&header(1, 1, 0, length)), Err(Malformed::Length(length)));
        }
    }
}
