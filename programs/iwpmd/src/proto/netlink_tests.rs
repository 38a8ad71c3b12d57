use std::net::{SocketAddrV4, SocketAddrV6};

use proptest::prelude::*;

use super::*;

fn header(op: u16) -> Header {
    Header { client: RDMA_NL_IWCM, op, seq: 7 }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn one(datagram: &[u8]) -> Option<Incoming<'_>> {
    let mut all = messages(datagram);
    let first = all.next();
    assert_eq!(all.next(), None);
    first
}

fn requests() -> Vec<(u16, Vec<Value<'static>>, KernelMessage)> {
    let (v4, v6) = (address("10.1.2.3:7174"), address("[fe80::1%5]:9"));
    let seq = Value::U32(7);
    vec![
        (RDMA_NL_IWPM_HELLO, vec![Value::U16(4)], KernelMessage::Hello(4)),
        (
            RDMA_NL_IWPM_REG_PID,
            vec![seq, Value::Text(b"eth0"), Value::Text(b"siw0"), Value::Text(LIBRARY)],
            KernelMessage::Register { interface: b"eth0".into(), device: b"siw0".into(), library: LIBRARY.into() },
        ),
        (
            RDMA_NL_IWPM_ADD_MAPPING,
            vec![seq, Value::Address(v4), Value::U32(1)],
            KernelMessage::Add { local: v4, flags: 1 },
        ),
        (RDMA_NL_IWPM_ADD_MAPPING, vec![seq, Value::Address(v6)], KernelMessage::Add { local: v6, flags: 0 }),
        (
            RDMA_NL_IWPM_QUERY_MAPPING,
            vec![seq, Value::Address(v4), Value::Address(v6), Value::U32(0)],
            KernelMessage::Query { local: v4, remote: v6, flags: 0 },
        ),
        (RDMA_NL_IWPM_REMOVE_MAPPING, vec![seq, Value::Address(v6)], KernelMessage::Remove(v6)),
        (
            RDMA_NL_IWPM_MAPINFO,
            vec![Value::Address(v4), Value::Address(v4), Value::U32(0)],
            KernelMessage::MapInfo { local: v4, mapped: v4, flags: 0 },
        ),
        (RDMA_NL_IWPM_MAPINFO_NUM, vec![seq, Value::U32(3)], KernelMessage::MapInfoNumber(3)),
        (RDMA_NL_IWPM_HANDLE_ERR, vec![seq, Value::U16(17)], KernelMessage::Error(17)),
    ]
}

#[test]
fn every_message_of_the_kernel() {
    let mut together = Vec::new();
    for (op, values, message) in requests() {
        let bytes = emit(header(op), 0, &values);
        assert_eq!(one(&bytes), Some(Incoming::Message(header(op), message)));
        together.extend(bytes);
    }
    assert_eq!(messages(&together).count(), requests().len());
}

/// The bytes that rdma-core's iwpmd (44.0) sends.
#[test]
fn mapinfo_request_byte_by_byte() {
    let bytes = emit(Header { seq: 1, ..header(RDMA_NL_IWPM_MAPINFO) }, 0x33cb, &[Value::Text(LIBRARY), Value::U16(4)]);
    let mut expected = vec![48, 0, 0, 0, 6, 8, 1, 0, 1, 0, 0, 0, 0xcb, 0x33, 0, 0, 24, 0, 1, 0];
    expected.extend(b"iWarpPortMapperUser\0\x06\0\x02\0\x04\0\0\0");
    assert_eq!(bytes, expected);
}

#[test]
fn truncated_messages_are_none_or_malformed() {
    for (op, values, message) in requests() {
        let bytes = emit(header(op), 0, &values);
        for length in MESSAGE_HEADER..bytes.len() {
            assert_eq!(one(&bytes[..length]), None, "{message:?}");
            let mut shorter = bytes[..length].to_vec();
            shorter[..4].copy_from_slice(&(length as u32).to_ne_bytes());
            // A message of version 3 ends before the flags. Padding may be missing.
            let complete = one(&shorter) != Some(Incoming::Malformed(header(op)));
            assert!(!complete || length + 8 >= bytes.len(), "{message:?} {length}");
        }
    }
}

#[test]
fn wrong_attributes_are_malformed() {
    let v4 = address("10.1.2.3:7174");
    let mut family = emit(header(RDMA_NL_IWPM_REMOVE_MAPPING), 0, &[Value::U32(7), Value::Address(v4)]);
    family[MESSAGE_HEADER + 8 + netlink::ATTRIBUTE_HEADER] = 27;
    for bytes in [
        family,
        emit(header(RDMA_NL_IWPM_ADD_MAPPING), 0, &[Value::U32(7), Value::Text(b"\x02\0abcdef")]),
        emit(header(RDMA_NL_IWPM_ADD_MAPPING), 0, &[Value::U32(7), Value::Address(v4), Value::U16(1)]),
        emit(header(RDMA_NL_IWPM_HELLO), 0, &[Value::U32(4)]),
        emit(header(9), 0, &[Value::U32(4)]),
        emit(
            header(RDMA_NL_IWPM_REG_PID),
            0,
            &[Value::U32(7), Value::Text(&[b'a'; MAX_NAME]), Value::Text(b"d"), Value::Text(b"l")],
        ),
        emit(header(RDMA_NL_IWPM_REG_PID), 0, &[Value::U32(7), Value::Text(b""), Value::Text(b"d"), Value::Text(b"l")]),
    ] {
        assert!(matches!(one(&bytes), Some(Incoming::Malformed(_))), "{bytes:?}");
    }
}

#[test]
fn errors_contain_the_message_that_was_sent() {
    let hello = emit(header(RDMA_NL_IWPM_HELLO), 1, &[Value::U16(4)]);
    let mut error = vec![0; MESSAGE_HEADER];
    error.extend((-libc::EINVAL).to_ne_bytes());
    error.extend(&hello);
    error[0] = error.len() as u8;
    error[4] = 2;
    assert_eq!(one(&error), Some(Incoming::Failed { errno: libc::EINVAL, message: &hello }));
    assert!(is_hello(&hello));
    assert!(!is_hello(&emit(header(RDMA_NL_IWPM_MAPINFO), 1, &[])) && !is_hello(&[]));
    // An acknowledgement is not an error, nor is the end of a list.
    error[16..20].fill(0);
    assert_eq!(one(&error), None);
    error[4] = 3;
    assert_eq!(one(&error), None);
}

proptest! {
    #[test]
    fn any_datagram_is_parsed_safely(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = messages(&bytes).count();
    }

    #[test]
    fn any_attributes_are_parsed_safely(op in 0u16..12, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut message = emit(header(op), 0, &[]);
        message.extend(&bytes);
        let length = message.len() as u32;
        message[..4].copy_from_slice(&length.to_ne_bytes());
        prop_assert_eq!(messages(&message).count(), 1);
    }

    #[test]
    fn any_address_is_emitted_and_parsed(ip: [u8; 16], v6: bool, port: u16, scope: u32) {
        let local = if v6 {
            SocketAddrV6::new(ip.into(), port, 0, scope).into()
        } else {
            SocketAddrV4::new([ip[0], ip[1], ip[2], ip[3]].into(), port).into()
        };
        let bytes = emit(header(RDMA_NL_IWPM_REMOVE_MAPPING), 0, &[Value::U32(7), Value::Address(local)]);
        prop_assert_eq!(one(&bytes), Some(Incoming::Message(header(RDMA_NL_IWPM_REMOVE_MAPPING), KernelMessage::Remove(local))));
    }
}
