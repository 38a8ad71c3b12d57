//! Decoding of the kernel's event structure: no input may cause accesses or pointers outside of it.
#![no_main]

use std::mem::{MaybeUninit, size_of};

use libfuzzer_sys::fuzz_target;
use rdmacm_core::cm::{EventKind, decode_event};
use rdmacm_core::sys::uapi::rdma_ucm_event_resp;

fuzz_target!(|input: &[u8]| {
    let mut bytes = [0; size_of::<rdma_ucm_event_resp>()];
    let len = input.len().min(bytes.len());
    bytes[..len].copy_from_slice(&input[..len]);
    // SAFETY: the structure consists of integers, so any bytes are a valid value.
    let raw: rdma_ucm_event_resp = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
    for datagrams in [false, true] {
        let mut room = [0; 256];
        let kind = EventKind::of(raw.event, datagrams);
        let mut param = MaybeUninit::uninit();
        decode_event(&raw, kind, &mut room, &mut param);
        // SAFETY: decode_event() has initialised the whole value.
        let param = unsafe { param.assume_init() };
        // SAFETY: `kind` is the kind of the union's initialised member.
        let (data, len) = unsafe {
            match kind {
                EventKind::Connected => (param.conn.private_data, param.conn.private_data_len),
                EventKind::Datagram => (param.ud.private_data, param.ud.private_data_len),
                EventKind::Word => continue,
            }
        };
        assert_eq!(data.is_null(), len == 0);
        assert!(data.is_null() || data == room.as_ptr().cast());
    }
});
