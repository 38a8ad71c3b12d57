//! Tests of the message formats. The bytes of requests and answers are those that rdma-core
//! exchanged with a server.

use proptest::prelude::*;

use super::*;
use crate::acm::addr;
use crate::os::uapi::ibv_path_record;

fn v4() -> SockAddr {
    SockAddr::from_inet(&([10, 77, 1, 1], 7174).into())
}

fn v6(last: u8) -> SockAddr {
    let mut ip = [0_u8; 16];
    (ip[0], ip[15]) = (0xFD, last);
    SockAddr::from_inet(&(ip, 1).into())
}

fn ib(last: u8) -> SockAddr {
    let mut gid = [0; 16];
    (gid[0], gid[15]) = (0xFE, last);
    SockAddr::from_ib(&addr::ib(gid, 0))
}

fn records(request: &Request) -> Vec<&[u8]> {
    request.as_bytes()[HEADER_LEN..].chunks_exact(RECORD_LEN).collect()
}

fn header(version: u8, opcode: u8, status: u8, length: u16, tid: u64) -> Vec<u8> {
    let mut bytes = vec![version, opcode, status, 0, 0, 0];
    bytes.extend(length.to_ne_bytes());
    bytes.extend(tid.to_ne_bytes());
    bytes
}

fn record(flags: u32, kind: u16, info: &[u8]) -> Vec<u8> {
    let mut bytes = flags.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([0xAA; 2]);
    bytes.extend(info);
    bytes.resize(RECORD_LEN, 0);
    bytes
}

fn answer(records: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = header(1, 0x81, 0, (HEADER_LEN + records.len() * RECORD_LEN) as u16, 7);
    bytes.extend(records.concat());
    bytes
}

fn path(number: u8) -> Vec<u8> {
    record(0x2B, 0x10, &[number; PATH_RECORD_LEN])
}

#[test]
fn request_names_source_then_destination() {
    let request = Query { src: Some(v6(9)), dst: Some(v4()), ..Query::default() }.request(0x0102).unwrap();
    assert_eq!(request.as_bytes()[..HEADER_LEN], header(1, 1, 0, 160, 0x0102));
    let [src, dst] = records(&request)[..] else { panic!("two records") };
    assert_eq!(src[..INFO + 16], [&[1, 0, 0, 0, 3, 0, 0, 0, 0xFD], &[0; 14][..], &[9]].concat());
    assert_eq!(dst[..INFO + 5], [2, 0, 0, 0, 2, 0, 0, 0, 10, 77, 1, 1, 0]);
}

#[test]
fn no_delay_marks_the_destination_only() {
    let query = Query { src: Some(v4()), dst: Some(v4()), no_delay: true, ..Query::default() };
    let request = query.request(0).unwrap();
    let flags: Vec<_> = records(&request).iter().map(|r| u32::from_ne_bytes(r[..4].try_into().unwrap())).collect();
    assert_eq!(flags, [1, 0x4000_0002]);
}

#[test]
fn ib_addresses_go_into_the_path() {
    let request = Query { src: Some(ib(1)), dst: Some(ib(2)), ..Query::default() }.request(0).unwrap();
    let [path] = records(&request)[..] else { panic!("one record") };
    assert_eq!(path[..INFO], [0, 0, 0, 0, 0x10, 0, 0, 0]);
    assert_eq!((path[INFO + PATH_DGID], path[INFO + PATH_DGID + 15]), (0xFE, 2));
    assert_eq!((path[INFO + PATH_SGID], path[INFO + PATH_SGID + 15]), (0xFE, 1));
}

#[test]
fn ib_address_replaces_only_its_own_gid_of_the_hint() {
    let hint = std::array::from_fn(|i| i as u8 + 1);
    let request = Query { dst: Some(ib(2)), path: Some(hint), ..Query::default() }.request(0).unwrap();
    let [path] = records(&request)[..] else { panic!("one record") };
    assert_eq!(path[INFO..INFO + PATH_DGID], hint[..PATH_DGID]);
    assert_eq!(path[INFO + PATH_DGID], 0xFE);
    assert_eq!(path[INFO + PATH_SGID..], hint[PATH_SGID..]);
}

