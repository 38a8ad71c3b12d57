//! Datagrams of the kernel, whose client has registered, through the whole port mapper: whatever they hold, it keeps as many
//! ports as it says.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use rdmacm_core::iwpm::engine::{Action, Engine};
use rdmacm_core::iwpm::netlink::{Header, Incoming, LIBRARY, Said, messages};

fuzz_target!(|bytes: &[u8]| {
    let mut last = 0;
    let random = move || {
        last += 1;
        last
    };
    let (mut engine, mut open) = (Engine::new(1, Box::new(random)), HashSet::new());
    engine.start();
    let (interface, device, library) = (b"eth0".into(), b"siw0".into(), LIBRARY.into());
    for (op, said) in [(8, Said::Hello(4)), (0, Said::Register { interface, device, library })] {
        engine.kernel(Incoming::Said(Header { client: 2, op, seq: 1 }, said), 0);
    }
    for (now, message) in (0..).step_by(700).zip(messages(bytes)) {
        engine.kernel(message, now);
        engine.timer(now);
        while let Some(action) = engine.action() {
            match action {
                Action::Open { id, port, .. } => {
                    assert!(open.insert(id));
                    engine.opened(id, Ok(port.max(1)), now);
                }
                Action::Close(id) => assert!(open.remove(&id)),
                _ => {}
            }
        }
    }
    assert!(open.len() <= engine.mappings());
});
