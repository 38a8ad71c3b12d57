//! rpoll: poll(2) over rsockets and other descriptors together.
//!
//! A call looks at the rsockets first. Only if it has to sleep it becomes a watcher of each, arms them, and sleeps in
//! the kernel's poll on their descriptors, the program's other ones, and the thread's waiter.

use std::ffi::{c_int, c_short};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{POLLIN, pollfd};

use super::bits::{told, wanted};
use super::config::defaults;
use super::few::Few;
use super::waiter::Waiting;
use super::watch::{Lookup, Pollable, Watcher};
use crate::errno::{Errno, Result};
use crate::sys::cancel::{in_call, with_cleanup};
use crate::sys::event::{self, Deadline};

/// So many descriptors are handled without allocation.
const FEW: usize = 32;

/// poll(2) refuses more descriptors than the process may have: asking how many that is costs a system call, which is left out
/// for fewer than the usual limit.
const UNCHECKED: usize = 1024;

/// poll(2). timeout: in milliseconds, without end when negative. An rsocket that is closed meanwhile has POLLNVAL.
pub fn poll(lookup: &dyn Lookup, fds: &mut [pollfd], timeout: c_int) -> Result<c_int> {
    poll_until(lookup, fds, Deadline::after_ms(timeout))
}

/// As [`poll`], with the time-out as a deadline.
pub fn poll_until(lookup: &dyn Lookup, fds: &mut [pollfd], deadline: Deadline) -> Result<c_int> {
    if fds.len() > UNCHECKED && fds.len() > event::descriptor_limit() {
        return Err(Errno::EINVAL);
    }
    if let Some(ready) = ready_now(lookup, fds) {
        return Ok(count(ready));
    }
    in_call(|| wait(lookup, fds, deadline))
}

/// The rest of a call that found no rsocket ready, or has others to ask about.
fn wait(lookup: &dyn Lookup, fds: &mut [pollfd], deadline: Deadline) -> Result<c_int> {
    if let [fd] = fds
        && let Some(ready) = wait_alone(lookup, fd, deadline)
    {
        return ready.map(count);
    }
    let mut rsockets = Few::<Option<Arc<dyn Pollable>>, FEW>::new();
    let (mut any, mut others, mut held) = (false, false, false);
    for fd in fds.iter() {
        let rsocket = if fd.fd < 0 { None } else { lookup.find(fd.fd) };
        any |= rsocket.is_some();
        held |= rsocket.as_ref().is_some_and(|rsocket| rsocket.is_held_here());
        others |= fd.fd >= 0 && rsocket.is_none();
        rsockets.push(rsocket)?;
    }
    if !any {
        return event::poll(fds, deadline.left()).map(count);
    }
    // That was the first look, if all of them are rsockets.
    let call = Call::new(fds, rsockets.as_slice(), others, !others)?;
    if held { call.run_in_handler(deadline) } else { call.run(deadline) }.map(count)
}

/// The first look of a call: how many are ready, if some are and all of `fds` are rsockets.
fn ready_now(lookup: &dyn Lookup, fds: &mut [pollfd]) -> Option<usize> {
    let mut ready = 0;
    for fd in fds {
        fd.revents = 0;
        if fd.fd >= 0 {
            let bits = lookup.ready(fd.fd, wanted(fd.events))?;
            if bits != 0 {
                fd.revents = told(bits, fd.events);
                ready += usize::from(fd.revents != 0);
            }
        }
    }
    (ready > 0).then_some(ready)
}

/// The usual case: one rsocket, which was not ready just now, and which can do its own waiting.
fn wait_alone(lookup: &dyn Lookup, fd: &mut pollfd, deadline: Deadline) -> Option<Result<usize>> {
    let rsocket = if fd.fd < 0 || deadline.passed() { None } else { lookup.find(fd.fd) }?;
    if rsocket.is_held_here() {
        return None;
    }
    Some(rsocket.wait_alone(wanted(fd.events), deadline)?.map(|bits| {
        fd.revents = told(bits, fd.events);
        usize::from(fd.revents != 0)
    }))
}

/// Waits for one rsocket as rpoll does: for calls that block. 0 at the deadline, POLLNVAL if it was closed.
pub fn wait_one(rsocket: &Arc<dyn Pollable>, events: c_short, deadline: Deadline) -> Result<c_short> {
    let mut fds = [pollfd { fd: 0, events, revents: 0 }];
    let rsockets = [Some(Arc::clone(rsocket))];
    Call::new(&mut fds, &rsockets, false, false)?.run(deadline)?;
    Ok(fds[0].revents)
}