#[test]
fn route_hints_by_length() {
    let bytes: Vec<u8> = (1..=144).collect();
    assert_eq!(Query::path_hint(&[]), None);
    assert_eq!(Query::path_hint(&bytes[..64]).unwrap()[..2], [1, 2]);
    assert_eq!(Query::path_hint(&bytes[..72]).unwrap()[..2], [9, 10]);
    assert_eq!(Query::path_hint(&bytes), None);
}

#[test]
fn nothing_to_ask_is_no_request() {
    assert!(Query { no_delay: true, ..Query::default() }.request(0).is_none());
}

#[test]
fn paths_need_not_stand_together() {
    let bytes = answer(&[path(1), record(1, 2, &[10, 0, 0, 1]), path(2), record(2, 3, &[7; 16])]);
    let (header, answer) = parse_answer(&bytes).unwrap();
    assert_eq!(header, Header { tid: 7, status: 0, body_len: 4 * RECORD_LEN });
    let expected =
        [[&[0x2B, 0, 0, 0, 0, 0, 0, 0][..], &[1; 64]].concat(), [&[0x2B, 0, 0, 0, 0, 0, 0, 0][..], &[2; 64]].concat()];
    assert_eq!(answer.paths.as_bytes(), expected.concat());
    assert_eq!(answer.source, Some(IpAddr::from([10, 0, 0, 1])));
}

#[test]
fn first_source_counts_and_strangers_do_not() {
    let name = record(1, 1, b"host");
    let unknown = record(1, 77, &[1; 64]);
    let bytes = answer(&[name, unknown, record(2, 2, &[9; 4]), record(1, 3, &[5; 16]), record(1, 2, &[6; 4])]);
    let (_, answer) = parse_answer(&bytes).unwrap();
    assert_eq!(answer.source, Some(IpAddr::from([5; 16])));
    assert!(answer.paths.is_empty());
}

#[test]
fn eight_records_are_the_limit() {
    let most = vec![path(3); MAX_RECORDS];
    assert_eq!(parse_answer(&answer(&most)).unwrap().1.paths.as_bytes().len(), 8 * 72);
    let nine = answer(&vec![path(3); 9]);
    assert_eq!(parse_answer(&nine), Err(Malformed::Length(16 + 9 * 72)));
}

#[test]
fn packed_fields() {
    let path = ibv_path_record {
        flowlabel_hoplimit: 0x0123_4540_u32.to_be(),
        reversible_numpath: 0x81,
        qosclass_sl: 0x0123_u16.to_be(),
        mtu: 0x65,
        rate: 0x43,
        packetlifetime: 0x92,
        ..Default::default()
    };
    let record = unpack(&ibv_path_data { flags: 0x2b, path, ..Default::default() });
    assert_eq!((u32::from_be(record.flow_label), record.hop_limit), (0x0001_2345, 0x40));
    assert_eq!((record.reversible, record.numb_path, record.sl), (1, 1, 3));
    assert_eq!((record.mtu_selector, record.mtu), (2, 5));
    assert_eq!((record.rate_selector, record.rate), (2, 3));
    assert_eq!((record.packet_life_time_selector, record.packet_life_time), (2, 18));
    assert_eq!(record.preference, 0x2b);
}

/// ibacm sets the answer bit only in answers that it sends later, and in some refusals.
#[test]
fn answer_bit_is_optional() {
    for opcode in [0x01, 0x81] {
        let found = parse_answer(&header(1, opcode, 0, 16, 7)).unwrap().0;
        assert_eq!(found, Header { tid: 7, status: 0, body_len: 0 });
    }
    assert!(!parse_answer(&header(1, 0x01, 6, 16, 7)).unwrap().0.success());
}

