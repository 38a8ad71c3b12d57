//! Automatic mode: a kernel TCP socket becomes an rsocket where both ends of a connection support
//! it, and stays TCP otherwise (docs/preload-internals.md).
//!
//! [`connect`] attempts RDMA connections, where [`route`] allows them. [`listeners`] listen over
//! both transports. A *stand-in*, a TCP connection within the host to the program's listener, makes
//! accept(2) report an RDMA connection ([`connections`]). [`shared`] is memory that a process
//! shares with its forked descendants, and [`forward`] relays data for processes that do not own
//! the rsocket. One [`thread`] serves all of these.

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
use crate::memory::zero;
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
pub use shared::is_used as has_stand_ins;

/// Prepares a call on a descriptor whose attempt to connect over RDMA is under way. Ends the
/// attempt for shutdown(2), and waits until the attempt has ended for a blocking call. Fails with
/// EAGAIN for a non-blocking call.
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

/// Ends the attempt of a descriptor. The socket is TCP afterwards, or an rsocket if the attempt has
/// just succeeded. Waits if the library's thread is already ending the attempt.
pub fn end_attempt(fd: c_int, entry: Entry) {
    errno::keeping(|| {
        connect::stay_tcp(entry);
        transition::wait_for_change(fd, entry);
    });
}

/// Called after `fd`, a copy of an rsocket's descriptor, was given `entry`. If the forwarding of
/// the connection has begun since `entry` was read, the copy is forwarded, too.
pub fn copied(fd: c_int, entry: Entry) {
    if is_auto(entry) {
        errno::keeping(|| connections::demote_copy(fd, entry.handle));
    }
}

/// Whether a new socket starts as a kernel socket: a TCP socket in automatic mode, any socket in
/// TCP mode. `kind` has neither SOCK_NONBLOCK nor SOCK_CLOEXEC.
pub fn leaves_to_kernel(domain: c_int, kind: c_int) -> bool {
    match config::mode() {
        Mode::Rdma => false,
        Mode::Tcp => true,
        Mode::Auto => matches!(domain, AF_INET | AF_INET6) && kind == SOCK_STREAM,
    }
}

/// listen(2) on a kernel socket. After success, makes rsockets listen, too, or gives the new
/// backlog to those that already listen.
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

