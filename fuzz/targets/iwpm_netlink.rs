//! Datagrams of the kernel, and of whoever may send to a netlink socket, through the whole port mapper: whatever they hold,
//! it keeps as many ports as it says.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use rdmacm_core::iwpm::engine::{Action, Engine};
use rdmacm_core::iwpm::netlink::messages;

fuzz_target!(|bytes: &[u8]| {
    let mut last = 0;
    let random = move || {
        last += 1;
        last
    };
    let (mut engine, mut open) = (Engine::new(1, Box::new(random)), HashSet::new());
    engine.start();
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
