//! repoll_wait: epoll_wait(2).

use std::ffi::c_int;
use std::mem::{self, MaybeUninit};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::epoll_event;

use super::member::Member;
use super::{Epoll, QUEUE_KEY, exclusive};
use crate::errno::{Errno, Result};
use crate::sys::cancel::with_cleanup;
use crate::sys::event::Deadline;

/// The program's array of events, and the number of events in it.
struct EventBuffer<'a> {
    events: &'a mut [MaybeUninit<epoll_event>],
    len: usize,
    /// Whether an event was not reported because it may be that of an exclusive member that was
    /// removed meanwhile.
    dropped: bool,
}

impl EventBuffer<'_> {
    fn push(&mut self, event: epoll_event) {
        if let Some(slot) = self.events.get_mut(self.len) {
            slot.write(event);
            self.len += 1;
        }
    }
}

/// What a wait in the outer epoll found.
struct Outer {
    /// False after a time-out.
    any: bool,
    /// Whether there may be ready rsockets in the inner epoll.
    rsockets_ready: bool,
    /// The sequence number of the queue before exclusive members were polled, which may have
    /// entered the queue since.
    queued_before: Option<u64>,
    /// [`Epoll::removals`] before the wait.
    removals: u64,
}

impl Epoll {
    /// Like epoll_wait(2). Returns the number of events written to the array. `timeout` is in
    /// milliseconds; a negative one never ends. Fails with `EBADF` if the epoll is closed during
    /// the wait.
    pub fn wait(&self, events: &mut [MaybeUninit<epoll_event>], timeout: c_int) -> Result<usize> {
        if events.is_empty() {
            return Err(Errno::EINVAL);
        }
        self.check_process()?;
        let deadline = Deadline::after_ms(timeout);
        let mut buffer = EventBuffer { events, len: 0, dropped: false };
        let last_reported = mem::take(&mut *self.last_reported());
        if last_reported.count > 0 && !last_reported.only.is_some_and(|member| self.rearm_last_reported(&member)) {
            self.collect_again(&mut buffer)?;
        }
        self.collect_until(&mut buffer, deadline)?;
        Ok(buffer.len)
    }

    /// Waits until there is something to report, or until the deadline.
    fn collect_until(&self, buffer: &mut EventBuffer<'_>, deadline: Deadline) -> Result<()> {
        let mut late = 0;
        while buffer.len == 0 {
            self.check_not_closed()?;
            let left = deadline.left();
            if !self.collect(buffer, left)? {
                break;
            }
            // Each round that does not wait polls at least one readable member, in turn. A round
            // for each member finds every one that has something to report, even if a member
            // becomes readable again in each round. One more finds whether a dropped event was the
            // program's own.
            late += usize::from(left == Some(Duration::ZERO));
            if late > 0 && late > self.members().len() + usize::from(buffer.dropped) {
                break;
            }
        }
        Ok(())
    }

