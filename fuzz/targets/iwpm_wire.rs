//! Messages of other hosts' port mappers: refused, or the same when sent again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmacm_core::iwpm::wire::{Kind, LONG, Message};

fuzz_target!(|bytes: &[u8]| {
    for v6 in [false, true] {
        if let Ok(message) = Message::parse(bytes, v6) {
            let sent = message.emit();
            assert_eq!(Message::parse(sent.as_slice(), v6), Ok(message));
            assert_eq!(sent.as_slice().len() == LONG, message.kind == Kind::Request);
            let answer = message.answer(Kind::Reject).emit();
            assert!(answer.as_slice().len() <= bytes.len(), "an answer larger than the question");
        }
    }
});
