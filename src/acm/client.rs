//! Asking ibacm: where it listens, the connection that is kept, and what happens when it misbehaves.
//!
//! No daemon, a dead one, one that answers nonsense or not in time: the caller goes on without ibacm, as if it had no
//! answer. Only the wait is bounded ([`PATIENCE`] for connecting, sending and receiving together).
//!
//! One connection is kept between calls. A caller takes it out of its [`Slot`] for the time of its
//! request and puts it back after a proper answer; while it is out, other callers make one of their
//! own, and the one put back second is closed. So no lock is held while waiting, requests never
//! share a stream, and a thread in fork() never leaves a lock behind. A connection is kept together
//! with the process that made it and with the kernel's name for the socket (SO_COOKIE). A child
//! does not use its parent's connection, nor close it, and the process itself does neither once the
//! program has closed the descriptor: the number may belong to another file by then.

use std::ffi::c_int;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::errno::{Errno, Result};
use crate::sys::clock::monotonic_ms;
use crate::sys::own;

use super::socket::{Deadline, connect_loopback, connect_unix, has_input, receive_exact, send_all};
use super::wire::{Answer, HEADER_LEN, Header, MAX_RECORDS, Query, RECORD_LEN, Request, parse_records};

/// How long a caller waits for ibacm, everything together. By default ibacm itself gives up on a peer or the subnet
/// administrator after 2 s and two repetitions, so that an answer worth having comes earlier.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How long a thread waits that others wait for: enough for an answer that ibacm has in its cache.
pub const HASTE: Duration = Duration::from_millis(50);

/// How long a caller goes on without looking for ibacm after none was there, so that on machines without it (most)
/// a connection costs no look at the files. A daemon that is started meanwhile is found this much later; one that was there before
/// is being started anew, and looked for every time.
pub const ABSENCE: Duration = Duration::from_secs(1);

/// Not a time.
const SEEN: u64 = u64::MAX;

/// Where ibacm may listen.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// File with the number of a TCP port on 127.0.0.1.
    pub port_file: &'a str,
    /// Unix stream socket, used when there is no such number.
    pub socket: &'a str,
}

/// A client of ibacm.
pub struct Client<'a> {
    places: Places<'a>,
    patience: Duration,
    absence: Duration,
    /// When there was no daemon, in milliseconds of the monotonic clock; 0 at first, [`SEEN`] once there was one.
    missed: AtomicU64,
    slot: Slot,
    last_tid: AtomicU64,
}

impl<'a> Client<'a> {
    /// A client that connects at its first question ([`PATIENCE`], [`ABSENCE`]).
    pub const fn new(places: Places<'a>, patience: Duration, absence: Duration) -> Client<'a> {
        let (missed, last_tid) = (AtomicU64::new(0), AtomicU64::new(0));
        Client { places, patience, absence, missed, slot: Slot::new(), last_tid }
    }

    /// What ibacm says to `query`; `None` when there is nothing to ask, no daemon, no proper answer in time, or the
    /// daemon found nothing.
    pub fn ask(&self, query: &Query) -> Option<Answer> {
        self.ask_within(query, self.patience)
    }

    /// As [`ask`](Self::ask), for a caller with another patience.
    pub fn ask_within(&self, query: &Query, patience: Duration) -> Option<Answer> {
        if self.was_absent_just_now() {
            return None;
        }
        let tid = self.last_tid.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let request = Request::new(tid, query)?;
        let deadline = Deadline::after(patience.min(self.patience));
        // A connection whose daemon ended, or that has unasked-for bytes in it, is dropped for a new one.
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

    fn was_absent_just_now(&self) -> bool {
        let missed = self.missed.load(Ordering::Relaxed);
        missed != 0 && missed != SEEN && u128::from(monotonic_ms().saturating_sub(missed)) < self.absence.as_millis()
    }

    /// Sends the request and reads the answer; keeps the connection if that was proper.
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
        self.slot.put(fd);
        Ok(header.success.then(|| parse_records(body)))
    }

    fn connect(&self, deadline: Deadline) -> Result<OwnedFd> {
        match port_in(self.places.port_file) {
            Some(port) => connect_loopback(port, deadline),
            None => connect_unix(self.places.socket, deadline),
        }
    }
}

/// Whether the daemon closed the connection: it may have been started anew since the last request.
fn hung_up(error: Errno) -> bool {
    matches!(error.get(), libc::EPIPE | libc::ECONNRESET)
}

/// The port number that a file begins with.
fn port_in(file: &str) -> Option<u16> {
    let mut text = [0; 32];
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(file).ok()?;
    let len = file.read(&mut text).ok()?;
    parse_port(text.get(..len)?)
}

/// A decimal number from 1 to 65535, blanks before it and anything but a digit after it.
fn parse_port(text: &[u8]) -> Option<u16> {
    let text = text.trim_ascii_start();
    let end = text.iter().position(|c| !c.is_ascii_digit()).unwrap_or(text.len());
    std::str::from_utf8(text.get(..end)?).ok()?.parse().ok().filter(|port| *port != 0)
}

/// A place for one connection.
struct Slot {
    /// Process id in the upper half, descriptor or [`BUSY`] in the lower; 0 when empty.
    kept: AtomicU64,
    /// The socket's cookie. Accessed only by the thread that has set `kept` to [`BUSY`].
    cookie: AtomicU64,
}

/// In place of a descriptor: a thread takes the connection out or puts one in.
const BUSY: u32 = u32::MAX;

impl Slot {
    const fn new() -> Slot {
        Slot { kept: AtomicU64::new(0), cookie: AtomicU64::new(0) }
    }

