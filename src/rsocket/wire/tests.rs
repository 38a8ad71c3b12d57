//! Tests of the wire formats. Literal bytes were sent by rdma-core on a little-endian machine.

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;

use super::datagram::{UdHeader, UdpHeader, UdpOp};
use super::*;
use crate::os::sockaddr::{AF_IB, SockAddr, SockaddrIb};

/// Private data of a socket with RDMA_IOMAPSIZE 1000, SO_RCVBUF 2048 and a receive queue of 16
/// entries.
const REFERENCE: [u8; 40] = [
    0x01, 0x02, 0x00, 0x10, 0, 0, 0, 0x83, //
    0x00, 0x00, 0x55, 0x2a, 0xac, 0x10, 0x00, 0x00, 0x00, 0x00, 0x0f, 0x29, 0x00, 0x00, 0x00, 0x02, //
    0x00, 0x00, 0x55, 0x2a, 0xac, 0x70, 0x00, 0x00, 0x00, 0x00, 0x10, 0xd3, 0x00, 0x00, 0x08, 0x00,
];

fn reference() -> ConnData {
    ConnData {
        big_endian: false,
        credits: 16,
        iomap_size: 768,
        target_sgl: Region { addr: 0x552a_ac10_0000, rkey: 0xf29, length: 2 },
        data_buf: Region { addr: 0x552a_ac70_0000, rkey: 0x10d3, length: 2048 },
    }
}

#[test]
fn conn_data_matches_the_reference() {
    assert_eq!(ConnData::parse(&REFERENCE), Some(reference()));
    assert_eq!(reference().emit(), REFERENCE);
}

#[test]
fn conn_data_may_be_padded() {
    let mut padded = REFERENCE.to_vec();
    padded.resize(196, 0);
    assert_eq!(ConnData::parse(&padded), Some(reference()));
    assert_eq!(ConnData::parse(&REFERENCE[..39]), None);
    assert_eq!(ConnData::parse(&[]), None);
}

#[test]
fn invalid_conn_data_is_rejected() {
    let with = |change: fn(&mut ConnData)| {
        let mut data = reference();
        change(&mut data);
        ConnData::parse(&data.emit())
    };
    assert_eq!(with(|d| d.credits = 1).map(|data| data.credits), Some(1));
    let changes: [fn(&mut ConnData); 6] = [
        |d| d.credits = 0,
        |d| d.target_sgl.length = 3,
        |d| d.target_sgl.length = 0,
        |d| d.data_buf.length = 0,
        |d| d.data_buf.addr = u64::MAX - 2047,
        |d| d.target_sgl.addr = u64::MAX - 31,
    ];
    assert_eq!(changes.map(with), [None; 6]);
    let mut other = REFERENCE;
    other[0] = 2;
    assert_eq!(ConnData::parse(&other), None);
}

#[test]
fn iomap_size_is_ignored_without_its_flag() {
    let mut bytes = REFERENCE;
    bytes[1] = 1;
    let parsed = ConnData::parse(&bytes).unwrap();
    assert_eq!((parsed.big_endian, parsed.iomap_size), (true, 0));
}

/// The values that rdma-core's rgetsockopt returned after rsetsockopt.
#[test]
fn iomap_sizes_round_like_the_reference() {
    for (wanted, got) in [
        (0, 0),
        (1, 1),
        (100, 100),
        (127, 127),
        (128, 128),
        (129, 128),
        (255, 128),
        (256, 256),
        (257, 256),
        (511, 256),
        (512, 512),
        (1000, 768),
        (1024, 1024),
        (32512, 32512),
        (32513, 32512),
        (32767, 32512),
    ] {
        assert_eq!(round_iomap_size(wanted), got, "{wanted}");
    }
    assert_eq!([40_000, 65_535, 65_536, u32::MAX].map(round_iomap_size), [MAX_IOMAP_ENTRIES; 4]);
}

