//! What the library does when it is loaded, when the process forks, and when it exits.
//!
//! `abi/rdmacm` has the loader call [`on_load`] and [`on_exit`]. This crate has no constructors of
//! its own: every program linked with it would run them, and would contain all that they refer to.
//!
//! A child of fork() starts without a reactor, and may close its copies of sockets without
//! affecting the parent's.

use std::ffi::c_int;

use super::{calls, pinned_budget, reactor, socket_table, stream};
use crate::errno::{Errno, Result};
use crate::os::fork::{self, Handlers, Layer};
use crate::os::library_fds;
use crate::{cm, diag};

static HANDLERS: Handlers =
    Handlers { before: reactor::before_fork, in_parent: reactor::after_fork_in_parent, in_child };

/// Registers the handlers of rsockets and of the connection manager unless they were registered
/// when the library was loaded.
///
/// # Errors
/// Fails with `ENOMEM` if the C library has no memory for the handlers.
pub fn register() -> Result<()> {
    cm::register_fork_handlers()?;
    fork::register(Layer::Rsocket, &HANDLERS)
}

/// Does what the handlers would do at `step` of a fork that runs no handlers
/// (`base::private::FORK`). Fails with `EINVAL` for an unknown step.
pub fn step(step: c_int) -> Result<()> {
    match step {
        base::private::FORK_BEFORE => fork::before(),
        base::private::FORK_IN_PARENT => fork::in_parent(),
        base::private::FORK_IN_CHILD => fork::in_child(),
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}

fn in_child() {
    library_fds::in_child();
    pinned_budget::in_child();
    socket_table::in_child();
    stream::in_child();
    // SAFETY: the child of a fork() has one thread until its handlers have run.
    unsafe {
        calls::after_fork();
        reactor::after_fork_in_child();
    }
}

/// Called when the library is loaded, or a program that contains it is started.
#[unsafe(link_section = ".text.startup")]
pub extern "C" fn on_load() {
    diag::read_settings();
    // A failure here occurs again in the first call, which reports the error.
    let _ = register();
}

/// Called when the process exits, before the destructors of libibverbs, on which the library
/// depends.
#[unsafe(link_section = ".text.startup")]
pub extern "C" fn on_exit() {
    calls::at_exit();
}

/// Calls [`on_load`] in unit tests, as in programs.
#[cfg(test)]
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;
