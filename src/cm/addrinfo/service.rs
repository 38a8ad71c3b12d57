//! Services known to the subnet administrator: how a program names one, and the entries made of its records.
//!
//! The search itself is the kernel's (RESOLVE_IB_SERVICE on a bound id, then QUERY). rdma_getaddrinfo() with RAI_SA has
//! no id of the program: it takes a new one of RDMA_PS_IB for each port of each device with InfiniBand link layer and
//! state ACTIVE, bound to [`port_address`] of the port's first GID, until all were asked. Ports that fail are passed over.

use std::ffi::{CStr, c_int};

use crate::acm::addr::{DEFAULT_PKEY, Gid, Ib};
use crate::errno::{Errno, Result};
use crate::ffi::rdma_port_space;
use crate::sys::cbox::CBytes;
use crate::sys::sockaddr::AF_IB;
use crate::sys::ucma::{SERVICE_NAME, Service, ServiceRecord};

use super::hints::Hints;
use super::list::{Entry, List};

/// What the entries of a search have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// RAI_* flags.
    pub flags: c_int,
    /// QP type, 0 when left open.
    pub qp_type: c_int,
    /// Port space.
    pub port_space: c_int,
}

impl Common {
    /// From a program's hints; port space RDMA_PS_IB if that is left open.
    pub fn from_hints(hints: &Hints<'_>) -> Common {
        let port_space = match hints.port_space() {
            0 => rdma_port_space::RDMA_PS_IB as c_int,
            given => given,
        };
        Common { flags: hints.flags() as c_int, qp_type: hints.qp_type(), port_space }
    }
}

/// Reads a service as programs write it: a number (decimal, 0x… or 0…) is its id, anything else its name of up to 63
/// bytes. `EINVAL` for an empty name and for a longer one, which the reference cuts short.
pub fn parse(service: &CStr) -> Result<Service> {
    let bytes = service.to_bytes();
    if let Some(id) = number(bytes) {
        return Ok(Service::Id(id));
    }
    let mut name = [0; SERVICE_NAME];
    match name.get_mut(..bytes.len()) {
        Some(room) if !bytes.is_empty() && bytes.len() < SERVICE_NAME => room.copy_from_slice(bytes),
        _ => return Err(Errno::EINVAL),
    }
    Ok(Service::Name(name))
}

/// A whole number as strtoull(3) with base 0 reads it: after blanks and a sign, base 10, 16 or 8 by its beginning.
fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?.trim_start_matches([' ', '\t', '\n', '\x0B', '\x0C', '\r']);
    let (text, negative) = match text.strip_prefix('-') {
        Some(rest) => (rest, true),
        None => (text.strip_prefix('+').unwrap_or(text), false),
    };
    let (digits, base) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None if text.len() > 1 && text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    // from_str_radix() would take another sign.
    let number =
        digits.bytes().all(|c| c.is_ascii_alphanumeric()).then(|| u64::from_str_radix(digits, base).ok())??;
    Some(if negative { number.wrapping_neg() } else { number })
}

/// The address to bind an id to that is to search through the port with this GID.
pub fn port_address(gid: Gid) -> Ib {
    Ib { pkey: DEFAULT_PKEY, gid, ..Ib::default() }
}

