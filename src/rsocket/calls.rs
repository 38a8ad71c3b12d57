//! The r* calls, by descriptor.

use std::ffi::{c_int, c_short};
use std::mem::{self, MaybeUninit};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{epoll_event, iovec, pollfd, sockaddr_storage};

use super::dgram::Dgram;
pub use super::dgram::ReceivedMessage;
use super::epoll::Epoll;
use super::forks;
use super::growth_budget;
use super::poll;
use super::reactor;
use super::stream::{self, Stream, Value};
use super::table::Table;
use super::watch::{Lookup, Pollable};
use crate::diag::Place;
use crate::errno::{Errno, Result};
use crate::sys::alloc::try_arc;
use crate::sys::cancel;
use crate::sys::event;
use crate::sys::own;
use crate::sys::sockaddr::{AF_IB, SockAddr};

/// What is behind a number.
enum Object {
    Socket(Socket),
    Epoll(Arc<Epoll>),
}

/// What the calls for sockets work on.
#[derive(Clone)]
enum Socket {
    Stream(Arc<Stream>),
    Datagram(Arc<Dgram>),
}

impl Socket {
    /// See [`Pollable::is_held_here`].
    fn is_held_here(&self) -> bool {
        match self {
            Socket::Stream(socket) => socket.is_held_here(),
            Socket::Datagram(socket) => socket.is_held_here(),
        }
    }
}

static TABLE: Table<Object> = Table::new();

/// Whether there was ever something in the table. In `.data`, which the loader has written to.
#[unsafe(link_section = ".data")]
static HAS_HAD_SOCKETS: AtomicBool = AtomicBool::new(false);

/// The table, for those who wait for several descriptors.
struct Sockets;

impl Lookup for Sockets {
    fn find(&self, fd: c_int) -> Option<Arc<dyn Pollable>> {
        match &*TABLE.get(fd)? {
            Object::Socket(Socket::Stream(socket)) => Some(Arc::clone(socket) as Arc<dyn Pollable>),
            Object::Socket(Socket::Datagram(socket)) => Some(Arc::clone(socket) as Arc<dyn Pollable>),
            // A descriptor of the kernel's like others.
            Object::Epoll(_) => None,
        }
    }

    /// For the look that most calls of rpoll end with.
    fn ready(&self, fd: c_int, wanted: c_short) -> Option<c_short> {
        match &*TABLE.pin(fd)? {
            // Closed ones say so.
            Object::Socket(Socket::Stream(socket)) => Some(socket.ready(wanted)),
            Object::Socket(Socket::Datagram(socket)) => Some(socket.ready(wanted)),
            Object::Epoll(_) => None,
        }
    }
}

fn socket_of(fd: c_int) -> Result<Socket> {
    match TABLE.get(fd).as_deref() {
        Some(Object::Socket(socket)) => Ok(socket.clone()),
        Some(Object::Epoll(_)) | None => Err(Errno::EBADF),
    }
}

fn stream(fd: c_int) -> Result<Arc<Stream>> {
    match socket_of(fd)? {
        Socket::Stream(stream) => Ok(stream),
        Socket::Datagram(_) => Err(Errno::EOPNOTSUPP),
    }
}

fn register(fd: c_int, object: Object) -> Result<c_int> {
    HAS_HAD_SOCKETS.store(true, Ordering::Relaxed);
    growth_budget::set_reclaim(&RECLAIM);
    // A number that is taken was closed behind our back with close(2). What was there stays as it is: ending it would close the
    // number, which is the new object's now, and destroy what the kernel has under it.
    mem::forget(TABLE.insert(fd, try_arc(object)?)?);
    Ok(fd)
}

/// Where an rsocket is connected from and to, as far as that can be told at once: for messages.
pub fn place(fd: c_int) -> Option<Place> {
    match &*TABLE.pin(fd)? {
        Object::Socket(Socket::Stream(socket)) => socket.place(),
        Object::Socket(Socket::Datagram(socket)) => socket.place(),
        Object::Epoll(_) => None,
    }
}

/// Whether there is a datagram rsocket of that number.
pub fn is_datagram(fd: c_int) -> bool {
    matches!(TABLE.pin(fd).as_deref(), Some(Object::Socket(Socket::Datagram(_))))
}

/// rsocket(3).
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int> {
    forks::watched()?;
    let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    if !matches!(domain, libc::AF_INET | libc::AF_INET6 | AF_IB) {
        return Err(Errno::ENOTSUP);
    }
    match (kind & !flags, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
            let stream = Stream::new(domain, flags)?;
            let fd = stream.fd();
            register(fd, Object::Socket(Socket::Stream(Arc::clone(&stream)))).inspect_err(|_| {
                let _ = stream.close();
            })
        }
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
            let socket = Dgram::new(domain, flags)?;
            let fd = socket.fd();
            register(fd, Object::Socket(Socket::Datagram(Arc::clone(&socket)))).inspect_err(|_| _ = socket.close())
        }
        _ => Err(Errno::ENOTSUP),
    }
}

