//! librspreload.so, loaded before a program's libraries (`LD_PRELOAD`): serves the program's socket
//! calls with the rsockets of librdmacm.so.1.
//!
//! The program sees placeholders: descriptors of kernel sockets. [`table`] maps each placeholder to
//! the descriptor by which librdmacm knows the rsocket behind it. A call on any other descriptor
//! goes, after one look-up in the table, to the next definition of its name ([`next_symbol`]),
//! nearly always the C library's.
//!
//! The layers, from the top: [`full`] (the functions that only librspreload-full.so exports),
//! [`calls`] (the exported functions), [`fds`] (what a descriptor is, where a call goes, and what
//! opening, copying and closing do), [`auto`] (automatic mode) beside [`fork`] (fork mode), what
//! both have in common ([`tcp`], [`transition`], [`thread`]), [`epoll`] and [`rsocket`], [`table`],
//! and at the bottom [`sockets`] (calls with references in place of pointers), [`memory`] and
//! [`next_symbol`].
//!
//! No std: std is bound to the names of the C library, and would call our `close` for its own
//! files. For this reason nothing in this crate calls an intercepted name through `libc`, only
//! through [`next_symbol`].
//!
//! # Safety
//!
//! `SAFETY` comments that name the C contract mean that the exported functions are called as their
//! manual pages say: the program guarantees that pointers are valid for what the page describes.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(
    test,
    allow(dead_code, reason = "unit tests export nothing, so the calls that they do not use are dead code")
)]

mod auto;
mod calls;
mod config;
mod epoll;
use base::errno;
mod fds;
mod fork;
mod fork_handlers;
mod full;
mod memory;
mod next_symbol;
mod open_fds;
mod process;
mod rsocket;
mod sockets;
mod table;
mod tcp;
mod thread;
mod transition;

use next_symbol::rsocket_abi;

#[cfg(not(test))]
use core::ffi::{c_char, c_int};

/// Resolves the next definitions before the program runs, because dlsym(3) is not
/// async-signal-safe.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = at_load;

#[cfg(not(test))]
extern "C" fn at_load(_argc: c_int, _argv: *mut *mut c_char, _environ: *mut *mut c_char) {
    next_symbol::resolve();
    config::report_problems();
    process::own();
    fork_handlers::register();
}

/// Runs before the destructors of librdmacm, because this library depends on librdmacm.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

/// Delivers the data of sockets that are still open: many programs exit without closing their
/// sockets.
#[cfg(not(test))]
extern "C" fn at_exit() {
    auto::log::before_exit();
    if table::any() && !process::is_guest() {
        auto::flush_on_exit();
        rsocket::flush_on_exit();
    }
}

/// Aborts the process. Nothing in this crate panics on purpose: only checks that the compiler did
/// not remove call this function.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: abort(3) takes no arguments.
    unsafe { libc::abort() }
}
