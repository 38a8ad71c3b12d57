//! A log line: built on the stack, and written by direct system calls. A file or socket is open
//! only while a line is written.

use std::ffi::{CStr, c_char, c_int, c_long};
use std::fmt::{self, Write};
use std::mem::zeroed;
use std::net::Ipv6Addr;
use std::ptr;

use libc::sockaddr_storage;

use super::facts::{Endpoints, is_unspecified};
use super::switch::{shows_time, target};
use crate::os::library_fds;
use crate::os::sockaddr::{AF_IB, SockaddrIb, inet, port};
use crate::os::text::FixedString;

/// Maximum length of a line in bytes; a longer line is truncated.
const MAX_LINE: usize = 600;

/// Maximum length of the program's name in bytes; a longer one is truncated.
const MAX_PROGRAM: usize = 64;

unsafe extern "C" {
    /// The last part of argv[0], from the C library.
    static program_invocation_short_name: *const c_char;
}

/// A log line.
pub struct Line(FixedString<MAX_LINE>);

impl Line {
    /// Creates a line that begins with `librdmacm[PID]: PROGRAM: NAME`.
    pub fn begin(name: &str) -> Line {
        let mut line = Line(FixedString::empty());
        // SAFETY: the call has no arguments. A direct system call, because a C library may have
        // cached the parent's process id.
        let pid = unsafe { libc::syscall(libc::SYS_getpid) };
        line.push(format_args!("librdmacm[{pid}]: "));
        // SAFETY: a C string that the C library never frees.
        let program = unsafe { CStr::from_ptr(program_invocation_short_name) }.to_bytes();
        for chunk in program[..program.len().min(MAX_PROGRAM)].utf8_chunks() {
            line.push(format_args!("{}", chunk.valid()));
        }
        line.push(format_args!(": {name}"));
        line
    }

    /// Appends text; the part that does not fit is dropped.
    pub fn push(&mut self, text: fmt::Arguments<'_>) {
        let _ = self.0.write_fmt(text);
    }

    /// Appends addresses and device, as far as they are known.
    pub fn push_endpoints(&mut self, endpoints: Option<&Endpoints>) {
        let Some(endpoints) = endpoints else { return };
        for (prefix, address) in [(" ", &endpoints.src), (" -> ", &endpoints.dst)] {
            if !is_unspecified(address) {
                self.push(format_args!("{prefix}{}", Address(address)));
            }
        }
        if let Some(device) = endpoints.device() {
            self.push(format_args!(" {device}/{}", endpoints.port));
        }
    }

    /// Appends `prefix` and at most 64 characters of the peer's private data in quotes, if these
    /// bytes, without trailing zeros, are printable ASCII.
    pub fn push_quoted(&mut self, prefix: &str, private_data: &[u8]) {
        let end = private_data.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let text = &private_data[..end.min(64)];
        if !text.is_empty() && text.iter().all(|&byte| byte == b' ' || byte.is_ascii_graphic()) {
            self.push(format_args!("{prefix} \"{}\"", str::from_utf8(text).unwrap_or_default()));
        }
    }

    /// Returns the bytes of the line. Its only newline is at the end.
    fn finish(&mut self) -> &[u8] {
        let bytes = self.0.bytes_with_nul_mut();
        if let Some((newline, text)) = bytes.split_last_mut() {
            for byte in text.iter_mut().filter(|byte| byte.is_ascii_control()) {
                *byte = b'?';
            }
            *newline = b'\n';
        }
        bytes
    }

    /// Writes the line. A failure is ignored: there is nowhere to report it.
    pub fn write(&mut self) {
        let line = self.finish();
        let target = target();
        match target.to_bytes() {
            b"syslog" => to_syslog(line),
            [b'/', ..] => {
                let fd = open(target);
                if fd >= 0 {
                    without_sigpipe(|| writev(fd, [stamp().as_c_str().to_bytes(), line]));
                    close(fd);
                }
            }
            // If the program has closed its standard error, the descriptor may be the library's:
            // write nothing.
            _ if library_fds::is_own(libc::STDERR_FILENO) => {}
            _ => {
                let stamp = if shows_time() { stamp() } else { FixedString::empty() };
                without_sigpipe(|| writev(libc::STDERR_FILENO, [stamp.as_c_str().to_bytes(), line]));
            }
        }
    }
}

/// Displays an address with its port; an IPv6 address is in brackets.
pub struct Address<'a>(pub &'a sockaddr_storage);

impl fmt::Display for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = inet(self.0) {
            return address.fmt(f);
        }
        match c_int::from(self.0.ss_family) {
            AF_IB => {
                let address: *const sockaddr_storage = self.0;
                // SAFETY: a sockaddr_storage is at least as large and as aligned as a SockaddrIb,
                // and any bytes are a valid value of its fields.
                let gid = unsafe { (*address.cast::<SockaddrIb>()).addr };
                write!(f, "[{}]:{}", Ipv6Addr::from(gid), u16::from_be(port(self.0)))
            }
            family => write!(f, "(address family {family})"),
        }
    }
}

/// Priority of a line for the system's log: facility user, severity warning (syslog(3)).
const PRIORITY: &[u8] = b"<12>";

