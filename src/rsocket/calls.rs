//! The r* calls: each looks up the object of a descriptor and calls a method of the object.

use std::ffi::{c_int, c_short};
use std::mem::{self, MaybeUninit};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::private;
use libc::{epoll_event, iovec, pollfd, sockaddr_storage, timeval};

use super::dgram::Dgram;
pub use super::dgram::ReceivedMessage;
use super::epoll::Epoll;
use super::pollable::{self, Lookup, Pollable};
use super::select::{self, Sets};
use super::stream::{self, Received, Stream, Value};
use super::table::Table;
use super::{pinned_budget, poll, process};
use crate::diag::{self, Endpoints};
use crate::errno::{Errno, Result};
use crate::os::alloc::try_arc;
use crate::os::mark::Mark;
use crate::os::sockaddr::{AF_IB, SockAddr};
use crate::os::{cancel, event, library_fds};

/// The object behind a descriptor.
#[derive(Clone)]
enum Object {
    Socket(Socket),
    Epoll(Arc<Epoll>),
}

impl Object {
    fn close(&self) -> Result<()> {
        match self {
            Object::Socket(Socket::Stream(socket)) => socket.close(),
            Object::Socket(Socket::Datagram(socket)) => return socket.close(),
            Object::Epoll(epoll) => epoll.close(),
        }
        Ok(())
    }
}

/// The object behind the descriptor of an rsocket.
#[derive(Clone)]
enum Socket {
    Stream(Arc<Stream>),
    Datagram(Arc<Dgram>),
}

/// Makes the same call for either kind of socket.
macro_rules! for_either {
    ($socket:expr, |$name:ident| $call:expr) => {
        match $socket {
            Socket::Stream($name) => $call,
            Socket::Datagram($name) => $call,
        }
    };
}

static TABLE: Table<Object> = Table::new();

/// Whether the table has ever had an object. The flag is in `.data`, whose page the loader has
/// already written to: [`at_exit`] reads the flag without touching another page.
#[unsafe(link_section = ".data")]
static HAS_HAD_SOCKETS: AtomicBool = AtomicBool::new(false);

/// Looks up rsockets in the table for calls that wait for several descriptors.
struct Sockets;

impl Lookup for Sockets {
    #[inline]
    fn find(&self, fd: c_int) -> Option<Arc<dyn Pollable>> {
        match TABLE.get(fd).as_deref() {
            Some(Object::Socket(socket)) => Some(for_either!(socket, |socket| Arc::clone(socket) as Arc<dyn Pollable>)),
            // The kernel polls an epoll instance like any other descriptor.
            Some(Object::Epoll(_)) => None,
            None if library_fds::is_closing(fd) => pollable::closed().ok(),
            None => None,
        }
    }

