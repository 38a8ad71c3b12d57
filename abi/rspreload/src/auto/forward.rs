//! Forwards data between an rsocket and the stand-in of its connection (a TCP connection within the
//! host), for the process that uses the stand-in's other end.

use core::ffi::c_int;

use libc::{EAGAIN, EINTR, F_SETFL, MSG_DONTWAIT, O_NONBLOCK, POLLERR, POLLHUP, POLLIN, POLLOUT, SHUT_WR, c_short};

use super::connections::{self, FORWARDED};
use super::shared::MAX_SLOTS;
use crate::memory::{Mapping, plain};
use crate::sockets::{is_ready, kernel, rdma};
use crate::{next_symbol, rsocket, rsocket_abi, tcp};

const BUFFER: usize = 64 << 10;

/// Seconds of silence after which the kernel probes the program's end of a stand-in: longer than
/// the kernel keeps an end that every process has closed (tcp_fin_timeout).
const ORPHAN_TIMEOUT: c_int = 240;

/// Maximum number of bytes that a program may send after the rsocket has failed; more bytes cause a
/// reset. Greater than the amount of earlier data that the kernel can hold.
const MOST_IN_VAIN: usize = 16 << 20;

/// The ends of a connection, as indexes.
const RSOCKET: usize = 0;
const STAND_IN: usize = 1;

/// One direction of a connection. `start` and `end` bound the unsent data in its buffer.
#[derive(Default)]
struct Pipe {
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
    /// The buffers of `pipes`. Both arrays are indexed by the end from which the data comes.
    buffers: *mut [[u8; BUFFER]; 2],
    pipes: [Pipe; 2],
    /// The rsocket has failed. Data that has arrived over it still reaches the program.
    failed: bool,
    /// Bytes that the program has sent since the failure. These bytes are discarded, so that the
    /// program does not block in a send and goes on to read.
    in_vain: usize,
}

plain! { Forward }

