//! The outside.

#[path = "../../../src/sys/alloc.rs"]
pub mod alloc;
pub mod cancel;
pub mod event;
#[path = "../../../src/sys/futex.rs"]
pub mod futex;
#[path = "../../../src/sys/lock.rs"]
pub mod lock;
