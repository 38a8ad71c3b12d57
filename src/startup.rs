//! What the library does when it is loaded and when the process exits.
//!
//! `abi/rdmacm` has the loader call these functions. This crate has no constructors of its own:
//! every program linked with it would run them, and would contain all that they refer to.

use crate::{diag, rsocket};

/// The library was loaded, or a program that contains it was started.
#[unsafe(link_section = ".text.startup")]
pub extern "C" fn on_load() {
    diag::read_settings();
    // What fails here fails again in the first call, which reports it.
    let _ = rsocket::forks::register();
}

/// The process exits. Runs before the destructors of libibverbs, on which the library depends.
#[unsafe(link_section = ".text.startup")]
pub extern "C" fn on_exit() {
    rsocket::calls::at_exit();
}

/// Unit tests find what programs find.
#[cfg(test)]
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;
