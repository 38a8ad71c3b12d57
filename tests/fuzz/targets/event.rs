//! Decoding of the kernel's event structure: no input may cause accesses or pointers outside of it.
#![no_main]

use std::mem::{size_of, zeroed};

use libfuzzer_sys::fuzz_target;
use rdmacm_core::cm::decode_event;
use rdmacm_core::ffi::rdma_cm_event_type;
use rdmacm_core::os::uapi::rdma_ucm_event_resp;

fuzz_target!(|input: &[u8]| {
    let mut bytes = [0; size_of::<rdma_ucm_event_resp>()];
    let len = input.len().min(bytes.len());
    bytes[..len].copy_from_slice(&input[..len]);
    // SAFETY: the structure consists of integers, so any bytes are a valid value.
    let raw: rdma_ucm_event_resp = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
    let words = [rdma_cm_event_type::RDMA_CM_EVENT_USER as u32, rdma_cm_event_type::RDMA_CM_EVENT_INTERNAL as u32];
    for datagrams in [false, true] {
        // SAFETY: zeros are a value of the union.
        let mut param = unsafe { zeroed() };
        decode_event(&raw, datagrams, &mut param);
        if words.contains(&raw.event) {
            continue;
        }
        // SAFETY: the member for this kind of id.
        let (data, len) = unsafe {
            if datagrams {
                (param.ud.private_data, param.ud.private_data_len)
            } else {
                (param.conn.private_data, param.conn.private_data_len)
            }
        };
        assert_eq!(data.is_null(), len == 0);
        let (start, data) = (std::ptr::from_ref(&raw).addr(), data.addr());
        assert!(len == 0 || data >= start && data + usize::from(len) <= start + size_of_val(&raw));
    }
});
