//! `rdma/rsocket.h`: sockets over RDMA.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::slice;

use libc::{epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};
use rdmacm_core::diag::{self, probes};
use rdmacm_core::errno::Result;
use rdmacm_core::ffi::rfcntl_argument;
use rdmacm_core::os::cancel;
use rdmacm_core::os::sockaddr::SockAddr;
use rdmacm_core::rsocket::calls;
use rdmacm_core::{Errno, rsocket as core};

use crate::args::{self, array, buffer, buffers, name_out};
use crate::report::{Call, report, report_quick, report_unmarked, report_waiting, would_block};
use crate::status;

/// Creates an rsocket: AF_INET, AF_INET6 or AF_IB; SOCK_STREAM or SOCK_DGRAM, optionally with
/// SOCK_NONBLOCK and SOCK_CLOEXEC.
///
/// Returns a descriptor for the calls below, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsocket(domain: c_int, r#type: c_int, protocol: c_int) -> c_int {
    report(Call::new("rsocket"), -1, || calls::socket(domain, r#type, protocol))
}

/// bind(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbind(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
    // SAFETY: `addr` is NULL or readable for `addrlen` bytes (crate documentation).
    report(unsafe { Call::socket("rbind", socket).with(addr, addrlen) }, -1, || {
        // SAFETY: `addr` is NULL or readable for `addrlen` bytes (crate documentation).
        calls::bind(socket, &unsafe { args::sized_address(addr, addrlen)? }).map(|()| 0)
    })
}

/// listen(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    status(Call::socket("rlisten", socket), || calls::listen(socket, backlog))
}

/// accept(2) for rsockets; the new rsocket has the listener's options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raccept(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int {
    report_waiting(Call::socket("raccept", socket), -1, || {
        let (fd, name) = calls::accept(socket)?;
        // SAFETY: `addrlen` is NULL or valid, and `addr` is NULL or writable for `*addrlen` bytes
        // (crate documentation).
        unsafe {
            name_out(Some(&name), addr, addrlen).inspect_err(|_| {
                let _ = calls::close(fd);
            })?
        };
        probes::rs_accept(socket, fd);
        Ok(fd)
    })
}

/// connect(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rconnect(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
    probes::rs_connect(socket);
    // SAFETY: `addr` is NULL or readable for `addrlen` bytes (crate documentation).
    report_waiting(unsafe { Call::socket("rconnect", socket).with(addr, addrlen) }, -1, || {
        // SAFETY: `addr` is NULL or readable for `addrlen` bytes (crate documentation).
        calls::connect(socket, unsafe { peer_to_connect(addr, addrlen)? }.as_ref()).map(|()| 0)
    })
}

/// Copies the address argument of rconnect(3). Returns `None` for AF_UNSPEC.
///
/// # Safety
/// `addr` is NULL or readable for `len` bytes.
unsafe fn peer_to_connect(addr: *const sockaddr, len: socklen_t) -> Result<Option<SockAddr>> {
    let has_family = !addr.is_null() && len as usize >= size_of::<libc::sa_family_t>();
    // SAFETY: the family lies within the `len` bytes, which are readable: guaranteed by the caller.
    if has_family && unsafe { (&raw const (*addr).sa_family).read_unaligned() } == libc::AF_UNSPEC as u16 {
        return Ok(None);
    }
    // SAFETY: NULL or readable for `len` bytes: guaranteed by the caller.
    unsafe { args::sized_address(addr, len).map(Some) }
}

/// shutdown(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    status(Call::socket("rshutdown", socket), || calls::shutdown(socket, how))
}

/// close(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rclose(socket: c_int) -> c_int {
    probes::rs_close(socket);
    status(Call::socket("rclose", socket), || calls::close(socket))
}

/// rrecv(3), or rread(3) if `READ`: tries the fast path first.
///
/// # Safety
/// `buf` is NULL or writable for `len` bytes.
#[inline]
unsafe fn receive<const READ: bool>(socket: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: `buf` is NULL or writable for `len` bytes: guaranteed by the caller.
    unsafe {
        match calls::receive_at_once(socket, buf.cast(), len, flags) {
            Some(Ok(done)) => {
                probes::rs_recv(socket, done);
                done as ssize_t
            }
            Some(Err(Errno::EAGAIN)) if !diag::is_on() => would_block() as ssize_t,
            Some(Err(error)) => receive_failed::<READ>(socket, error),
            None => receive_any::<READ>(socket, buf, len, flags),
        }
    }
}

