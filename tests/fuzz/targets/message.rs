//! Messages of rsockets and the tables that peers write to: every word is rejected or round-trips.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmacm_core::rsocket::wire::{IOMAP_ENTRY, Message, emit_iomap, parse_iomap};

fuzz_target!(|bytes: &[u8]| {
    if let Some(word) = bytes.first_chunk()
        && let Some(message) = Message::parse(u32::from_be_bytes(*word))
    {
        assert_eq!(Message::parse(message.word()), Some(message));
    }
    if let Some(entry) = bytes.first_chunk::<IOMAP_ENTRY>() {
        assert_eq!(emit_iomap(parse_iomap(entry), false), *entry);
        assert_eq!(emit_iomap(parse_iomap(&emit_iomap(parse_iomap(entry), true)), true), *entry);
    }
});
