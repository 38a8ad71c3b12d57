//! Automatic mode: a TCP socket of the kernel becomes an rsocket where both ends of a connection
//! can, and stays TCP otherwise (docs/preload-internals.md).
//!
//! [`connect`] makes attempts; [`route`] says where RDMA is not tried. [`listeners`] listen by
//! both; what arrives by RDMA reaches accept(2) by a stand-in ([`connections`]). [`shared`] is
//! known to all processes of a family, and [`forward`] carries data for those that do not have the
//! rsocket. One [`thread`] serves all of these.

pub mod connect;
mod connections;
#[cfg(test)]
mod connections_tests;
#[cfg(test)]
mod docs_tests;
mod forward;
mod kernel_options;
mod listeners;
pub mod log;
pub mod outside;
mod route;
mod shared;
mod thread;

use core::ffi::{c_int, c_void};

use base::auto_config::Mode;
use libc::{AF_INET, AF_INET6, SOCK_STREAM, sockaddr, sockaddr_storage, socklen_t};

use self::kernel_options::Purpose;
use self::shared::Use;
use crate::epoll::members;
use crate::memory::Plain;
use crate::sockets::{self, SockAddr, kernel, rdma};
use crate::table::{self, Entry, Kind};
use crate::thread::without_cancel;
use crate::transition::{self, Intent, MAPPED};
use crate::{config, errno, next_symbol, process, rsocket, rsocket_abi};

pub use crate::config::is_automatic_mode as is_on;
pub use crate::transition::is_auto;
pub use connect::connect;
pub use kernel_options::purpose_of;
pub use listeners::{hold, release};

/// A call is about to use a descriptor whose attempt is under way. Returns the errno with which a
/// call fails that does not wait.
pub fn resolve_attempt(fd: c_int, entry: Entry, intent: Intent) -> Result<(), c_int> {
    if intent == Intent::Shutdown {
        end_attempt(fd, entry);
    } else if intent.waits() && crate::tcp::is_blocking(fd) {
        errno::keeping(|| transition::wait_for_change(fd, entry));
    } else {
        return Err(libc::EAGAIN);
    }
    Ok(())
}

/// Ends the attempt of a descriptor: the socket is TCP's after that, or an rsocket if the attempt
/// has succeeded by then. The library's thread may be about to end it.
pub fn end_attempt(fd: c_int, entry: Entry) {
    errno::keeping(|| {
        connect::stay_tcp(entry);
        transition::wait_for_change(fd, entry);
    });
}

/// A copy of an rsocket's descriptor has its entry: the connection may have begun to be forwarded
/// since the entry was taken.
pub fn copied(fd: c_int, entry: Entry) {
    if entry.kind == Kind::Socket && is_auto(entry) {
        errno::keeping(|| connections::demote_copy(fd, entry.handle));
    }
}

/// Whether a new socket starts as the kernel's: a TCP socket in automatic mode, any socket in TCP
/// mode. `kind` has no flags.
pub fn leaves_to_kernel(domain: c_int, kind: c_int) -> bool {
    match config::mode() {
        Mode::Rdma => false,
        Mode::Tcp => true,
        Mode::Auto => matches!(domain, AF_INET | AF_INET6) && kind == SOCK_STREAM,
    }
}

/// listen(2) of a socket of the kernel's.
pub fn listen(fd: c_int, backlog: c_int, entry: Option<Entry>) -> c_int {
    let result = next_symbol::listen(fd, backlog);
    if result == 0 {
        match entry {
            Some(entry) => listeners::set_backlog(entry, backlog),
            None => errno::keeping(|| listeners::add(fd, backlog)),
        }
    }
    result
}

/// Whether accept(2) must look for stand-ins.
#[inline(always)]
pub fn has_stand_ins() -> bool {
    shared::is_used()
}

/// accept(2) of a socket of the kernel's, by `next`, after which the table has no entry for the new
/// descriptor.
///
/// # Safety
/// As for accept(2).
#[inline(always)]
pub unsafe fn accept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    next: impl Fn(*mut sockaddr, *mut socklen_t) -> c_int,
) -> c_int {
    if !has_stand_ins() || !addr.is_null() && len.is_null() {
        return next(addr, len);
    }
    loop {
        let (mut storage, mut room) = (sockaddr_storage::zero(), size_of::<sockaddr_storage>() as socklen_t);
        let new = next((&raw mut storage).cast(), &raw mut room);
        if new < 0 {
            return new;
        }
        let from = (&raw const storage).cast();
        // SAFETY: the storage is as long as it says. For the program's address as for this
        // function.
        unsafe {
            match identify(fd, new, SockAddr::read(from, room)) {
                Err(()) => {
                    next_symbol::close(new);
                    continue;
                }
                Ok(_) if addr.is_null() => {}
                Ok(Some(peer)) => peer.write(addr, len),
                Ok(None) => sockets::store(from, room, addr, len),
            }
        }
        return new;
    }
}