/// rbind(3).
pub fn bind(fd: c_int, addr: &SockAddr) -> Result<()> {
    match socket_of(fd)? {
        Socket::Stream(socket) => socket.bind(addr),
        Socket::Datagram(socket) => socket.bind(addr),
    }
}

/// rlisten(3).
pub fn listen(fd: c_int, backlog: c_int) -> Result<()> {
    stream(fd)?.listen(backlog)
}

/// raccept(3): the connection's descriptor and its peer's name.
pub fn accept(fd: c_int) -> Result<(c_int, sockaddr_storage)> {
    let new = stream(fd)?.accept()?;
    let name = new.peer_name().unwrap_or(crate::sys::sockaddr::zeroed());
    let fd = new.fd();
    register(fd, Object::Socket(Socket::Stream(Arc::clone(&new)))).inspect_err(|_| {
        let _ = new.close();
    })?;
    Ok((fd, name))
}

/// rconnect(3).
pub fn connect(fd: c_int, addr: &SockAddr) -> Result<()> {
    match socket_of(fd)? {
        Socket::Stream(socket) => socket.connect(addr),
        Socket::Datagram(socket) => socket.connect(addr),
    }
}

/// rshutdown(3).
pub fn shutdown(fd: c_int, how: c_int) -> Result<()> {
    cancel::never(|| match socket_of(fd)? {
        Socket::Stream(socket) => socket.shutdown(how),
        Socket::Datagram(socket) => socket.shutdown(how),
    })
}

/// rclose(3).
pub fn close(fd: c_int) -> Result<()> {
    cancel::never(|| close_whole(fd))
}

fn close_whole(fd: c_int) -> Result<()> {
    if let Some(Object::Socket(socket)) = TABLE.pin(fd).as_deref()
        && socket.is_held_here()
    {
        // In a signal handler over another call for it, which has to go on first.
        return Err(Errno::EAGAIN);
    }
    // Out of the table first: nobody finds it on a number that may be another's the next moment.
    match &*TABLE.remove(fd, None).ok_or(Errno::EBADF)? {
        Object::Socket(Socket::Stream(socket)) => socket.close(),
        Object::Socket(Socket::Datagram(socket)) => socket.close(),
        Object::Epoll(epoll) => {
            epoll.close();
            Ok(())
        }
    }
}

/// In the child of a fork(): forgets the threads that were about to find something.
///
/// # Safety
/// The process has no other thread.
pub(super) unsafe fn after_fork() {
    // SAFETY: the process has no other thread: guaranteed by the caller; fork() is not called from
    // within the table.
    unsafe { TABLE.after_fork() };
}

/// Receives what is there, for the usual call on a stream; errno stays as it is. `Err` when [`receive_one`] is for it: whether
/// nothing was there just now.
///
/// # Safety
/// Writable for `len` bytes.
#[expect(clippy::inline_always, reason = "a third of the work would be registers saved and restored")]
#[inline(always)]
pub unsafe fn receive_at_once(fd: c_int, start: *mut u8, len: usize, flags: c_int) -> std::result::Result<usize, bool> {
    match TABLE.pin(fd).as_deref() {
        // SAFETY: writable for `len` bytes: guaranteed by the caller.
        Some(Object::Socket(Socket::Stream(socket))) => unsafe { socket.receive_at_once(start, len, flags) },
        _ => Err(false),
    }
}

/// rrecv(3) and rread(3), after [`receive_at_once`]; `looked` is what that said.
///
/// # Safety
/// Buffer writable for its length.
pub unsafe fn receive_one(fd: c_int, buffer: iovec, flags: c_int, looked: bool) -> Result<usize> {
    match TABLE.get(fd).as_deref() {
        // SAFETY: buffer writable for its length: guaranteed by the caller.
        Some(Object::Socket(Socket::Stream(socket))) if looked => unsafe { socket.receive_one(buffer, flags) },
        // SAFETY: buffer writable for its length: guaranteed by the caller.
        _ => unsafe { receive(fd, &[buffer], flags).map(|received| received.len) },
    }
}

