//! Answers of ibacm: every message is either rejected or returns path records that it contains.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmacm_core::acm::wire::{Header, RECORD_LEN, parse_records};

fuzz_target!(|message: &[u8]| {
    let Some((head, body)) = message.split_first_chunk() else { return };
    if let Ok(header) = Header::parse(head)
        && let Some(body) = body.get(..header.body_len)
    {
        let answer = parse_records(body);
        assert!(answer.paths.as_bytes().len() <= body.len());
        assert!(answer.paths.records().len() * RECORD_LEN <= body.len());
    }
});