/// rrecv(3), or rread(3) if `READ`, without the fast path.
///
/// # Safety
/// `buf` is NULL or writable for `len` bytes.
#[cold]
#[inline(never)]
unsafe fn receive_any<const READ: bool>(socket: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let call = Call::socket(if READ { "rread" } else { "rrecv" }, socket);
    // SAFETY: `buf` is NULL or writable for `len` bytes: guaranteed by the caller.
    report_waiting(call, -1, || unsafe {
        let buffers = [buffer(buf, len)?];
        if READ { read(socket, &buffers) } else { Ok(received(socket, &buffers, flags)?.len as ssize_t) }
    })
}

/// read(2) and readv(2), which return 0 at once if they ask for no bytes.
///
/// # Safety
/// The buffers are writable for their lengths.
unsafe fn read(socket: c_int, buffers: &[iovec]) -> Result<ssize_t> {
    let is_empty = buffers.iter().all(|buffer| buffer.iov_len == 0);
    let flags = if is_empty { libc::MSG_DONTWAIT | libc::MSG_PEEK } else { 0 };
    // SAFETY: the buffers are writable for their lengths: guaranteed by the caller.
    match unsafe { received(socket, buffers, flags) } {
        Err(Errno::EAGAIN) if is_empty => Ok(0),
        received => Ok(received?.len as ssize_t),
    }
}

#[cold]
#[inline(never)]
fn receive_failed<const READ: bool>(socket: c_int, error: Errno) -> ssize_t {
    report_quick(Call::socket(if READ { "rread" } else { "rrecv" }, socket), -1, || {
        // Other errors are reported only once, so cancellation must not discard them.
        if error == Errno::EAGAIN {
            cancel::test();
        }
        Err(error)
    })
}

/// recv(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecv(socket: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: `buf` is NULL or writable for `len` bytes (crate documentation).
    unsafe { receive::<false>(socket, buf, len, flags) }
}

/// recvfrom(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    src_addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    report_waiting(Call::socket("rrecvfrom", socket), -1, || {
        // SAFETY: `buf` is NULL or writable for `len` bytes, `addrlen` is NULL or valid, and
        // `src_addr` is NULL or writable for `*addrlen` bytes (crate documentation).
        unsafe {
            let received = received(socket, &[buffer(buf, len)?], flags)?;
            let is_asked = !src_addr.is_null() && received.len > 0;
            let from = received.from.or_else(|| is_asked.then(|| calls::sender(socket)).flatten());
            name_out(from.as_ref(), src_addr, addrlen)?;
            Ok(received.len as ssize_t)
        }
    })
}

/// recvmsg(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    report_waiting(Call::socket("rrecvmsg", socket), -1, || {
        // SAFETY: `msg` is NULL, or a message that nothing else uses and whose buffers and address
        // are NULL or writable for their lengths (crate documentation).
        unsafe {
            let msg = msg.as_mut().ok_or(Errno::EFAULT)?;
            let received = received(socket, buffers(msg.msg_iov, msg.msg_iovlen)?, flags)?;
            name_out(received.from.as_ref(), msg.msg_name.cast(), &raw mut msg.msg_namelen)?;
            msg.msg_controllen = 0;
            msg.msg_flags = received.flags;
            Ok(received.len as ssize_t)
        }
    })
}

/// rsend(3), or rwrite(3) if `WRITE`: tries the fast path first.
///
/// # Safety
/// `buf` is NULL or readable for `len` bytes.
#[inline]
unsafe fn send<const WRITE: bool>(socket: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: `buf` is NULL or readable for `len` bytes: guaranteed by the caller.
    unsafe {
        if calls::send_at_once(socket, buf.cast(), len, flags) {
            probes::rs_send(socket, len);
            return len as ssize_t;
        }
        send_any::<WRITE>(socket, buf, len, flags)
    }
}

/// rsend(3), or rwrite(3) if `WRITE`, without the fast path.
///
/// # Safety
/// `buf` is NULL or readable for `len` bytes.
#[cold]
#[inline(never)]
unsafe fn send_any<const WRITE: bool>(socket: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    let call = Call::socket(if WRITE { "rwrite" } else { "rsend" }, socket);
    // SAFETY: `buf` is NULL or readable for `len` bytes: guaranteed by the caller.
    report_waiting(call, -1, || unsafe { sent(socket, &[buffer(buf.cast_mut(), len)?], flags, calls::no_address) })
}

