//! Queries to ibacm: where ibacm listens, the connection to it, and the handling of its failures.
//!
//! If there is no daemon, or the daemon closes the connection, sends an invalid answer or sends no
//! answer in time, the caller continues as if ibacm had found nothing. Connecting, sending and
//! receiving together take [`ANSWER_TIMEOUT`] at most.
//!
//! One connection is kept open between calls. A caller takes the connection out of its [`Slot`] for
//! a request and puts it back after a valid answer. Meanwhile other callers open connections of
//! their own; a connection that is put back while the slot is full is closed. So no lock is held
//! while waiting, requests never share a connection, and fork() finds no lock held. The slot also
//! stores which process opened the connection, and the kernel's name for the socket (SO_COOKIE). A
//! child process neither uses nor closes its parent's connection. If the program has closed the
//! descriptor, which may then refer to another file, the process that opened the connection neither
//! uses nor closes the descriptor.

use std::ffi::c_int;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::errno::{Errno, Result};
use crate::os::cancel::in_call;
use crate::os::event::{Deadline, monotonic_ms};
use crate::os::library_fds;

use super::socket::{connect_loopback, connect_unix, has_input, receive_exact, send_all};
use super::wire::{Answer, HEADER_LEN, Header, MAX_RECORDS, Query, RECORD_LEN, Request, parse_records};

/// How long a caller waits for ibacm in total. By default ibacm gives up on a peer or the subnet
/// administrator after a timeout of 2 s and two retries, so a useful answer arrives earlier.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout for a thread for which other threads wait: long enough for an answer from ibacm's cache.
pub const CACHED_ANSWER_TIMEOUT: Duration = Duration::from_millis(50);

/// Time after a failed search for ibacm during which callers do not search again: on the many
/// machines without ibacm, most connections need no system calls for ibacm. A daemon that starts
/// meanwhile is found with this delay. Once a daemon was found, every call looks for ibacm: a
/// missing daemon is assumed to be restarting.
pub const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Value of `Client::missed` once a daemon was found.
const SEEN: u64 = u64::MAX;

/// Where ibacm may listen.
#[derive(Clone, Copy, Debug)]
pub struct SocketPaths<'a> {
    /// File with the number of a TCP port on 127.0.0.1.
    pub port_file: &'a str,
    /// Unix stream socket, used if `port_file` has no port number.
    pub socket: &'a str,
}

/// A client of ibacm.
pub struct Client<'a> {
    paths: SocketPaths<'a>,
    timeout: Duration,
    retry_delay: Duration,
    /// Time of the latest failed search for a daemon, in milliseconds of the monotonic clock. 0
    /// before the first search, [`SEEN`] once a daemon was found.
    missed: AtomicU64,
    slot: Slot,
    last_tid: AtomicU64,
}

