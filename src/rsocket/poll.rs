//! rpoll: poll(2) for rsockets and other descriptors.
//!
//! A call polls the rsockets first. Only if it has to sleep, it becomes a watcher of each rsocket,
//! arms the rsockets, and sleeps in the kernel's poll on their descriptors, the program's other
//! descriptors and the thread's waiter.

use std::cell::Cell;
use std::ffi::{c_int, c_short};
use std::ptr;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{POLLIN, pollfd};

use super::config::defaults;
use super::poll_waiter::{Spinning, Waiter, Waiting};
use super::pollable::{Lookup, Pollable, reported, wanted};
use crate::errno::{Errno, Result};
use crate::os::alloc::{SmallList, try_push_small};
use crate::os::cancel::{self, in_call, sleep, with_cleanup};
use crate::os::event::{self, Deadline};

/// Number of descriptors that are handled without allocation.
pub const INLINE_FDS: usize = 32;

/// poll(2) rejects more descriptors than RLIMIT_NOFILE. Reading the limit costs a system call,
/// which is omitted for fewer descriptors than the default limit.
const USUAL_LIMIT: usize = 1024;

/// Whether spinning pays for calls on several descriptors or a datagram rsocket. Calls on one
/// connected stream use the stream's own counter.
static SPINNING: Spinning = Spinning::new();

/// Like poll(2). `timeout` is in milliseconds, infinite if it is negative. An rsocket that is
/// closed during the call gets POLLNVAL.
pub fn poll<L: Lookup>(lookup: &L, fds: &mut [pollfd], timeout: c_int) -> Result<c_int> {
    if timeout != 0
        && let [fd] = fds
    {
        return poll_one(lookup, fd, || Deadline::after_ms(timeout));
    }
    match ready_now(lookup, fds)? {
        Some(ready) if ready > 0 || timeout == 0 => Ok(count(ready)),
        _ => {
            let deadline = Deadline::after_ms(timeout);
            cancel::test();
            in_call(|| wait_for_all(lookup, fds, deadline, true))
        }
    }
}

/// The common case: a single descriptor.
fn poll_one(lookup: &dyn Lookup, fd: &mut pollfd, deadline: impl FnOnce() -> Deadline) -> Result<c_int> {
    fd.revents = 0;
    let rsocket = if fd.fd < 0 { None } else { lookup.find(fd.fd) };
    let wanted = wanted(fd.events);
    let mut report = |bits| {
        fd.revents = reported(bits, fd.events);
        c_int::from(fd.revents != 0)
    };
    if let Some(rsocket) = &rsocket {
        let ready = report(rsocket.ready(wanted));
        if ready > 0 {
            return Ok(ready);
        }
    }
    let deadline = deadline();
    cancel::test();
    if let Some(rsocket) = rsocket
        && let Some(result) = rsocket.wait_alone(wanted, deadline)
    {
        return result.map(report);
    }
    in_call(|| wait_for_all(lookup, slice::from_mut(fd), deadline, true))
}

/// Slow path, and rselect: no rsocket was ready, there are other descriptors, or there are no
/// rsockets. `just_polled`: if all are rsockets, the caller has polled them, and none was ready.
pub fn wait_for_all(lookup: &dyn Lookup, fds: &mut [pollfd], deadline: Deadline, just_polled: bool) -> Result<c_int> {
    let mut members = SmallList::<Member, INLINE_FDS>::new();
    let (mut any, mut others) = (false, false);
    for fd in fds.iter_mut() {
        fd.revents = 0;
        let rsocket = if fd.fd < 0 { None } else { lookup.find(fd.fd) };
        any |= rsocket.is_some();
        others |= fd.fd >= 0 && rsocket.is_none();
        try_push_small(&mut members, Member { rsocket, stale: Cell::new(true) })?;
    }
    if !any {
        return event::poll(fds, deadline.left()).map(count);
    }
    Call { fds, members: members.as_slice(), others }.run(deadline, just_polled && !others).map(count)
}

/// Fast path: polls the rsockets once. Returns the number of ready ones, or `None` if there are
/// other descriptors, or no rsockets.
#[inline(always)] // a loop around the fast path of each descriptor
fn ready_now<L: Lookup>(lookup: &L, fds: &mut [pollfd]) -> Result<Option<usize>> {
    if fds.len() > USUAL_LIMIT && fds.len() > event::descriptor_limit() {
        return Err(Errno::EINVAL);
    }
    let (mut ready, mut any) = (0, false);
    for fd in fds {
        fd.revents = 0;
        if fd.fd >= 0 {
            let Some(bits) = lookup.ready(fd.fd, wanted(fd.events)) else { return Ok(None) };
            any = true;
            if bits != 0 {
                fd.revents = reported(bits, fd.events);
                ready += usize::from(fd.revents != 0);
            }
        }
    }
    Ok(any.then_some(ready))
}