    /// Collects rsockets that are probably still ready into half of the array, because all rsockets
    /// together have one turn in the outer epoll.
    fn collect_again(&self, buffer: &mut EventBuffer<'_>) -> Result<()> {
        if !self.ordinary.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.check_not_closed()?;
        let max_len = buffer.events.len() / 2;
        if max_len == 0 {
            return Ok(());
        }
        self.collect_rsockets(buffer, max_len, Some(Duration::ZERO), None)?;
        if buffer.len > 0 {
            // The rsockets are skipped this time, so that the array contains none of them twice.
            self.collect_outer(buffer, Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Fills the buffer, and waits if nothing is ready. Returns false after a time-out.
    fn collect(&self, buffer: &mut EventBuffer<'_>, timeout: Option<Duration>) -> Result<bool> {
        if self.begin_inner_wait() {
            let max_len = buffer.events.len();
            let result =
                with_cleanup(|| self.end_inner_wait(), || self.collect_rsockets(buffer, max_len, timeout, None));
            self.end_inner_wait();
            return result;
        }
        let outer = self.collect_outer(buffer, timeout)?;
        if outer.rsockets_ready && buffer.len < buffer.events.len() {
            match self.collect_rsockets(buffer, buffer.events.len(), Some(Duration::ZERO), outer.queued_before) {
                // An error does not discard events that are ready.
                Err(_) if buffer.len > 0 => {}
                result => drop(result?),
            }
        }
        Ok(outer.any)
    }

    /// Adds the ready ordinary members, and the rsockets whose wait queue has woken this epoll.
    fn collect_outer(&self, buffer: &mut EventBuffer<'_>, timeout: Option<Duration>) -> Result<Outer> {
        let start = buffer.len;
        let removals = self.removals.load(Ordering::SeqCst);
        let count = self.outer.wait(&mut buffer.events[start..], timeout)?;
        let mut outer = Outer { any: count > 0, rsockets_ready: false, queued_before: None, removals };
        for index in start..start + count {
            // SAFETY: the kernel has written this event. Reported events overwrite only earlier
            // ones and this one.
            let event = unsafe { buffer.events[index].assume_init() };
            if event.u64 == self.inner_key() {
                outer.rsockets_ready = true;
            } else if exclusive::may_be_mark(event, self.last_exclusive.load(Ordering::SeqCst)) {
                outer.queued_before.get_or_insert_with(|| self.queue.next_sequence());
                self.collect_exclusive(event, buffer, &mut outer)?;
            } else {
                buffer.push(event);
            }
        }
        Ok(outer)
    }

    /// Adds an exclusive member. If it is in the queue, it is polled from there.
    fn collect_exclusive(&self, event: epoll_event, buffer: &mut EventBuffer<'_>, outer: &mut Outer) -> Result<()> {
        match self.exclusive_member(event.u64) {
            Some(member) if member.queued.load(Ordering::SeqCst) => outer.rsockets_ready = true,
            Some(member) => self.poll_into(&member, false, buffer)?,
            // A member leaves the outer epoll before it leaves the table, but close() removes all.
            None if self.removals.load(Ordering::SeqCst) != outer.removals => buffer.dropped = true,
            None => {
                self.check_not_closed()?;
                buffer.push(event);
            }
        }
        Ok(())
    }

    /// Adds rsockets that are readable or queued, until the buffer has `max_len` events. Of the
    /// queue only members with a smaller sequence number than `queued_before`, if that is given.
    /// Returns false after a time-out.
    fn collect_rsockets(
        &self,
        buffer: &mut EventBuffer<'_>,
        max_len: usize,
        timeout: Option<Duration>,
        queued_before: Option<u64>,
    ) -> Result<bool> {
        let start = buffer.len;
        let count = self.inner.wait(&mut buffer.events[start..max_len], timeout)?;
        // SAFETY: the kernel has written this event. Reported events overwrite only this one and
        // earlier ones.
        let key = |buffer: &EventBuffer<'_>, index: usize| unsafe { buffer.events[index].assume_init() }.u64;
        // A readable member that is also queued is polled from the queue, and a member that is
        // queued from now on is polled next time, so that the array contains none of them twice.
        let queued = (start..start + count).any(|index| key(buffer, index) == QUEUE_KEY);
        let sequence = if queued { queued_before.unwrap_or_else(|| self.queue.next_sequence()) } else { 0 };
        let mut result = Ok(());
        for index in start..start + count {
            let key = key(buffer, index);
            if key == QUEUE_KEY {
                continue;
            }
            let Some(member) = self.member(key) else { continue };
            member.readable.store(true, Ordering::SeqCst);
            if !member.queued.load(Ordering::SeqCst) {
                result = result.and(self.poll_into(&member, false, buffer));
            }
        }
        while queued && buffer.len < max_len && result.is_ok() {
            let Some(member) = self.queue.pop(sequence) else { break };
            result = self.poll_into(&member, true, buffer);
        }
        if queued {
            self.queue.lower_if_empty();
        }
        if buffer.len > start { Ok(true) } else { result.map(|()| count > 0) }
    }

    /// While all members are rsockets, waits need the inner epoll only. Returns whether this wait
    /// may use it directly. The caller calls [`end_inner_wait`](Self::end_inner_wait) afterwards.
    fn begin_inner_wait(&self) -> bool {
        if self.ordinary.load(Ordering::SeqCst) {
            return false;
        }
        self.inner_waiters.add();
        // The order matters: either the thread that adds the first ordinary member sees this one,
        // or this thread sees the member.
        if self.ordinary.load(Ordering::SeqCst) {
            self.end_inner_wait();
            return false;
        }
        true
    }

    fn end_inner_wait(&self) {
        if self.inner_waiters.remove() && self.ordinary.load(Ordering::SeqCst) {
            self.queue.end_eviction();
        }
    }

    fn poll_into(&self, member: &Arc<Member>, queued: bool, buffer: &mut EventBuffer<'_>) -> Result<()> {
        if let Some(event) = self.poll_member(member, queued)? {
            buffer.push(event);
        }
        Ok(())
    }
}
