//! The accepting end: it listens as an rsocket where the TCP connections came in, and sends the
//! word.
//!
//! One thread of the process makes the handshakes of all accepted connections, with one listener
//! for each local address, so a silent peer delays no other one. The thread ends when no handshake
//! is left.

mod arrivals;
mod listeners;

use core::ffi::{c_int, c_void};
use core::ptr;

use libc::{EAGAIN, POLLIN, POLLRDHUP, pollfd};

use super::active::WORD;
use super::commit::Outcome;
use super::decide::HANDSHAKE_TIMEOUT;
use super::matching::Candidate;
use super::semaphore::Turn;
use super::slots::{self, MAX_HANDSHAKES, Slot};
use crate::tcp;
use crate::tcp::name::{self, Name};
use crate::time::Deadline;
use crate::{eventfd, next_symbol, rsocket_abi};

/// The most local addresses to listen at.
const MAX_LISTENERS: usize = 16;

/// The backlog of a listener, and the most rsockets that are not matched yet. More than one: a
/// stranger's must not keep the peer out.
const BACKLOG: usize = 16;

/// The most unmatched rsockets of one host beside a further one.
const MAX_RIVALS: usize = 4;

/// How long a silent peer may keep other servers from their turns, in milliseconds. A peer that
/// waits for the word answers at once.
const TURN_TIMEOUT: c_int = 1_000;

/// How long a peer is the only one of its host that has been told to connect, in milliseconds.
const EXCLUSIVE_TIME: c_int = 250;

/// How long the end of the TCP connection may take to show after the rsocket has come, in
/// milliseconds, if several peers of the host may have ended theirs.
const SETTLE_TIME: c_int = 200;

/// How long the rsocket may take to come after the peer has ended TCP, in milliseconds.
const END_TIMEOUT: c_int = 1_000;

/// Between two attempts to listen or to get the turn, in milliseconds.
const RETRY_DELAY: c_int = 50;

/// Slots kept free for new connections, by giving up silent ones.
const SPARE_SLOTS: usize = MAX_HANDSHAKES / 8;

/// How far a handshake has got.
enum Stage {
    New,
    /// The peer was told to connect; until then it is the only one of its host.
    Told(Deadline),
    /// The peer has ended TCP. It has left, or it has connected, which this end may see later.
    Ended,
}

struct Job {
    slot: &'static Slot,
    own: Name,
    peer: Name,
    stage: Stage,
    end: Deadline,
    /// The rsocket that has come from the peer's port, -1 for none.
    rsocket: c_int,
}

struct Listener {
    own: Name,
    /// -1 before it listens.
    inner: c_int,
    /// Until then listening is retried: another process listens at the address although its turn is
    /// over.
    retries: Option<Deadline>,
}

/// An rsocket that is not matched yet.
struct Arrived {
    inner: c_int,
    from: Name,
    own: Name,
    settled: Deadline,
}

struct Handshakes {
    jobs: [Option<Job>; MAX_HANDSHAKES],
    listeners: [Option<Listener>; MAX_LISTENERS],
    arrived: [Option<Arrived>; BACKLOG],
    /// Processes with connections to one address take turns.
    turn: Option<(Turn, Deadline)>,
    /// When it goes on without a turn.
    patience: Option<Deadline>,
}

/// The thread.
pub extern "C" fn run(_: *mut c_void) -> *mut c_void {
    let mut handshakes = Handshakes::new();
    loop {
        handshakes.enter_new();
        handshakes.leave_abandoned();
        handshakes.match_arrived();
        handshakes.close_unused();
        if handshakes.jobs().next().is_none() {
            if slots::may_end() {
                return ptr::null_mut();
            }
            continue;
        }
        handshakes.open_listeners();
        handshakes.send_words();
        handshakes.wait();
        handshakes.end_overdue();
    }
}

impl Handshakes {
    fn new() -> Handshakes {
        Handshakes {
            jobs: [const { None }; MAX_HANDSHAKES],
            listeners: [const { None }; MAX_LISTENERS],
            arrived: [const { None }; BACKLOG],
            turn: None,
            patience: None,
        }
    }

    fn jobs(&self) -> impl Iterator<Item = (usize, &Job)> {
        self.jobs.iter().enumerate().filter_map(|(index, job)| Some((index, job.as_ref()?)))
    }

    fn enter_new(&mut self) {
        for (index, slot) in slots::ready() {
            let Some(job @ None) = self.jobs.get_mut(index) else { continue };
            match (name::own(slot.tcp()), name::peer(slot.tcp())) {
                (Some(own), Some(peer)) => {
                    let end = Deadline::after(2 * HANDSHAKE_TIMEOUT);
                    *job = Some(Job { slot, own, peer, stage: Stage::New, end, rsocket: -1 });
                }
                _ => {
                    slot.finish(slot.connection(), Outcome::Tcp);
                    slot.free();
                }
            }
        }
    }