/// What accept(2) has got at a listener: a connection by RDMA, if it is from a stand-in. Returns
/// its peer then, or `Err` if it has ended.
fn identify(fd: c_int, new: c_int, from: Option<SockAddr>) -> Result<Option<SockAddr>, ()> {
    let Some(from) = from else { return Ok(None) };
    errno::keeping(|| {
        if let Some(accepted) = shared::accepted(&from, || kernel::own(fd).map(|own| own.port())) {
            let peer = without_cancel(|_| connections::adopt(new, accepted)).ok_or(())?;
            return Ok(Some(peer.in_family(from.family())));
        }
        if table::get(fd).is_some_and(|entry| entry.kind == Kind::Listener) {
            log::accepted(new, &from, log::Reason::CameByTcp);
        }
        Ok(None)
    })
}

/// The peer or the local address of an rsocket of automatic mode, or of a descriptor that is
/// forwarded. `None` if the call is to be made as for others.
pub fn name_of(entry: Entry, is_peer: bool) -> Option<SockAddr> {
    match entry.kind {
        Kind::Socket if entry.flags & MAPPED != 0 && is_auto(entry) => {
            let name = if is_peer { rdma::peer(entry.handle) } else { rdma::own(entry.handle) };
            Some(name?.in_family(AF_INET6))
        }
        Kind::Forwarded => {
            let slot = connections::slot_of(entry)?;
            let name = if is_peer { slot.peer()? } else { slot.own()? };
            // The slot may have got another connection meanwhile.
            connections::slot_of(entry)?;
            Some(if entry.flags & connections::FORWARDED_V6 != 0 { name.in_family(AF_INET6) } else { name })
        }
        _ => None,
    }
}

/// A descriptor that is forwarded is about to be used.
#[cold]
fn use_forwarded(entry: Entry, how: Use) {
    if let Some(slot) = connections::slot_of(entry).filter(|slot| how == Use::Executed || !slot.is_wanted()) {
        if slot.listener_port() == 0 {
            route::used_by_child();
        }
        slot.want(connections::generation_of(entry), how);
    }
}

/// A program is about to be executed that gets a descriptor.
pub fn execute_with(entry: Entry) {
    if entry.kind == Kind::Forwarded {
        use_forwarded(entry, Use::Executed);
    }
}

/// A call is about to wait for a number of the kernel's that automatic mode knows.
#[inline(always)]
pub fn before_wait(entry: Entry) {
    if entry.kind == Kind::Forwarded {
        use_forwarded(entry, Use::Inherited);
    }
}

/// A call is about to move data over such a descriptor, or to shut it down.
pub fn before_use(entry: Entry, intent: Intent) {
    if entry.kind == Kind::Listener && intent == Intent::Shutdown {
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
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE) {
        // It would receive from the TCP socket.
        return errno::fail(kernel_options::refusal((level, name)));
    }
    // SAFETY: as for this function.
    unsafe {
        if (level, name) != (libc::SOL_SOCKET, libc::SO_DOMAIN) {
            let before = errno::get();
            let result = rsocket_abi::rgetsockopt(entry.handle, level, name, value, len);
            if result == 0 || !is_unknown(errno::get()) {
                return result;
            }
            errno::set(before);
        }
        next_symbol::getsockopt(fd, level, name, value, len)
    }
}

/// The errors for an option that rsockets do not have.
fn is_unknown(error: c_int) -> bool {
    matches!(error, libc::ENOPROTOOPT | libc::ENOTSUP | libc::EINVAL)
}

