//! repoll_wait: epoll_wait(2).

use std::ffi::c_int;
use std::mem::{self, MaybeUninit};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::epoll_event;

use super::member::Member;
use super::{Epoll, QUEUE};
use crate::errno::{Errno, Result};
use crate::sys::cancel::with_cleanup;
use crate::sys::event::Deadline;

/// The program's array, and how much of it is filled.
struct Report<'a> {
    events: &'a mut [MaybeUninit<epoll_event>],
    len: usize,
}

impl Report<'_> {
    fn push(&mut self, event: epoll_event) {
        if let Some(place) = self.events.get_mut(self.len) {
            place.write(event);
            self.len += 1;
        }
    }
}

impl Epoll {
    /// epoll_wait(2): writes events to the front of the array and says how many. timeout: in milliseconds, without end
    /// when negative. `EBADF` when the epoll is closed meanwhile.
    pub fn wait(&self, events: &mut [MaybeUninit<epoll_event>], timeout: c_int) -> Result<usize> {
        if events.is_empty() {
            return Err(Errno::EINVAL);
        }
        self.check_ours()?;
        let deadline = Deadline::after_ms(timeout);
        let mut report = Report { events, len: 0 };
        let left = mem::take(&mut *self.left());
        if left.count > 0 && !left.only.is_some_and(|member| self.settle_left(&member)) {
            self.collect_again(&mut report)?;
        }
        self.collect_until(&mut report, deadline)?;
        Ok(report.len)
    }

    /// Waits until there is something to report, at most until the deadline.
    fn collect_until(&self, report: &mut Report<'_>, deadline: Deadline) -> Result<()> {
        let mut late = 0;
        while report.len == 0 {
            self.check_open()?;
            let left = deadline.left();
            if !self.collect(report, left)? {
                break;
            }
            // Each round after the deadline looks at one member at least, the next one of those
            // that are raised: as many rounds as there are members find every one that has
            // something to report, and a member that is raised again each time has no more of them.
            late += usize::from(left == Some(Duration::ZERO));
            if late > 0 && late > self.members().len() {
                break;
            }
        }
        Ok(())
    }

    /// What is likely to be still there, in half of the array: the rsockets together have one turn in the outer epoll.
    fn collect_again(&self, report: &mut Report<'_>) -> Result<()> {
        if !self.ordinary.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.check_open()?;
        let room = report.events.len() / 2;
        if room == 0 {
            return Ok(());
        }
        self.collect_rsockets(report, room, Some(Duration::ZERO))?;
        if report.len > 0 {
            // No rsockets this time: none is reported twice in one array.
            self.collect_outer(report, Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Fills the report, waiting if there is nothing; false when the time ran out.
    fn collect(&self, report: &mut Report<'_>, timeout: Option<Duration>) -> Result<bool> {
        if self.begin_direct() {
            let room = report.events.len();
            let result = with_cleanup(|| self.end_direct(), || self.collect_rsockets(report, room, timeout));
            self.end_direct();
            return result;
        }
        let marked = self.collect_outer(report, timeout)?;
        if marked {
            match self.collect_rsockets(report, report.events.len(), Some(Duration::ZERO)) {
                // What is there comes first.
                Err(_) if report.len > 0 => {}
                result => drop(result?),
            }
        }
        Ok(marked || report.len > 0)
    }

    /// Adds the ordinary members that are ready; true if there may be rsockets.
    fn collect_outer(&self, report: &mut Report<'_>, timeout: Option<Duration>) -> Result<bool> {
        let free = &mut report.events[report.len..];
        let count = self.outer.wait(free, timeout)?;
        let is_mark = |event: &MaybeUninit<epoll_event>| {
            // SAFETY: only of those that the kernel has written.
            unsafe { event.assume_init() }.u64 == self.mark()
        };
        let mark = free[..count].iter().position(is_mark);
        if let Some(place) = mark {
            free[place..count].rotate_left(1);
        }
        report.len += count - usize::from(mark.is_some());
        Ok(mark.is_some())
    }

    /// Adds to the report, up to `room`, the rsockets that are raised or queued; false when the time ran out.
    fn collect_rsockets(&self, report: &mut Report<'_>, room: usize, timeout: Option<Duration>) -> Result<bool> {
        let start = report.len;
        let count = self.inner.wait(&mut report.events[start..room], timeout)?;
        // SAFETY: the kernel has written it; what is reported goes to places before it, or to its own.
        let key = |report: &Report<'_>, place: usize| unsafe { report.events[place].assume_init() }.u64;
        // A member that is both is looked at in the queue, and one that comes to the queue from now on next time:
        // none is reported twice in one array.
        let queued = (start..start + count).any(|place| key(report, place) == QUEUE);
        let time = if queued { self.queue.now() } else { 0 };
        let mut result = Ok(());
        for place in start..start + count {
            let key = key(report, place);
            if key == QUEUE {
                continue;
            }
            let Some(member) = self.member(key) else { continue };
            member.raised.store(true, Ordering::SeqCst);
            if !member.queued.load(Ordering::SeqCst) {
                result = result.and(self.report(&member, false, report));
            }
        }
        while queued && report.len < room && result.is_ok() {
            let Some(member) = self.queue.pop(time) else { break };
            result = self.report(&member, true, report);
        }
        if queued {
            self.queue.settle();
        }
        if report.len > start { Ok(true) } else { result.map(|()| count > 0) }
    }

    /// While all members are rsockets, a wait spares the outer epoll; whether this one may. [`end_direct`](Self::end_direct)
    /// afterwards.
    fn begin_direct(&self) -> bool {
        if self.ordinary.load(Ordering::SeqCst) {
            return false;
        }
        self.direct.fetch_add(1, Ordering::SeqCst);
        // In this order: whoever adds the first ordinary member sees this thread, or this thread sees the member.
        if self.ordinary.load(Ordering::SeqCst) {
            self.end_direct();
            return false;
        }
        true
    }

    fn end_direct(&self) {
        if self.direct.fetch_sub(1, Ordering::SeqCst) == 1 && self.ordinary.load(Ordering::SeqCst) {
            self.queue.end_eviction();
        }
    }

    fn report(&self, member: &Arc<Member>, queued: bool, report: &mut Report<'_>) -> Result<()> {
        if let Some(event) = self.look(member, queued)? {
            report.push(event);
        }
        Ok(())
    }
}
