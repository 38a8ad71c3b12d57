//! Automatic mode: a TCP socket of the kernel becomes an rsocket where both ends of a connection
//! can, and stays TCP otherwise (docs/preload-internals.md).
//!
//! [`client`] connects, by [`attempt`] and, for non-blocking sockets, [`slots`]; [`route`] and
//! [`remembered`] say where RDMA is not tried. [`listeners`] listen by both; what arrives by RDMA
//! reaches accept(2) by a token ([`connections`]). [`shared`] is known to all processes of a
//! family, and [`forward`] carries data for those that do not have the rsocket. One [`thread`]
//! serves all of these.

mod attempt;
mod client;
mod connections;
#[cfg(test)]
mod connections_tests;
#[cfg(test)]
mod docs_tests;
mod forward;
mod kernel_options;
mod listeners;
pub mod log;
mod numbers;
pub mod outside;
mod remembered;
mod route;
mod shared;
pub mod slots;
mod socket_owner;
mod thread;

use core::ffi::{c_int, c_void};

use libc::{AF_INET, AF_INET6, EALREADY, SOCK_STREAM, sockaddr, sockaddr_storage, socklen_t};
use rdmacm_private::auto_config::Mode;

use self::kernel_options::Purpose;
use self::numbers::MAPPED;
use self::shared::Use;
use crate::epoll::members;
use crate::table::{self, Entry, Kind};
use crate::tcp::name::{self, Name};
use crate::transition::{self, Way};
use crate::{cancel, config, errno, next_symbol, rsocket, rsocket_abi};

pub use client::connect;
pub use listeners::{hold, release};
pub use numbers::{is_auto, is_on};

/// A call is about to use a number whose attempt is under way. Returns the errno with which a call
/// fails that does not wait.
pub fn resolve_attempt(fd: c_int, entry: Entry, way: Way) -> Result<(), c_int> {
    if way == Way::Shutdown {
        end_attempt(fd, entry);
    } else if way.waits() && crate::tcp::is_blocking(fd) {
        errno::keeping(|| transition::wait_for_change(fd, entry));
    } else {
        return Err(libc::EAGAIN);
    }
    Ok(())
}

/// Ends the attempt of a number: the socket is TCP's after that, or an rsocket if the attempt has
/// succeeded by then. The library's thread may be about to end it.
pub fn end_attempt(fd: c_int, entry: Entry) {
    errno::keeping(|| {
        slots::stay_tcp(entry);
        transition::wait_for_change(fd, entry);
    });
}

/// A copy of an rsocket's number has its entry: the connection may have begun to be forwarded since
/// the entry was taken.
pub fn copied(fd: c_int, entry: Entry) {
    if entry.kind == Kind::Socket && is_auto(entry) {
        errno::keeping(|| connections::demote_copy(fd, entry.inner));
    }
}

/// The program asks for the local address while an attempt is under way: only its end decides the
/// port.
#[cold]
pub fn wait_for_name(fd: c_int, entry: Entry) {
    errno::keeping(|| transition::wait_for_change(fd, entry));
}

/// Whether a new socket is the kernel's, in automatic mode or because nothing else is wanted.
/// `kind` is without flags.
pub fn leaves_to_kernel(domain: c_int, kind: c_int) -> bool {
    match config::mode() {
        Mode::Rdma => false,
        Mode::Tcp => true,
        Mode::Auto => matches!(domain, AF_INET | AF_INET6) && kind == SOCK_STREAM,
    }
}

/// connect(2) of a number whose attempt is under way.
pub fn connect_again() -> c_int {
    errno::fail(EALREADY)
}

/// listen(2) of a socket of the kernel's.
///
/// # Safety
/// As listen(2).
pub unsafe fn listen(fd: c_int, backlog: c_int, entry: Option<Entry>) -> c_int {
    let result = next_symbol::listen(fd, backlog);
    if result == 0 {
        match entry {
            Some(entry) => listeners::set_backlog(entry, backlog),
            None => errno::keeping(|| listeners::add(fd, backlog)),
        }
    }
    result
}

