//! Forwards data between an rsocket and the stand-in of its connection (a TCP connection within the
//! host), for the process that uses the stand-in's other end.

use core::ffi::c_int;
use core::sync::atomic::Ordering::SeqCst;

use libc::{EAGAIN, EINTR, F_SETFL, MSG_DONTWAIT, O_NONBLOCK, POLLERR, POLLHUP, POLLIN, POLLOUT, SHUT_WR, c_short};

use super::connections::{self, Bits};
use super::shared::MAX_SLOTS;
use crate::memory::{Mapping, plain, zero};
use crate::sockets::{kernel, rdma};
use crate::{errno, next_symbol, rsocket, rsocket_abi, tcp};

const BUFFER: usize = 64 << 10;

/// Seconds of silence at the stand-in after which the kernel probes its other end, the program's:
/// longer than the kernel keeps that end after every process has closed it (tcp_fin_timeout).
const ORPHAN_TIMEOUT: c_int = 240;

/// Bytes that a program may send after its peer has gone, if it does not read: then it sees the
/// reset. More than the kernel can hold of data that the program sent before.
const MOST_IN_VAIN: usize = 16 << 20;

/// One direction of a connection. `start` and `end` bound the unsent data in its buffer.
struct Pipe {
    from: c_int,
    to: c_int,
    start: usize,
    end: usize,
    /// The end of the stream was received.
    ended: bool,
    /// The end of the stream was sent.
    shut: bool,
}

/// A connection that is forwarded.
pub struct Forward {
    pub index: usize,
    rsocket: c_int,
    stand_in: c_int,
    buffers: *mut [u8; 2 * BUFFER],
    /// From the rsocket to the stand-in, and back.
    pipes: [Pipe; 2],
    /// The rsocket has failed. Data that has arrived over it still reaches the program.
    failed: bool,
    /// Bytes that the program has sent since the failure. They are discarded, so that its sends do
    /// not block and it goes on to read.
    in_vain: usize,
}

plain! { Forward }

/// The forwards of a process, by index of the connection. Unused elements take no memory.
pub struct Forwards {
    forwards: &'static mut [Forward],
    used: Bits,
}

impl Forwards {
    /// Reserves address space for all forwards. Returns `None` without memory.
    pub fn new() -> Option<Forwards> {
        Some(Forwards { forwards: Mapping::new(MAX_SLOTS)?.leak(), used: zero() })
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

    /// Removes the forward of a connection that has ended.
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

/// The result of a read or a write.
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
    /// Begins to forward the connection of an index. Returns `None` without memory.
    pub fn begin(index: usize) -> Option<Forward> {
        let (rsocket, stand_in) = (connections::rsocket(index), connections::stand_in(index));
        let buffers = Mapping::<[u8; 2 * BUFFER]>::new(1)?.leak().as_mut_ptr();
        rdma::fcntl(rsocket, F_SETFL, O_NONBLOCK);
        tcp::keep_alive(stand_in, ORPHAN_TIMEOUT);
        let pipe = |from, to| Pipe { from, to, start: 0, end: 0, ended: false, shut: false };
        let pipes = [pipe(rsocket, stand_in), pipe(stand_in, rsocket)];
        Some(Forward { index, rsocket, stand_in, buffers, pipes, failed: false, in_vain: 0 })
    }

    /// The descriptors and the events to wait for, of the rsocket and of the stand-in. The
    /// descriptor is -1 if no wait is needed.
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

    /// Whether an error at `fd` ends the connection, although no data is to be moved there: the end
    /// of its stream was passed on, and the process behind it may be gone. Otherwise `fd` is not
    /// polled, because the error would be reported again and again.
    fn awaits_end(&self, fd: c_int) -> bool {
        let (from, to) = if fd == self.rsocket { (0, 1) } else { (1, 0) };
        self.pipes[from].shut && !self.pipes[to].ended
    }

    /// Moves data as far as possible without waiting. Returns false when the connection has ended.
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

    /// Moves data in one direction. Returns false if the program's end has failed, or has sent more
    /// than [`MOST_IN_VAIN`] since the peer failed.
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

    /// Called when a send or receive on the rsocket fails. The program gets the data that has
    /// arrived, and then a reset. TCP_NOTSENT_LOWAT lets POLLOUT report that the stand-in has sent
    /// all data.
    fn peer_has_failed(&mut self) {
        (self.pipes[1].start, self.pipes[1].end) = (0, 0);
        self.failed = true;
        let _ = kernel::set(self.stand_in, (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT), &1);
    }

    /// Whether the stand-in has no unsent data left.
    fn has_drained(&self) -> bool {
        kernel::poll(&mut [libc::pollfd { fd: self.stand_in, events: POLLOUT, revents: 0 }], 0) > 0
    }

    /// Ends the connection: by a reset, or in order.
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
        // SAFETY: the connection has ended, so the mapping of this length is not used any more.
        unsafe { libc::munmap(self.buffers.cast(), 2 * BUFFER) };
    }
}

/// Receives without waiting, since one thread serves all connections. MSG_DONTWAIT is needed: a
/// program thread that still has the descriptor's old entry may change the rsocket's O_NONBLOCK.
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