/// Waits for one rsocket, for calls that block. Returns the ready bits, 0 at the deadline, POLLNVAL
/// if the rsocket was closed.
pub fn wait_one(rsocket: &Arc<dyn Pollable>, events: c_short, deadline: Deadline) -> Result<c_short> {
    let mut fds = [pollfd { fd: 0, events, revents: 0 }];
    let members = [Member { rsocket: Some(Arc::clone(rsocket)), stale: Cell::new(true) }];
    Call { fds: &mut fds, members: &members, others: false }.run(deadline, false)?;
    Ok(fds[0].revents)
}

/// Converts a number of descriptors to an int, which is large enough for those of any process.
fn count(ready: usize) -> c_int {
    c_int::try_from(ready).unwrap_or(c_int::MAX)
}

/// The rsocket of an entry of the program's list, if there is one.
struct Member {
    /// `None` for a descriptor of the kernel, and for a negative one.
    rsocket: Option<Arc<dyn Pollable>>,
    /// Whether the rsocket has to be polled. False if the rsocket was armed, and since then no
    /// descriptor became readable and no notice arrived: the rsocket has not changed.
    stale: Cell<bool>,
}

struct Call<'a> {
    fds: &'a mut [pollfd],
    /// One for each of `fds`.
    members: &'a [Member],
    /// Whether there are descriptors that are not rsockets.
    others: bool,
}

impl Call<'_> {
    /// Waits until a descriptor is ready. Returns the number of ready ones, 0 at the deadline.
    /// `just_polled`: the caller has polled the rsockets, and none was ready.
    fn run(mut self, deadline: Deadline, just_polled: bool) -> Result<usize> {
        let ready = if just_polled { 0 } else { self.poll_rsockets(false) };
        let ready = if ready > 0 { ready } else { self.spin(deadline) };
        if ready > 0 || deadline.passed() {
            return self.finish(ready);
        }
        self.sleep(deadline)
    }

    /// Polls the rsockets until one is ready, for polling_time at most. Returns the number of ready
    /// rsockets.
    fn spin(&mut self, deadline: Deadline) -> usize {
        let time = Duration::from_micros(defaults().polling_time_us.into());
        // On a single CPU, spinning would only delay the thread that makes an rsocket ready.
        if time.is_zero() || event::cpus() == 1 || !SPINNING.begin() {
            return 0;
        }
        let end = Instant::now() + deadline.left().map_or(time, |left| left.min(time));
        let pause = || {
            event::spin();
            Instant::now() < end
        };
        while sleep(pause) {
            let ready = self.poll_rsockets(false);
            if ready > 0 {
                SPINNING.succeeded();
                return ready;
            }
        }
        0
    }

    /// Polls the stale rsockets, and arms them if `arm` is set. Returns the number of ready
    /// rsockets.
    fn poll_rsockets(&mut self, arm: bool) -> usize {
        let mut ready = 0;
        for (fd, member) in self.fds.iter_mut().zip(self.members) {
            let Some(rsocket) = member.rsocket.as_ref().filter(|_| member.stale.get()) else { continue };
            let wanted = wanted(fd.events);
            fd.revents = reported(if arm { rsocket.arm(wanted) } else { rsocket.ready(wanted) }, fd.events);
            member.stale.set(!arm || fd.revents != 0);
            ready += usize::from(fd.revents != 0);
        }
        ready
    }

    /// Polls the other descriptors. Returns `ready`, the number of ready rsockets, plus the number
    /// of other descriptors that are ready now.
    fn finish(&mut self, ready: usize) -> Result<usize> {
        if !self.others {
            return Ok(ready);
        }
        let mut set = Set::default();
        set.add_all(self, false)?;
        match set.poll(self, Some(Duration::ZERO)) {
            // A pending signal does not discard the rsockets that are ready.
            Err(_) if ready > 0 => Ok(ready),
            result => result.map(|others| ready + others.unwrap_or(0)),
        }
    }

    fn sleep(&mut self, deadline: Deadline) -> Result<usize> {
        let waiting = Waiting::begin()?;
        let guard = WatcherGuard::begin(self.members, &waiting.watcher)?;
        // SAFETY: called only when the thread is cancelled, which unwinds without dropping either
        // variable and never returns to this frame.
        let cancelled = || unsafe {
            ptr::drop_in_place((&raw const guard).cast_mut());
            ptr::drop_in_place((&raw const waiting).cast_mut());
        };
        let ready = self.poll_rsockets(true);
        if ready > 0 {
            return self.finish(ready);
        }
        let mut set = Set::default();
        loop {
            // The set is rebuilt each time: the last notice may be about a descriptor that was not
            // in the set.
            set.clear();
            set.add(waiting.descriptor(), POLLIN, WAITER)?;
            set.add_all(self, true)?;
            let Some(others) = with_cleanup(cancelled, || set.poll(self, deadline.left()))? else { return Ok(0) };
            set.take_events(self, &waiting);
            // Usually something is ready now, and nothing needs to be armed.
            let mut ready = self.poll_rsockets(false);
            if ready + others == 0 {
                ready = self.poll_rsockets(true);
            }
            // If no requested event has occurred, check the deadline here: while descriptors keep
            // becoming readable, the kernel's poll never times out.
            if ready + others > 0 || deadline.passed() {
                return Ok(ready + others);
            }
        }
    }
}

