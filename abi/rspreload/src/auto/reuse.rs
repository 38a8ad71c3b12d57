//! Listeners with SO_REUSEPORT: the kernel spreads connections, and so tokens, over all sockets
//! that listen at the port. A token must not reach another process, so there must be no other
//! listener.

use core::ffi::{CStr, c_int};

use crate::{errno, next_symbol};

/// The state LISTEN in `/proc/net/tcp`.
const LISTEN: &[u8] = b"0A";

/// How many sockets of the machine listen at a port. The files begin with the listeners.
pub fn listeners_at(port: u16) -> usize {
    [c"/proc/net/tcp", c"/proc/net/tcp6"].into_iter().map(|file| count_in(file, port)).sum()
}

fn count_in(file: &CStr, port: u16) -> usize {
    // SAFETY: a string; no mode is needed where nothing is created.
    let fd = errno::keeping(|| unsafe { libc::open(file.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) });
    if fd < 0 {
        return 0;
    }
    let count = Lines { fd, buffer: [0; 1024], len: 0 }.count(port);
    // SAFETY: opened above.
    errno::keeping(|| unsafe { next_symbol::close(fd) });
    count
}

struct Lines {
    fd: c_int,
    buffer: [u8; 1024],
    len: usize,
}

impl Lines {
    fn count(mut self, port: u16) -> usize {
        let mut count = 0;
        let mut titles = true;
        while self.fill() {
            let Some(end) = self.buffer[..self.len].iter().position(|&byte| byte == b'\n') else { return count };
            match parse(&self.buffer[..end]) {
                Some((_, false)) => return count,
                Some((listens, true)) => count += usize::from(listens == port),
                None if !titles => return count,
                None => {}
            }
            titles = false;
            self.buffer.copy_within(end + 1..self.len, 0);
            self.len -= end + 1;
        }
        count
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

/// Parses a line. Returns the local port, and whether the socket listens.
fn parse(line: &[u8]) -> Option<(u16, bool)> {
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let local = core::str::from_utf8(words.nth(1)?).ok()?;
    let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
    Some((port, words.nth(1)? == LISTEN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed() {
        let line = b"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1";
        assert_eq!(parse(line), Some((8080, true)));
        let line = b"  12: 0100007F:1F91 0100007F:0016 01 00000000:00000000 00:00000000 00000000     0        0 1 1";
        assert_eq!(parse(line), Some((8081, false)));
        assert_eq!(parse(b"  sl  local_address rem_address   st"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn listeners_are_counted() {
        let listeners: Vec<_> = (0..40).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let port = listeners[20].local_addr().unwrap().port();
        let _client = std::net::TcpStream::connect(listeners[20].local_addr().unwrap()).unwrap();
        assert_eq!(listeners_at(port), 1);
        let _other = std::net::TcpListener::bind(("127.0.0.2", port)).unwrap();
        assert_eq!(listeners_at(port), 2);
        assert_eq!(listeners_at(0), 0);
    }
}
