//! Options of rsockets, in any order: a connection can be made with all combinations that a program
//! can set.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmacm_core::rsocket::config::{self, MIN_SEND_BUFFER, SMALL_SEND_BUFFER};
use rdmacm_core::rsocket::StreamOptions;
use rdmacm_core::rsocket::wire::round_iomap_size;

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
    apply(calls);
    let _ = config::parse(bytes);
});

/// Applies a program's calls, each of which is a level, a name, a value, and whether the socket is
/// connected. Checks after each call that a connection can be made with the options.
fn apply<'a>(calls: impl Iterator<Item = (i32, i32, &'a [u8], bool)>) {
    const MAX_BUFFER: u32 = 1 << 30;
    let mut options = StreamOptions::default();
    for (level, name, value, fixed) in calls {
        let before = (options.sq, options.rq, options.receive_buffer);
        let changed = options.set(level, name, value, fixed).is_ok();
        assert!(changed && !fixed || before == (options.sq, options.rq, options.receive_buffer));
        assert!(options.sq < u16::MAX && options.rq < u16::MAX && options.iomap <= round_iomap_size(u32::MAX));
        assert!((2..=MAX_BUFFER).contains(&options.receive_buffer));
        assert!((MIN_SEND_BUFFER.min(SMALL_SEND_BUFFER)..=MAX_BUFFER).contains(&options.send_buffer));
        if let Ok(shown) = options.get(level, name) {
            assert!(!shown.as_bytes().is_empty());
        }
    }
}