    #[inline(always)] // rpoll comes here for each descriptor
    fn ready(&self, fd: c_int, wanted: c_short) -> Option<c_short> {
        let Some(pinned) = TABLE.pin(fd) else {
            return library_fds::is_closing(fd).then_some(libc::POLLNVAL);
        };
        match &*pinned {
            // A closed rsocket returns POLLNVAL.
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

/// Makes `object` the object of `fd`, and returns `fd`. Closes the object on failure.
fn register(fd: c_int, object: Object) -> Result<c_int> {
    HAS_HAD_SOCKETS.store(true, Ordering::Relaxed);
    pinned_budget::set_reclaim(&RECLAIM);
    let previous = try_arc(object.clone()).and_then(|new| TABLE.insert(fd, new)).inspect_err(|_| _ = object.close())?;
    // The program has closed the descriptor of a previous object with close(2), not rclose(3). The
    // previous object is leaked: dropping it would close the descriptor and destroy the kernel
    // object behind it, which both belong to the new object now.
    mem::forget(previous);
    Ok(fd)
}

/// Returns the addresses of an rsocket for log messages, as far as they are known.
pub fn endpoints(fd: c_int) -> Option<Endpoints> {
    match &*TABLE.pin(fd)? {
        Object::Socket(socket) => for_either!(socket, |socket| socket.endpoints()),
        Object::Epoll(_) => None,
    }
}

/// Returns whether the descriptor is a datagram rsocket.
pub fn is_datagram(fd: c_int) -> bool {
    matches!(TABLE.pin(fd).as_deref(), Some(Object::Socket(Socket::Datagram(_))))
}

/// rsocket(3). Returns the descriptor.
pub fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Result<c_int> {
    process::register()?;
    let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    if !matches!(domain, libc::AF_INET | libc::AF_INET6 | AF_IB) {
        return Err(Errno::ENOTSUP);
    }
    match (kind & !flags, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
            let stream = Stream::new(domain, flags)?;
            register(stream.fd, Object::Socket(Socket::Stream(stream)))
        }
        (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
            let socket = Dgram::new(domain, flags)?;
            register(socket.fd, Object::Socket(Socket::Datagram(socket)))
        }
        _ => Err(Errno::ENOTSUP),
    }
}

/// rbind(3).
pub fn bind(fd: c_int, addr: &SockAddr) -> Result<()> {
    for_either!(socket_of(fd)?, |socket| socket.bind(addr))
}

/// rlisten(3).
pub fn listen(fd: c_int, backlog: c_int) -> Result<()> {
    stream(fd)?.listen(backlog)
}

/// raccept(3). Returns the connection's descriptor and its peer's address.
pub fn accept(fd: c_int) -> Result<(c_int, sockaddr_storage)> {
    let new = stream(fd)?.accept()?;
    let name = new.peer_name().unwrap_or(crate::os::sockaddr::zeroed());
    Ok((register(new.fd, Object::Socket(Socket::Stream(new)))?, name))
}

/// rconnect(3). `addr` is `None` for AF_UNSPEC, which dissolves the association of a datagram
/// rsocket, and fails with `EAFNOSUPPORT` for a stream.
pub fn connect(fd: c_int, addr: Option<&SockAddr>) -> Result<()> {
    match (socket_of(fd)?, addr) {
        (Socket::Stream(socket), Some(addr)) => socket.connect(addr),
        (Socket::Stream(_), None) => Err(Errno::EAFNOSUPPORT),
        (Socket::Datagram(socket), Some(addr)) => socket.connect(addr),
        (Socket::Datagram(socket), None) => socket.disconnect(),
    }
}

/// rshutdown(3).
pub fn shutdown(fd: c_int, how: c_int) -> Result<()> {
    cancel::never(|| for_either!(socket_of(fd)?, |socket| socket.shutdown(how)))
}

/// rclose(3).
pub fn close(fd: c_int) -> Result<()> {
    cancel::never(|| {
        drop(TABLE.pin(fd).ok_or(Errno::EBADF)?);
        library_fds::begin_close(fd);
        // Remove the object from the table first: the descriptor may be reused as soon as it is closed.
        match TABLE.remove(fd) {
            Some(object) => object.close(),
            // Another thread was faster.
            None => {
                library_fds::end_close(fd);
                Err(Errno::EBADF)
            }
        }
    })
}

/// Clears the pins of the parent's threads in the child of a fork().
///
/// # Safety
/// The process has no other thread.
pub(super) unsafe fn after_fork() {
    // SAFETY: the process has no other thread: guaranteed by the caller; the table does not call
    // fork().
    unsafe { TABLE.after_fork() };
}

/// Fast path of a stream: receives buffered data, or waits for data, without setting errno. Returns
/// `None`, and has done nothing, if [`receive`] has to be called.
///
/// # Safety
/// `start` is NULL, or `len` bytes there are writable.
#[inline(always)] // a third of the work would be registers saved and restored
pub unsafe fn receive_at_once(fd: c_int, start: *mut u8, len: usize, flags: c_int) -> Option<Result<usize>> {
    let mark = Mark::set()?;
    let pinned = TABLE.pin(fd)?;
    let Object::Socket(Socket::Stream(socket)) = &*pinned else { return None };
    // SAFETY: `start` is NULL, or `len` bytes there are writable: guaranteed by the caller.
    match unsafe { socket.receive_at_once(start, len, flags) } {
        Received::Data(len) => {
            // Drop here, so that this path shares no code with the others, which need the arguments
            // again.
            drop(pinned);
            drop(mark);
            Some(Ok(len))
        }
        Received::Unusual => None,
        Received::WouldBlock => Some(Err(Errno::EAGAIN)),
        Received::Nothing => {
            // Release the pin before the call waits, and keep the stream by a reference.
            let stream = Arc::clone(socket);
            drop(pinned);
            // SAFETY: `len` bytes at `start` are writable: guaranteed by the caller; with
            // `Nothing`, this thread has locked the stream.
            match unsafe { receive_locked(stream, start, len, flags) } {
                done @ 0.. => Some(Ok(done as usize)),
                error => Some(Err(Errno::new(-error as c_int))),
            }
        }
    }
}

/// Continues a [`receive_at_once`] that has found no data. Returns the number of bytes or a
/// negative errno: a single word, which is returned in a register.
///
/// # Safety
/// `len` bytes at `start` are writable. This thread has locked the stream.
#[inline(never)]
unsafe fn receive_locked(stream: Arc<Stream>, start: *mut u8, len: usize, flags: c_int) -> isize {
    // SAFETY: `len` bytes at `start` are writable, and this thread has locked the stream:
    // guaranteed by the caller.
    let result = base::errno::keeping_if(|| unsafe { stream.receive_locked(start, len, flags) }, Result::is_ok);
    result.map_or_else(|error| -(error.get() as isize), |len| len as isize)
}

/// rrecvmsg(3) and related calls.
///
/// # Safety
/// The buffers are writable.
pub unsafe fn receive(fd: c_int, buffers: &[iovec], flags: c_int) -> Result<ReceivedMessage> {
    match TABLE.get(fd).as_deref() {
        // SAFETY: the buffers are writable: guaranteed by the caller.
        Some(Object::Socket(Socket::Stream(socket))) => unsafe {
            Ok(ReceivedMessage { len: socket.receive(buffers, flags)?, from: None, flags: 0 })
        },
        // SAFETY: the buffers are writable: guaranteed by the caller.
        Some(Object::Socket(Socket::Datagram(socket))) => unsafe { socket.receive(buffers, flags) },
        Some(Object::Epoll(_)) | None => Err(Errno::EBADF),
    }
}

/// Fast path: sends a small message if this needs no waiting, no allocation and no log line,
/// without setting errno. Returns false if [`send`] has to be called.
///
/// # Safety
/// `data` is NULL, or `len` bytes there are readable.
#[inline(always)] // a third of the work would be registers saved and restored
pub unsafe fn send_at_once(fd: c_int, data: *const u8, len: usize, flags: c_int) -> bool {
    let Some(mark) = Mark::set() else { return false };
    let Some(data) = NonNull::new(data.cast_mut()) else { return false };
    let Some(pinned) = TABLE.pin(fd) else { return false };
    let Object::Socket(Socket::Stream(socket)) = &*pinned else { return false };
    // SAFETY: `len` bytes at `data` are readable: guaranteed by the caller.
    let sent = unsafe { socket.send_at_once(data, len, flags) };
    if sent {
        // Drop here, so that this path shares no code with the others, which need the arguments
        // again.
        drop(pinned);
        drop(mark);
    }
    sent
}

/// Like [`send_at_once`] for several buffers. Returns the number of bytes if all were sent.
///
/// # Safety
/// The buffers are readable.
pub unsafe fn send_gathered_at_once(fd: c_int, buffers: &[iovec], flags: c_int) -> Option<usize> {
    let _mark = Mark::set()?;
    match TABLE.pin(fd).as_deref() {
        // SAFETY: the buffers are readable: guaranteed by the caller.
        Some(Object::Socket(Socket::Stream(socket))) => unsafe { socket.send_gathered_at_once(buffers, flags) },
        _ => None,
    }
}

/// rsend(3) and related calls. Streams ignore the address without validating it, like TCP: some
/// programs pass invalid ones (sockperf passes what recvfrom() left unchanged).
///
/// # Safety
/// The buffers are readable.
pub unsafe fn send(
    fd: c_int,
    buffers: &[iovec],
    flags: c_int,
    to: impl FnOnce() -> Result<Option<SockAddr>>,
) -> Result<usize> {
    match TABLE.get(fd).as_deref() {
        // SAFETY: the buffers are readable: guaranteed by the caller.
        Some(Object::Socket(Socket::Stream(socket))) => unsafe {
            socket.send(buffers, flags).inspect_err(|&error| broken_pipe(socket, error, flags))
        },
        // SAFETY: the buffers are readable: guaranteed by the caller.
        Some(Object::Socket(Socket::Datagram(socket))) => unsafe { socket.send(buffers, flags, to()?.as_ref()) },
        Some(Object::Epoll(_)) | None => Err(Errno::EBADF),
    }
}

/// Raises SIGPIPE for `EPIPE`, if librspreload has requested this for the stream and `flags` do not
/// contain MSG_NOSIGNAL.
#[cold]
fn broken_pipe(socket: &Stream, error: Errno, flags: c_int) {
    if error == Errno::EPIPE && flags & libc::MSG_NOSIGNAL == 0 && socket.raises_sigpipe() {
        // `sleep` clears the thread's mark, so that a handler of the signal may make calls.
        // SAFETY: raises a signal for this thread, which holds no lock.
        cancel::sleep(|| unsafe { libc::raise(libc::SIGPIPE) });
    }
}

/// The `to` argument of [`send`] for calls without an address.
pub fn no_address() -> Result<Option<SockAddr>> {
    Ok(None)
}

/// rpoll(3).
pub fn poll(fds: &mut [pollfd], timeout: c_int) -> Result<c_int> {
    poll::poll(&Sockets, fds, timeout)
}

/// rselect(3).
pub fn select(nfds: c_int, sets: &mut Sets<'_>, timeout: Option<&mut timeval>) -> Result<c_int> {
    select::select(&Sockets, nfds, sets, timeout)
}

/// rgetsockname(3).
pub fn local_name(fd: c_int) -> Result<sockaddr_storage> {
    for_either!(socket_of(fd)?, |socket| socket.local_name())
}

/// rgetpeername(3).
pub fn peer_name(fd: c_int) -> Result<sockaddr_storage> {
    for_either!(socket_of(fd)?, |socket| socket.peer_name())
}

/// Returns the address that rrecvfrom(3) reports for data of a stream: the peer's as in rdma-core,
/// none for programs that expect TCP.
pub fn sender(fd: c_int) -> Option<sockaddr_storage> {
    let stream = stream(fd).ok().filter(|stream| !stream.raises_sigpipe())?;
    stream.peer_name().ok()
}

/// Returns whether librspreload may use this option in the middle of another call and around a
/// fork(): true for the private options that take no rsocket's lock.
pub fn is_asked_at_any_time(level: c_int, name: c_int) -> bool {
    level == private::LEVEL && [private::FORK, private::IS_OWN, private::LOG, private::MARKS].contains(&name)
}

/// rgetsockopt(3).
pub fn option(fd: c_int, level: c_int, name: c_int) -> Result<Value> {
    match (level, name) {
        (private::LEVEL, private::IS_OWN) => Ok(Value::int(library_fds::is_own(fd).into())),
        (private::LEVEL, private::MARKS) => Ok(Value::marks(library_fds::marks())),
        _ => for_either!(socket_of(fd)?, |socket| socket.option(level, name)),
    }
}

/// rsetsockopt(3).
pub fn set_option(fd: c_int, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
    match (level, name) {
        (private::LEVEL, private::FLUSH_ON_EXIT) => flush_streams(true),
        (private::LEVEL, private::LOG) => diag::note("librspreload", value),
        (private::LEVEL, private::RESERVE_LOW_FDS) => library_fds::reserve_low_fds(),
        (private::LEVEL, private::SIGPIPE) => stream(fd)?.set_sigpipe()?,
        (private::LEVEL, private::CANCEL) => stream(fd)?.cancel_attempt()?,
        (private::LEVEL, private::HANDED_OVER) => stream(fd)?.hand_over()?,
        (private::LEVEL, private::HAND_OVER) => hand_over(fd, value)?,
        (private::LEVEL, private::FORK) => process::step(stream::number(value)?)?,
        _ => for_either!(socket_of(fd)?, |socket| socket.set_option(level, name, value))?,
    }
    Ok(())
}

/// Runs when the process exits: waits until the data of streams that the program has closed or shut
/// down has arrived. If the process never had an rsocket, touches only the pages of this function
/// and of the flag.
#[unsafe(link_section = ".text.startup")]
pub fn at_exit() {
    // Does nothing if a signal handler that has interrupted a call exits.
    if HAS_HAD_SOCKETS.load(Ordering::Relaxed)
        && let Some(_mark) = Mark::set()
    {
        flush_streams(false);
    }
}

/// Waits until the data of all streams that the program has closed or shut down has arrived. If
/// `all` is set (a process under librspreload exits), flushes and disconnects the other streams,
/// too, as the kernel does with sockets that a program leaves open.
#[cold]
#[inline(never)]
fn flush_streams(all: bool) {
    for_each_stream(|stream| stream.flush_on_exit(all));
    stream::wait_for_all();
}

/// Called when a new connection lacks memory: makes idle streams return the growth of their
/// buffers. Streams that are busy or locked keep it.
static RECLAIM: fn() = || for_each_stream(Stream::give_memory_back);

fn for_each_stream(each: impl Fn(&Stream)) {
    TABLE.for_each(|object| {
        if let Object::Socket(Socket::Stream(stream)) = &*object {
            each(stream);
        }
    });
}

/// rfcntl(3). Commands without an argument ignore `argument`.
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

/// riomap(3). Returns the offset.
///
/// # Safety
/// The memory stays mapped until riounmap(3) or rclose(3), and the program expects that the peer
/// writes there.
pub unsafe fn map(fd: c_int, start: NonNull<u8>, len: usize, prot: c_int, offset: i64) -> Result<i64> {
    // SAFETY: the conditions of [`Stream::map`] are guaranteed by the caller.
    unsafe { stream(fd)?.map(start, len, prot, offset) }
}

/// riounmap(3).
pub fn unmap(fd: c_int, start: usize, len: usize) -> Result<()> {
    stream(fd)?.unmap(start, len)
}

/// riowrite(3). Returns the number of bytes written.
///
/// # Safety
/// `data` is readable memory of the program.
pub unsafe fn write_mapped(fd: c_int, data: &[u8], offset: u64, flags: c_int) -> Result<usize> {
    // SAFETY: `data` is readable: guaranteed by the caller.
    unsafe { stream(fd)?.write_mapped(data, offset, flags) }
}

/// repoll_create(3). Returns the descriptor.
pub fn epoll_create(flags: c_int) -> Result<c_int> {
    let epoll = Epoll::create(flags)?;
    register(epoll.fd, Object::Epoll(epoll))
}

/// Returns the repoll instance of `fd`. Fails with `EINVAL` for an rsocket, and with `EBADF` if
/// `fd` is neither.
fn epoll(fd: c_int) -> Result<Arc<Epoll>> {
    match TABLE.get(fd).as_deref() {
        Some(Object::Epoll(epoll)) => Ok(Arc::clone(epoll)),
        Some(Object::Socket(_)) => Err(Errno::EINVAL),
        None => Err(Errno::EBADF),
    }
}

/// Moves a member of the repoll instance `fd` to a kernel epoll instance of the program, where
/// another descriptor replaces the member. `value` is a [`Handover`](private::Handover).
fn hand_over(fd: c_int, value: &[u8]) -> Result<()> {
    let int = |at: usize| stream::number(value.get(at..).unwrap_or_default());
    let member = int(mem::offset_of!(private::Handover, member))?;
    let new = int(mem::offset_of!(private::Handover, fd))?;
    let epfd = int(mem::offset_of!(private::Handover, epfd))?;
    epoll(fd)?.hand_over(member, new, epfd)
}

/// repoll_ctl(3).
pub fn epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: Option<epoll_event>) -> Result<()> {
    epoll(epfd)?.control(&Sockets, operation, fd, event)
}

/// repoll_wait(3). Returns the number of events written to `events`.
pub fn epoll_wait(epfd: c_int, events: &mut [MaybeUninit<epoll_event>], timeout: c_int) -> Result<usize> {
    epoll(epfd)?.wait(events, timeout)
}