/// accept(2) on a kernel socket. `next` makes the call, and leaves no table entry for the new
/// descriptor. For a stand-in, stores the address of the RDMA connection's peer.
///
/// # Safety
/// `addr` and `len` are valid for accept(2).
#[inline(always)]
pub unsafe fn accept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    next: impl Fn(*mut sockaddr, *mut socklen_t) -> c_int,
) -> c_int {
    if !shared::is_used() || !addr.is_null() && len.is_null() {
        return next(addr, len);
    }
    loop {
        let (mut storage, mut room) = (zero::<sockaddr_storage>(), size_of::<sockaddr_storage>() as socklen_t);
        let new = next((&raw mut storage).cast(), &raw mut room);
        if new < 0 {
            return new;
        }
        let from = (&raw const storage).cast();
        // SAFETY: `storage` holds the address of `room` bytes that the kernel has stored. `addr`
        // and `len` are valid: guaranteed by the caller.
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

/// Checks whether `new`, which accept(2) has returned for the listener `fd`, is a stand-in, and if
/// so makes it the descriptor of the RDMA connection. Returns the peer of the RDMA connection,
/// `Ok(None)` if `new` is an ordinary TCP connection, or `Err` if the RDMA connection has ended.
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

/// Returns the peer's or the local address of an IPv6 socket whose rsocket is IPv4, or of a
/// forwarded descriptor. Returns `None` if the caller must make the usual call.
pub fn name_of(entry: Entry, is_peer: bool) -> Option<SockAddr> {
    match entry.kind {
        Kind::Socket if entry.flags & MAPPED != 0 && is_auto(entry) => {
            let name = if is_peer { rdma::peer(entry.handle) } else { rdma::own(entry.handle) };
            Some(name?.in_family(AF_INET6))
        }
        Kind::Forwarded => {
            let slot = connections::slot_of(entry)?;
            let name = if is_peer { &slot.peer } else { &slot.own }.load()?;
            // The slot may have been reused while the address was read.
            connections::slot_of(entry)?;
            Some(if entry.flags & connections::FORWARDED_V6 != 0 { name.in_family(AF_INET6) } else { name })
        }
        _ => None,
    }
}

/// Called before a forwarded descriptor is used. Asks the owner of its connection to relay the
/// data. If the parent made the connection by connect(2), remembers the use for later runs of the
/// command.
#[cold]
fn use_forwarded(entry: Entry, how: Use) {
    if let Some(slot) = connections::slot_of(entry).filter(|slot| how == Use::Executed || !slot.is_wanted()) {
        if slot.listener_port() == 0 {
            route::used_by_child();
        }
        shared::want(entry.handle as usize, connections::generation_of(entry), how);
    }
}

/// Called before the execution of a program that inherits a descriptor with this entry.
pub fn execute_with(entry: Entry) {
    if entry.kind == Kind::Forwarded {
        use_forwarded(entry, Use::Executed);
    }
}

/// Called before a call that waits for a kernel socket with a table entry.
#[inline(always)]
pub fn before_wait(entry: Entry) {
    if entry.kind == Kind::Forwarded {
        use_forwarded(entry, Use::Inherited);
    }
}

/// Called before a call that shuts down a kernel socket with a table entry, or moves data over it.
pub fn before_use(entry: Entry, intent: Intent) {
    if entry.kind == Kind::Listener && intent == Intent::Shutdown {
        listeners::stop(entry);
    } else {
        before_wait(entry);
    }
}

/// getsockopt(2) on an automatic-mode rsocket. Options that rsockets do not have are read from the
/// kernel socket.
///
/// # Safety
/// `value` and `len` are valid for getsockopt(2).
pub unsafe fn getsockopt(
    fd: c_int,
    entry: Entry,
    (level, name): (c_int, c_int),
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE) {
        // Reading this option would receive data from the TCP socket.
        return errno::fail(kernel_options::refusal((level, name)));
    }
    // SAFETY: `value` and `len` are valid: guaranteed by the caller.
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

/// Whether `error` may mean that rsockets do not have the option.
fn is_unknown(error: c_int) -> bool {
    matches!(error, libc::ENOPROTOOPT | libc::ENOTSUP | libc::EINVAL)
}

/// setsockopt(2): `rsockets` sets the option on an rsocket, `next` on the kernel socket. Returns
/// `None` if the call has ended the descriptor's attempt, and the caller must try again.
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
        // Forwards the data, since only the kernel waits for SO_RCVLOWAT bytes.
        (Kind::Socket, _)
            if option == (libc::SOL_SOCKET, libc::SO_RCVLOWAT)
                && errno::keeping(|| connections::forward_from_now(fd, entry.handle, Use::Inherited)).is_ok() =>
        {
            Some(next())
        }
        (Kind::Socket, Purpose::Hint) => Some(set_both(|| rsockets(entry.handle), next)),
        (Kind::Socket, _) => refuse(),
        (Kind::Connecting, Purpose::Hint) => Some(next()),
        // A child of vfork(2) cannot end its parent's attempt.
        (Kind::Connecting, _) if process::is_guest() => refuse(),
        (Kind::Connecting, _) => {
            end_attempt(fd, entry);
            None
        }
        (Kind::Pending, Purpose::Calls | Purpose::Guard) => refuse(),
        // The option would affect the stand-in's local connection, not the peer's packets.
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

/// Sets an option on an rsocket and its kernel socket. If rsockets do not have the option, returns
/// the kernel's result, and the RDMA connection does without the option's effect.
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

/// Sets an option on a kernel socket, and remembers the option if it rules out RDMA when the socket
/// connects or listens later.
fn set_of_kernel(fd: c_int, option: (c_int, c_int), purpose: Purpose, next: impl FnOnce() -> c_int) -> c_int {
    let result = next();
    if result == 0 && is_on() {
        if purpose != Purpose::Hint && !route::is_readable_option(option.0, option.1) {
            errno::keeping(|| kernel_options::remember(fd));
        }
        // The socket may be a listener that the parent made, to which stand-ins are sent.
        if option == (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) && shared::is_used() {
            listeners::accept_at_once(fd);
        }
    }
    result
}

/// Drops a descriptor's reference to an rsocket of automatic mode; dropping the last reference
/// closes the connection. Returns 0, or -1 with `errno`.
pub fn release_rsocket(entry: Entry) -> c_int {
    if rsocket::drop_reference(entry) { connections::close(entry.handle) } else { 0 }
}

/// Called when a child of vfork(2) copies a descriptor for the program that it will execute: lends
/// the connection to the program, or logs that the program cannot use it.
pub fn guest_copies(fd: c_int, entry: Entry) {
    if is_auto(entry) && !connections::lend(entry.handle) {
        log::not_given(fd, "program that is executed with it", log::Reason::NotPrepared);
    }
}

/// Called when the process ends. Waits up to two seconds until the data that children have sent
/// over this process's connections has arrived.
pub fn flush_on_exit() {
    if is_on() && shared::is_used() {
        connections::drain();
    }
}

/// Whether the process may have RDMA connections. False in a child of vfork(2).
fn is_active() -> bool {
    table::any() && is_on() && !process::is_guest()
}

/// Called before posix_spawn(3) and the like, which run no fork handlers: lets the executed program
/// use the connections that it inherits.
pub fn before_spawn() {
    if is_active() {
        errno::keeping(|| {
            connections::before_spawn();
            connections::in_parent();
        });
    }
}

/// Whether the process has rsockets of automatic mode. False in a child of vfork(2).
pub fn has_connections() -> bool {
    let mut any = false;
    if is_active() {
        table::each(|_, entry| any |= is_auto(entry));
    }
    any
}

/// Called before fork(2), and before _Fork(3), which runs no fork handlers.
pub extern "C" fn before_fork() {
    members::begin_generation();
    if is_active() {
        errno::keeping(connections::before_fork);
    }
}

/// Called in the parent after fork(2).
pub extern "C" fn in_parent() {
    if is_active() {
        errno::keeping(connections::in_parent);
    }
}

/// Called in the child after fork(2).
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
