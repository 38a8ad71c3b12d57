//! Forwards data between an rsocket and the stand-in of its connection, for the process that uses
//! the stand-in's other end.

use core::ffi::c_int;
use core::sync::atomic::Ordering::SeqCst;

use libc::{EAGAIN, EINTR, F_SETFL, MSG_DONTWAIT, O_NONBLOCK, POLLERR, POLLHUP, POLLIN, POLLOUT, SHUT_WR, c_short};

use super::connections::{self, Bits};
use super::shared::MAX_SLOTS;
use crate::memory::{Mapping, plain};
use crate::sockets::{kernel, rdma};
use crate::{errno, next_symbol, rsocket, rsocket_abi, tcp};

const BUFFER: usize = 64 << 10;

/// Seconds without a packet of the program's end after which the kernel asks whether it is still
/// there: longer than the kernel keeps it when no process has it any more and the peer goes on
/// (tcp_fin_timeout).
const ORPHAN_TIMEOUT: c_int = 240;

/// Bytes that a program may send after its peer has gone before it sees the reset, if it does not
/// read what has arrived: more than the kernel holds of what it sent before.
const MOST_IN_VAIN: usize = 16 << 20;

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
    rsocket: c_int,
    stand_in: c_int,
    buffers: *mut [u8; 2 * BUFFER],
    /// From the rsocket, and from the stand-in.
    pipes: [Pipe; 2],
    /// The rsocket has failed. What has arrived by it still reaches the program.
    failed: bool,
    /// Bytes that the program has sent since then, which are discarded, so that it can go on to
    /// read.
    in_vain: usize,
}

plain! { Forward }

/// The forwards of a process, by index of the connection. Memory is touched for those that exist.
pub struct Forwards {
    forwards: &'static mut [Forward],
    used: Bits,
}

impl Forwards {
    /// `None` without memory.
    pub fn new() -> Option<Forwards> {
        Some(Forwards { forwards: Mapping::new(MAX_SLOTS)?.leak(), used: Bits::new() })
    }

    /// Whether a connection is forwarded.
    pub fn has(&self, index: usize) -> bool {
        self.used.has(index)
    }

    pub fn get(&mut self, index: usize) -> Option<&mut Forward> {
        if self.has(index) { self.forwards.get_mut(index) } else { None }
    }