/// rrecvmsg(3) and its relatives.
///
/// # Safety
/// Buffers writable for their lengths.
pub unsafe fn receive(fd: c_int, buffers: &[iovec], flags: c_int) -> Result<ReceivedMessage> {
    match TABLE.get(fd).as_deref() {
        // SAFETY: buffers writable for their lengths: guaranteed by the caller.
        Some(Object::Socket(Socket::Stream(socket))) => unsafe {
            Ok(ReceivedMessage { len: socket.receive(buffers, flags)?, from: None, flags: 0 })
        },
        // SAFETY: buffers writable for their lengths: guaranteed by the caller.
        Some(Object::Socket(Socket::Datagram(socket))) => unsafe { socket.receive(buffers, flags) },
        Some(Object::Epoll(_)) | None => Err(Errno::EBADF),
    }
}

/// Sends a small message if that needs no waiting, allocating or explaining; errno stays as it is. Otherwise [`send`] is for it.
///
/// # Safety
/// Readable for `len` bytes.
#[expect(clippy::inline_always, reason = "a third of the work would be registers saved and restored")]
#[inline(always)]
pub unsafe fn send_at_once(fd: c_int, data: *const u8, len: usize, flags: c_int) -> bool {
    let Some(data) = NonNull::new(data.cast_mut()) else { return false };
    match TABLE.pin(fd).as_deref() {
        // SAFETY: readable for `len` bytes: guaranteed by the caller.
        Some(Object::Socket(Socket::Stream(socket))) => unsafe { socket.send_at_once(data, len, flags) },
        _ => false,
    }
}

/// As [`send_at_once`] for several buffers: the number of bytes if all were sent.
///
/// # Safety
/// Buffers readable for their lengths.
pub unsafe fn send_gathered_at_once(fd: c_int, buffers: &[iovec], flags: c_int) -> Option<usize> {
    match TABLE.pin(fd).as_deref() {
        // SAFETY: readable: guaranteed by the caller.
        Some(Object::Socket(Socket::Stream(socket))) => unsafe { socket.send_gathered_at_once(buffers, flags) },
        _ => None,
    }
}

/// rsend(3) and its relatives. A stream has no use for an address, and does not look at it: programs give what is no
/// address (sockperf what recvfrom() left as it was), as TCP lets them.
///
/// # Safety
/// Buffers readable for their lengths.
pub unsafe fn send(
    fd: c_int,
    buffers: &[iovec],
    flags: c_int,
    to: impl FnOnce() -> Result<Option<SockAddr>>,
) -> Result<usize> {
    match TABLE.get(fd).as_deref() {
        // SAFETY: buffers readable for their lengths: guaranteed by the caller.
        Some(Object::Socket(Socket::Stream(socket))) => unsafe {
            socket.send(buffers, flags).inspect_err(|&error| broken_pipe(socket, error, flags))
        },
        // SAFETY: buffers readable for their lengths: guaranteed by the caller.
        Some(Object::Socket(Socket::Datagram(socket))) => unsafe { socket.send(buffers, flags, to()?.as_ref()) },
        Some(Object::Epoll(_)) | None => Err(Errno::EBADF),
    }
}

/// Raises SIGPIPE where the program expects it.
#[cold]
fn broken_pipe(socket: &Stream, error: Errno, flags: c_int) {
    if error == Errno::EPIPE && flags & libc::MSG_NOSIGNAL == 0 && socket.raises_sigpipe() {
        // SAFETY: a signal to this thread, which holds no lock.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
}

/// For [`send`]: without an address.
pub fn no_address() -> Result<Option<SockAddr>> {
    Ok(None)
}

/// rpoll(3).
pub fn poll(fds: &mut [pollfd], timeout: c_int) -> Result<c_int> {
    poll::poll(&Sockets, fds, timeout)
}

/// What rselect() looks at.
pub fn lookup() -> &'static dyn Lookup {
    &Sockets
}

/// rgetsockname(3).
pub fn local_name(fd: c_int) -> Result<sockaddr_storage> {
    match socket_of(fd)? {
        Socket::Stream(socket) => socket.local_name(),
        Socket::Datagram(socket) => socket.local_name(),
    }
}

/// rgetpeername(3).
pub fn peer_name(fd: c_int) -> Result<sockaddr_storage> {
    match socket_of(fd)? {
        Socket::Stream(socket) => socket.peer_name(),
        Socket::Datagram(socket) => socket.peer_name(),
    }
}

/// rgetsockopt(3).
pub fn option(fd: c_int, level: c_int, name: c_int) -> Result<Value> {
    if level == rdmacm_private::LEVEL && name == rdmacm_private::LONGEST_TURN {
        return Ok(Value::int(reactor::longest_turn()));
    }
    if level == rdmacm_private::LEVEL {
        return Ok(Value::int(own::is_own(fd).into()));
    }
    match socket_of(fd)? {
        Socket::Stream(socket) => socket.option(level, name),
        Socket::Datagram(socket) => socket.option(level, name),
    }
}