/// Sends, and triggers the probe for tracers. Returns the number of bytes that were sent.
///
/// # Safety
/// The buffers are readable for their lengths.
unsafe fn sent(
    socket: c_int,
    buffers: &[iovec],
    flags: c_int,
    to: impl FnOnce() -> Result<Option<SockAddr>>,
) -> Result<ssize_t> {
    // SAFETY: the buffers are readable for their lengths: guaranteed by the caller.
    let done = unsafe { calls::send(socket, buffers, flags, to)? };
    probes::rs_send(socket, done);
    Ok(done as ssize_t)
}

/// Sends a small message of several buffers if this needs no waiting, and triggers the probe for
/// tracers. Returns the number of bytes sent, or `None` if [`sent`] has to be called.
///
/// # Safety
/// `iov` is NULL, or has `count` buffers, which are readable for their lengths.
unsafe fn sent_at_once(socket: c_int, iov: *const iovec, count: size_t, flags: c_int) -> Option<ssize_t> {
    // SAFETY: `iov` is NULL, or has `count` readable buffers: guaranteed by the caller.
    let done = unsafe { calls::send_gathered_at_once(socket, buffers(iov, count).ok()?, flags)? };
    probes::rs_send(socket, done);
    Some(done as ssize_t)
}

/// Receives, and triggers the probe for tracers.
///
/// # Safety
/// The buffers are writable for their lengths.
unsafe fn received(socket: c_int, buffers: &[iovec], flags: c_int) -> Result<calls::ReceivedMessage> {
    // SAFETY: the buffers are writable for their lengths: guaranteed by the caller.
    let received = unsafe { calls::receive(socket, buffers, flags)? };
    probes::rs_recv(socket, received.len);
    Ok(received)
}

/// send(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsend(socket: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: `buf` is NULL or readable for `len` bytes (crate documentation).
    unsafe { send::<false>(socket, buf, len, flags) }
}

/// Returns the destination of a datagram; `None` if `addr` is NULL.
///
/// # Safety
/// `addr` is NULL or readable for `len` bytes.
unsafe fn destination(addr: *const sockaddr, len: socklen_t) -> Result<Option<SockAddr>> {
    // SAFETY: `addr` is NULL or readable for `len` bytes: guaranteed by the caller.
    if addr.is_null() { Ok(None) } else { unsafe { args::sized_address(addr, len).map(Some) } }
}

/// sendto(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendto(
    socket: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    dest_addr: *const sockaddr,
    addrlen: socklen_t,
) -> ssize_t {
    // SAFETY: for a datagram, `dest_addr` is NULL or has `addrlen` bytes (crate documentation).
    report_waiting(unsafe { Call::socket("rsendto", socket).to(dest_addr, addrlen) }, -1, || {
        // SAFETY: `buf` is NULL or readable for `len` bytes, and `dest_addr` is NULL or, for a
        // datagram, readable for `addrlen` bytes (crate documentation).
        unsafe {
            let to = || destination(dest_addr, addrlen);
            sent(socket, &[buffer(buf.cast_mut(), len)?], flags, to)
        }
    })
}

/// sendmsg(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    let mut call = Call::socket("rsendmsg", socket);
    // SAFETY: `msg` is NULL or a live message: the C contract (crate documentation).
    if let Some(msg) = unsafe { msg.as_ref() } {
        // SAFETY: its buffers are readable for their lengths: the C contract (crate documentation).
        if let Some(done) = unsafe { sent_at_once(socket, msg.msg_iov, msg.msg_iovlen, flags) } {
            return done;
        }
        // SAFETY: its address is NULL or readable for its length: the C contract.
        call = unsafe { call.to(msg.msg_name.cast::<sockaddr>(), msg.msg_namelen) };
    }
    report_waiting(call, -1, || {
        // SAFETY: `msg` is NULL, or a live message whose buffers and address are NULL or readable
        // for their lengths (crate documentation).
        unsafe {
            let msg = msg.as_ref().ok_or(Errno::EFAULT)?;
            let to = || destination(msg.msg_name.cast::<sockaddr>(), msg.msg_namelen);
            sent(socket, buffers(msg.msg_iov, msg.msg_iovlen)?, flags, to)
        }
    })
}

