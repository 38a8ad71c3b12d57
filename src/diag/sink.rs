//! Writes lines by direct system calls. A file or socket is open only while a line is written.

use std::ffi::{CStr, c_int, c_long};
use std::mem::zeroed;
use std::ptr;

use super::switch::{Target, shows_time, target};
use crate::os::library_fds;
use crate::os::text::FixedString;

/// Priority of a line for the system's log: facility user, severity warning (syslog(3)).
const PRIORITY: &[u8] = b"<12>";

/// Writes a line, which ends in a newline. A failure is ignored: there is nowhere to report it.
pub fn write(line: &[u8]) {
    match target() {
        // If the program has closed its standard error, one of the library's channels may have the
        // number.
        Target::Stderr if !library_fds::is_own(libc::STDERR_FILENO) => {
            let stamp = shows_time().then(stamp);
            let stamp = stamp.as_ref().map_or(&[][..], |stamp| stamp.as_c_str().to_bytes());
            without_sigpipe(|| writev(libc::STDERR_FILENO, &[stamp, line]))
        }
        Target::Stderr => {}
        Target::File(path) => {
            let fd = open(path);
            if fd >= 0 {
                without_sigpipe(|| writev(fd, &[stamp().as_c_str().to_bytes(), line]));
                close(fd);
            }
        }
        Target::Syslog => to_syslog(line),
    }
}

/// The time, as RFC 3339 has it, and a space. UTC: the local time needs files, locks and memory.
fn stamp() -> FixedString<32> {
    // SAFETY: all zeros are a time.
    let mut now: libc::timespec = unsafe { zeroed() };
    // SAFETY: `now` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    let (days, second) = (now.tv_sec.div_euclid(86_400), now.tv_sec.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let milliseconds = now.tv_nsec / 1_000_000;
    FixedString::cut(format_args!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z "
    ))
}

/// Returns the date of a day since 1970-01-01, in years that begin in March and so end with the
/// leap day.
fn date(days: i64) -> (i64, i64, i64) {
    const DAYS_OF_400_YEARS: i64 = 146_097;
    // Since 0000-03-01.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(DAYS_OF_400_YEARS), days.rem_euclid(DAYS_OF_400_YEARS));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (first, month) = ((153 * month + 2) / 5, if month < 10 { month + 3 } else { month - 9 });
    (era * 400 + year + i64::from(month <= 2), month, day - first + 1)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (19_782, (2024, 2, 29)),
            (20_781, (2026, 11, 24)),
            (-1, (1969, 12, 31)),
        ] {
            assert_eq!(date(days), expected);
        }
        let stamp = stamp();
        let text = stamp.as_c_str().to_str().unwrap();
        assert!(text.len() == 25 && text.ends_with("Z ") && text.starts_with("20"), "{text}");
    }
}