    /// Ends a handshake, and those of the copies of its number.
    fn finish(&mut self, index: usize, outcome: Outcome) {
        let Some(job) = self.jobs.get_mut(index).and_then(Option::take) else { return };
        job.slot.finish(job.slot.connection(), outcome);
        job.slot.free();
        if outcome != Outcome::Rsocket(job.rsocket) {
            close(job.rsocket);
        }
        // What a copy becomes is found out by looking for what this one has become.
        let copy = self.jobs().find(|(_, other)| other.is_same(&job)).map(|(index, _)| index);
        if let Some(copy) = copy {
            self.finish(copy, Outcome::Tcp);
        }
    }

    fn leave_abandoned(&mut self) {
        for index in 0..MAX_HANDSHAKES {
            let Some(gone) = self.jobs[index].take_if(|job| job.slot.entry().is_none()) else { continue };
            gone.slot.free();
            match self.jobs.iter_mut().flatten().find(|other| other.is_same(&gone)) {
                // A copy of its number goes on with it.
                Some(copy) => (copy.stage, copy.end, copy.rsocket) = (gone.stage, gone.end, gone.rsocket),
                None => close(gone.rsocket),
            }
        }
    }

    fn send_words(&mut self) {
        for index in 0..MAX_HANDSHAKES {
            if !self.may_send_word(index) {
                continue;
            }
            let Some(job) = &mut self.jobs[index] else { continue };
            job.slot.sends_word();
            job.stage = Stage::Told(Deadline::after(EXCLUSIVE_TIME));
            job.end = Deadline::after(HANDSHAKE_TIMEOUT);
            if !send_word(job.slot.tcp()) {
                self.finish(index, Outcome::Tcp);
            }
        }
    }

    /// Whether the connection is the oldest of its host that has not been told, and the host has
    /// nothing else to answer.
    fn may_send_word(&self, index: usize) -> bool {
        let Some(job @ Job { stage: Stage::New, .. }) = &self.jobs[index] else { return false };
        let mut listeners = self.listeners.iter().flatten();
        let has_listener = listeners.any(|listener| listener.inner >= 0 && job.is_at(&listener.own));
        let is_hosts = |arrived: &Arrived| name::same_host(&arrived.from, &job.peer) && arrived.settled.left() > 0;
        let mut others = self.jobs().filter(|(other, _)| *other != index);
        let is_before = |(other_index, other): (usize, &Job)| match &other.stage {
            _ if !name::same_host(&other.peer, &job.peer) => false,
            // Which copy of a number goes first is for `follows` to say.
            _ if other.is_same(job) => false,
            Stage::New => (other.end.end(), other_index) < (job.end.end(), index) && other.is_at(&job.own),
            Stage::Told(alone) => other.rsocket < 0 && alone.left() > 0,
            Stage::Ended => true,
        };
        has_listener
            && !self.follows(index, job)
            && !self.arrived.iter().flatten().any(is_hosts)
            && !others.any(is_before)
    }

    /// Whether it is for another job to find out what a connection becomes: that of a copy of its
    /// number.
    fn follows(&self, index: usize, job: &Job) -> bool {
        let leads = |other: &Job, other_index| !matches!(other.stage, Stage::New) || other_index < index;
        let is_new = matches!(job.stage, Stage::New);
        is_new
            && self
                .jobs()
                .any(|(other_index, other)| other_index != index && other.is_same(job) && leads(other, other_index))
    }

    /// Waits for something to happen, and takes it.
    fn wait(&mut self) {
        const FIRST_JOB: usize = 1 + MAX_LISTENERS;
        let mut fds = [pollfd { fd: -1, events: POLLIN | POLLRDHUP, revents: 0 }; FIRST_JOB + MAX_HANDSHAKES];
        fds[0].fd = slots::wake_fd();
        for (pollfd, listener) in fds[1..].iter_mut().zip(&self.listeners) {
            pollfd.fd = listener.as_ref().map_or(-1, |listener| listener.inner);
        }
        for (index, job) in self.jobs() {
            if !matches!(job.stage, Stage::Ended) && !self.follows(index, job) {
                fds[FIRST_JOB + index].fd = job.slot.tcp();
            }
        }
        if !tcp::poll(&mut fds, &Deadline::after(self.timeout())) {
            return;
        }
        if fds[0].revents != 0 {
            eventfd::clear(fds[0].fd);
        }
        for index in (0..MAX_LISTENERS).filter(|index| fds[1 + index].revents != 0) {
            self.accept(index);
        }
        for index in (0..MAX_HANDSHAKES).filter(|index| fds[FIRST_JOB + index].revents != 0) {
            self.hear(index);
        }
    }