#[test]
fn immediate_data_is_encoded_and_decoded() {
    for (message, word) in [
        (Message::Data(8), 8),
        (Message::Data(MAX_DATA), 0x1FFF_FFFF),
        (Message::CreditUpdate(0xFFFF), 0x8000_FFFF),
        (Message::Iomap(3), 0xC000_0003),
        (Message::Control(Control::Disconnect), 0xE000_0000),
        (Message::Control(Control::Keepalive), 0xE000_0001),
        (Message::Control(Control::Shutdown), 0xE000_0002),
    ] {
        assert_eq!(message.word(), word, "{message:?}");
        assert_eq!(Message::parse(word), Some(message));
    }
    for op in [1, 2, 3, 5] {
        assert_eq!(Message::parse(op << 29 | 7), None, "operation {op}");
    }
    for control in [6, 0x104, 0x105, 0x102, 0x100_0003, MAX_DATA] {
        assert_eq!(Message::parse(7 << 29 | control), None, "control message {control}");
    }
    assert_eq!(Message::parse(0xC001_0000), None, "an index beyond any iomap");
    assert_eq!(Message::parse(0x8001_0005), Some(Message::CreditUpdate(5)), "a carry above the 16 bits is ignored");
}

#[test]
fn ipv4_udp_header() {
    let header = UdpHeader { op: UdpOp::Control, qpn: 0x00AB_CDEF, address: IpAddr::from([10, 77, 1, 2]) };
    let bytes = [0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 0xAB, 0xCD, 0xEF, 10, 77, 1, 2];
    let (emitted, len) = header.emit();
    assert_eq!(emitted[..len], bytes);
    assert_eq!(UdpHeader::parse(&bytes), Some((header, 16)));
    // The tag, the IP version, the operation, the length, and the QP number.
    for (at, value) in [(0, 0x54), (4, 5), (4, 6), (5, 1), (6, 15), (8, 1)] {
        let mut other = bytes;
        other[at] = value;
        assert_eq!(UdpHeader::parse(&other), None, "byte {at}: {value}");
    }
    // QPs 0 and 1 are those of the management.
    for qpn in [0, 1] {
        let other = [&bytes[..8], &[0, 0, 0, qpn], &bytes[12..]].concat();
        assert_eq!(UdpHeader::parse(&other), None, "QP {qpn}");
    }
}

#[test]
fn ipv6_ud_header() {
    let source: SocketAddr = "[fd77::1]:7471".parse().unwrap();
    let (bytes, len) = UdHeader { source }.emit();
    assert_eq!(bytes[..8], [6, 24, 0x1D, 0x2F, 0, 0, 0, 0]);
    assert_eq!(UdHeader::parse(&bytes[..len]), Some((UdHeader { source }, 24)));
    assert_eq!(UdHeader::parse(&[4, 24, 0, 1, 1, 2, 3, 4]), None);
    assert_eq!(UdHeader::parse(&[7, 8, 0, 1, 1, 2, 3, 4]), None);
}

#[test]
fn ip_header_of_each_family() {
    let v4 = |last| SockAddr::from_inet(&([10, 77, 1, last], 7174).into());
    let header = ip_header(&v4(1), &v4(2));
    assert_eq!(header[..4], [0, 0x40, 0x1C, 0x06]);
    assert_eq!(header[4..20], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 77, 1, 1]);
    assert_eq!(header[20..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 10, 77, 1, 2]);
    let ib = |last| {
        let sid = 0x0106_1234_u64.to_be();
        SockAddr::from_ib(&SockaddrIb { family: AF_IB as u16, addr: [last; 16], sid, ..SockaddrIb::default() })
    };
    let header = ip_header(&ib(1), &ib(2));
    assert_eq!(header[..4], [0, 0, 0x12, 0x34]);
    assert_eq!((&header[4..20], &header[20..]), (&[1; 16][..], &[2; 16][..]));
    let v6 = SockAddr::from_inet(&([3; 16], 0).into());
    assert_eq!((ip_header(&v6, &v6)[1], &ip_header(&v6, &v6)[20..]), (0x60, &[3; 16][..]));
}

fn any_region() -> impl Strategy<Value = Region> {
    (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(addr, rkey, length)| Region { addr, rkey, length })
}