/// setsockopt(2): `rsockets` sets the option of an rsocket, `next` that of the descriptor. `None`
/// if the attempt of the descriptor has ended.
pub fn setsockopt(
    fd: c_int,
    entry: Option<Entry>,
    option: (c_int, c_int),
    purpose: impl FnOnce() -> Purpose,
    rsockets: impl FnOnce(c_int) -> c_int,
    next: impl FnOnce() -> c_int,
) -> Option<c_int> {
    let Some(entry) = entry else {
        return Some(if is_on() { set_of_kernel(fd, option, purpose(), next) } else { next() });
    };
    let (purpose, refuse) = (purpose(), || Some(errno::fail(kernel_options::refusal(option))));
    match (entry.kind, purpose) {
        // The kernel waits for so many bytes.
        (Kind::Socket, _)
            if option == (libc::SOL_SOCKET, libc::SO_RCVLOWAT)
                && errno::keeping(|| connections::forward_from_now(fd, entry.handle, Use::Inherited)).is_ok() =>
        {
            Some(next())
        }
        (Kind::Socket, Purpose::Hint) => Some(set_both(|| rsockets(entry.handle), next)),
        (Kind::Socket, _) => refuse(),
        (Kind::Connecting, Purpose::Hint) => Some(next()),
        // The attempt is the parent's, which a child of vfork(2) cannot end.
        (Kind::Connecting, _) if process::is_guest() => refuse(),
        (Kind::Connecting, _) => {
            end_attempt(fd, entry);
            None
        }
        (Kind::Pending, Purpose::Calls | Purpose::Guard) => refuse(),
        // The descriptor's socket ends inside the host.
        (Kind::Forwarded, Purpose::Guard) => refuse(),
        (Kind::Listener, _) => {
            let is_shared = option == (libc::SOL_SOCKET, libc::SO_REUSEPORT);
            if is_shared || purpose != Purpose::Hint {
                let reason = if is_shared { log::Reason::Reuse } else { log::Reason::Option };
                errno::keeping(|| listeners::leave_to_kernel(entry, reason));
            }
            Some(set_of_kernel(fd, option, purpose, next))
        }
        (Kind::Forwarded, _) => Some(set_of_kernel(fd, option, purpose, next)),
        (Kind::Pending | Kind::Epoll, _) => Some(next()),
    }
}

/// Sets an option of an rsocket. The kernel's socket gets it as well, and alone what rsockets do
/// not have: the connection does without its effect.
fn set_both(rsockets: impl FnOnce() -> c_int, next: impl FnOnce() -> c_int) -> c_int {
    let before = errno::get();
    let kernels = next();
    let why = errno::get();
    errno::set(before);
    let result = rsockets();
    if result == 0 || !is_unknown(errno::get()) {
        return result;
    }
    errno::set(if kernels == 0 { before } else { why });
    kernels
}

/// Sets an option of a socket of the kernel's, which may connect or listen later.
fn set_of_kernel(fd: c_int, option: (c_int, c_int), purpose: Purpose, next: impl FnOnce() -> c_int) -> c_int {
    let result = next();
    if result == 0 && is_on() {
        if purpose != Purpose::Hint && !route::is_readable_option(option.0, option.1) {
            errno::keeping(|| kernel_options::remember(fd));
        }
        // Perhaps it is the parent that listens by RDMA, too.
        if option == (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) && shared::is_used() {
            listeners::accept_at_once(fd);
        }
    }
    result
}

/// Drops a descriptor's reference to an rsocket of automatic mode. Returns 0, or -1 with `errno`.
pub fn release_rsocket(entry: Entry) -> c_int {
    if rsocket::drop_reference(entry) { connections::close(entry.handle) } else { 0 }
}

/// A child of vfork(2) copies a descriptor, for the program that it executes.
pub fn guest_copies(fd: c_int, entry: Entry) {
    if entry.kind == Kind::Socket && is_auto(entry) && !connections::lend(entry.handle) {
        log::not_given(fd, "program that is executed with it", log::Reason::NotPrepared);
    }
}

/// The process ends: what its children have sent by it arrives, within two seconds.
pub fn flush_on_exit() {
    if is_on() && shared::is_used() {
        connections::drain();
    }
}

/// Whether the process may have connections by RDMA.
fn is_active() -> bool {
    table::any() && is_on() && !process::is_guest()
}

/// Before a program is executed by a call that runs no handlers of fork(2): it may use the
/// connections that it inherits.
pub fn before_spawn() {
    if is_active() {
        errno::keeping(|| {
            connections::before_spawn();
            connections::in_parent();
        });
    }
}

/// Whether the process has connections by RDMA.
pub fn has_connections() -> bool {
    let mut any = false;
    if is_active() {
        table::each(|_, entry| any |= entry.kind == Kind::Socket && is_auto(entry));
    }
    any
}

/// Before fork(2), with or without its handlers.
pub fn before_fork() {
    members::begin_generation();
    if is_active() {
        errno::keeping(connections::before_fork);
    }
}

/// After fork(2), in the parent.
pub fn in_parent() {
    if is_active() {
        errno::keeping(connections::in_parent);
    }
}

/// After fork(2), in the child.
pub fn in_child() {
    if table::any() && is_on() {
        errno::keeping(|| {
            connect::in_child();
            connections::in_child();
            listeners::in_child();
            thread::in_child();
        });
    }
}