    /// How long there is nothing to do, in milliseconds.
    fn timeout(&self) -> c_int {
        let ends = self.jobs().map(|(_, job)| job.end.left());
        let has_new = self.jobs().any(|(_, job)| matches!(job.stage, Stage::New));
        let alone = self.jobs().filter_map(|(_, job)| match &job.stage {
            Stage::Told(alone) if has_new => Some(alone.left()).filter(|&left| left > 0),
            _ => None,
        });
        let settled = self.arrived.iter().flatten().map(|arrived| arrived.settled.left()).filter(|&left| left > 0);
        let turn = self.turn.as_ref().map(|(_, end)| end.left()).filter(|&left| left > 0);
        let is_closed = self.listeners.iter().flatten().any(|listener| listener.inner < 0);
        let waited_for_turn = self.turn.is_none() && !self.is_listening();
        let pause = is_closed.then_some(if waited_for_turn { 0 } else { RETRY_DELAY });
        ends.chain(alone).chain(settled).chain(turn).chain(pause).min().unwrap_or(RETRY_DELAY)
    }

    /// Something has come on a TCP connection. One that goes on over TCP does not come as an
    /// rsocket.
    fn hear(&mut self, index: usize) {
        let Some(job) = &mut self.jobs[index] else { return };
        match tcp::peek(job.slot.tcp(), &mut [0], libc::MSG_DONTWAIT) {
            Err(EAGAIN) => {}
            Ok(count) if count > 0 => self.finish(index, Outcome::Tcp),
            _ if job.rsocket >= 0 => {
                let outcome = Outcome::Rsocket(job.rsocket);
                self.finish(index, outcome);
            }
            _ if matches!(job.stage, Stage::New) => self.finish(index, Outcome::Tcp),
            _ => (job.stage, job.end) = (Stage::Ended, Deadline::after(END_TIMEOUT)),
        }
    }

    /// Gives up peers that have not come in time, and the oldest silent ones if there are too many.
    fn end_overdue(&mut self) {
        for index in 0..MAX_HANDSHAKES {
            if self.jobs[index].as_ref().is_some_and(|job| job.end.left() == 0) {
                self.finish(index, Outcome::Tcp);
            }
        }
        let is_silent = |job: &Job| matches!(&job.stage, Stage::Told(alone) if job.rsocket < 0 && alone.left() == 0);
        while self.jobs().count() > MAX_HANDSHAKES - SPARE_SLOTS {
            let oldest = self.jobs().filter(|(_, job)| is_silent(job)).min_by_key(|(_, job)| job.end.end());
            let Some((index, _)) = oldest else { return };
            self.finish(index, Outcome::Tcp);
        }
    }
}

impl Job {
    /// Whether the connection came in at the address.
    fn is_at(&self, own: &Name) -> bool {
        name::same_end(&self.own, own)
    }

    /// Whether it is for a copy of the same socket.
    fn is_same(&self, other: &Job) -> bool {
        name::same_end(&self.peer, &other.peer) && self.is_at(&other.own)
    }

    /// Whether an rsocket may belong to it.
    fn candidate(&self, arrived: &Arrived) -> Option<Candidate> {
        let may = self.rsocket < 0 && !matches!(self.stage, Stage::New) && self.is_at(&arrived.own);
        (may && name::same_host(&self.peer, &arrived.from)).then(|| Candidate {
            same_port: name::same_end(&self.peer, &arrived.from),
            ended: matches!(self.stage, Stage::Ended),
        })
    }
}

fn close(inner: c_int) {
    if inner >= 0 {
        // SAFETY: no other thread knows the number.
        unsafe { rsocket_abi::rclose(inner) };
    }
}

fn send_word(tcp: c_int) -> bool {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the array is this long.
    unsafe { next_symbol::send(tcp, WORD.as_ptr().cast(), WORD.len(), flags) == WORD.len() as isize }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::super::state::{Role, State};
    use super::*;

    /// A copy may get a slot before that of a number whose handshake began earlier.
    #[test]
    fn one_of_two_copies_goes_first() {
        let (_client, server) = crate::test_sockets::connection();
        let (own, peer) = (name::own(server.as_raw_fd()).unwrap(), name::peer(server.as_raw_fd()).unwrap());
        let slot = slots::of(State::new(Role::Passive).with_ticket(-2).entry()).unwrap();
        let job = |end| Some(Job { slot, own, peer, stage: Stage::New, end: Deadline::after(end), rsocket: -1 });
        let mut handshakes = Handshakes::new();
        handshakes.listeners[0] = Some(Listener { own, inner: server.as_raw_fd(), retries: None });
        for ends in [[HANDSHAKE_TIMEOUT, 2 * HANDSHAKE_TIMEOUT], [2 * HANDSHAKE_TIMEOUT, HANDSHAKE_TIMEOUT]] {
            (handshakes.jobs[0], handshakes.jobs[1]) = (job(ends[0]), job(ends[1]));
            assert_eq!((0..2).filter(|&index| handshakes.may_send_word(index)).count(), 1, "{ends:?}");
        }
    }
}
