//! The rsockets of librdmacm.so.1 (`rdma/rsocket.h`).
//!
//! Unit tests have the kernel's sockets in their place, which are numbers as well.

#[cfg(test)]
pub use libc::{
    accept as raccept, bind as rbind, connect as rconnect, epoll_ctl as repoll_ctl, epoll_wait as repoll_wait,
    fcntl as rfcntl, getpeername as rgetpeername, getsockname as rgetsockname, getsockopt as rgetsockopt,
    poll as rpoll, read as rread, readv as rreadv, recv as rrecv, recvfrom as rrecvfrom, recvmsg as rrecvmsg,
    select as rselect, send as rsend, sendmsg as rsendmsg, sendto as rsendto, setsockopt as rsetsockopt,
    write as rwrite, writev as rwritev,
};

#[cfg(test)]
pub use self::tests::*;

/// rfcntl of a command that takes an int or nothing.
pub fn rfcntl_int(fd: core::ffi::c_int, cmd: core::ffi::c_int, value: core::ffi::c_int) -> core::ffi::c_int {
    // SAFETY: no pointer.
    unsafe { rfcntl(fd, cmd, value) }
}

#[cfg(not(test))]
pub use extern_::*;

#[cfg(not(test))]
mod extern_ {
    use core::ffi::{c_int, c_void};

    use libc::{epoll_event, fd_set, iovec, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};

    unsafe extern "C" {
        pub fn raccept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
        pub fn rbind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
        pub safe fn rclose(fd: c_int) -> c_int;
        pub fn rconnect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
        pub safe fn repoll_create(flags: c_int) -> c_int;
        pub fn repoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
        pub fn repoll_wait(epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: c_int) -> c_int;
        pub fn rfcntl(fd: c_int, cmd: c_int, ...) -> c_int;
        pub fn rgetpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
        pub fn rgetsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
        pub fn rgetsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
        pub safe fn rlisten(fd: c_int, backlog: c_int) -> c_int;
        pub fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
        pub fn rread(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
        pub fn rreadv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t;
        pub fn rrecv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
        pub fn rrecvfrom(
            fd: c_int,
            buf: *mut c_void,
            len: size_t,
            flags: c_int,
            addr: *mut sockaddr,
            addrlen: *mut socklen_t,
        ) -> ssize_t;
        pub fn rrecvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
        pub fn rselect(
            count: c_int,
            read: *mut fd_set,
            write: *mut fd_set,
            except: *mut fd_set,
            timeout: *mut timeval,
        ) -> c_int;
        pub fn rsend(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
        pub fn rsendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
        pub fn rsendto(
            fd: c_int,
            buf: *const c_void,
            len: size_t,
            flags: c_int,
            addr: *const sockaddr,
            addrlen: socklen_t,
        ) -> ssize_t;
        pub fn rsetsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
        pub safe fn rshutdown(fd: c_int, how: c_int) -> c_int;
        pub safe fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
        pub fn rwrite(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
        pub fn rwritev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t;
    }
}

#[cfg(test)]
mod tests {
    pub fn rclose(fd: libc::c_int) -> libc::c_int {
        // SAFETY: no pointers.
        unsafe { libc::close(fd) }
    }

    pub fn rlisten(fd: libc::c_int, backlog: libc::c_int) -> libc::c_int {
        // SAFETY: no pointers.
        unsafe { libc::listen(fd, backlog) }
    }

    pub fn rshutdown(fd: libc::c_int, how: libc::c_int) -> libc::c_int {
        // SAFETY: no pointers.
        unsafe { libc::shutdown(fd, how) }
    }

    pub fn rsocket(domain: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> libc::c_int {
        // SAFETY: no pointers.
        unsafe { libc::socket(domain, kind, protocol) }
    }

    pub fn repoll_create(flags: libc::c_int) -> libc::c_int {
        // SAFETY: no pointers.
        unsafe { libc::epoll_create1(flags) }
    }
}
