//! repoll_wait, like epoll_wait(2): decides what to report of a member, and arranges that its next
//! change makes the main epoll readable.

use std::ffi::{c_int, c_short};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use libc::{EPOLLET, EPOLLONESHOT, epoll_event};

use super::member::{Decision, Member, Snapshot};
use super::{Epoll, ORDINARY_KEY, QUEUE_KEY};
use crate::errno::Result;
use crate::os::event::Deadline;

/// The program's array of events, and the number of events in it.
struct EventBuffer<'a> {
    events: &'a mut [MaybeUninit<epoll_event>],
    len: usize,
}

impl Epoll {
    /// Like epoll_wait(2). Returns the number of events written to the array. `timeout` is in
    /// milliseconds, infinite if it is negative.
    ///
    /// # Errors
    /// Fails with `EBADF` if the epoll is closed during the wait.
    pub fn wait(&self, events: &mut [MaybeUninit<epoll_event>], timeout: c_int) -> Result<usize> {
        self.check_process()?;
        let deadline = Deadline::after_ms(timeout);
        let last_reported = self.last_reported.lock().take();
        if let Some(member) = last_reported {
            self.rearm(&member);
        }
        let mut buffer = EventBuffer { events, len: 0 };
        let mut late = 0;
        while buffer.len == 0 {
            self.check_not_closed()?;
            let left = deadline.left();
            if !self.collect(&mut buffer, left)? {
                break;
            }
            // Each round that does not wait handles at least one readable entry of the main epoll,
            // in turn. The entries are the members, the queue and the ordinary epoll. So one round
            // per entry finds everything to report, even if a member becomes readable again in each
            // round.
            late += usize::from(left == Some(Duration::ZERO));
            if late > 0 && late > self.members.lock().len() + 1 {
                break;
            }
        }
        Ok(buffer.len)
    }

    /// Fills the empty buffer. Waits if nothing is ready. Returns false after a time-out; true does
    /// not mean that an event was found.
    fn collect(&self, buffer: &mut EventBuffer<'_>, timeout: Option<Duration>) -> Result<bool> {
        let count = self.main.wait(buffer.events, timeout)?;
        // SAFETY: the kernel has written this event. Reported events overwrite only this one and
        // earlier ones.
        let key = |buffer: &EventBuffer<'_>, index: usize| unsafe { buffer.events[index].assume_init() }.u64;
        // A readable member that is also queued is polled from the queue, and a member that is
        // queued from now on is polled in the next round, so no member is reported twice.
        let queued = (0..count).any(|index| key(buffer, index) == QUEUE_KEY);
        let sequence = if queued { self.queue.next_sequence() } else { 0 };
        let (mut result, mut ordinary) = (Ok(()), false);
        for index in 0..count {
            match key(buffer, index) {
                QUEUE_KEY => {}
                ORDINARY_KEY => ordinary = true,
                key => {
                    let Some(member) = self.member(key) else { continue };
                    member.readable.store(true, Ordering::SeqCst);
                    if !member.queued.load(Ordering::SeqCst) {
                        result = result.and(self.poll_into(&member, false, buffer));
                    }
                }
            }
        }
        if ordinary {
            // The ordinary epoll and the queue each took an entry of the array, so there is space
            // here, and one entry stays free for the queue.
            let room = buffer.events.len() - usize::from(queued);
            match self.ordinary.wait(&mut buffer.events[buffer.len..room], Some(Duration::ZERO)) {
                Ok(more) => buffer.len += more,
                Err(error) => result = result.and(Err(error)),
            }
        }
        while queued && buffer.len < buffer.events.len() && result.is_ok() {
            let Some(member) = self.queue.pop(sequence) else { break };
            result = self.poll_into(&member, true, buffer);
        }
        if queued {
            self.queue.lower_if_empty();
        }
        // An error does not discard events that are ready.
        if buffer.len > 0 { Ok(true) } else { result.map(|()| count > 0) }
    }

    /// Returns the member with this data in the main epoll, if it still exists.
    fn member(&self, key: u64) -> Option<Arc<Member>> {
        let members = self.members.lock();
        members.get(&Member::fd_from_key(key)).filter(|member| member.key() == key).cloned()
    }

    /// Calls [`poll_member`](Self::poll_member), and adds the event to the buffer.
    fn poll_into(&self, member: &Arc<Member>, queued: bool, buffer: &mut EventBuffer<'_>) -> Result<()> {
        if let Some(event) = self.poll_member(member, queued)?
            && let Some(slot) = buffer.events.get_mut(buffer.len)
        {
            slot.write(event);
            buffer.len += 1;
        }
        Ok(())
    }

