//! Moves a pending socket in an epoll instance of the program to the instance's side when it
//! becomes an rsocket.
//!
//! Only the kernel has the program's event. `/proc/self/fdinfo/EPOLL` shows it:
//! `tfd:        5 events:     2019 data: 7fff0000000005  pos:0 ino:3d sdev:a`

use core::ffi::{CStr, c_char, c_int};

use libc::epoll_event;

use crate::{epoll, errno, next_symbol};

/// Removes `fd` from the instance and adds its rsocket, if it is a member.
pub fn hand_over(epfd: c_int, fd: c_int) {
    if let Ok(Some(event)) = find(epfd, fd) {
        // SAFETY: needs no event.
        if unsafe { next_symbol::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, core::ptr::null_mut()) } == 0 {
            epoll::add(epfd, fd, event);
        }
    }
}

/// The program's event cannot be read: there is no /proc, or no free descriptor.
#[derive(Debug)]
pub struct Unreadable;

/// The event that the program asked for, if `fd` is a member of the instance.
pub fn find(epfd: c_int, fd: c_int) -> Result<Option<epoll_event>, Unreadable> {
    let mut path = [0u8; 40];
    let Some(path) = fdinfo(&mut path, epfd) else { return Err(Unreadable) };
    // SAFETY: takes a path. It is not one of the names that this library defines.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return if may_be_member(epfd, fd) { Err(Unreadable) } else { Ok(None) };
    }
    let event = Lines::new(file).find(fd);
    // SAFETY: opened above.
    unsafe { next_symbol::close(file) };
    Ok(event)
}

/// Whether neither a closed number nor kcmp(2), which not every kernel has, rules out that `fd` is
/// a member of `epfd`.
fn may_be_member(epfd: c_int, fd: c_int) -> bool {
    // SAFETY: no pointers.
    if unsafe { next_symbol::fcntl(epfd, libc::F_GETFD, 0) } < 0 {
        return false;
    }
    /// linux/kcmp.h
    const KCMP_EPOLL_TFD: c_int = 7;
    // struct kcmp_epoll_slot: the instance, the member's number, and which one of that number.
    let member = [epfd, fd, 0];
    // SAFETY: the kernel reads the three words.
    let result = unsafe {
        let own = libc::getpid();
        libc::syscall(libc::SYS_kcmp, own, own, KCMP_EPOLL_TFD, fd, member.as_ptr())
    };
    // ENOENT: it has no such member. The others: one of them is closed, or no instance.
    result >= 0 || !matches!(errno::get(), libc::ENOENT | libc::EBADF | libc::EINVAL)
}

fn fdinfo(path: &mut [u8; 40], number: c_int) -> Option<&CStr> {
    // SAFETY: the buffer is this long, and the format takes an int.
    unsafe { libc::snprintf(path.as_mut_ptr().cast::<c_char>(), path.len(), c"/proc/self/fdinfo/%d".as_ptr(), number) };
    CStr::from_bytes_until_nul(path).ok()
}

/// The lines of the file, through a buffer that holds one line.
struct Lines {
    file: c_int,
    buffer: [u8; 512],
    len: usize,
}

impl Lines {
    fn new(file: c_int) -> Lines {
        Lines { file, buffer: [0; 512], len: 0 }
    }

    fn find(mut self, fd: c_int) -> Option<epoll_event> {
        loop {
            let text = self.buffer.get(..self.len)?;
            if let Some(end) = text.iter().position(|&byte| byte == b'\n') {
                if let Some((number, event)) = parse(&text[..end])
                    && number == fd
                {
                    return Some(event);
                }
                self.buffer.copy_within(end + 1..self.len, 0);
                self.len -= end + 1;
                continue;
            }
            let room = self.buffer.get_mut(self.len..)?;
            // SAFETY: the slice is this long.
            let count = unsafe { next_symbol::read(self.file, room.as_mut_ptr().cast(), room.len()) };
            self.len += usize::try_from(count).ok().filter(|&count| count > 0)?;
        }
    }
}

/// Parses the line of a member: its number and its event.
fn parse(line: &[u8]) -> Option<(c_int, epoll_event)> {
    let line = core::str::from_utf8(line).ok()?;
    let (number, rest) = line.strip_prefix("tfd:")?.split_once("events:")?;
    let (events, rest) = rest.split_once("data:")?;
    let data = rest.split_whitespace().next()?;
    let event =
        epoll_event { events: u32::from_str_radix(events.trim(), 16).ok()?, u64: u64::from_str_radix(data, 16).ok()? };
    Some((number.trim().parse().ok()?, event))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn lines_are_read() {
        let (number, event) =
            parse(b"tfd:       12 events: 8000201d data: ffff000100000005  pos:0 ino:9 sdev:a").unwrap();
        let (events, data) = (event.events, event.u64);
        assert_eq!((number, events, data), (12, 0x8000_201d, 0xffff_0001_0000_0005));
        assert!(parse(b"pos:\t0").is_none());
        assert!(parse(b"tfd: x events: 1 data: 2").is_none());
    }

    #[test]
    fn members_are_found_among_many() {
        // SAFETY: no pointers, and events of our own.
        let (epfd, sockets) = unsafe {
            let epfd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            let sockets: Vec<_> = (0..40).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
            for (index, socket) in sockets.iter().enumerate() {
                let mut event = epoll_event { events: 1 | 1 << 31, u64: u64::MAX - index as u64 };
                assert_eq!(libc::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &raw mut event), 0);
            }
            (epfd, sockets)
        };
        for (index, socket) in sockets.iter().enumerate() {
            let event = find(epfd, socket.as_raw_fd()).unwrap().unwrap();
            assert!(may_be_member(epfd, socket.as_raw_fd()));
            let (events, data) = (event.events, event.u64);
            assert_eq!(data, u64::MAX - index as u64);
            assert_eq!(events & (1 | 1 << 31), 1 | 1 << 31);
        }
        assert!(find(epfd, epfd).unwrap().is_none());
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(find(epfd, other.as_raw_fd()).unwrap().is_none());
        // Without kcmp(2) any socket may be one.
        println!("{}", may_be_member(epfd, other.as_raw_fd()));
        // SAFETY: opened above.
        unsafe { libc::close(epfd) };
        assert!(!may_be_member(epfd, other.as_raw_fd()) || tests_have_taken(epfd));
    }

    /// Whether another test has got a number that was closed.
    fn tests_have_taken(fd: c_int) -> bool {
        // SAFETY: no pointers.
        unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
    }
}
