//! A log line, built on the stack.

use std::ffi::{CStr, c_char};
use std::fmt::{self, Write};
use std::net::Ipv6Addr;

use libc::{c_int, sockaddr_storage};

use super::facts::{Endpoints, is_unspecified};
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
        // SAFETY: a string that the C library keeps.
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
        match (!is_unspecified(&endpoints.src), !is_unspecified(&endpoints.dst)) {
            (true, true) => self.push(format_args!(" {} -> {}", Address(&endpoints.src), Address(&endpoints.dst))),
            (true, false) => self.push(format_args!(" {}", Address(&endpoints.src))),
            (false, true) => self.push(format_args!(" -> {}", Address(&endpoints.dst))),
            (false, false) => {}
        }
        if let Some(device) = endpoints.device() {
            self.push(format_args!(" {device}/{}", endpoints.port));
        }
    }

    /// Appends `prefix` and at most 64 characters of the peer's private data, if it is text.
    pub fn push_quoted(&mut self, prefix: &str, private_data: &[u8]) {
        let end = private_data.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let text = &private_data[..end.min(64)];
        if !text.is_empty() && text.iter().all(|&byte| byte == b' ' || byte.is_ascii_graphic()) {
            self.push(format_args!("{prefix} \"{}\"", str::from_utf8(text).unwrap_or_default()));
        }
    }

    /// Returns the bytes of the line. Its only newline is at the end.
    pub fn finish(&mut self) -> &[u8] {
        let bytes = self.0.bytes_with_nul_mut();
        if let Some((newline, text)) = bytes.split_last_mut() {
            for byte in text.iter_mut().filter(|byte| byte.is_ascii_control()) {
                *byte = b'?';
            }
            *newline = b'\n';
        }
        bytes
    }
}

/// Displays an address with its port, IPv6 addresses in brackets.
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
}