fn any_conn_data() -> impl Strategy<Value = ConnData> {
    // No region extends beyond the end of the address space.
    let addr = 0..u64::MAX >> 1;
    (any::<bool>(), 1_u16.., any::<u8>(), addr.clone(), any::<u32>(), addr, any::<u32>(), 1_u32..).prop_map(
        |(big_endian, credits, iomap, sgl, sgl_key, buffer, key, length)| ConnData {
            big_endian,
            credits,
            iomap_size: decode_iomap_size(iomap),
            target_sgl: Region { addr: sgl, rkey: sgl_key, length: SGL_ENTRIES },
            data_buf: Region { addr: buffer, rkey: key, length },
        },
    )
}

proptest! {
    #[test]
    fn conn_data_round_trips(data in any_conn_data()) {
        prop_assert_eq!(ConnData::parse(&data.emit()), Some(data));
    }

    #[test]
    fn arbitrary_bytes_parse_as_valid_conn_data_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        if let Some(data) = ConnData::parse(&bytes) {
            prop_assert_eq!(ConnData::parse(&data.emit()), Some(data));
        }
    }

    #[test]
    fn immediate_data_round_trips(word: u32) {
        if let Some(message) = Message::parse(word) {
            // Only the carry of a credit update is lost.
            let kept = if word >> 29 == 4 { word & 0xE000_FFFF } else { word };
            prop_assert_eq!(message.word(), kept);
        }
    }

    #[test]
    fn iomap_sizes_round_trip(scaled: u8, entries: u16) {
        prop_assert_eq!(encode_iomap_size(decode_iomap_size(scaled)), scaled);
        let rounded = decode_iomap_size(encode_iomap_size(entries));
        prop_assert!(rounded <= entries);
    }

    #[test]
    fn sgl_and_iomap_entries_round_trip(offset: u64, region in any_region()) {
        prop_assert_eq!(parse_sgl(&emit_sgl(region, false)), region);
        prop_assert_eq!(parse_sgl(&emit_sgl(region, true)), region.swapped());
        let mapping = Mapping { offset, region };
        prop_assert_eq!(parse_iomap(&emit_iomap(mapping, false)), mapping);
        let swapped = Mapping { offset: offset.swap_bytes(), region: region.swapped() };
        prop_assert_eq!(parse_iomap(&emit_iomap(mapping, true)), swapped);
    }

    #[test]
    fn udp_headers_round_trip(control: bool, qpn in 2_u32..0x100_0000, address: IpAddr, payload in 0_usize..9) {
        let op = if control { UdpOp::Control } else { UdpOp::Data };
        let header = UdpHeader { op, qpn, address };
        let (bytes, len) = header.emit();
        let packet = [&bytes[..len], &[0xFF; 8][..payload.min(8)]].concat();
        prop_assert_eq!(UdpHeader::parse(&packet), Some((header, len)));
        prop_assert_eq!(UdpHeader::parse(&bytes[..len - 1]), None);
    }

    #[test]
    fn ud_headers_round_trip(ip: IpAddr, port: u16) {
        let header = UdHeader { source: SocketAddr::new(ip, port) };
        let (bytes, len) = header.emit();
        prop_assert_eq!(UdHeader::parse(&bytes[..len]), Some((header, len)));
        prop_assert_eq!(UdHeader::parse(&bytes[..len - 1]), None);
    }

    #[test]
    fn arbitrary_bytes_parse_as_valid_headers_or_fail(packet in proptest::collection::vec(any::<u8>(), 0..40)) {
        if let Some((header, len)) = UdpHeader::parse(&packet) {
            prop_assert!(len <= packet.len());
            prop_assert_eq!(UdpHeader::parse(&header.emit().0).map(|(again, _)| again), Some(header));
        }
        if let Some((header, len)) = UdHeader::parse(&packet) {
            prop_assert!(len <= packet.len());
            prop_assert_eq!(UdHeader::parse(&header.emit().0).map(|(again, _)| again), Some(header));
        }
    }
}
