//! Rsockets that have come. Each goes to the connection that it belongs to ([`matching`]).

use core::ffi::c_int;
use core::ptr;

use libc::{EAGAIN, EINTR};

use super::{Arrived, BACKLOG, Handshakes, Listener, MAX_RIVALS, SETTLE_TIME, Stage, close};
use crate::fork::commit::Outcome;
use crate::fork::matching::{self, Verdict};
use crate::tcp::name;
use crate::time::Deadline;
use crate::{errno, rsocket_abi};

impl Handshakes {
    /// Takes the rsockets that have come to a listener.
    pub fn accept(&mut self, index: usize) {
        let Some(Listener { own, inner: listener, .. }) = self.listeners[index] else { return };
        for _ in 0..BACKLOG {
            // SAFETY: null for an address that is not wanted.
            let inner = unsafe { rsocket_abi::raccept(listener, ptr::null_mut(), ptr::null_mut()) };
            if inner < 0 {
                if !matches!(errno::get(), EAGAIN | EINTR | libc::ECONNABORTED) {
                    self.give_up(&own);
                }
                return;
            }
            match name::rsocket_peer(inner) {
                Some(from) => self.enter(Arrived { inner, from, own, settled: Deadline::after(SETTLE_TIME) }),
                None => close(inner),
            }
        }
    }

    /// Matches an rsocket, or keeps it until that can be done.
    fn enter(&mut self, arrived: Arrived) {
        match self.judge(&arrived) {
            Verdict::Belongs(job) => self.assign(job, arrived.inner),
            Verdict::Wait if self.rivals(&arrived).count() < MAX_RIVALS => {
                match self.arrived.iter_mut().find(|room| room.is_none()) {
                    Some(room) => *room = Some(arrived),
                    None => close(arrived.inner),
                }
            }
            _ => close(arrived.inner),
        }
    }

    /// The other unmatched rsockets of its host.
    fn rivals(&self, arrived: &Arrived) -> impl Iterator<Item = &Arrived> {
        let others = self.arrived.iter().flatten().filter(|other| other.inner != arrived.inner);
        others.filter(|other| name::same_host(&other.from, &arrived.from))
    }

    fn judge(&self, arrived: &Arrived) -> Verdict {
        let candidates = self.jobs().filter_map(|(index, job)| Some((index, job.candidate(arrived)?)));
        let has_rivals = self.rivals(arrived).next().is_some();
        matching::choose(candidates, has_rivals, arrived.settled.left() == 0)
    }

    pub fn match_arrived(&mut self) {
        for index in 0..BACKLOG {
            let Some(arrived) = &self.arrived[index] else { continue };
            let inner = arrived.inner;
            match self.judge(arrived) {
                Verdict::Wait => continue,
                Verdict::Refuse => close(inner),
                Verdict::Belongs(job) => self.assign(job, inner),
            }
            self.arrived[index] = None;
        }
    }

    /// The connection has its rsocket, and becomes it once the other end has ended TCP.
    fn assign(&mut self, index: usize, inner: c_int) {
        let Some(job) = &mut self.jobs[index] else { return close(inner) };
        job.rsocket = inner;
        if matches!(job.stage, Stage::Ended) {
            self.finish(index, Outcome::Rsocket(inner));
        }
    }
}
