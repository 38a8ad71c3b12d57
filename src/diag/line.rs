//! A line, made on the stack.

use std::fmt::{self, Write};
use std::net::Ipv6Addr;

use libc::{c_int, sockaddr_storage};

use super::facts::{Place, is_nowhere};
use crate::sys::sockaddr::{AF_IB, SockaddrIb, inet, port};
use crate::sys::text::Text;

/// Longer ones are cut.
const MOST: usize = 600;

/// See the module.
pub struct Line(Text<MOST>);

impl Line {
    /// `librdmacm[PID]: NAME`
    pub fn begin(name: &str) -> Line {
        let mut line = Line(Text::empty());
        // SAFETY: no arguments. The system call: what the C library remembers may be the parent's.
        let pid = unsafe { libc::syscall(libc::SYS_getpid) };
        line.push(format_args!("librdmacm[{pid}]: {name}"));
        line
    }

    /// Appends; what does not fit is left out.
    pub fn push(&mut self, text: fmt::Arguments<'_>) {
        let _ = self.0.write_fmt(text);
    }

    /// Appends addresses and device, as far as they are known.
    pub fn place(&mut self, place: Option<&Place>) {
        let Some(place) = place else { return };
        match (!is_nowhere(&place.src), !is_nowhere(&place.dst)) {
            (true, true) => self.push(format_args!(" {} -> {}", Address(&place.src), Address(&place.dst))),
            (true, false) => self.push(format_args!(" {}", Address(&place.src))),
            (false, true) => self.push(format_args!(" -> {}", Address(&place.dst))),
            (false, false) => {}
        }
        if let Some(device) = place.device() {
            self.push(format_args!(" {device}/{}", place.port));
        }
    }

    /// Appends what a peer said, if that is text; at most 64 characters.
    pub fn quote(&mut self, before: &str, said: &[u8]) {
        let end = said.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let text = &said[..end.min(64)];
        if !text.is_empty() && text.iter().all(|&byte| byte == b' ' || byte.is_ascii_graphic()) {
            self.push(format_args!("{before} \"{}\"", str::from_utf8(text).unwrap_or_default()));
        }
    }

    /// The bytes, with a newline at the end and none before.
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

/// An address as people write it: with its port, IPv6 in brackets.
pub struct Address<'a>(pub &'a sockaddr_storage);

impl fmt::Display for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = inet(self.0) {
            return address.fmt(f);
        }
        match c_int::from(self.0.ss_family) {
            AF_IB => {
                let address: *const sockaddr_storage = self.0;
                // SAFETY: the storage is as large, and aligned; any bytes are a value of its fields.
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
    use crate::sys::sockaddr::{SockAddr, zeroed};

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
    fn places() {
        let mut line = Line::begin("rbind");
        let start = line.0.bytes_with_nul_mut().len() - 1;
        line.place(Some(&Place::new(v4([1, 2, 3, 4], 5), v4([6, 7, 8, 9], 10), b"rxe0", 1)));
        assert_eq!(&line.finish()[start..], b" 1.2.3.4:5 -> 6.7.8.9:10 rxe0/1\n");
    }

    #[test]
    fn one_line_whatever_is_in_it() {
        let mut line = Line::begin("x");
        let long = "a\nb\x1b".repeat(400);
        line.push(format_args!("{long}"));
        let bytes = line.finish();
        assert_eq!((bytes.len(), bytes.last()), (MOST, Some(&b'\n')));
        assert!(!bytes[..MOST - 1].iter().any(u8::is_ascii_control));
    }

    #[test]
    fn what_peers_say() {
        let say = |said: &[u8]| {
            let mut line = Line::begin("x");
            let start = line.0.bytes_with_nul_mut().len() - 1;
            line.quote(" says", said);
            let bytes = line.0.bytes_with_nul_mut();
            String::from_utf8_lossy(&bytes[start..bytes.len() - 1]).into_owned()
        };
        assert_eq!(say(b"go away\0\0"), " says \"go away\"");
        assert_eq!(say(b"\0\x01\x02"), "");
        assert_eq!(say(b""), "");
        assert_eq!(say(&[b'x'; 100]).len(), " says \"\"".len() + 64);
    }
}
