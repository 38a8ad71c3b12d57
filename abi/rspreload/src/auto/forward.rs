//! Forwards data between an rsocket and the token of its connection, for the process that uses the
//! token's other end.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::SeqCst;

use libc::{EAGAIN, EINTR, F_SETFL, MSG_DONTWAIT, O_NONBLOCK, POLLERR, POLLHUP, POLLIN, POLLOUT, SHUT_WR, c_short};

use super::connections::{self, Bits};
use super::shared::MAX_SLOTS;
use super::thread;
use crate::{errno, next_symbol, rsocket, rsocket_abi, tcp};

const BUFFER: usize = 64 << 10;

/// Seconds without a packet of the program's end after which the kernel asks whether it is still
/// there: longer than the kernel keeps it when no process has it any more and the peer goes on
/// (tcp_fin_timeout).
const ORPHAN_TIMEOUT: c_int = 240;

/// One direction.
struct Pipe {
    from: c_int,
    to: c_int,
    start: usize,
    end: usize,
    /// The end was received.
    ended: bool,
    /// The end was sent.
    shut: bool,
}

/// A connection.
pub struct Forward {
    pub index: usize,
    inner: c_int,
    token: c_int,
    buffers: NonNull<[u8; 2 * BUFFER]>,
    /// From the rsocket, and from the token.
    pipes: [Pipe; 2],
}

/// The forwards of a process, by index of the connection. Memory is touched for those that exist.
pub struct Forwards {
    forwards: &'static mut [MaybeUninit<Forward>],
    used: Bits,
}

impl Forwards {
    /// `None` without memory.
    pub fn new() -> Option<Forwards> {
        Some(Forwards { forwards: thread::reserve(MAX_SLOTS)?, used: Bits::new() })
    }

    /// Whether a connection is forwarded.
    pub fn has(&self, index: usize) -> bool {
        self.used.has(index)
    }

    pub fn get(&mut self, index: usize) -> Option<&mut Forward> {
        if !self.has(index) {
            return None;
        }
        // SAFETY: the bit says that it was written.
        self.forwards.get_mut(index).map(|forward| unsafe { forward.assume_init_mut() })
    }

    /// Begins to forward a connection. Returns false without memory.
    pub fn begin(&mut self, index: usize) -> bool {
        let (Some(place), Some(forward)) = (self.forwards.get_mut(index), Forward::begin(index)) else { return false };
        place.write(forward);
        self.used.set(index);
        connections::FORWARDED.fetch_add(1, SeqCst);
        true
    }

    /// A connection has ended.
    pub fn remove(&mut self, index: usize) {
        if self.used.clear(index) {
            connections::FORWARDED.fetch_sub(1, SeqCst);
        }
    }

    /// Calls `call` with each one that exists.
    pub fn each(&mut self, mut call: impl FnMut(&mut Forward)) {
        for index in self.used.each() {
            if let Some(forward) = self.forwards.get_mut(index) {
                // SAFETY: the bit says that it was written.
                call(unsafe { forward.assume_init_mut() });
            }
        }
    }
}

/// What a read or a write came to.
enum Moved {
    Bytes(usize),
    Nothing,
    Failed,
}

impl Moved {
    fn from(result: isize) -> Moved {
        match usize::try_from(result) {
            Ok(count) => Moved::Bytes(count),
            Err(_) if matches!(errno::get(), EAGAIN | EINTR) => Moved::Nothing,
            Err(_) => Moved::Failed,
        }
    }
}

impl Forward {
    /// Begins to forward the connection of an index. `None` without memory.
    pub fn begin(index: usize) -> Option<Forward> {
        let (inner, token) = (connections::inner(index), connections::token(index));
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping; a number and a flag.
        let buffers = unsafe {
            let new = libc::mmap(core::ptr::null_mut(), 2 * BUFFER, access, kind, -1, 0);
            if new == libc::MAP_FAILED {
                return None;
            }
            rsocket_abi::rfcntl_int(inner, F_SETFL, O_NONBLOCK);
            NonNull::new(new.cast::<[u8; 2 * BUFFER]>())?
        };
        tcp::keep_alive(token, ORPHAN_TIMEOUT);
        let pipe = |from, to| Pipe { from, to, start: 0, end: 0, ended: false, shut: false };
        Some(Forward { index, inner, token, buffers, pipes: [pipe(inner, token), pipe(token, inner)] })
    }

