//! A line, made on the stack.

use std::fmt::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

use libc::{AF_INET, AF_INET6, c_int, sockaddr_in, sockaddr_in6, sockaddr_storage};

use super::facts::{Place, is_nowhere};
use crate::sys::sockaddr::{AF_IB, SockaddrIb, port};

/// Longer ones are cut.
const MOST: usize = 600;

/// See the module.
pub struct Line {
    bytes: [u8; MOST],
    used: usize,
}

impl Line {
    /// `librdmacm[PID]: NAME`
    pub fn begin(name: &str) -> Line {
        let mut line = Line { bytes: [0; MOST], used: 0 };
        // SAFETY: no arguments. The system call: what the C library remembers may be the parent's.
        let pid = unsafe { libc::syscall(libc::SYS_getpid) };
        line.push(format_args!("librdmacm[{pid}]: {name}"));
        line
    }

    /// Appends; what does not fit is left out.
    pub fn push(&mut self, text: fmt::Arguments<'_>) {
        let _ = self.write_fmt(text);
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
        let used = self.used;
        for byte in &mut self.bytes[..used] {
            if byte.is_ascii_control() {
                *byte = b'?';
            }
        }
        self.bytes[used] = b'\n';
        &self.bytes[..=used]
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let taken = text.len().min(MOST - 1 - self.used);
        self.bytes[self.used..self.used + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.used += taken;
        Ok(())
    }
}

/// An address as people write it: with its port, IPv6 in brackets.
pub struct Address<'a>(pub &'a sockaddr_storage);

impl fmt::Display for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = u16::from_be(port(self.0));
        let address: *const sockaddr_storage = self.0;
        // SAFETY: the storage is as large as each of them, and aligned; any bytes are a value of their fields.
        unsafe {
            match c_int::from(self.0.ss_family) {
                AF_INET => {
                    let ip = Ipv4Addr::from_bits(u32::from_be((*address.cast::<sockaddr_in>()).sin_addr.s_addr));
                    SocketAddrV4::new(ip, number).fmt(f)
                }
                AF_INET6 => {
                    let address = &*address.cast::<sockaddr_in6>();
                    let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
                    SocketAddrV6::new(ip, number, 0, address.sin6_scope_id).fmt(f)
                }
                AF_IB => write!(f, "[{}]:{number}", Ipv6Addr::from((*address.cast::<SockaddrIb>()).addr)),
                family => write!(f, "(address family {family})"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::sockaddr::{SockAddr, zeroed};

    fn v4(ip: [u8; 4], port: u16) -> sockaddr_storage {
        let mut storage = zeroed();
        let address = sockaddr_in {
            sin_family: AF_INET as u16,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip) },
            sin_zero: [0; 8],
        };
        // SAFETY: larger than the address, and aligned.
        unsafe { (&raw mut storage).cast::<sockaddr_in>().write(address) };
        storage
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
        let start = line.used;
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
            let start = line.used;
            line.quote(" says", said);
            String::from_utf8_lossy(&line.bytes[start..line.used]).into_owned()
        };
        assert_eq!(say(b"go away\0\0"), " says \"go away\"");
        assert_eq!(say(b"\0\x01\x02"), "");
        assert_eq!(say(b""), "");
        assert_eq!(say(&[b'x'; 100]).len(), " says \"\"".len() + 64);
    }
}