    /// The connection kept, if this process made it and the descriptor still refers to it.
    fn take(&self) -> Option<OwnedFd> {
        let kept = self.kept.load(Ordering::Relaxed);
        let number = kept as u32;
        if kept == 0 || number == BUSY || process(kept) != std::process::id() || !self.reserve(kept) {
            return None;
        }
        let cookie = self.cookie.load(Ordering::Relaxed);
        self.kept.store(0, Ordering::Release);
        let number = c_int::try_from(number).ok()?;
        own::unmark(number);
        if own::cookie(number) != Some(cookie) {
            return None;
        }
        // SAFETY: put() gave up ownership of the descriptor, which is still open for the same
        // socket, and reserve() succeeds in one thread only.
        Some(unsafe { OwnedFd::from_raw_fd(number) })
    }

    /// Keeps the connection, or closes it if another one is kept already or the kernel has no
    /// cookies.
    fn put(&self, fd: OwnedFd) {
        let before = self.kept.load(Ordering::Relaxed);
        // What a parent left is replaced; its descriptor is not this process's to close.
        let is_free = before == 0 || process(before) != std::process::id();
        let Some(cookie) = own::cookie(fd.as_raw_fd()).filter(|_| is_free) else { return };
        if self.reserve(before) {
            let fd = fd.into_raw_fd();
            own::mark(fd);
            self.cookie.store(cookie, Ordering::Relaxed);
            self.kept.store(in_this_process(fd as u32), Ordering::Release);
        }
    }

    /// Marks the slot as busy; false if it is not as it was `seen`.
    fn reserve(&self, seen: u64) -> bool {
        self.kept.compare_exchange(seen, in_this_process(BUSY), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

fn process(kept: u64) -> u32 {
    (kept >> 32) as u32
}

fn in_this_process(number: u32) -> u64 {
    u64::from(std::process::id()) << 32 | u64::from(number)
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
        let fd = socket();
        let number = fd.as_raw_fd();
        slot.put(fd);
        slot.put(socket());
        assert_eq!(slot.take().unwrap().as_raw_fd(), number);
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
        assert!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) } >= 0, "closed the number of another process");
    }
    #[test]
    fn connection_of_another_process_is_replaced() {
        let slot = Slot::new();
        for number in [7, BUSY] {
            slot.kept.store((u64::from(std::process::id() + 1) << 32) | u64::from(number), Ordering::Relaxed);
            let fd = socket();
            let number = fd.as_raw_fd();
            slot.put(fd);
            assert_eq!(slot.take().unwrap().as_raw_fd(), number);
        }
    }

    #[test]
    fn descriptor_of_another_file_is_neither_used_nor_closed() {
        let slot = Slot::new();
        let fd = socket();
        let number = fd.as_raw_fd();
        slot.put(fd);
        let another = socket();
        // SAFETY: the number was given to the slot; it is another socket's from now on.
        assert_eq!(unsafe { libc::dup2(another.as_raw_fd(), number) }, number);
        assert!(slot.take().is_none());
        // SAFETY: `number` was opened by dup2 above and belongs to nobody else.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
        assert!(slot.take().is_none());
        slot.put(another);
        assert!(slot.take().is_some());
    }
}
