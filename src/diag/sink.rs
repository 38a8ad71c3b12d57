//! Writes a line: by system calls, on a descriptor that is open no longer than that takes.

use std::ffi::{CStr, c_int, c_long};
use std::mem::zeroed;
use std::ptr;

use super::switch::{Target, target};
use crate::sys::own;

/// In front of a line for the system's log: user, warning (syslog(3)).
const PRIORITY: &[u8] = b"<12>";

/// Writes a line, which ends in a newline. A failure has nobody to be told to.
pub fn write(line: &[u8]) {
    match target() {
        // A program that has closed it may have got the number for a channel of ours.
        Target::Stderr if !own::is_own(libc::STDERR_FILENO) => without_sigpipe(|| put(libc::STDERR_FILENO, &[line])),
        Target::Stderr => {}
        Target::File(path) => {
            let fd = open(path);
            if fd >= 0 {
                without_sigpipe(|| put(fd, &[line]));
                close(fd);
            }
        }
        Target::Syslog => to_syslog(line),
    }
}

/// One system call, and for that reason one line, whoever else writes there.
fn put(fd: c_int, parts: &[&[u8]]) {
    let mut list = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; 2];
    for (place, part) in list.iter_mut().zip(parts) {
        *place = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
    }
    // SAFETY: readable for their lengths.
    unsafe { libc::syscall(libc::SYS_writev, c_long::from(fd), list.as_ptr(), parts.len().min(list.len())) };
}

/// A pipe that nobody reads must not end the program: its own writes are what that is for.
fn without_sigpipe(write: impl FnOnce()) {
    // SAFETY: sets and a time on the stack, of which all zeros are values.
    unsafe {
        let (mut pipe, mut before, mut pending): (libc::sigset_t, libc::sigset_t, libc::sigset_t) =
            (zeroed(), zeroed(), zeroed());
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        let was_pending = libc::sigismember(&raw const pending, libc::SIGPIPE) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before);
        write();
        if !was_pending {
            let now: libc::timespec = zeroed();
            libc::sigtimedwait(&raw const pipe, ptr::null_mut(), &raw const now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
    }
}

/// A file, not a device that waits nor what a link of somebody else's leads to.
fn open(path: &CStr) -> c_int {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NOCTTY;
    // SAFETY: a C string.
    unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_NONBLOCK, 0o600) as c_int }
}

fn close(fd: c_int) {
    // SAFETY: ours, just made.
    unsafe { libc::syscall(libc::SYS_close, c_long::from(fd)) };
}

/// By hand: syslog(3) takes a lock and memory, and keeps its socket.
fn to_syslog(line: &[u8]) {
    const LOG: &[u8] = b"/dev/log";
    // SAFETY: all zeros are a value of it.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (place, &byte) in address.sun_path.iter_mut().zip(LOG) {
        *place = byte as libc::c_char;
    }
    let fd = own::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
    if fd < 0 {
        return;
    }
    // SAFETY: a whole address.
    let joined =
        unsafe { libc::syscall(libc::SYS_connect, c_long::from(fd), &raw const address, size_of_val(&address)) };
    if joined == 0 {
        put(fd, &[PRIORITY, line]);
    }
    close(fd);
}
