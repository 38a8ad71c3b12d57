//! Root of the crate of models, which `tests/models/Cargo.toml` builds with loom:
//! `scripts/check loom`.
//!
//! The crate consists of the library's modules that synchronise threads, under their paths in the
//! library; of stand-ins for the modules on which these modules depend (the kernel's descriptors,
//! cancellation, the defaults of rsockets); and of the models, in which loom tries every
//! interleaving.
#![cfg(all(test, loom))]

mod errno;
mod models;

mod os {
    pub mod alloc;
    pub use crate::models::{cancel, event};
    pub mod fork;
    pub mod mark;
    pub mod sync;
}

mod rsocket {
    use crate::models::config;
    pub mod poll;
    pub mod stream {
        mod channel_leader;
        pub mod model;
    }
    mod poll_waiter;
    pub mod pollable;
    mod table;
}