    /// The events to wait for: of the rsocket, and of the token. A number of -1 needs no wait.
    pub fn events(&self) -> [(c_int, c_short); 2] {
        [self.inner, self.token].map(|fd| {
            let mut events = 0;
            for pipe in &self.pipes {
                if pipe.from == fd && !pipe.ended && pipe.start == pipe.end {
                    events |= POLLIN;
                }
                if pipe.to == fd && pipe.start < pipe.end {
                    events |= POLLOUT;
                }
            }
            let bit = if fd == self.inner { rdmacm_private::FORWARDER_EVENT } else { 0 };
            (if events == 0 && !self.awaits_end(fd) { -1 } else { fd }, events | bit)
        })
    }

    /// Whether an error at `fd` ends the connection, although nothing is to be moved there: its end
    /// was passed on, and perhaps nobody has it any more. Otherwise the error would be reported
    /// again and again.
    fn awaits_end(&self, fd: c_int) -> bool {
        let (from, to) = if fd == self.inner { (0, 1) } else { (1, 0) };
        self.pipes[from].shut && !self.pipes[to].ended
    }

    /// Moves what can be moved. Returns false when the connection has ended.
    pub fn step(&mut self, revents: [c_short; 2]) -> bool {
        if revents.iter().all(|&events| events == 0) {
            return true;
        }
        for which in 0..2 {
            if !self.step_pipe(which) {
                self.finish(true);
                return false;
            }
        }
        let has_gone = revents[1] & (POLLERR | POLLHUP) != 0 && self.awaits_end(self.token);
        let failed =
            has_gone || revents.iter().any(|&events| events & POLLERR != 0 && events & (POLLIN | POLLHUP) == 0);
        let closed = revents[0] & POLLHUP != 0 && self.awaits_end(self.inner);
        if failed || closed || self.pipes.iter().all(|pipe| pipe.shut) {
            self.finish(failed);
            return false;
        }
        true
    }

    /// Returns false after a failure.
    fn step_pipe(&mut self, which: usize) -> bool {
        // SAFETY: the mapping belongs to this value, which is borrowed mutably.
        let buffers = unsafe { self.buffers.as_mut() };
        let (first, second) = buffers.split_at_mut(BUFFER);
        let buffer = if which == 0 { first } else { second };
        let (inner, pipe) = (self.inner, &mut self.pipes[which]);
        if pipe.start == pipe.end && !pipe.ended {
            match receive(pipe.from, pipe.from == inner, buffer) {
                Moved::Bytes(0) => pipe.ended = true,
                Moved::Bytes(count) => (pipe.start, pipe.end) = (0, count),
                Moved::Nothing => {}
                Moved::Failed => return false,
            }
        }
        if let Some(data) = buffer.get(pipe.start..pipe.end).filter(|data| !data.is_empty()) {
            match send(pipe.to, pipe.to == inner, data) {
                Moved::Bytes(count) => pipe.start += count,
                Moved::Nothing => {}
                Moved::Failed => return false,
            }
        }
        if pipe.ended && !pipe.shut && pipe.start == pipe.end {
            pipe.shut = true;
            if pipe.to == inner {
                rsocket_abi::rshutdown(pipe.to, SHUT_WR);
            } else {
                next_symbol::shutdown(pipe.to, SHUT_WR);
            }
        }
        true
    }

    /// Ends the connection.
    fn finish(&mut self, by_reset: bool) {
        if by_reset {
            connections::leave(self.index);
            rsocket::reset(self.inner);
        } else {
            connections::leave_in_order(self.index);
            rsocket_abi::rclose(self.inner);
        }
        self.unmap();
    }

    fn unmap(&mut self) {
        // SAFETY: the mapping is used no more.
        unsafe { libc::munmap(self.buffers.as_ptr().cast::<c_void>(), 2 * BUFFER) };
    }
}

/// One thread serves all connections: it never waits for one, whatever a thread of the program that
/// still has the number's old entry does to the rsocket's flags.
fn receive(fd: c_int, is_rsocket: bool, buffer: &mut [u8]) -> Moved {
    let (start, len) = (buffer.as_mut_ptr().cast::<c_void>(), buffer.len());
    // SAFETY: `len` bytes at `start` are writable.
    Moved::from(unsafe {
        if is_rsocket {
            rsocket_abi::rrecv(fd, start, len, MSG_DONTWAIT | rdmacm_private::FORWARDER_FLAG)
        } else {
            next_symbol::recv(fd, start, len, MSG_DONTWAIT)
        }
    })
}

fn send(fd: c_int, is_rsocket: bool, data: &[u8]) -> Moved {
    let (start, len, flags) = (data.as_ptr().cast::<c_void>(), data.len(), libc::MSG_NOSIGNAL | MSG_DONTWAIT);
    // SAFETY: `len` bytes at `start` are readable.
    Moved::from(unsafe {
        if is_rsocket { rsocket_abi::rsend(fd, start, len, flags) } else { next_symbol::send(fd, start, len, flags) }
    })
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
