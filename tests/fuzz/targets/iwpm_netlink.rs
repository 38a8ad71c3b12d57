//! Datagrams of the kernel, after its client has registered, through the whole port mapper: for any
//! contents it keeps as many ports open as it has mappings.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use iwpmd::proto::engine::{Action, Engine};
use iwpmd::proto::netlink::{Header, Incoming, LIBRARY, KernelMessage, messages};

fuzz_target!(|bytes: &[u8]| {
    let mut last = 0;
    let random = move || {
        last += 1;
        last
    };
    let (mut engine, mut open) = (Engine::new(1, Box::new(random)), HashSet::new());
    engine.start();
    let (interface, device, library) = (b"eth0".into(), b"siw0".into(), LIBRARY.into());
    for (op, message) in [(8, KernelMessage::Hello(4)), (0, KernelMessage::Register { interface, device, library })] {
        engine.kernel(Incoming::Message(Header { client: 2, op, seq: 1 }, message), 0);
    }
    for (now, message) in (0..).step_by(700).zip(messages(bytes)) {
        engine.kernel(message, now);
        engine.timer(now);
        while let Some(action) = engine.action() {
            match action {
                Action::Open(opening) => {
                    assert!(open.insert(opening.id));
                    let port = opening.port.max(1);
                    engine.opened(opening, Ok(port), now);
                }
                Action::Close(id) => assert!(open.remove(&id)),
                _ => {}
            }
        }
    }
    assert!(open.len() <= engine.mappings());
});
