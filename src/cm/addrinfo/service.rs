//! Services that are registered with the subnet administrator: parses their names, and converts
//! service records to entries.
//!
//! The kernel looks services up (RESOLVE_IB_SERVICE on a bound id, then QUERY). rdma_getaddrinfo()
//! with RAI_SA has no id: for each active InfiniBand port of each device it creates an id in
//! RDMA_PS_IB and binds it to the port's first GID. Ports that fail are skipped; only an error that
//! does not concern the port ends the look-up.

use std::ffi::{CStr, c_int};

use crate::acm::addr::{Gid, ib, with_port};
use crate::errno::{Errno, Result};
use crate::ffi::{RAI_SA, rdma_port_space};
use crate::os::alloc::CBytes;
use crate::os::sockaddr::{AF_IB, SockAddr, SockaddrIb};
use crate::ucm::{SERVICE_NAME, Service, ServiceRecord};

use super::list::{Entry, List};

/// Parses a service: a number (decimal, 0x… or 0…) is a service id, anything else a name of up to
/// 63 bytes. Fails with `EINVAL` for an empty name and for a longer name, which rdma-core
/// truncates.
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

/// Parses a number like strtoull(3) with base 0. Returns `None` if `text` is no number, or if
/// anything follows the number.
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
    // from_str_radix() would accept a second sign.
    let number =
        digits.bytes().all(|c| c.is_ascii_alphanumeric()).then(|| u64::from_str_radix(digits, base).ok())??;
    Some(if negative { number.wrapping_neg() } else { number })
}

/// Appends an entry for each record. `source` is the GID of the port through which the subnet
/// administrator was asked, or `None` if the program has bound the id itself. The port space is
/// RDMA_PS_IB and the QP type 0, whatever the hints contain.
pub fn append(list: &mut List, records: &[ServiceRecord], source: Option<Gid>) -> Result<()> {
    for record in records {
        let address = |ib: SockaddrIb| CBytes::copy(SockAddr::from_ib(&ib).bytes());
        let dst = SockaddrIb { sid: record.id, sid_mask: u64::MAX, ..ib(record.gid, record.pkey) };
        list.push(Entry {
            flags: RAI_SA as c_int,
            family: AF_IB,
            port_space: rdma_port_space::RDMA_PS_IB as c_int,
            src: match source {
                // Any service id of the port space.
                Some(gid) => address(with_port(ib(gid, record.pkey), rdma_port_space::RDMA_PS_IB as u16, 0))?,
                None => None,
            },
            dst: address(dst)?,
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
    fn everything_else_is_a_name() {
        for text in ["storage", "12 34", "09", "0x", "18446744073709551616", "0x-1", "+-1", "7 ", "-", " "] {
            let service = std::ffi::CString::new(text).unwrap();
            assert_eq!(parse(&service), Ok(name(text)), "{text}");
        }
    }

    #[test]
    fn names_have_at_most_63_bytes() {
        let text = |len| std::ffi::CString::new("n".repeat(len)).unwrap();
        assert_eq!(parse(&text(63)), Ok(name(&"n".repeat(63))));
        assert_eq!(parse(&text(64)), Err(Errno::EINVAL));
        assert_eq!(parse(&text(1000)), Err(Errno::EINVAL));
        assert_eq!(parse(c""), Err(Errno::EINVAL));
    }

    fn record(id: u64, gid: u8) -> ServiceRecord {
        // SAFETY: all zeros are a value of this structure of numbers.
        let zero: ServiceRecord = unsafe { std::mem::zeroed() };
        ServiceRecord { id: id.to_be(), gid: [gid; 16], pkey: 0x8001_u16.to_be(), ..zero }
    }

    #[test]
    fn records_become_entries_in_order() {
        let mut list = List::default();
        append(&mut list, &[record(5, 1), record(6, 2)], Some([9; 16])).unwrap();
        append(&mut list, &[record(7, 3)], None).unwrap();
        let first = list.into_c();
        let (mut next, mut seen) = (first, Vec::new());
        // SAFETY: the entries of the list.
        while let Some(info) = unsafe { next.as_ref() } {
            assert_eq!((info.ai_family, info.ai_flags, info.ai_qp_type, info.ai_port_space), (27, 0x10, 0, 0x13F));
            let ib = |addr: *mut libc::sockaddr, len: u32| {
                // SAFETY: the addresses of an entry are as long as it says.
                let bytes =
                    (!addr.is_null()).then(|| unsafe { std::slice::from_raw_parts(addr.cast(), len as usize) })?;
                assert_eq!(bytes.len(), size_of::<SockaddrIb>());
                let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
                Some((bytes[8], u16::from_be_bytes([bytes[2], bytes[3]]), number(24), number(32)))
            };
            seen.push((ib(info.ai_src_addr, info.ai_src_len), ib(info.ai_dst_addr, info.ai_dst_len)));
            next = info.ai_next;
        }
        // SAFETY: from `into_c`; nothing uses it any more.
        drop(unsafe { List::from_c(first) });
        let src = Some((9, 0x8001, 0x13F_0000, !0xFFFF));
        let dst = |id, gid| Some((gid, 0x8001, id, u64::MAX));
        assert_eq!(seen, [(src, dst(5, 1)), (src, dst(6, 2)), (None, dst(7, 3))]);
    }
}