/// Whether accept(2) must look for tokens.
#[inline(always)]
pub fn has_tokens() -> bool {
    shared::is_used()
}

/// accept(2) of a socket of the kernel's, by `next`, after which the table has no entry for the new
/// number.
///
/// # Safety
/// As for accept(2).
pub unsafe fn accept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    next: impl Fn(*mut sockaddr, *mut socklen_t) -> c_int,
) -> c_int {
    if !addr.is_null() && len.is_null() {
        return next(addr, len);
    }
    loop {
        // SAFETY: all zeros are an address, of no family.
        let mut storage: sockaddr_storage = unsafe { core::mem::zeroed() };
        let mut room = size_of::<sockaddr_storage>() as socklen_t;
        let new = next((&raw mut storage).cast(), &raw mut room);
        if new < 0 {
            return new;
        }
        // SAFETY: the storage is as long as it says.
        let from = unsafe { Name::read((&raw const storage).cast(), room) };
        let mut reported = Name { storage, len: room };
        let is_listener = table::get(fd).is_some_and(|entry| entry.kind == Kind::Listener);
        if let Some(from) = from
            && let Some(accepted) = errno::keeping(|| shared::accepted(&from, || name::own(fd).map(|own| own.number())))
        {
            let Some(peer) = errno::keeping(|| cancel::disabled(|_| connections::adopt(new, accepted))) else {
                next_symbol::close(new);
                continue;
            };
            reported = peer.in_family(from.family());
        } else if let (Some(from), true) = (from, is_listener) {
            log::accepted(new, &from, "TCP", log::Reason::CameByTcp);
        }
        if !addr.is_null() {
            // SAFETY: as for this function; `len` is not null.
            unsafe { reported.write(addr, len) };
        }
        return new;
    }
}

/// getpeername(2) or getsockname(2) of an rsocket of automatic mode, or of a number that is
/// forwarded. `None` if the call is to be made as for others.
///
/// # Safety
/// As for getpeername(2).
pub unsafe fn name_of(entry: Entry, is_peer: bool, addr: *mut sockaddr, len: *mut socklen_t) -> Option<c_int> {
    let name = match entry.kind {
        Kind::Socket if entry.flags & MAPPED != 0 && is_auto(entry) => {
            let name = if is_peer { name::rsocket_peer(entry.inner) } else { name::rsocket_own(entry.inner) };
            name?.in_family(AF_INET6)
        }
        Kind::Forwarded => {
            let slot = connections::slot_of(entry)?;
            let name = if is_peer { slot.peer()? } else { slot.own()? };
            // The slot may have got another connection meanwhile.
            connections::slot_of(entry)?;
            if entry.flags & connections::FORWARDED_V6 != 0 { name.in_family(AF_INET6) } else { name }
        }
        _ => return None,
    };
    if addr.is_null() || len.is_null() {
        return Some(errno::fail(libc::EFAULT));
    }
    // SAFETY: as for this function.
    unsafe { name.write(addr, len) };
    Some(0)
}

/// A call is about to use a number that is forwarded.
#[cold]
pub fn use_forwarded(entry: Entry) {
    if let Some(slot) = connections::slot_of(entry).filter(|slot| !slot.is_wanted()) {
        slot.want(connections::generation_of(entry), Use::Inherited);
    }
}

/// A program is about to be executed that gets a number that is forwarded.
#[cold]
pub fn execute_with(entry: Entry) {
    if let Some(slot) = connections::slot_of(entry) {
        slot.want(connections::generation_of(entry), Use::Executed);
    }
}

/// A call is about to wait for a number of the kernel's that automatic mode knows.
#[inline(always)]
pub fn before_wait(entry: Entry) {
    if entry.kind == Kind::Forwarded {
        use_forwarded(entry);
    }
}

