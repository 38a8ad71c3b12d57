//! Listeners with SO_REUSEPORT: several sockets may listen at one port, also at overlapping
//! addresses. A token must not reach another process.

use core::ffi::{CStr, c_int};
use core::net::IpAddr;

use crate::fork::name::Name;
use crate::{errno, next_symbol};

/// The state LISTEN in `/proc/net/tcp`.
const LISTEN: &[u8] = b"0A";

/// The sockets of the machine that listen at a port.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Others {
    /// At the same address: the kernel spreads connections over them.
    pub group: usize,
    /// At another address, where they get connections to the socket's own addresses.
    pub rivals: usize,
}

/// A socket that listens: its file, local address and port.
#[derive(Clone, Copy)]
struct Listener {
    is_v6: bool,
    address: IpAddr,
    port: u16,
}

/// Counts the sockets that listen at the port of `own`, without one at this address, which is the
/// caller's. `v6only`: the caller's gets no connections of IPv4.
pub fn others_at(own: &Name, v6only: bool) -> Others {
    let is_v6 = own.family() == libc::AF_INET6;
    let own = Listener { is_v6, address: own.address(), port: own.number() };
    let mut others = Others::default();
    for (file, is_v6) in [(c"/proc/net/tcp", false), (c"/proc/net/tcp6", true)] {
        each_in(file, is_v6, |other| {
            if own.is_group(other) {
                others.group += 1;
            } else if own.is_rival(other, v6only) {
                others.rivals += 1;
            }
        });
    }
    others.group = others.group.saturating_sub(1);
    others
}

impl Listener {
    fn is_group(&self, other: &Listener) -> bool {
        (self.is_v6, self.address, self.port) == (other.is_v6, other.address, other.port)
    }

    /// Whether `other` gets connections to an address of this one, which is not of its group.
    fn is_rival(&self, other: &Listener, v6only: bool) -> bool {
        let overlaps = self.address.is_unspecified() || self.address == other.address;
        let has_family = if other.address.is_ipv4() { !v6only } else { self.is_v6 };
        // Tokens are never sent to a loopback address.
        self.port == other.port && overlaps && has_family && !other.address.is_loopback()
    }
}

/// Calls `call` with each listener of a file, which begins with the listeners.
fn each_in(file: &CStr, is_v6: bool, call: impl FnMut(&Listener)) {
    // SAFETY: a string; no mode is needed where nothing is created.
    let fd = errno::keeping(|| unsafe { libc::open(file.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) });
    if fd >= 0 {
        Lines { fd, buffer: [0; 1024], len: 0 }.each(is_v6, call);
        // SAFETY: opened above.
        errno::keeping(|| unsafe { next_symbol::close(fd) });
    }
}

struct Lines {
    fd: c_int,
    buffer: [u8; 1024],
    len: usize,
}

impl Lines {
    fn each(mut self, is_v6: bool, mut call: impl FnMut(&Listener)) {
        let mut titles = true;
        while self.fill() {
            let Some(end) = self.buffer[..self.len].iter().position(|&byte| byte == b'\n') else { return };
            match parse(&self.buffer[..end], is_v6) {
                Some((_, false)) => return,
                Some((listener, true)) => call(&listener),
                None if !titles => return,
                None => {}
            }
            titles = false;
            self.buffer.copy_within(end + 1..self.len, 0);
            self.len -= end + 1;
        }
    }

    /// Reads until there is a line. Returns false at the end.
    fn fill(&mut self) -> bool {
        while !self.buffer[..self.len].contains(&b'\n') {
            let room = &mut self.buffer[self.len..];
            // SAFETY: the slice is this long.
            let count = unsafe { next_symbol::read(self.fd, room.as_mut_ptr().cast(), room.len()) };
            match usize::try_from(count) {
                Ok(more) if more > 0 => self.len += more,
                _ => return false,
            }
        }
        true
    }
}