/// poll(2) returns an int, and no process has more descriptors than fit.
fn count(ready: usize) -> c_int {
    c_int::try_from(ready).unwrap_or(c_int::MAX)
}

struct Call<'a> {
    fds: &'a mut [pollfd],
    /// For each of `fds`.
    rsockets: &'a [Option<Arc<dyn Pollable>>],
    /// For each of `fds`: whether it is to be looked at. Those that are armed, and were neither raised nor noticed
    /// since, have not changed.
    stale: Few<bool, FEW>,
    /// Whether there are descriptors that are no rsockets.
    others: bool,
    /// Whether somebody has looked at the rsockets just now, and none was ready.
    looked: bool,
}

impl<'a> Call<'a> {
    fn new(
        fds: &'a mut [pollfd],
        rsockets: &'a [Option<Arc<dyn Pollable>>],
        others: bool,
        looked: bool,
    ) -> Result<Call<'a>> {
        let mut stale = Few::new();
        for fd in fds.iter_mut() {
            fd.revents = 0;
            stale.push(true)?;
        }
        Ok(Call { fds, rsockets, stale, others, looked })
    }

    fn run(mut self, deadline: Deadline) -> Result<usize> {
        let ready = self.look_for_a_while(deadline);
        if ready > 0 || deadline.passed() {
            return self.finish(ready);
        }
        self.sleep(deadline)
    }

    /// In a signal handler over a call of one of the rsockets: what is ready now. To wait for that
    /// rsocket would be for ever: `EAGAIN`.
    fn run_in_handler(mut self, deadline: Deadline) -> Result<usize> {
        let ready = self.look(false);
        match self.finish(ready) {
            Ok(0) if !deadline.passed() => Err(Errno::EAGAIN),
            result => result,
        }
    }

    /// Looks at the rsockets for polling_time, or until one is ready; returns how many are.
    fn look_for_a_while(&mut self, deadline: Deadline) -> usize {
        let mut ready = if self.looked { 0 } else { self.look(false) };
        let time = Duration::from_micros(defaults().polling_time_us.into());
        // On a single CPU it would only keep away whoever is to make one ready.
        if ready > 0 || time.is_zero() || event::cpus() == 1 {
            return ready;
        }
        let end = Instant::now() + deadline.left().map_or(time, |left| left.min(time));
        while ready == 0 && Instant::now() < end {
            event::spin();
            ready = self.look(false);
        }
        ready
    }

    /// Looks at the stale rsockets, and arms them if asked to; returns how many are ready.
    fn look(&mut self, arm: bool) -> usize {
        let mut ready = 0;
        for ((fd, rsocket), stale) in self.fds.iter_mut().zip(self.rsockets).zip(self.stale.as_mut_slice()) {
            let Some(rsocket) = rsocket.as_ref().filter(|_| *stale) else { continue };
            let wanted = wanted(fd.events);
            fd.revents = told(if arm { rsocket.arm(wanted) } else { rsocket.ready(wanted) }, fd.events);
            *stale = !arm || fd.revents != 0;
            ready += usize::from(fd.revents != 0);
        }
        ready
    }

    /// `ready` rsockets, and those others that are ready now.
    fn finish(&mut self, ready: usize) -> Result<usize> {
        if !self.others {
            return Ok(ready);
        }
        let mut set = Set::new();
        set.add_others(self)?;
        match set.poll(self, Some(Duration::ZERO)) {
            // A pending signal is no reason to keep back what is ready.
            Err(_) if ready > 0 => Ok(ready),
            result => result.map(|others| ready + others),
        }
    }

    fn sleep(&mut self, deadline: Deadline) -> Result<usize> {
        let waiting = Waiting::begin()?;
        let watched = Watched::begin(self.rsockets, waiting.watcher())?;
        // SAFETY: in a thread that is cancelled nobody comes back to them, nor drops them.
        let cancelled = || unsafe {
            ptr::drop_in_place((&raw const watched).cast_mut());
            ptr::drop_in_place((&raw const waiting).cast_mut());
        };
        let ready = self.look(true);
        if ready > 0 {
            return self.finish(ready);
        }
        let mut set = Set::new();
        loop {
            // Anew each time: a notice may be about a descriptor that was not there before.
            set.clear();
            set.add(waiting.descriptor(), POLLIN, Owner::Waiter)?;
            set.add_rsockets(self)?;
            set.add_others(self)?;
            let others = with_cleanup(cancelled, || set.poll(self, deadline.left()))?;
            if set.is_quiet() {
                return Ok(0);
            }
            set.take_events(self, &waiting);
            // Mostly there is something now: then nothing needs to be armed.
            let mut ready = self.look(false);
            if ready + others == 0 {
                ready = self.look(true);
            }
            // What came was no reason to return. Descriptors that are readable again by now would
            // hide that the time ran out.
            if ready + others > 0 || deadline.passed() {
                return Ok(ready + others);
            }
        }
    }
}