/// Returns the time in the format of RFC 3339, followed by a space. The time is UTC, because local
/// time needs files, locks and memory.
fn stamp() -> FixedString<32> {
    let now = base::clock::read(libc::CLOCK_REALTIME);
    let (days, second) = (now.tv_sec.div_euclid(86_400), now.tv_sec.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let milliseconds = now.tv_nsec / 1_000_000;
    FixedString::cut(format_args!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z "
    ))
}

/// Returns year, month and day for a number of days since 1970-01-01. Computes with years that
/// begin in March, so that the leap day is the last day of a year.
fn date(days: i64) -> (i64, i64, i64) {
    const DAYS_OF_400_YEARS: i64 = 146_097;
    // Days since 0000-03-01.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(DAYS_OF_400_YEARS), days.rem_euclid(DAYS_OF_400_YEARS));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (first, month) = ((153 * month + 2) / 5, if month < 10 { month + 3 } else { month - 9 });
    (era * 400 + year + i64::from(month <= 2), month, day - first + 1)
}

/// Writes both parts in one system call, so that other writers do not split the line.
fn writev(fd: c_int, parts: [&[u8]; 2]) {
    let list = parts.map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() });
    // SAFETY: each part is readable for its length.
    unsafe { libc::syscall(libc::SYS_writev, c_long::from(fd), list.as_ptr(), list.len()) };
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

/// Opens the file for appending. Creates the file if it does not exist. Neither follows a symbolic
/// link nor blocks on a FIFO or device. Returns the descriptor, or -1.
fn open(path: &CStr) -> c_int {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NOCTTY;
    // SAFETY: `path` is a C string.
    unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_NONBLOCK, 0o600) as c_int }
}

fn close(fd: c_int) {
    // SAFETY: the caller has opened the descriptor, and uses it no more.
    unsafe { libc::syscall(libc::SYS_close, c_long::from(fd)) };
}

/// Sends the line to the system's log. Does not use syslog(3), which takes a lock, allocates
/// memory, and keeps its socket open.
fn to_syslog(line: &[u8]) {
    /// The beginning of a `struct sockaddr_un`.
    #[repr(C)]
    struct Address(libc::sa_family_t, [u8; 10]);
    let address = Address(libc::AF_UNIX as libc::sa_family_t, *b"/dev/log\0\0");
    let fd = library_fds::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
    if fd < 0 {
        return;
    }
    // SAFETY: `address` is readable for its size.
    let result =
        unsafe { libc::syscall(libc::SYS_connect, c_long::from(fd), &raw const address, size_of_val(&address)) };
    if result == 0 {
        writev(fd, [PRIORITY, line]);
    }
    close(fd);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::sockaddr::{SockAddr, zeroed};

    fn v4(ip: [u8; 4], port: u16) -> sockaddr_storage {
        *SockAddr::from_inet(&(ip, port).into()).storage()
    }

    #[test]
    fn addresses() {
        assert_eq!(Address(&v4([192, 0, 2, 7], 80)).to_string(), "192.0.2.7:80");
        let ib =
            SockaddrIb { family: AF_IB as u16, addr: [0xfe; 16], sid: 0x0106_0050_u64.to_be(), ..Default::default() };
        let text = Address(SockAddr::from_ib(&ib).storage()).to_string();
        assert_eq!(text, "[fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe]:80");
        let mut other = zeroed();
        other.ss_family = 99;
        assert_eq!(Address(&other).to_string(), "(address family 99)");
    }

    #[test]
    fn a_line_names_the_program() {
        let program = std::env::args().next().unwrap();
        let expected = format!("librdmacm[{}]: {}: x\n", std::process::id(), program.rsplit('/').next().unwrap());
        assert_eq!(str::from_utf8(Line::begin("x").finish()), Ok(expected.as_str()));
    }

    #[test]
    fn endpoints() {
        let mut line = Line::begin("rbind");
        let start = line.0.bytes_with_nul_mut().len() - 1;
        line.push_endpoints(Some(&Endpoints::new(v4([1, 2, 3, 4], 5), v4([6, 7, 8, 9], 10), b"rxe0", 1)));
        assert_eq!(&line.finish()[start..], b" 1.2.3.4:5 -> 6.7.8.9:10 rxe0/1\n");
    }

    #[test]
    fn control_characters_and_long_text_stay_in_one_line() {
        let mut line = Line::begin("x");
        let long = "a\nb\x1b".repeat(400);
        line.push(format_args!("{long}"));
        let bytes = line.finish();
        assert_eq!((bytes.len(), bytes.last()), (MAX_LINE, Some(&b'\n')));
        assert!(!bytes[..MAX_LINE - 1].iter().any(u8::is_ascii_control));
    }

    #[test]
    fn quoted_private_data() {
        let quoted = |private_data: &[u8]| {
            let mut line = Line::begin("x");
            let start = line.0.bytes_with_nul_mut().len() - 1;
            line.push_quoted(" says", private_data);
            let bytes = line.0.bytes_with_nul_mut();
            String::from_utf8_lossy(&bytes[start..bytes.len() - 1]).into_owned()
        };
        assert_eq!(quoted(b"go away\0\0"), " says \"go away\"");
        assert_eq!(quoted(b"\0\x01\x02"), "");
        assert_eq!(quoted(b""), "");
        assert_eq!(quoted(&[b'x'; 100]).len(), " says \"\"".len() + 64);
    }

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
