//! Stream sockets with a deadline. No call blocks past the deadline or raises SIGPIPE, and exec
//! closes the sockets.

use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use libc::{c_int, pollfd, sa_family_t, sockaddr_un, socklen_t};

use crate::errno::{Errno, Result};
use crate::os::event::Deadline;
use crate::os::sockaddr::SockAddr;
use crate::os::{event, library_fds};

/// Connects to a unix stream socket.
pub fn connect_unix(path: &str, deadline: Deadline) -> Result<OwnedFd> {
    // Most machines have no daemon: one system call instead of three finds this out.
    if fs::metadata(path).is_err() {
        return Err(Errno::ENOENT);
    }
    let mut addr = [0; size_of::<sockaddr_un>()];
    let (family, name) = addr.split_at_mut(size_of::<sa_family_t>());
    family.copy_from_slice(&(libc::AF_UNIX as sa_family_t).to_ne_bytes());
    // A NUL follows the path.
    if path.len() >= name.len() {
        return Err(Errno::EINVAL);
    }
    name[..path.len()].copy_from_slice(path.as_bytes());
    connect(libc::AF_UNIX, &addr, deadline)
}

/// Connects to a TCP port of 127.0.0.1.
pub fn connect_loopback(port: u16, deadline: Deadline) -> Result<OwnedFd> {
    connect(libc::AF_INET, SockAddr::from_inet(&(Ipv4Addr::LOCALHOST, port).into()).bytes(), deadline)
}

/// Opens a stream socket and connects it to `addr`.
fn connect(family: c_int, addr: &[u8], deadline: Deadline) -> Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let fd = library_fds::socket(family, kind, 0);
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: just opened, owned by no one else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `addr` is readable for its length.
    if unsafe { libc::connect(fd.as_raw_fd(), addr.as_ptr().cast(), addr.len() as socklen_t) } < 0 {
        // After EINTR, too, TCP continues to connect in the background.
        match Errno::last() {
            Errno::EINPROGRESS | Errno::EINTR => wait(&fd, libc::POLLOUT, deadline)?,
            error => return Err(error),
        }
        return connected(fd.into());
    }
    Ok(fd)
}

/// Returns the socket, of any family, if a connect() that continued in the background succeeded.
fn connected(socket: UnixStream) -> Result<OwnedFd> {
    match socket.take_error() {
        Ok(None) => Ok(socket.into()),
        _ => Err(Errno::ECONNREFUSED),
    }
}

fn poll(fd: &OwnedFd, events: i16, timeout: c_int) -> c_int {
    let mut poll = pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: `poll` is one pollfd, as the count says.
    unsafe { libc::poll(&raw mut poll, 1, timeout) }
}

/// Waits for `events`, an error or the end of the stream. Fails with `ETIMEDOUT` at the deadline.
fn wait(fd: &OwnedFd, events: i16, deadline: Deadline) -> Result<()> {
    loop {
        match poll(fd, events, event::millis(event::left(deadline.instant())?)) {
            1.. => return Ok(()),
            0 => {} // The deadline is checked before the next wait.
            _ if Errno::last() == Errno::EINTR => {}
            _ => return Err(Errno::last()),
        }
    }
}

/// Sends all of `bytes`.
pub fn send_all(fd: &OwnedFd, mut bytes: &[u8], deadline: Deadline) -> Result<()> {
    while !bytes.is_empty() {
        // SAFETY: `bytes` is readable for its length.
        let sent = unsafe {
            libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
        };
        match usize::try_from(sent) {
            Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
            Err(_) => retry(fd, libc::POLLOUT, deadline)?,
        }
    }
    Ok(())
}

/// Fills `buffer`. Fails with `EPIPE` if the stream ends before the buffer is full.
pub fn receive_exact(fd: &OwnedFd, buffer: &mut [u8], deadline: Deadline) -> Result<()> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        // SAFETY: `rest` is writable for its length.
        let got = unsafe { libc::recv(fd.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len(), libc::MSG_DONTWAIT) };
        match usize::try_from(got) {
            Ok(0) => return Err(Errno::EPIPE),
            Ok(got) => filled += got,
            Err(_) => retry(fd, libc::POLLIN, deadline)?,
        }
    }
    Ok(())
}

/// Returns whether there is input, an error or the end of the stream. An idle connection has none
/// of these.
pub fn has_input(fd: &OwnedFd) -> bool {
    poll(fd, libc::POLLIN, 0) != 0
}

/// Called after a system call failed. After EAGAIN, waits for `events`. Returns `Ok` if the system
/// call should be repeated, otherwise its error.
fn retry(fd: &OwnedFd, events: i16, deadline: Deadline) -> Result<()> {
    match Errno::last() {
        Errno::EAGAIN => wait(fd, events, deadline),
        error if error == Errno::EINTR => Ok(()),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn pair() -> (OwnedFd, OwnedFd) {
        let (one, other) = UnixStream::pair().unwrap();
        (one.into(), other.into())
    }

    #[test]
    fn end_of_the_stream() {
        let (fd, peer) = pair();
        assert!(!has_input(&fd));
        send_all(&peer, &[1, 2], Deadline::after(Some(LONG))).unwrap();
        assert!(has_input(&fd));
        drop(peer);
        let mut buffer = [0; 3];
        let error = receive_exact(&fd, &mut buffer, Deadline::after(Some(LONG))).unwrap_err();
        assert_eq!((error.get(), buffer), (libc::EPIPE, [1, 2, 0]));
        assert!(has_input(&fd));
    }

    #[test]
    fn waiting_ends() {
        let (fd, _peer) = pair();
        let error = receive_exact(&fd, &mut [0; 1], Deadline::after(Some(Duration::from_millis(20)))).unwrap_err();
        assert_eq!(error, Errno::ETIMEDOUT);
        let full = send_all(&fd, &vec![0; 1 << 24], Deadline::after(Some(Duration::from_millis(20))));
        assert_eq!(full, Err(Errno::ETIMEDOUT));
    }

    #[test]
    fn an_interrupted_call_is_repeated() {
        let (fd, _peer) = pair();
        let after = |error: Errno| {
            base::errno::set(error.get());
            retry(&fd, libc::POLLIN, Deadline::after(Some(Duration::ZERO)))
        };
        assert_eq!(after(Errno::new(libc::EINTR)), Ok(()));
        assert_eq!(after(Errno::EAGAIN), Err(Errno::ETIMEDOUT));
        assert_eq!(after(Errno::EBADF), Err(Errno::EBADF));
    }

    #[test]
    fn no_time_at_all() {
        let (fd, peer) = pair();
        let over = Deadline::after(Some(Duration::ZERO));
        assert_eq!(receive_exact(&fd, &mut [0; 1], over), Err(Errno::ETIMEDOUT));
        send_all(&peer, &[9], over).unwrap(); // succeeds: no waiting is needed
        receive_exact(&fd, &mut [0; 1], over).unwrap();
    }

    // Rust programs such as this test ignore SIGPIPE, but C programs do not: rdma-core killed them.
    #[test]
    fn sending_to_no_one_is_an_error_and_no_signal() {
        let (fd, peer) = pair();
        drop(peer);
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: SIG_DFL is a valid disposition.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            let result = send_all(&fd, &[1], Deadline::after(Some(LONG)));
            // SAFETY: ends the child without the test program's destructors.
            unsafe { libc::_exit(result.err().map_or(0, Errno::get)) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, libc::EPIPE));
    }
}
