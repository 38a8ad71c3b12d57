//! Writes lines by direct system calls. A file or socket is open only while a line is written.

use std::ffi::{CStr, c_int, c_long};
use std::mem::zeroed;
use std::ptr;

use super::switch::{Target, target};
use crate::sys::library_fds;

/// Priority of a line for the system's log: facility user, severity warning (syslog(3)).
const PRIORITY: &[u8] = b"<12>";

/// Writes a line, which ends in a newline. A failure is ignored: there is nowhere to report it.
pub fn write(line: &[u8]) {
    match target() {
        // If the program has closed its standard error, one of the library's channels may have the
        // number.
        Target::Stderr if !library_fds::is_own(libc::STDERR_FILENO) => {
            without_sigpipe(|| writev(libc::STDERR_FILENO, &[line]))
        }
        Target::Stderr => {}
        Target::File(path) => {
            let fd = open(path);
            if fd >= 0 {
                without_sigpipe(|| writev(fd, &[line]));
                close(fd);
            }
        }
        Target::Syslog => to_syslog(line),
    }
}

/// Writes the parts, at most two, in one system call, so that other writers do not split the line.
fn writev(fd: c_int, parts: &[&[u8]]) {
    let mut list = [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; 2];
    for (iov, part) in list.iter_mut().zip(parts) {
        *iov = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
    }
    // SAFETY: each part is readable for its length.
    unsafe { libc::syscall(libc::SYS_writev, c_long::from(fd), list.as_ptr(), parts.len().min(list.len())) };
}

/// Runs `write` with SIGPIPE blocked: a log line to a pipe without readers must not end the
/// program.
fn without_sigpipe(write: impl FnOnce()) {
    // SAFETY: the sets and the time are local variables, and all zeros are a valid value of them.
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

/// Opens the file for appending. Neither follows a symbolic link nor blocks on a FIFO or device.
fn open(path: &CStr) -> c_int {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NOCTTY;
    // SAFETY: `path` is a C string.
    unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_NONBLOCK, 0o600) as c_int }
}

fn close(fd: c_int) {
    // SAFETY: the caller has opened the descriptor, and uses it no more.
    unsafe { libc::syscall(libc::SYS_close, c_long::from(fd)) };
}

/// Sends the line to the system's log. Not by syslog(3), which takes a lock, allocates memory, and
/// keeps its socket open.
fn to_syslog(line: &[u8]) {
    const LOG: &[u8] = b"/dev/log";
    // SAFETY: all zeros are a valid value of the address.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (char, &byte) in address.sun_path.iter_mut().zip(LOG) {
        *char = byte as libc::c_char;
    }
    let fd = library_fds::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
    if fd < 0 {
        return;
    }
    // SAFETY: `address` is readable for its size.
    let result =
        unsafe { libc::syscall(libc::SYS_connect, c_long::from(fd), &raw const address, size_of_val(&address)) };
    if result == 0 {
        writev(fd, &[PRIORITY, line]);
    }
    close(fd);
}