impl<'a> Client<'a> {
    /// Creates a client, which connects with its first query. `timeout` is usually
    /// [`ANSWER_TIMEOUT`], and `retry_delay` [`RETRY_DELAY`].
    pub const fn new(paths: SocketPaths<'a>, timeout: Duration, retry_delay: Duration) -> Client<'a> {
        let (missed, last_tid) = (AtomicU64::new(0), AtomicU64::new(0));
        Client { paths, timeout, retry_delay, missed, slot: Slot::new(), last_tid }
    }

    /// Asks ibacm. Returns `None` if `query` is empty, if there is no daemon, if no valid answer
    /// arrives in time, or if the daemon found nothing.
    pub fn ask(&self, query: &Query) -> Option<Answer> {
        self.ask_within(query, self.timeout)
    }

    /// Like [`ask`](Self::ask), but waits for `timeout` at most.
    pub fn ask_within(&self, query: &Query, timeout: Duration) -> Option<Answer> {
        if self.was_absent_just_now() { None } else { in_call(|| self.ask_now(query, timeout)) }
    }

    fn ask_now(&self, query: &Query, timeout: Duration) -> Option<Answer> {
        let tid = self.last_tid.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let request = query.request(tid)?;
        let deadline = Deadline::after(Some(timeout.min(self.timeout)));
        // A connection that the daemon closed, or on which it sent unexpected bytes, is replaced by
        // a new one.
        if let Some(fd) = self.slot.take().filter(|fd| !has_input(fd)) {
            match self.exchange(fd, &request, tid, deadline) {
                Err(error) if hung_up(error) => {}
                result => return result.ok().flatten(),
            }
        }
        let Ok(fd) = self.connect(deadline) else {
            if self.missed.load(Ordering::Relaxed) != SEEN {
                self.missed.store(monotonic_ms(), Ordering::Relaxed);
            }
            return None;
        };
        self.missed.store(SEEN, Ordering::Relaxed);
        self.exchange(fd, &request, tid, deadline).ok().flatten()
    }

    /// Returns whether no daemon was found within the last `retry_delay`: no queries are sent then.
    fn was_absent_just_now(&self) -> bool {
        let missed = self.missed.load(Ordering::Relaxed);
        missed != 0
            && missed != SEEN
            && u128::from(monotonic_ms().saturating_sub(missed)) < self.retry_delay.as_millis()
    }

    /// Sends the request and reads the answer. Keeps the connection if the answer is valid. Returns
    /// `None` if the daemon found nothing.
    fn exchange(&self, fd: OwnedFd, request: &Request, tid: u64, deadline: Deadline) -> Result<Option<Answer>> {
        send_all(&fd, request.as_bytes(), deadline)?;
        let mut head = [0; HEADER_LEN];
        receive_exact(&fd, &mut head, deadline)?;
        let header = Header::parse(&head).map_err(|_| Errno::EPROTO)?;
        if header.tid != tid {
            return Err(Errno::EPROTO);
        }
        let mut body = [0; MAX_RECORDS * RECORD_LEN];
        let body = body.get_mut(..header.body_len).ok_or(Errno::EPROTO)?;
        receive_exact(&fd, body, deadline)?;
        // Reject an echo of the request, whose header may equal that of a valid answer.
        if request.as_bytes().strip_prefix(&head).is_some_and(|records| records == body) {
            return Err(Errno::EPROTO);
        }
        self.slot.put(fd);
        Ok(header.success().then(|| parse_records(body)))
    }

    fn connect(&self, deadline: Deadline) -> Result<OwnedFd> {
        match port_in(self.paths.port_file) {
            Some(port) => connect_loopback(port, deadline),
            None => connect_unix(self.paths.socket, deadline),
        }
    }
}

/// Returns whether `error` means that the daemon closed the connection, perhaps by restarting.
fn hung_up(error: Errno) -> bool {
    matches!(error, Errno::EPIPE | Errno::ECONNRESET)
}

/// Reads the port number at the beginning of a file. Returns `None` if there is no valid number.
fn port_in(file: &str) -> Option<u16> {
    let mut text = [0; 32];
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(file).ok()?;
    let len = file.read(&mut text).ok()?;
    parse_port(text.get(..len)?)
}

/// Parses a decimal number from 1 to 65535. White space may precede the number, and anything but a
/// digit may follow it.
fn parse_port(text: &[u8]) -> Option<u16> {
    let text = text.trim_ascii_start();
    let end = text.iter().position(|c| !c.is_ascii_digit()).unwrap_or(text.len());
    std::str::from_utf8(text.get(..end)?).ok()?.parse().ok().filter(|port| *port != 0)
}

/// Holds at most one idle connection.
struct Slot {
    /// Process id in the upper half, descriptor or [`BUSY`] in the lower; 0 when empty.
    kept: AtomicU64,
    /// The socket's cookie. Accessed only by the thread that has set `kept` to [`BUSY`].
    cookie: AtomicU64,
}

/// Replaces the descriptor while a thread takes the connection out of the slot or puts one in.
const BUSY: u32 = u32::MAX;

impl Slot {
    const fn new() -> Slot {
        Slot { kept: AtomicU64::new(0), cookie: AtomicU64::new(0) }
    }