/// Registers a watcher with rsockets until it is dropped.
struct WatcherGuard<'a> {
    members: &'a [Member],
    watcher: &'a Arc<Waiter>,
}

impl<'a> WatcherGuard<'a> {
    fn begin(members: &'a [Member], watcher: &'a Arc<Waiter>) -> Result<WatcherGuard<'a>> {
        // After a failure, the guard also removes the watcher from rsockets to which it was not
        // added, which has no effect.
        let guard = WatcherGuard { members, watcher };
        for rsocket in members.iter().filter_map(|member| member.rsocket.as_ref()) {
            match rsocket.watchers().add(watcher.clone()) {
                // The next poll reports a closed rsocket.
                Ok(()) | Err(Errno::EBADF) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(guard)
    }
}

impl Drop for WatcherGuard<'_> {
    fn drop(&mut self) {
        for rsocket in self.members.iter().filter_map(|member| member.rsocket.as_ref()) {
            rsocket.watchers().remove(self.watcher);
        }
    }
}

/// The owner of the waiter's descriptor in a [`Set`].
const WAITER: usize = usize::MAX;

/// The descriptors for the kernel's poll. The owner of each is an index of the program's list, or
/// [`WAITER`].
#[derive(Default)]
struct Set {
    fds: SmallList<pollfd, { INLINE_FDS + 1 }>,
    owners: SmallList<usize, { INLINE_FDS + 1 }>,
}

impl Set {
    fn clear(&mut self) {
        self.fds.clear();
        self.owners.clear();
    }

    fn add(&mut self, fd: c_int, events: c_short, owner: usize) -> Result<()> {
        try_push_small(&mut self.fds, pollfd { fd, events, revents: 0 })?;
        try_push_small(&mut self.owners, owner)
    }

    /// Adds the program's descriptors and, if `rsockets` is set, those of its rsockets.
    fn add_all(&mut self, call: &Call<'_>, rsockets: bool) -> Result<()> {
        for (index, (fd, member)) in call.fds.iter().zip(call.members).enumerate() {
            match &member.rsocket {
                Some(rsocket) if rsockets => {
                    rsocket.descriptors()?.as_slice().iter().try_for_each(|&fd| self.add(fd, POLLIN, index))?;
                }
                None if fd.fd >= 0 => self.add(fd.fd, fd.events, index)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Polls, and fills in the revents of descriptors that are not rsockets. Returns how many of
    /// these descriptors are ready, or `None` after a time-out.
    fn poll(&mut self, call: &mut Call<'_>, timeout: Option<Duration>) -> Result<Option<usize>> {
        if event::poll(self.fds.as_mut_slice(), timeout)? == 0 {
            return Ok(None);
        }
        let mut ready = 0;
        for (revents, owner) in self.results() {
            if call.members.get(owner).is_some_and(|member| member.rsocket.is_none()) {
                call.fds[owner].revents = revents;
                ready += usize::from(revents != 0);
            }
        }
        Ok(Some(ready))
    }

    /// Returns the revents of the descriptors with their owners.
    fn results(&self) -> impl Iterator<Item = (c_short, usize)> {
        self.fds.as_slice().iter().map(|fd| fd.revents).zip(self.owners.as_slice().iter().copied())
    }

    /// Reads the events of readable descriptors and marks their rsockets as stale.
    fn take_events(&self, call: &Call<'_>, waiting: &Waiting) {
        for (_, owner) in self.results().filter(|(revents, _)| *revents != 0) {
            if owner == WAITER {
                waiting.watcher.clear();
                call.members.iter().for_each(|member| member.stale.set(true));
            } else if let Some(member) = call.members.get(owner)
                && let Some(rsocket) = &member.rsocket
            {
                rsocket.take_event();
                rsocket.watchers().notify_except(&waiting.watcher);
                member.stale.set(true);
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
#[path = "poll_tests.rs"]
mod tests;
