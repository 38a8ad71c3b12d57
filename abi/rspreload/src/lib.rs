//! librspreload.so: loaded before a program's libraries (`LD_PRELOAD`), it serves the program's socket calls by the
//! rsockets of librdmacm.so.1.
//!
//! The program sees placeholders: numbers at which `/dev/null` is open. [`table`] says which rsocket is behind one
//! (its "inner" number, which librdmacm knows). A call on any other number goes to the next definition of its name
//! ([`real`]), nearly always the C library's, after one look at the table.
//!
//! No std here: it is bound to the names below and would call our `close` for its own files. For the same reason
//! nothing in this crate calls one of these names through `libc`, only through [`real`].
//!
//! # Safety
//!
//! What the `SAFETY` comments call the C contract: the exported functions are called as their manual pages say. What a
//! pointer must point at is thereby guaranteed by the program.
#![cfg_attr(not(test), no_std)]
// What is exported there is for the tests only.
#![cfg_attr(test, allow(dead_code))]

mod config;
mod dup;
mod epoll;
mod errno;
mod fds;
mod fork;
mod forward;
mod poll;
mod process;
mod r;
mod real;
mod rules;
mod scratch;
mod select;
mod sendfile;
mod socket;
mod table;
mod time;

#[cfg(not(test))]
use core::ffi::c_char;
use core::ffi::c_int;

/// The rsocket behind `fd` for a call that goes to the kernel's socket as long as it is open whether there will be an
/// rsocket (bind, options, names).
#[inline(always)]
fn inner(fd: c_int) -> Option<c_int> {
    let entry = table::get(fd)?;
    (entry.kind == table::Kind::Socket).then_some(entry.inner)
}

/// Where a call goes.
enum Target {
    Kernel,
    Rsocket(c_int),
    /// Another process's rsocket, by this channel.
    Relayed(c_int),
    /// It fails, with this `errno`.
    Nowhere(c_int),
}

/// Where a call on `fd` goes that moves data or ends doing so: it decides for a socket in fork mode.
#[inline(always)]
fn data(fd: c_int, way: fork::Way) -> Target {
    match table::get(fd) {
        None => Target::Kernel,
        Some(entry) if entry.is_settled() => Target::Rsocket(entry.inner),
        Some(entry) => decide(fd, entry, way),
    }
}

#[cold]
#[inline(never)]
fn decide(fd: c_int, entry: table::Entry, way: fork::Way) -> Target {
    match entry.kind {
        table::Kind::Epoll => return Target::Kernel,
        table::Kind::Relayed => return Target::Relayed(entry.inner),
        table::Kind::Socket => {
            return if fds::look(fd, entry) { Target::Rsocket(entry.inner) } else { Target::Kernel };
        }
        table::Kind::Pending => {}
    }
    // SAFETY: nothing but the number and what the table has for it.
    match unsafe { fork::settle(fd, entry, way) } {
        Ok(Some(inner)) => Target::Rsocket(inner),
        Ok(None) => Target::Kernel,
        Err(why) => Target::Nowhere(why),
    }
}

/// Resolves what can be before the program runs: dlsym(3) is nothing for signal handlers.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = at_load;

#[cfg(not(test))]
extern "C" fn at_load(_argc: c_int, _argv: *mut *mut c_char, _environ: *mut *mut c_char) {
    real::resolve();
    process::watch();
}

/// Before librdmacm's, on which this library depends.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

/// Programs leave it to the end of the process to close their sockets.
#[cfg(not(test))]
extern "C" fn at_exit() {
    if table::any() && !process::is_guest() {
        fds::farewell();
    }
}

/// There is nothing here that panics on purpose; what is left are checks that the compiler could not remove.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}