/// A call is about to move data over such a number, or to shut it down.
pub fn before_use(entry: Entry, way: Way) {
    if entry.kind == Kind::Listener && way == Way::Shutdown {
        listeners::stop(entry);
    } else {
        before_wait(entry);
    }
}

/// getsockopt(2) of an rsocket of automatic mode: what rsockets do not have, the kernel answers.
///
/// # Safety
/// As for getsockopt(2).
pub unsafe fn getsockopt(
    fd: c_int,
    entry: Entry,
    (level, name): (c_int, c_int),
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if kernel_options::receives((level, name)) {
        return errno::fail(kernel_options::refusal((level, name)));
    }
    let is_kernels = level == libc::SOL_SOCKET && name == libc::SO_DOMAIN;
    // SAFETY: as for this function.
    unsafe {
        if !is_kernels {
            let before = errno::get();
            let result = rsocket_abi::rgetsockopt(entry.inner, level, name, value, len);
            if result == 0 || !is_unknown(errno::get()) {
                return result;
            }
            errno::set(before);
        }
        next_symbol::getsockopt(fd, level, name, value, len)
    }
}

/// setsockopt(2) of an rsocket of automatic mode. The kernel's socket gets the option as well, if
/// the connection does without its effect.
///
/// # Safety
/// As for setsockopt(2).
pub unsafe fn setsockopt(
    fd: c_int,
    entry: Entry,
    (level, name): (c_int, c_int),
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // The kernel waits for so many bytes.
    if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT)
        && errno::keeping(|| connections::forward_from_now(fd, entry.inner, Use::Inherited)).is_ok()
    {
        // SAFETY: as for this function.
        return unsafe { next_symbol::setsockopt(fd, level, name, value, len) };
    }
    // SAFETY: as for this function.
    unsafe {
        if kernel_options::purpose_of((level, name), value, len) != Purpose::Hint {
            return errno::fail(kernel_options::refusal((level, name)));
        }
        let before = errno::get();
        let kernels = next_symbol::setsockopt(fd, level, name, value, len);
        let why = errno::get();
        errno::set(before);
        let result = rsocket_abi::rsetsockopt(entry.inner, level, name, value, len);
        if result == 0 || !is_unknown(errno::get()) {
            return result;
        }
        errno::set(if kernels == 0 { before } else { why });
        kernels
    }
}

/// The errors for an option that rsockets do not have.
fn is_unknown(error: c_int) -> bool {
    matches!(error, libc::ENOPROTOOPT | libc::ENOTSUP | libc::EINVAL)
}

/// setsockopt(2) of a socket of the kernel's, which may connect or listen later.
///
/// # Safety
/// As for setsockopt(2).
pub unsafe fn setsockopt_of_kernel(
    fd: c_int,
    (level, name): (c_int, c_int),
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if !is_on() {
        // SAFETY: as for this function.
        return unsafe { next_symbol::setsockopt(fd, level, name, value, len) };
    }
    // SAFETY: as for this function.
    let (purpose, result) = unsafe {
        let purpose = kernel_options::purpose_of((level, name), value, len);
        (purpose, next_symbol::setsockopt(fd, level, name, value, len))
    };
    if result == 0 && purpose != Purpose::Hint && !route::is_readable_option(level, name) {
        errno::keeping(|| kernel_options::remember(fd));
    }
    // Perhaps it is the parent that listens by RDMA, too.
    if result == 0 && (level, name) == (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) && shared::is_used() {
        listeners::accept_at_once(fd);
    }
    result
}

/// setsockopt(2) of a number whose attempt is under way. `None` if the attempt has ended.
///
/// # Safety
/// As for setsockopt(2).
pub unsafe fn setsockopt_of_attempt(
    fd: c_int,
    entry: Entry,
    (level, name): (c_int, c_int),
    value: *const c_void,
    len: socklen_t,
) -> Option<c_int> {
    // SAFETY: as for this function.
    unsafe {
        if kernel_options::purpose_of((level, name), value, len) != Purpose::Hint {
            // The attempt is the parent's, which a child of vfork(2) cannot end.
            if crate::process::is_guest() {
                return Some(errno::fail(kernel_options::refusal((level, name))));
            }
            end_attempt(fd, entry);
            return None;
        }
        Some(next_symbol::setsockopt(fd, level, name, value, len))
    }
}