    /// Takes the connection out, if this process opened it and the descriptor still refers to the
    /// same socket.
    fn take(&self) -> Option<OwnedFd> {
        let kept = self.kept.load(Ordering::Relaxed);
        let fd = kept as u32;
        if kept == 0 || fd == BUSY || process(kept) != std::process::id() || !self.reserve(kept) {
            return None;
        }
        let cookie = self.cookie.load(Ordering::Relaxed);
        self.kept.store(0, Ordering::Release);
        let fd = c_int::try_from(fd).ok()?;
        library_fds::unmark(fd);
        if library_fds::cookie(fd) != Some(cookie) {
            return None;
        }
        // SAFETY: put() gave up ownership of the descriptor, which is still open for the same
        // socket, and reserve() succeeds in one thread only.
        Some(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Keeps the connection in the slot. Closes it if the slot is full or in use by another thread,
    /// or if the kernel has no socket cookies.
    fn put(&self, fd: OwnedFd) {
        let before = self.kept.load(Ordering::Relaxed);
        // A connection of the parent process is replaced. Its descriptor is not closed, because
        // this process does not own it.
        let is_free = before == 0 || process(before) != std::process::id();
        let Some(cookie) = library_fds::cookie(fd.as_raw_fd()).filter(|_| is_free) else { return };
        if self.reserve(before) {
            let fd = fd.into_raw_fd();
            library_fds::mark(fd);
            self.cookie.store(cookie, Ordering::Relaxed);
            self.kept.store(in_this_process(fd as u32), Ordering::Release);
        }
    }

    /// Marks the slot as busy. Returns false if `kept` is no longer `seen`.
    fn reserve(&self, seen: u64) -> bool {
        self.kept.compare_exchange(seen, in_this_process(BUSY), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

fn process(kept: u64) -> u32 {
    (kept >> 32) as u32
}

fn in_this_process(fd: u32) -> u64 {
    u64::from(std::process::id()) << 32 | u64::from(fd)
}

impl Drop for Slot {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn ports() {
        assert_eq!(parse_port(b"6125\n"), Some(6125));
        assert_eq!(parse_port(b" 6125 x"), Some(6125));
        assert_eq!(parse_port(b"65535"), Some(65535));
        for text in ["", "\n", "abc", "0", "-5", "70000", "99999999999999999999"] {
            assert_eq!(parse_port(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn missing_port_file_is_none() {
        assert_eq!(port_in("/nonexistent/ibacm.port"), None);
    }

    fn socket() -> OwnedFd {
        UnixStream::pair().unwrap().0.into()
    }

    #[test]
    fn slot_keeps_one() {
        let slot = Slot::new();
        assert!(slot.take().is_none());
        let kept = socket();
        let fd = kept.as_raw_fd();
        slot.put(kept);
        slot.put(socket());
        assert_eq!(slot.take().unwrap().as_raw_fd(), fd);
        assert!(slot.take().is_none());
    }

    #[test]
    fn slot_of_another_process_is_not_taken() {
        let slot = Slot::new();
        let fd = socket();
        let other = u64::from(std::process::id() + 1) << 32;
        slot.kept.store(other | u64::from(fd.as_raw_fd() as u32), Ordering::Relaxed);
        assert!(slot.take().is_none());
        assert!(slot.take().is_none());
        // SAFETY: asks only whether the descriptor is open.
        assert!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) } >= 0, "closed the descriptor of another process");
    }

    #[test]
    fn connection_of_another_process_is_replaced() {
        let slot = Slot::new();
        for fd in [7, BUSY] {
            slot.kept.store((u64::from(std::process::id() + 1) << 32) | u64::from(fd), Ordering::Relaxed);
            let kept = socket();
            let fd = kept.as_raw_fd();
            slot.put(kept);
            assert_eq!(slot.take().unwrap().as_raw_fd(), fd);
        }
    }

    #[test]
    fn descriptor_of_another_file_is_neither_used_nor_closed() {
        let slot = Slot::new();
        let kept = socket();
        let fd = kept.as_raw_fd();
        slot.put(kept);
        let another = socket();
        // SAFETY: the descriptor was given to the slot; it is another socket's from now on.
        assert_eq!(unsafe { libc::dup2(another.as_raw_fd(), fd) }, fd);
        assert!(slot.take().is_none());
        // SAFETY: `fd` was opened by dup2 above and belongs to nobody else.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        assert!(slot.take().is_none());
        slot.put(another);
        assert!(slot.take().is_some());
    }
}