/// Parses a line. Returns the local end, and whether the socket listens.
fn parse(line: &[u8], is_v6: bool) -> Option<(Listener, bool)> {
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let local = core::str::from_utf8(words.nth(1)?).ok()?;
    let (address, port) = local.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // Words of the memory in which the address is in network byte order.
    let word = |index: usize| u32::from_str_radix(address.get(index * 8..index * 8 + 8)?, 16).ok();
    let address = if is_v6 {
        let mut bytes = [0; 16];
        for (index, bytes) in bytes.chunks_exact_mut(4).enumerate() {
            bytes.copy_from_slice(&word(index)?.to_ne_bytes());
        }
        IpAddr::from(bytes).to_canonical()
    } else {
        IpAddr::from(word(0)?.to_ne_bytes())
    };
    Some((Listener { is_v6, address, port }, words.nth(1)? == LISTEN))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn parsed(line: &[u8], is_v6: bool) -> Option<(String, u16, bool)> {
        parse(line, is_v6).map(|(local, listens)| (local.address.to_string(), local.port, listens))
    }

    #[test]
    fn lines_are_parsed() {
        let word = u32::from_ne_bytes([127, 0, 0, 1]);
        let line =
            format!("   0: {word:08X}:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1");
        assert_eq!(parsed(line.as_bytes(), false), Some(("127.0.0.1".into(), 8080, true)));
        let line = format!(
            "  12: {word:08X}:1F91 {word:08X}:0016 01 00000000:00000000 00:00000000 00000000     0        0 1 1"
        );
        assert_eq!(parsed(line.as_bytes(), false), Some(("127.0.0.1".into(), 8081, false)));
        let words = [[0; 4], [0; 4], [0, 0, 0xff, 0xff], [10, 0, 0, 1]].map(u32::from_ne_bytes);
        let six: String = words.iter().map(|word| format!("{word:08X}")).collect();
        let line = format!("   0: {six}:1F90 {six}:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1");
        assert_eq!(parsed(line.as_bytes(), true), Some(("10.0.0.1".into(), 8080, true)));
        assert_eq!(parsed(b"  sl  local_address rem_address   st", false), None);
        assert_eq!(parsed(b"", false), None);
    }

    #[test]
    fn rivals_get_connections_to_an_address_of_the_socket() {
        let listener = |at: &str| {
            let at: std::net::SocketAddr = at.parse().unwrap();
            Listener { is_v6: at.is_ipv6(), address: at.ip().to_canonical(), port: at.port() }
        };
        for (own, v6only, other, group, rival) in [
            ("0.0.0.0:80", false, "0.0.0.0:80", true, false),
            ("0.0.0.0:80", false, "10.0.0.1:80", false, true),
            ("10.0.0.1:80", false, "0.0.0.0:80", false, false),
            ("10.0.0.1:80", false, "10.0.0.2:80", false, false),
            ("[::]:80", false, "0.0.0.0:80", false, true),
            ("[::]:80", true, "0.0.0.0:80", false, false),
            ("[::]:80", true, "[fd00::1]:80", false, true),
            ("0.0.0.0:80", false, "[::]:80", false, false),
            ("0.0.0.0:80", false, "127.0.0.1:80", false, false),
            ("0.0.0.0:80", false, "10.0.0.1:81", false, false),
            ("[::ffff:10.0.0.1]:80", false, "10.0.0.1:80", false, true),
        ] {
            let (own, other) = (listener(own), listener(other));
            let seen = (own.is_group(&other), !own.is_group(&other) && own.is_rival(&other, v6only));
            assert_eq!(seen, (group, rival), "{}:{}", own.address, other.address);
        }
    }

    #[test]
    fn listeners_are_counted() {
        let listeners: Vec<_> = (0..40).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let at = listeners[20].local_addr().unwrap();
        let _client = TcpStream::connect(at).unwrap();
        let own = Name::new(at.ip(), at.port());
        assert_eq!(others_at(&own, false), Others { group: 0, rivals: 0 });
        let _other = TcpListener::bind(("127.0.0.2", at.port())).unwrap();
        assert_eq!(others_at(&own, false), Others { group: 0, rivals: 0 });
        assert_eq!(others_at(&Name::new([127, 0, 0, 2].into(), at.port()), false), Others { group: 0, rivals: 0 });
    }
}