/// Appends an entry for each record; `source` is the GID of the port that was asked, if the program does not know it.
pub fn append(list: &mut List, records: &[ServiceRecord], source: Option<Gid>, common: Common) -> Result<()> {
    for record in records {
        let pkey = u16::from_be(record.pkey);
        let end = |ib: Ib| CBytes::copy(&ib.to_bytes());
        let dst = Ib { pkey, gid: record.gid, sid: u64::from_be(record.id), sid_mask: u64::MAX, ..Ib::default() };
        list.push(Entry {
            flags: common.flags,
            family: AF_IB,
            qp_type: common.qp_type,
            port_space: common.port_space,
            src: match source {
                Some(gid) => end(Ib { pkey, ..port_address(gid) })?,
                None => None,
            },
            dst: end(dst)?,
            ..Entry::default()
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Service {
        let mut name = [0; SERVICE_NAME];
        name[..text.len()].copy_from_slice(text.as_bytes());
        Service::Name(name)
    }

    #[test]
    fn numbers_are_ids() {
        assert_eq!(parse(c"7174"), Ok(Service::Id(7174)));
        assert_eq!(parse(c"0x1c06"), Ok(Service::Id(7174)));
        assert_eq!(parse(c"0XfFfFfFfFfFfFfFfF"), Ok(Service::Id(u64::MAX)));
        assert_eq!(parse(c"010"), Ok(Service::Id(8)));
        assert_eq!(parse(c"0"), Ok(Service::Id(0)));
        assert_eq!(parse(c" 7"), Ok(Service::Id(7)));
        assert_eq!(parse(c"+5"), Ok(Service::Id(5)));
        assert_eq!(parse(c"-5"), Ok(Service::Id(u64::MAX - 4)));
    }

    #[test]
    fn the_rest_are_names() {
        for text in ["storage", "12 34", "09", "0x", "18446744073709551616", "0x-1", "+-1", "7 ", "-", " "] {
            let service = std::ffi::CString::new(text).unwrap();
            assert_eq!(parse(&service), Ok(name(text)), "{text}");
        }
    }

    #[test]
    fn names_have_room_for_their_end() {
        let text = |len| std::ffi::CString::new("n".repeat(len)).unwrap();
        assert_eq!(parse(&text(63)), Ok(name(&"n".repeat(63))));
        assert_eq!(parse(&text(64)), Err(Errno::EINVAL));
        assert_eq!(parse(&text(1000)), Err(Errno::EINVAL));
        assert_eq!(parse(c""), Err(Errno::EINVAL));
    }

    fn record(id: u64, gid: u8) -> ServiceRecord {
        // SAFETY: a structure of numbers.
        let zero: ServiceRecord = unsafe { std::mem::zeroed() };
        ServiceRecord { id: id.to_be(), gid: [gid; 16], pkey: 0x8001_u16.to_be(), ..zero }
    }

    #[test]
    fn records_become_entries_in_order() {
        use crate::acm::addr::Addr;
        let mut list = List::new();
        let common = Common { flags: 0x10, qp_type: 2, port_space: 0x13F };
        append(&mut list, &[record(5, 1), record(6, 2)], Some([9; 16]), common).unwrap();
        append(&mut list, &[record(7, 3)], None, common).unwrap();
        let raw = list.into_raw();
        let (mut next, mut seen) = (raw, Vec::new());
        // SAFETY: the list just made, whose addresses are as long as it says.
        while let Some(info) = unsafe { next.as_ref() } {
            assert_eq!((info.ai_family, info.ai_flags, info.ai_qp_type, info.ai_port_space), (27, 0x10, 2, 0x13F));
            let ib = |addr: *mut libc::sockaddr, len: u32| {
                // SAFETY: as above.
                let bytes =
                    (!addr.is_null()).then(|| unsafe { std::slice::from_raw_parts(addr.cast(), len as usize) })?;
                let Addr::Ib(ib) = Addr::from_bytes(bytes)? else { return None };
                Some((ib.gid[0], ib.pkey, ib.sid, ib.sid_mask))
            };
            seen.push((ib(info.ai_src_addr, info.ai_src_len), ib(info.ai_dst_addr, info.ai_dst_len)));
            next = info.ai_next;
        }
        // SAFETY: nothing uses it any more.
        unsafe { crate::cm::addrinfo::freeaddrinfo(raw) };
        let src = Some((9, 0x8001, 0, 0));
        let dst = |id, gid| Some((gid, 0x8001, id, u64::MAX));
        assert_eq!(seen, [(src, dst(5, 1)), (src, dst(6, 2)), (None, dst(7, 3))]);
    }
}
