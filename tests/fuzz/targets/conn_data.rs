//! Private data of rsockets: accepted data can be used without further checks, and round-trips.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmacm_core::rsocket::wire::{ConnData, IP_HEADER, SGL_ENTRIES};

fuzz_target!(|bytes: &[u8]| {
    for data in [Some(bytes), bytes.get(IP_HEADER..)].into_iter().flatten() {
        if let Some(parsed) = ConnData::parse(data) {
            assert!(parsed.credits > 0 && parsed.data_buf.length > 0 && parsed.target_sgl.length == SGL_ENTRIES);
            assert!(parsed.data_buf.addr.checked_add(parsed.data_buf.length.into()).is_some());
            assert_eq!(ConnData::parse(&parsed.emit()), Some(parsed));
        }
    }
});
