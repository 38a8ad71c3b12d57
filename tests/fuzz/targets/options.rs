//! Options of rsockets, in any order: a connection can be made with all combinations that a program
//! can set.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmacm_core::rsocket::{after_calls, config};

/// Valid levels and names, so that not every input is an unknown option.
const KNOWN: [(i32, i32); 20] = [
    (1, 2),
    (1, 7),
    (1, 8),
    (1, 9),
    (1, 10),
    (1, 13),
    (1, 20),
    (1, 21),
    (6, 1),
    (6, 2),
    (6, 4),
    (6, 5),
    (6, 6),
    (0, 1),
    (41, 26),
    (0x10000, 0),
    (0x10000, 1),
    (0x10000, 2),
    (0x10000, 3),
    (0x10000, 4),
];

fuzz_target!(|bytes: &[u8]| {
    let calls = bytes.split(|byte| *byte == 0xA5).filter_map(|call| {
        let [kind, name, value @ ..] = call else { return None };
        let (level, name) = match KNOWN.get(usize::from(kind & 0x7f)) {
            Some(known) => *known,
            None => ((*kind & 0x7f).into(), (*name).into()),
        };
        Some((level, name, value, kind & 0x80 != 0))
    });
    after_calls(calls);
    let _ = config::parse(bytes);
});