    /// Polls a member that has a readable descriptor or was in the queue (`queued`). Returns the
    /// event to report, if there is one. Afterwards the member is armed, readable, queued or
    /// disabled; on failure it is queued.
    fn poll_member(&self, member: &Arc<Member>, queued: bool) -> Result<Option<epoll_event>> {
        let readable = member.readable.swap(false, Ordering::SeqCst);
        let Some(snapshot) = member.snapshot() else { return Ok(None) };
        if !snapshot.enabled {
            if readable {
                take_event(member, &snapshot);
            }
            if member.was_modified(&snapshot) {
                self.queue.push(member);
            }
            return Ok(None);
        }
        if !readable && !snapshot.interest.has(EPOLLET) {
            let ready = snapshot.ready();
            if ready != 0 {
                // The member is queued again or becomes disabled, so no descriptor has to announce
                // its next change.
                return Ok(self.report(member, &snapshot, ready, None, true));
            }
        }
        let may_take = self.refresh(member, &snapshot).inspect_err(|_| {
            member.readable.fetch_or(readable, Ordering::SeqCst);
            self.queue.push(member);
        })?;
        let readable = readable && may_take;
        if snapshot.interest.has(EPOLLET) {
            return Ok(self.poll_edges(member, &snapshot, readable));
        }
        let mut ready = if readable { snapshot.ready() } else { 0 };
        // An unread event keeps the main epoll readable while there is something to report. If
        // another thread reads the event, that thread queues this member. So a member from the
        // queue may have no unread event, and is queued again.
        let leave_event = readable && ready != 0 && !snapshot.interest.has(EPOLLONESHOT);
        if readable && !leave_event {
            take_event(member, &snapshot);
        }
        if ready == 0 {
            ready = snapshot.arm();
        }
        Ok(self.report(member, &snapshot, ready, None, queued || !leave_event))
    }

    /// Returns the event for the bits `ready`, or `None` if [`Member::decide`], which takes
    /// `edges`, decides against a report. A level-triggered member that stays enabled is queued if
    /// `queue` is set; otherwise its unread event keeps the main epoll readable.
    fn report(
        &self,
        member: &Arc<Member>,
        snapshot: &Snapshot,
        ready: c_short,
        edges: Option<u64>,
        queue: bool,
    ) -> Option<epoll_event> {
        let interest = snapshot.interest;
        let decision = member.decide(snapshot, ready != 0, edges);
        let stays = decision == Decision::Report && edges.is_none() && !interest.has(EPOLLONESHOT);
        if stays && !queue {
            *self.last_reported.lock() = Some(Arc::clone(member));
        }
        if stays && queue || decision == Decision::Retry {
            self.queue.push(member);
        }
        (decision == Decision::Report).then(|| interest.report(ready))
    }

    /// Arms a member that was reported with its event left unread, if the member is no longer
    /// ready. Usually the program has read everything, and arming the member here saves a wait in
    /// the kernel that would return at once without anything to report.
    fn rearm(&self, member: &Arc<Member>) {
        let Some(snapshot) = member.snapshot() else { return };
        if !snapshot.enabled || snapshot.interest.has(EPOLLET | EPOLLONESHOT) || snapshot.ready() != 0 {
            return;
        }
        match self.refresh(member, &snapshot) {
            Ok(true) => take_event(member, &snapshot),
            Ok(false) => {}
            // The event stays unread, and the main epoll readable.
            Err(_) => return,
        }
        if snapshot.arm() != 0 || member.was_modified(&snapshot) {
            self.queue.push(member);
        }
    }

    /// Returns the event for an edge-triggered member, if the member has a new edge.
    fn poll_edges(&self, member: &Arc<Member>, snapshot: &Snapshot, readable: bool) -> Option<epoll_event> {
        if readable {
            take_event(member, snapshot);
        }
        snapshot.rsocket.arm(0);
        // Read the number of edges before the bits: this order may report an edge twice, but never
        // loses one.
        let edges = snapshot.rsocket.watchers().edges.load(Ordering::Relaxed);
        self.report(member, snapshot, snapshot.ready(), Some(edges), false)
    }

    /// Registers the rsocket's current descriptors in the main epoll. Returns whether the caller
    /// may read the event of a readable descriptor: false if a blocking call reads the events, or
    /// if the event of an added or unmuted descriptor was read here.
    fn refresh(&self, member: &Arc<Member>, snapshot: &Snapshot) -> Result<bool> {
        let mut newly = false;
        loop {
            let now = snapshot.rsocket.descriptors()?;
            let (muted, unmuted) = member.register(&self.main, now.as_slice())?;
            newly |= unmuted;
            // If there are no descriptors, a blocking call uses them, or the connection does not
            // exist yet. The member will be notified.
            let has_some = !now.as_slice().is_empty();
            // After muting, repeat: the descriptors may have changed, with a notice, before they
            // were muted.
            if !muted {
                if has_some && newly {
                    // The call that used the descriptors may have left an event unread.
                    take_event(member, snapshot);
                }
                return Ok(has_some && !newly);
            }
        }
    }

    /// Called after ADD and MOD. Arms the member, and queues it if something is ready or one of its
    /// descriptors is readable.
    pub(super) fn arm_or_queue(&self, member: &Arc<Member>) -> Result<()> {
        let Some(snapshot) = member.snapshot() else { return Ok(()) };
        self.refresh(member, &snapshot)?;
        let ready = if snapshot.interest.has(EPOLLET) {
            snapshot.rsocket.arm(0);
            snapshot.ready()
        } else {
            snapshot.arm()
        };
        // The main epoll may report a readable descriptor only once until its event is read.
        if ready != 0 || member.readable.load(Ordering::SeqCst) {
            self.queue.push(member);
        }
        Ok(())
    }
}

/// Reads an event, and notifies the other watchers, which may wait for this event.
fn take_event(member: &Arc<Member>, snapshot: &Snapshot) {
    snapshot.rsocket.take_event();
    snapshot.rsocket.watchers().notify_except(member);
}
