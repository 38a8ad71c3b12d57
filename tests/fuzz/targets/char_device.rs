//! Netlink answers that name a character device: the name never refers to a file outside its folder.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmacm_core::os::netlink::parse_answer;

fuzz_target!(|answer: &[u8]| {
    if let Ok(device) = parse_answer(answer) {
        assert!(device.name[0] != 0 && !device.name.contains(&b'/') && device.name[63] == 0);
    }
});