/// rsetsockopt(3).
pub fn set_option(fd: c_int, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
    match (level, name) {
        (rdmacm_private::LEVEL, rdmacm_private::FAREWELL) => {
            flush_all_on_exit();
            return Ok(());
        }
        (rdmacm_private::LEVEL, rdmacm_private::SIGPIPE) => return stream(fd)?.set_sigpipe(),
        (rdmacm_private::LEVEL, _) => {
            own::keep_apart();
            return Ok(());
        }
        _ => {}
    }
    match socket_of(fd)? {
        Socket::Stream(socket) => socket.set_option(level, name, value),
        Socket::Datagram(socket) => socket.set_option(level, name, value),
    }
}

/// Before the destructors of libibverbs, on which this library depends.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static ON_EXIT: extern "C" fn() = at_exit;

/// The process ends: what streams have sent arrives, as far as the program has closed them or shut
/// them down. A process that never had an rsocket touches no other page of the library.
#[cfg(not(test))]
#[unsafe(link_section = ".text.startup")]
extern "C" fn at_exit() {
    if HAS_HAD_SOCKETS.load(Ordering::Relaxed) {
        flush_at_exit();
    }
}

#[cfg(not(test))]
#[cold]
#[inline(never)]
fn flush_at_exit() {
    TABLE.for_each(|_, object| {
        if let Object::Socket(Socket::Stream(stream)) = &*object {
            stream.flush_on_exit(false);
        }
    });
    stream::wait_for_all();
}

/// The process ends: streams say their last words, as sockets do that nobody has closed.
fn flush_all_on_exit() {
    TABLE.for_each(|_, object| {
        if let Object::Socket(Socket::Stream(stream)) = &*object {
            stream.flush_on_exit(true);
        }
    });
    stream::wait_for_all();
}

/// For streams that lack memory.
static RECLAIM: fn() = give_memory_back;

/// Has idle streams give back the memory that their buffers have grown by. Those that are busy, or
/// locked, keep it.
fn give_memory_back() {
    TABLE.for_each(|_, object| {
        if let Object::Socket(Socket::Stream(stream)) = &*object {
            stream.give_memory_back();
        }
    });
}

/// rfcntl(3); `argument` is read by the commands that have one.
pub fn control(fd: c_int, command: c_int, argument: usize) -> Result<c_int> {
    let stream = match socket_of(fd)? {
        Socket::Stream(stream) => stream,
        Socket::Datagram(socket) => return socket.control(command, argument as c_int),
    };
    match command {
        libc::F_GETFL => stream.flags(),
        libc::F_SETFL => stream.set_flags(argument as c_int).map(|()| 0),
        libc::F_GETFD | libc::F_SETFD => event::fcntl(fd, command, argument as c_int),
        _ => Err(Errno::ENOTSUP),
    }
}

/// riomap(3).
///
/// # Safety
/// See [`Stream::map`].
pub unsafe fn map(fd: c_int, start: NonNull<u8>, len: usize, prot: c_int, offset: i64) -> Result<i64> {
    // SAFETY: see [`Stream::map`]: guaranteed by the caller.
    unsafe { stream(fd)?.map(start, len, prot, offset) }
}

/// riounmap(3).
pub fn unmap(fd: c_int, start: usize, len: usize) -> Result<()> {
    stream(fd)?.unmap(start, len)
}

/// riowrite(3).
///
/// # Safety
/// Readable for its length.
pub unsafe fn write_mapped(fd: c_int, data: &[u8], offset: u64, flags: c_int) -> Result<usize> {
    // SAFETY: readable for its length: guaranteed by the caller.
    unsafe { stream(fd)?.write_mapped(data, offset, flags) }
}

/// repoll_create(3).
pub fn epoll_create(flags: c_int) -> Result<c_int> {
    let epoll = Epoll::create(flags)?;
    let fd = epoll.fd();
    register(fd, Object::Epoll(Arc::clone(&epoll))).inspect_err(|_| epoll.close())
}

/// What repoll_create() made under a number: `EINVAL` for another descriptor, as of the kernel's.
fn epoll(fd: c_int) -> Result<Arc<Epoll>> {
    match TABLE.get(fd).as_deref() {
        Some(Object::Epoll(epoll)) => Ok(Arc::clone(epoll)),
        Some(Object::Socket(_)) => Err(Errno::EINVAL),
        None => Err(Errno::EBADF),
    }
}

/// repoll_ctl(3).
pub fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: Option<epoll_event>) -> Result<()> {
    epoll(epfd)?.control(&Sockets, operation, fd, event)
}

/// repoll_wait(3): how many of `events` are set.
pub fn epoll_wait(epfd: c_int, events: &mut [MaybeUninit<epoll_event>], timeout: c_int) -> Result<usize> {
    epoll(epfd)?.wait(events, timeout)
}
