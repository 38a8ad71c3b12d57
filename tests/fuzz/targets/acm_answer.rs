//! Answers of ibacm: every message is either rejected or returns path records that it contains.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmacm_core::acm::wire::parse_answer;

fuzz_target!(|message: &[u8]| {
    if let Ok((header, answer)) = parse_answer(message) {
        assert!(header.body_len <= message.len());
        assert!(answer.paths.as_bytes().len() <= message.len());
        let _ = answer.paths.first();
    }
});