/// setsockopt(2) of a TCP socket of fork mode that may become an rsocket.
///
/// # Safety
/// As for setsockopt(2).
pub unsafe fn setsockopt_of_pending(
    fd: c_int,
    (level, name): (c_int, c_int),
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: as for this function.
    unsafe {
        match kernel_options::purpose_of((level, name), value, len) {
            Purpose::Hint | Purpose::Route => next_symbol::setsockopt(fd, level, name, value, len),
            Purpose::Calls | Purpose::Guard => errno::fail(kernel_options::refusal((level, name))),
        }
    }
}

/// setsockopt(2) of a number of the kernel's that automatic mode knows.
///
/// # Safety
/// As for setsockopt(2).
pub unsafe fn setsockopt_of_known(
    fd: c_int,
    entry: Entry,
    (level, name): (c_int, c_int),
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    // SAFETY: as for this function.
    let purpose = unsafe { kernel_options::purpose_of((level, name), value, len) };
    if entry.kind == Kind::Forwarded && purpose == Purpose::Guard {
        // The number's socket ends inside the host.
        return errno::fail(kernel_options::refusal((level, name)));
    }
    let reason = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_REUSEPORT) => Some(log::Reason::Reuse),
        _ => (purpose != Purpose::Hint).then_some(log::Reason::Option),
    };
    if let (Kind::Listener, Some(reason)) = (entry.kind, reason) {
        errno::keeping(|| listeners::leave_to_kernel(entry, reason));
    }
    // SAFETY: as for this function.
    unsafe { setsockopt_of_kernel(fd, (level, name), value, len) }
}

/// Drops a number's reference to an rsocket of automatic mode. Returns 0, or -1 with `errno`.
pub fn release_rsocket(entry: Entry) -> c_int {
    if rsocket::drop_reference(entry) { connections::close(entry.inner) } else { 0 }
}

/// A child of vfork(2) copies a number, for the program that it executes.
pub fn guest_copies(fd: c_int, entry: Entry) {
    if entry.kind == Kind::Socket && is_auto(entry) && !connections::lend(entry.inner) {
        log::not_given(fd, "program that is executed with it", log::Reason::NotPrepared);
    }
}

/// The process ends: what its children have sent by it arrives, within two seconds.
pub fn flush_on_exit() {
    if is_on() && shared::is_used() {
        connections::drain();
    }
}

/// Before a program is executed by a call that runs no handlers of fork(2): it may use the
/// connections that it inherits.
pub fn before_spawn() {
    if table::any() && is_on() && !crate::process::is_guest() {
        errno::keeping(|| {
            connections::before_spawn(thread::wake_socket);
            connections::in_parent();
        });
    }
}

/// Whether the process has connections by RDMA.
pub fn has_connections() -> bool {
    let mut any = false;
    if table::any() && is_on() && !crate::process::is_guest() {
        table::each(|_, entry| any |= entry.kind == Kind::Socket && is_auto(entry));
    }
    any
}

/// Before fork(2), with or without its handlers.
pub fn before_fork() {
    members::begin_generation();
    if table::any() && is_on() && !crate::process::is_guest() {
        errno::keeping(|| connections::before_fork(thread::wake_socket));
    }
}

/// After fork(2), in the parent.
pub fn in_parent() {
    if table::any() && is_on() && !crate::process::is_guest() {
        errno::keeping(connections::in_parent);
    }
}

/// After fork(2), in the child.
pub fn in_child() {
    if table::any() && is_on() {
        errno::keeping(|| {
            slots::in_child();
            connections::in_child();
            listeners::in_child();
            thread::in_child();
        });
    }
}