#[test]
fn malformed_headers_are_told_apart() {
    let error = |bytes: &[u8]| parse_answer(bytes).unwrap_err();
    assert_eq!(error(&[]), Malformed::Short);
    assert_eq!(error(&[1; 15]), Malformed::Short);
    assert_eq!(error(&header(2, 0x81, 0, 16, 0)), Malformed::Version(2));
    assert_eq!(error(&header(1, 0x02, 0, 16, 0)), Malformed::Opcode(2));
    assert_eq!(error(&header(1, 0x83, 0, 16, 0)), Malformed::Opcode(0x83));
    for length in [0, 15, 17, 87, 89, 592 + 72, u16::MAX] {
        assert_eq!(error(&header(1, 0x81, 0, length, 0)), Malformed::Length(length));
    }
    assert_eq!(error(&header(1, 0x81, 0, 88, 0)), Malformed::Length(88)); // the record is missing
    let mut long = answer(&[path(1)]);
    long.push(0);
    assert_eq!(error(&long), Malformed::Length(88));
}

#[test]
fn failure_is_no_error_of_the_format() {
    let (header, answer) = parse_answer(&header(1, 0x81, 3, 16, 5)).unwrap();
    assert!(!header.success());
    assert!(answer.paths.is_empty() && answer.source.is_none());
}

proptest! {
    #[test]
    fn any_message_is_read_safely(bytes in proptest::collection::vec(any::<u8>(), 0..700)) {
        let _ = parse_answer(&bytes);
        let _ = parse_records(&bytes);
    }

    #[test]
    fn any_body_gives_its_paths_in_order(
        list in proptest::collection::vec((any::<u32>(), 0u16..0x12, any::<[u8; 32]>(), any::<[u8; 32]>()), 0..=8),
    ) {
        let records: Vec<_> = list.iter().map(|(f, k, a, b)| record(*f, *k, &[&a[..], b].concat())).collect();
        let (header, parsed) = parse_answer(&answer(&records)).unwrap();
        prop_assert_eq!(header.body_len, records.len() * RECORD_LEN);
        let expected: Vec<u8> = list
            .iter()
            .filter(|(_, kind, _, _)| *kind == 0x10)
            .flat_map(|(f, _, a, b)| [&f.to_ne_bytes()[..], &[0; 4], a, b].concat())
            .collect();
        prop_assert_eq!(parsed.paths.as_bytes(), expected);
        let source = list.iter().find(|(f, k, _, _)| f & 1 != 0 && (*k == 2 || *k == 3));
        prop_assert_eq!(parsed.source.is_some(), source.is_some());
    }

    #[test]
    fn changing_the_length_is_noticed(count in 0usize..=8, wrong in any::<u16>()) {
        let mut bytes = answer(&vec![path(1); count]);
        prop_assume!(usize::from(wrong) != bytes.len());
        bytes[6..8].copy_from_slice(&wrong.to_ne_bytes());
        prop_assert!(matches!(parse_answer(&bytes), Err(Malformed::Length(_))));
    }

    #[test]
    fn requests_are_whole_records(src in 0u8..4, dst in 0u8..4, tid in any::<u64>(), hint in any::<bool>()) {
        let pick = |n| match n { 0 => None, 1 => Some(v4()), 2 => Some(v6(1)), _ => Some(ib(1)) };
        let query = Query { src: pick(src), dst: pick(dst), path: hint.then_some([1; 64]), no_delay: false };
        let inet = [src, dst].iter().filter(|n| matches!(n, 1 | 2)).count();
        let count = inet + usize::from(hint || src == 3 || dst == 3);
        match query.request(tid) {
            None => prop_assert_eq!(count, 0),
            Some(request) => {
                prop_assert_eq!(request.as_bytes().len(), HEADER_LEN + count * RECORD_LEN);
                prop_assert_eq!(&request.as_bytes()[..HEADER_LEN], header(1, 1, 0, request.as_bytes().len() as u16, tid));
            }
        }
    }
}