    /// Begins to forward a connection. Returns false without memory.
    pub fn begin(&mut self, index: usize) -> bool {
        let (Some(place), Some(forward)) = (self.forwards.get_mut(index), Forward::begin(index)) else { return false };
        *place = forward;
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

    /// Calls `call` with each active forward.
    pub fn each(&mut self, mut call: impl FnMut(&mut Forward)) {
        for index in self.used.each() {
            self.forwards.get_mut(index).map(&mut call);
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
        let (rsocket, stand_in) = (connections::rsocket(index), connections::stand_in(index));
        let buffers = Mapping::<[u8; 2 * BUFFER]>::new(1)?.leak().as_mut_ptr();
        rdma::fcntl(rsocket, F_SETFL, O_NONBLOCK);
        tcp::keep_alive(stand_in, ORPHAN_TIMEOUT);
        let pipe = |from, to| Pipe { from, to, start: 0, end: 0, ended: false, shut: false };
        let pipes = [pipe(rsocket, stand_in), pipe(stand_in, rsocket)];
        Some(Forward { index, rsocket, stand_in, buffers, pipes, failed: false, in_vain: 0 })
    }

    /// The events to wait for: of the rsocket, and of the stand-in. A number of -1 needs no wait.
    pub fn events(&self) -> [(c_int, c_short); 2] {
        [self.rsocket, self.stand_in].map(|fd| {
            let mut events = 0;
            for pipe in &self.pipes {
                if pipe.from == fd && !pipe.ended && pipe.start == pipe.end {
                    events |= POLLIN;
                }
                if pipe.to == fd && pipe.start < pipe.end {
                    events |= POLLOUT;
                }
            }
            if fd == self.stand_in && self.failed && self.pipes[0].shut {
                events |= POLLOUT;
            }
            let bit = if fd == self.rsocket { base::private::FORWARDER_EVENT } else { 0 };
            (if events == 0 && !self.awaits_end(fd) { -1 } else { fd }, events | bit)
        })
    }

    /// Whether an error at `fd` ends the connection, although nothing is to be moved there: its end
    /// was passed on, and perhaps nobody has it any more. Otherwise the error would be reported
    /// again and again.
    fn awaits_end(&self, fd: c_int) -> bool {
        let (from, to) = if fd == self.rsocket { (0, 1) } else { (1, 0) };
        self.pipes[from].shut && !self.pipes[to].ended
    }

    /// Moves what can be moved. Returns false when the connection has ended.
    pub fn step(&mut self, revents: [c_short; 2]) -> bool {
        if revents.iter().all(|&events| events == 0) {
            return true;
        }
        if !self.step_pipe(0) || !self.step_pipe(1) {
            self.finish(true);
            return false;
        }
        if self.failed {
            let done = self.pipes[0].shut && self.has_drained();
            if done {
                self.finish(true);
            }
            return !done;
        }
        let has_gone = revents[1] & (POLLERR | POLLHUP) != 0 && self.awaits_end(self.stand_in);
        let failed =
            has_gone || revents.iter().any(|&events| events & POLLERR != 0 && events & (POLLIN | POLLHUP) == 0);
        let closed = revents[0] & POLLHUP != 0 && self.awaits_end(self.rsocket);
        if failed || closed || self.pipes.iter().all(|pipe| pipe.shut) {
            self.finish(failed);
            return false;
        }
        true
    }

    /// Returns false if the program's end has failed.
    fn step_pipe(&mut self, which: usize) -> bool {
        // SAFETY: the mapping belongs to this value, which is borrowed mutably.
        let buffers = unsafe { &mut *self.buffers };
        let (first, second) = buffers.split_at_mut(BUFFER);
        let buffer = if which == 0 { first } else { second };
        let (rsocket, pipe) = (self.rsocket, &mut self.pipes[which]);
        if pipe.start == pipe.end && !pipe.ended {
            match receive(pipe.from, pipe.from == rsocket, buffer) {
                Moved::Bytes(0) => pipe.ended = true,
                Moved::Bytes(count) if which == 1 && self.failed => {
                    self.in_vain += count;
                    return self.in_vain <= MOST_IN_VAIN;
                }
                Moved::Bytes(count) => (pipe.start, pipe.end) = (0, count),
                Moved::Nothing => {}
                Moved::Failed if which == 0 => {
                    pipe.ended = true;
                    self.peer_has_failed();
                }
                Moved::Failed => return false,
            }
        }
        let pipe = &mut self.pipes[which];
        if let Some(data) = buffer.get(pipe.start..pipe.end).filter(|data| !data.is_empty()) {
            match send(pipe.to, pipe.to == rsocket, data) {
                Moved::Bytes(count) => pipe.start += count,
                Moved::Nothing => {}
                Moved::Failed if which == 1 => self.peer_has_failed(),
                Moved::Failed => return false,
            }
        }
        let pipe = &mut self.pipes[which];
        if pipe.ended && !pipe.shut && pipe.start == pipe.end {
            pipe.shut = true;
            if pipe.to == rsocket {
                rsocket_abi::rshutdown(pipe.to, SHUT_WR);
            } else if !self.failed {
                next_symbol::shutdown(pipe.to, SHUT_WR);
            }
        }
        true
    }

    /// The rsocket does not take or give data any more. The program sees a reset after what has
    /// arrived: the kernel reports when the stand-in has passed that on.
    fn peer_has_failed(&mut self) {
        (self.pipes[1].start, self.pipes[1].end) = (0, 0);
        self.failed = true;
        let _ = kernel::set(self.stand_in, (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT), &1);
    }

    /// Whether nothing is left that the stand-in has not passed on.
    fn has_drained(&self) -> bool {
        kernel::poll(&mut [libc::pollfd { fd: self.stand_in, events: POLLOUT, revents: 0 }], 0) > 0
    }

    /// Ends the connection.
    fn finish(&mut self, by_reset: bool) {
        if by_reset {
            connections::leave(self.index);
            rsocket::reset(self.rsocket);
        } else {
            connections::leave_in_order(self.index);
            rsocket_abi::rclose(self.rsocket);
        }
        self.unmap();
    }

    fn unmap(&mut self) {
        // SAFETY: the mapping is used no more.
        unsafe { libc::munmap(self.buffers.cast(), 2 * BUFFER) };
    }
}

/// One thread serves all connections: it never waits for one, whatever a thread of the program that
/// still has the descriptor's old entry does to the rsocket's flags.
fn receive(fd: c_int, is_rsocket: bool, buffer: &mut [u8]) -> Moved {
    Moved::from(if is_rsocket {
        rdma::receive(fd, buffer, MSG_DONTWAIT | base::private::FORWARDER_FLAG)
    } else {
        kernel::receive(fd, buffer, MSG_DONTWAIT)
    })
}

fn send(fd: c_int, is_rsocket: bool, data: &[u8]) -> Moved {
    let flags = libc::MSG_NOSIGNAL | MSG_DONTWAIT;
    Moved::from(if is_rsocket { rdma::send(fd, data, flags) } else { kernel::send(fd, data, flags) })
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