/// A watcher of rsockets, until dropped.
struct Watched<'a> {
    rsockets: &'a [Option<Arc<dyn Pollable>>],
    watcher: &'a Arc<dyn Watcher>,
}

impl<'a> Watched<'a> {
    fn begin(rsockets: &'a [Option<Arc<dyn Pollable>>], watcher: &'a Arc<dyn Watcher>) -> Result<Watched<'a>> {
        let mut watched = Watched { rsockets: &[], watcher };
        for (place, rsocket) in rsockets.iter().enumerate() {
            if let Some(rsocket) = rsocket {
                match rsocket.watchers().add(Arc::clone(watcher)) {
                    // One that is closed is seen so by the next look.
                    Ok(()) | Err(Errno::EBADF) => {}
                    Err(error) => return Err(error),
                }
            }
            watched.rsockets = &rsockets[..=place];
        }
        Ok(watched)
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        for rsocket in self.rsockets.iter().flatten() {
            rsocket.watchers().remove(self.watcher);
        }
    }
}

#[derive(Clone, Copy)]
enum Owner {
    Waiter,
    /// A descriptor of the rsocket in this place of the program's list.
    Rsocket(usize),
    /// The program's descriptor in this place.
    Other(usize),
}

/// What the kernel's poll gets, and whose descriptors these are.
struct Set {
    fds: Few<pollfd, { FEW + 1 }>,
    owners: Few<Owner, { FEW + 1 }>,
}

impl Set {
    fn new() -> Set {
        Set { fds: Few::new(), owners: Few::new() }
    }

    fn clear(&mut self) {
        self.fds.clear();
        self.owners.clear();
    }

    fn add(&mut self, fd: c_int, events: c_short, owner: Owner) -> Result<()> {
        self.fds.push(pollfd { fd, events, revents: 0 })?;
        self.owners.push(owner)
    }

    fn add_rsockets(&mut self, call: &Call<'_>) -> Result<()> {
        let mut result = Ok(());
        for (place, rsocket) in call.rsockets.iter().enumerate() {
            if let Some(rsocket) = rsocket {
                rsocket.descriptors(&mut |fd| {
                    if result.is_ok() {
                        result = self.add(fd, POLLIN, Owner::Rsocket(place));
                    }
                });
            }
        }
        result
    }

    fn add_others(&mut self, call: &Call<'_>) -> Result<()> {
        if !call.others {
            return Ok(());
        }
        for (place, (fd, rsocket)) in call.fds.iter().zip(call.rsockets).enumerate() {
            if fd.fd >= 0 && rsocket.is_none() {
                self.add(fd.fd, fd.events, Owner::Other(place))?;
            }
        }
        Ok(())
    }

    /// Polls, and tells the program of the descriptors that are no rsockets: how many of them are ready.
    fn poll(&mut self, call: &mut Call<'_>, timeout: Option<Duration>) -> Result<usize> {
        event::poll(self.fds.as_mut_slice(), timeout)?;
        let mut ready = 0;
        for (fd, owner) in self.fds.as_slice().iter().zip(self.owners.as_slice()) {
            if let Owner::Other(place) = owner {
                call.fds[*place].revents = fd.revents;
                ready += usize::from(fd.revents != 0);
            }
        }
        Ok(ready)
    }

    /// Whether the time ran out.
    fn is_quiet(&self) -> bool {
        self.fds.as_slice().iter().all(|fd| fd.revents == 0)
    }

    /// Takes the events of those that were raised, and says which rsockets to look at again.
    fn take_events(&self, call: &mut Call<'_>, waiting: &Waiting) {
        let stale = call.stale.as_mut_slice();
        for (fd, owner) in self.fds.as_slice().iter().zip(self.owners.as_slice()) {
            match owner {
                _ if fd.revents == 0 => {}
                Owner::Waiter => {
                    waiting.clear();
                    stale.fill(true);
                }
                Owner::Rsocket(place) => {
                    if let Some(rsocket) = &call.rsockets[*place] {
                        rsocket.take_event();
                        rsocket.watchers().notify_except(waiting.watcher());
                        stale[*place] = true;
                    }
                }
                Owner::Other(_) => {}
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
#[path = "poll_tests.rs"]
mod tests;