/// The forwards of a process, by index of the connection. Unused elements take no memory.
pub struct Forwards(&'static mut [Forward]);

impl Forwards {
    /// Reserves address space for all forwards. Returns `None` without memory.
    pub fn new() -> Option<Forwards> {
        Mapping::new(MAX_SLOTS).map(|forwards| Forwards(forwards.leak()))
    }

    /// Begins to forward a connection. Returns false without memory.
    pub fn begin(&mut self, index: usize) -> bool {
        let (Some(place), Some(forward)) = (self.0.get_mut(index), Forward::begin(index)) else { return false };
        *place = forward;
        FORWARDED.set(index);
        true
    }

    /// Moves the data of a connection, and removes its forward if it has ended.
    pub fn step(&mut self, index: usize, revents: [c_short; 2]) {
        let forward = self.0.get_mut(index).filter(|_| FORWARDED.has(index));
        if forward.is_some_and(|forward| !forward.step(revents)) {
            FORWARDED.clear(index);
        }
    }

    /// Calls `call` with each active forward.
    pub fn each(&mut self, mut call: impl FnMut(&mut Forward)) {
        for index in FORWARDED.each() {
            self.0.get_mut(index).map(&mut call);
        }
    }
}

impl Forward {
    /// Begins to forward the connection of an index. Returns `None` without memory.
    pub fn begin(index: usize) -> Option<Forward> {
        let (rsocket, stand_in) = (connections::rsocket(index), connections::stand_in(index));
        let buffers = Mapping::<[[u8; BUFFER]; 2]>::new(1)?.leak().as_mut_ptr();
        rdma::fcntl(rsocket, F_SETFL, O_NONBLOCK);
        tcp::keep_alive(stand_in, ORPHAN_TIMEOUT);
        Some(Forward { index, rsocket, stand_in, buffers, pipes: Default::default(), failed: false, in_vain: 0 })
    }

    /// The descriptor and the events to wait for at each end: the rsocket, then the stand-in. A
    /// descriptor is -1 if no wait is needed.
    pub fn events(&self) -> [(c_int, c_short); 2] {
        [RSOCKET, STAND_IN].map(|end| {
            let (from, to) = (&self.pipes[end], &self.pipes[1 - end]);
            let mut events = 0;
            if !from.ended && from.start == from.end {
                events |= POLLIN;
            }
            if to.start < to.end || end == STAND_IN && self.failed && to.shut {
                events |= POLLOUT;
            }
            let fd = [self.rsocket, self.stand_in][end];
            let bit = if end == RSOCKET { base::private::FORWARDER_EVENT } else { 0 };
            (if events == 0 && !self.awaits_end(end) { -1 } else { fd }, events | bit)
        })
    }

    /// Whether `end` is polled for errors while there is no data to move. True if the stream from
    /// `end` is over and the stream to `end` is not: the process there may be gone, and an error
    /// ends the connection. In other cases `end` is not polled, because an error would be reported
    /// again and again.
    fn awaits_end(&self, end: usize) -> bool {
        self.pipes[end].shut && !self.pipes[1 - end].ended
    }

    /// Moves data as far as possible without waiting. Returns false when the connection has ended.
    pub fn step(&mut self, revents: [c_short; 2]) -> bool {
        if revents == [0; 2] {
            return true;
        }
        if !self.step_pipe(RSOCKET) || !self.step_pipe(STAND_IN) {
            return self.finish(true);
        }
        if self.failed {
            // The stand-in has no unsent data left when it is ready.
            let has_drained = self.pipes[RSOCKET].shut && is_ready(self.stand_in, POLLOUT);
            return !has_drained || self.finish(true);
        }
        let has_gone = revents[STAND_IN] & (POLLERR | POLLHUP) != 0 && self.awaits_end(STAND_IN);
        let failed =
            has_gone || revents.iter().any(|&events| events & POLLERR != 0 && events & (POLLIN | POLLHUP) == 0);
        let closed = revents[RSOCKET] & POLLHUP != 0 && self.awaits_end(RSOCKET);
        if failed || closed || self.pipes.iter().all(|pipe| pipe.shut) {
            return self.finish(failed);
        }
        true
    }

    /// Moves data that comes from the end `from`. Does not wait, since one thread serves all
    /// connections. MSG_DONTWAIT is needed: a program thread that still has the descriptor's old
    /// entry may change the rsocket's O_NONBLOCK. Returns false if the program's end has failed, or
    /// has sent more than [`MOST_IN_VAIN`] since the peer failed.
    fn step_pipe(&mut self, from: usize) -> bool {
        // SAFETY: the mapping belongs to this value, which is borrowed mutably.
        let buffer = unsafe { &mut (*self.buffers)[from] };
        let pipe = &mut self.pipes[from];
        if pipe.start == pipe.end && !pipe.ended {
            let received = if from == RSOCKET {
                rdma::receive(self.rsocket, buffer, MSG_DONTWAIT | base::private::FORWARDER_FLAG)
            } else {
                kernel::receive(self.stand_in, buffer, MSG_DONTWAIT)
            };
            match received {
                Ok(0) => pipe.ended = true,
                Ok(count) if from == STAND_IN && self.failed => {
                    self.in_vain += count;
                    return self.in_vain <= MOST_IN_VAIN;
                }
                Ok(count) => (pipe.start, pipe.end) = (0, count),
                Err(EAGAIN | EINTR) => {}
                Err(_) if from == RSOCKET => {
                    pipe.ended = true;
                    self.peer_has_failed();
                }
                Err(_) => return false,
            }
        }
        let pipe = &mut self.pipes[from];
        if let Some(data) = buffer.get(pipe.start..pipe.end).filter(|data| !data.is_empty()) {
            let flags = libc::MSG_NOSIGNAL | MSG_DONTWAIT;
            let sent = if from == RSOCKET {
                kernel::send(self.stand_in, data, flags)
            } else {
                rdma::send(self.rsocket, data, flags)
            };
            match sent {
                Ok(count) => pipe.start += count,
                Err(EAGAIN | EINTR) => {}
                Err(_) if from == STAND_IN => self.peer_has_failed(),
                Err(_) => return false,
            }
        }
        let pipe = &mut self.pipes[from];
        if pipe.ended && !pipe.shut && pipe.start == pipe.end {
            pipe.shut = true;
            if from == STAND_IN {
                rsocket_abi::rshutdown(self.rsocket, SHUT_WR);
            } else if !self.failed {
                next_symbol::shutdown(self.stand_in, SHUT_WR);
            }
        }
        true
    }

    /// Called when a send or receive on the rsocket fails. The program gets the data that has
    /// arrived, and then a reset. TCP_NOTSENT_LOWAT lets POLLOUT report that the stand-in has sent
    /// all data.
    fn peer_has_failed(&mut self) {
        (self.pipes[STAND_IN].start, self.pipes[STAND_IN].end) = (0, 0);
        self.failed = true;
        let _ = kernel::set(self.stand_in, (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT), &1);
    }

    /// Ends the connection, by a reset or in order. Returns false, for [`Forward::step`] to return.
    fn finish(&mut self, by_reset: bool) -> bool {
        if by_reset {
            connections::leave(self.index);
            rsocket::reset(self.rsocket);
        } else {
            connections::leave_in_order(self.index);
            rsocket_abi::rclose(self.rsocket);
        }
        // SAFETY: the connection has ended, so the mapping of this length is not used any more.
        unsafe { libc::munmap(self.buffers.cast(), 2 * BUFFER) };
        false
    }
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