/// read(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rread(socket: c_int, buf: *mut c_void, count: size_t) -> ssize_t {
    // SAFETY: `buf` is NULL or writable for `count` bytes (crate documentation).
    unsafe { receive::<true>(socket, buf, count, 0) }
}

/// readv(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    // SAFETY: `iov` is NULL, or has `iovcnt` writable buffers (crate documentation).
    report_waiting(Call::socket("rreadv", socket), -1, || unsafe { read(socket, buffers(iov, count(iovcnt)?)?) })
}

/// write(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite(socket: c_int, buf: *const c_void, count: size_t) -> ssize_t {
    // SAFETY: `buf` is NULL or readable for `count` bytes (crate documentation).
    unsafe { send::<true>(socket, buf, count, 0) }
}

/// writev(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwritev(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    // SAFETY: NULL, or `iovcnt` buffers that are readable for their lengths: the C contract.
    if let Some(done) = unsafe { count(iovcnt).ok().and_then(|count| sent_at_once(socket, iov, count, 0)) } {
        return done;
    }
    // SAFETY: `iov` is NULL, or has `iovcnt` readable buffers (crate documentation).
    report_waiting(Call::socket("rwritev", socket), -1, || unsafe {
        sent(socket, buffers(iov, count(iovcnt)?)?, 0, calls::no_address)
    })
}

/// poll(2) for rsockets and other descriptors together. timeout: in milliseconds; -1: no limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: `fds` is NULL, or has `nfds` structures that nothing else uses (crate documentation).
    report_quick(Call::new("rpoll"), -1, || calls::poll(unsafe { array(fds, nfds as usize)?.as_mut() }, timeout))
}

/// select(2) for rsockets and other descriptors together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rselect(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    report_waiting(Call::new("rselect"), -1, || {
        let words = core::select::words(usize::try_from(nfds).map_err(|_| Errno::EINVAL)?);
        // SAFETY: `set` is NULL, or has the words of at least `nfds` bits, which nothing else uses
        // (crate documentation).
        let set = |set: *mut fd_set| unsafe {
            NonNull::new(set).map(|set| slice::from_raw_parts_mut(set.as_ptr().cast(), words))
        };
        let mut sets = core::select::Sets { read: set(readfds), write: set(writefds), except: set(exceptfds) };
        // SAFETY: `timeout` is NULL, or a structure that nothing else uses (crate documentation).
        calls::select(nfds, &mut sets, unsafe { timeout.as_mut() })
    })
}

/// getpeername(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetpeername(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int {
    // SAFETY: `addrlen` is NULL or valid, and `addr` is NULL or writable for `*addrlen` bytes
    // (crate documentation).
    report(Call::socket("rgetpeername", socket), -1, || unsafe {
        name_back(&calls::peer_name(socket)?, addr, addrlen).map(|()| 0)
    })
}

/// getsockname(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockname(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int {
    // SAFETY: `addrlen` is NULL or valid, and `addr` is NULL or writable for `*addrlen` bytes
    // (crate documentation).
    report(Call::socket("rgetsockname", socket), -1, || unsafe {
        name_back(&calls::local_name(socket)?, addr, addrlen).map(|()| 0)
    })
}

/// Runs a call for an option. librspreload uses private options even in the middle of another call.
fn report_option(call: Call, level: c_int, name: c_int, run: impl FnOnce() -> Result<c_int>) -> c_int {
    if calls::is_asked_at_any_time(level, name) { report_unmarked(call, -1, run) } else { report(call, -1, run) }
}

/// setsockopt(2) for rsockets. Level SOL_RDMA has the options RDMA_*, to be set before connecting
/// or listening.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: socklen_t,
) -> c_int {
    report_option(Call::socket("rsetsockopt", socket), level, optname, || {
        // SAFETY: `optval` is NULL or readable for `optlen` bytes (crate documentation).
        calls::set_option(socket, level, optname, unsafe { array(optval.cast(), optlen as usize)?.as_ref() })
            .map(|()| 0)
    })
}

