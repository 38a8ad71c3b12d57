//! `rdma/rsocket.h`: sockets over RDMA.

#![expect(unused_variables, reason = "rsockets are not there yet")]

use std::ffi::{c_int, c_void};

use libc::{epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};
use rdmacm_core::Errno;
use rdmacm_core::errno::report;
use rdmacm_core::ffi::rfcntl_argument;

/// What every function here does until there are rsockets: ENOSYS.
fn unsupported<T>(failed: T) -> T {
    report(failed, || Err(Errno::ENOSYS))
}

/// Creates an rsocket: AF_INET, AF_INET6 or AF_IB; SOCK_STREAM or SOCK_DGRAM, with SOCK_NONBLOCK and SOCK_CLOEXEC.
///
/// Returns a descriptor for the calls below, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsocket(domain: c_int, r#type: c_int, protocol: c_int) -> c_int {
    unsupported(-1)
}

/// bind(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbind(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
    unsupported(-1)
}

/// listen(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    unsupported(-1)
}

/// accept(2) for rsockets; the new rsocket has the listener's options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raccept(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int {
    unsupported(-1)
}

/// connect(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rconnect(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
    unsupported(-1)
}

/// shutdown(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    unsupported(-1)
}

/// close(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rclose(socket: c_int) -> c_int {
    unsupported(-1)
}

/// recv(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecv(socket: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    unsupported(-1)
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
    unsupported(-1)
}

/// recvmsg(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    unsupported(-1)
}

/// send(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsend(socket: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    unsupported(-1)
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
    unsupported(-1)
}

/// sendmsg(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    unsupported(-1)
}

/// read(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rread(socket: c_int, buf: *mut c_void, count: size_t) -> ssize_t {
    unsupported(-1)
}

/// readv(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    unsupported(-1)
}

/// write(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwrite(socket: c_int, buf: *const c_void, count: size_t) -> ssize_t {
    unsupported(-1)
}

/// writev(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rwritev(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    unsupported(-1)
}

/// poll(2) for rsockets and other descriptors together. timeout: in milliseconds, -1 without end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    unsupported(-1)
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
    unsupported(-1)
}

/// getpeername(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetpeername(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int {
    unsupported(-1)
}

/// getsockname(2) for rsockets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockname(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int {
    unsupported(-1)
}

/// setsockopt(2) for rsockets; level SOL_RDMA has the options RDMA_*, to be set before connecting or listening.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: socklen_t,
) -> c_int {
    unsupported(-1)
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
    unsupported(-1)
}

/// fcntl(2) for rsockets: F_GETFL, F_SETFL (O_NONBLOCK), F_GETFD, F_SETFD.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rfcntl(socket: c_int, cmd: c_int, arg: rfcntl_argument) -> c_int {
    unsupported(-1)
}

/// Lets the peer write to len bytes at buf with riowrite(), or (prot PROT_NONE) only registers them for local use.
///
/// prot: PROT_WRITE or PROT_NONE; flags: 0; offset: where the peer finds them, -1 for the address of buf.
/// Returns the offset, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riomap(
    socket: c_int,
    buf: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    offset: off_t,
) -> off_t {
    unsupported(-1)
}

/// Ends what riomap() began. Returns 0, or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riounmap(socket: c_int, buf: *mut c_void, len: size_t) -> c_int {
    unsupported(-1)
}

/// Writes count bytes into what the peer mapped at offset with riomap().
///
/// Returns how many bytes were written, or (size_t) -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn riowrite(
    socket: c_int,
    buf: *const c_void,
    count: size_t,
    offset: off_t,
    flags: c_int,
) -> size_t {
    unsupported(size_t::MAX)
}

/// epoll_create1(2) for rsockets and other descriptors together. flags: EPOLL_CLOEXEC.
///
/// Returns a descriptor for rclose(), or -1 and errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn repoll_create(flags: c_int) -> c_int {
    unsupported(-1)
}

/// epoll_ctl(2) for descriptors that repoll_create() returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn repoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    unsupported(-1)
}

/// epoll_wait(2) for descriptors that repoll_create() returned. timeout: in milliseconds, -1 without end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn repoll_wait(epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: c_int) -> c_int {
    unsupported(-1)
}
