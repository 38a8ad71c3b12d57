//! Messages of other hosts' port mappers: each is rejected, or round-trips.
#![no_main]

use libfuzzer_sys::fuzz_target;
use iwpmd::proto::wire::{Kind, REQUEST_SIZE, Message};

fuzz_target!(|bytes: &[u8]| {
    for v6 in [false, true] {
        if let Some(message) = Message::parse(bytes, v6) {
            let sent = message.emit();
            assert_eq!(Message::parse(&sent, v6), Some(message));
            assert_eq!(sent.len() == REQUEST_SIZE, message.kind == Kind::Request);
            let answer = message.answer(Kind::Reject).emit();
            assert!(answer.len() <= bytes.len(), "an answer larger than the request");
        }
    }
});