/// getsockopt(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut socklen_t,
) -> c_int {
    report_option(Call::socket("rgetsockopt", socket), level, optname, || {
        let (value, len) = NonNull::new(optval.cast::<u8>()).zip(NonNull::new(optlen)).ok_or(Errno::EFAULT)?;
        let option = calls::option(socket, level, optname)?;
        let option = option.as_bytes();
        // SAFETY: neither is NULL, so `optlen` is valid, and `optval` is writable for `*optlen`
        // bytes (crate documentation). No more bytes are written.
        unsafe {
            let room = usize::try_from(len.read()).unwrap_or(0).min(option.len());
            ptr::copy_nonoverlapping(option.as_ptr(), value.as_ptr(), room);
            len.write(room as socklen_t);
        }
        Ok(0)
    })
}

/// fcntl(2) for rsockets: F_GETFL, F_SETFL (O_NONBLOCK), F_GETFD, F_SETFD.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfcntl(socket: c_int, cmd: c_int, arg: rfcntl_argument) -> c_int {
    report(Call::socket("rfcntl", socket), -1, || calls::control(socket, cmd, arg))
}

/// Lets the peer write to len bytes at buf with riowrite(); with prot PROT_NONE, only registers the
/// bytes for local use.
///
/// prot: PROT_WRITE or PROT_NONE; flags: 0; offset: the offset that the peer passes to riowrite()
/// for these bytes; -1 for the address of buf. Returns the offset, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riomap(
    socket: c_int,
    buf: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    offset: off_t,
) -> off_t {
    report(Call::socket("riomap", socket), -1, || {
        // No flags are defined.
        let _ = flags;
        let start = NonNull::new(buf.cast()).ok_or(Errno::EINVAL)?;
        // SAFETY: `buf` has `len` bytes (crate documentation), which the program leaves to the peer
        // until riounmap(3) or rclose(3).
        unsafe { calls::map(socket, start, len, prot, offset) }
    })
}

/// Removes a mapping of riomap(). Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riounmap(socket: c_int, buf: *mut c_void, len: size_t) -> c_int {
    status(Call::socket("riounmap", socket), || calls::unmap(socket, buf as usize, len))
}

/// Writes count bytes to the memory that the peer has mapped at offset with riomap().
///
/// Returns the number of bytes written, or (size_t) -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riowrite(
    socket: c_int,
    buf: *const c_void,
    count: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    // SAFETY: `buf` is NULL or readable for `count` bytes (crate documentation).
    report_waiting(Call::socket("riowrite", socket), size_t::MAX, || unsafe {
        calls::write_mapped(socket, array(buf.cast(), count)?.as_ref(), offset as u64, flags)
    })
}

/// epoll_create1(2) for rsockets and other descriptors together. flags: EPOLL_CLOEXEC.
///
/// Returns a descriptor for rclose(), or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn repoll_create(flags: c_int) -> c_int {
    report(Call::new("repoll_create"), -1, || calls::epoll_create(flags))
}

/// epoll_ctl(2) for descriptors that repoll_create() returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn repoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    report(Call::socket("repoll_ctl", epfd), -1, || {
        // SAFETY: `event` is NULL or readable (crate documentation).
        calls::epoll_ctl(epfd, op, fd, unsafe { event.as_ref() }.copied()).map(|()| 0)
    })
}

/// epoll_wait(2) for descriptors that repoll_create() returned. timeout: in milliseconds; -1: no
/// limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn repoll_wait(epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: c_int) -> c_int {
    report_waiting(Call::socket("repoll_wait", epfd), -1, || {
        let room = usize::try_from(maxevents).ok().filter(|&room| room > 0).ok_or(Errno::EINVAL)?;
        // SAFETY: `events` is NULL or writable for `maxevents` events, which nothing else uses
        // (crate documentation).
        let events = unsafe { array(events.cast::<MaybeUninit<epoll_event>>(), room)?.as_mut() };
        calls::epoll_wait(epfd, events, timeout).map(|count| count as c_int)
    })
}

/// Converts a number of buffers. Fails with `EINVAL` if it is negative.
fn count(number: c_int) -> Result<size_t> {
    size_t::try_from(number).map_err(|_| Errno::EINVAL)
}

/// Stores an address for the program. Fails with `EFAULT` if `addr` or `len` is NULL.
///
/// # Safety
/// `len` is NULL, or valid for reads and writes. `addr` is NULL, or writable for `*len` bytes.
unsafe fn name_back(name: &libc::sockaddr_storage, addr: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
    if addr.is_null() || len.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: `len` is valid, and `*len` bytes at `addr` are writable: guaranteed by the caller.
    unsafe { name_out(Some(name), addr, len) }
}
