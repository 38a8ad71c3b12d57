//! Polling of a member: what to report, and what will announce the next change.

use std::ffi::c_short;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::epoll_event;

use super::Epoll;
use super::member::{Decision, Member, Registered, Snapshot};
use crate::errno::Result;
use crate::rsocket::pollable::Watcher;

impl Epoll {
    /// Polls a member that has a readable descriptor or was in the queue (`queued`). Afterwards it
    /// is armed, readable, queued or disabled. On failure it is queued.
    pub(super) fn poll_member(&self, member: &Arc<Member>, queued: bool) -> Result<Option<epoll_event>> {
        let readable = member.readable.swap(false, Ordering::SeqCst);
        let Some(snapshot) = member.snapshot() else { return Ok(None) };
        if snapshot.interest.is_exclusive() {
            return Ok(self.poll_exclusive(member, &snapshot));
        }
        if !snapshot.enabled {
            if readable {
                take_event(member, &snapshot);
            }
            if member.was_modified(&snapshot) {
                self.queue.push(member);
            }
            return Ok(None);
        }
        if !readable && !snapshot.interest.is_edge() {
            let ready = snapshot.ready();
            if ready != 0 {
                // The member stays in the queue or becomes disabled, so no descriptor has to
                // announce it.
                return Ok(self.report_level(member, &snapshot, ready, true));
            }
        }
        let may_take = self.refresh(member, &snapshot).inspect_err(|_| {
            member.readable.fetch_or(readable, Ordering::SeqCst);
            self.queue.push(member);
        })?;
        let readable = readable && may_take;
        let event = if snapshot.interest.is_edge() {
            self.poll_edges(member, &snapshot, readable)
        } else {
            self.poll_level(member, &snapshot, readable, queued)
        };
        Ok(event)
    }

    fn poll_level(
        &self,
        member: &Arc<Member>,
        snapshot: &Snapshot,
        readable: bool,
        queued: bool,
    ) -> Option<epoll_event> {
        let mut ready = if readable { snapshot.ready() } else { 0 };
        // An event that stays unread keeps the member visible while there is something to report. A
        // thread that reads the event elsewhere queues this member. A member that was queued for
        // this reason has to be queued again here.
        let leave_event = readable && ready != 0 && !snapshot.interest.is_oneshot();
        if readable && !leave_event {
            take_event(member, snapshot);
        }
        if ready == 0 {
            ready = snapshot.arm();
        }
        self.report_level(member, snapshot, ready, queued || !leave_event)
    }

    /// Reports the bits of a level-triggered member, if it may be reported. The member is queued if
    /// `queue` is set; otherwise an unread event keeps it visible.
    fn report_level(
        &self,
        member: &Arc<Member>,
        snapshot: &Snapshot,
        ready: c_short,
        queue: bool,
    ) -> Option<epoll_event> {
        let interest = snapshot.interest;
        let decision = member.decide(snapshot, ready != 0, None);
        let stays = decision == Decision::Report && !interest.is_oneshot();
        if stays {
            let mut last_reported = self.last_reported();
            last_reported.count += 1;
            last_reported.only = (last_reported.count == 1 && !queue).then(|| Arc::clone(member));
        }
        if stays && queue || decision == Decision::Retry {
            self.queue.push(member);
        }
        (decision == Decision::Report).then(|| interest.report(ready))
    }

    /// The wait queue announces the next event, so there is nothing to arm.
    fn poll_exclusive(&self, member: &Arc<Member>, snapshot: &Snapshot) -> Option<epoll_event> {
        if !snapshot.interest.is_edge() {
            return self.report_level(member, snapshot, snapshot.ready(), true);
        }
        // Counts the edges.
        snapshot.rsocket.ready(0);
        self.report_edges(member, snapshot)
    }

    /// Tries to arm the only rsocket that the last wait reported and whose event it left unread.
    /// Returns whether it is armed and nothing is ready. Usually the program has read everything,
    /// and this saves a wait in the kernel that would find nothing.
    pub(super) fn rearm_last_reported(&self, member: &Arc<Member>) -> bool {
        let Some(snapshot) = member.snapshot() else { return true };
        if !snapshot.enabled || snapshot.interest.is_edge() || snapshot.interest.is_oneshot() || snapshot.is_ready() {
            return false;
        }
        match self.refresh(member, &snapshot) {
            Ok(true) => take_event(member, &snapshot),
            Ok(false) => {}
            // The event stays unread and visible.
            Err(_) => return false,
        }
        let armed = snapshot.arm() == 0 && !member.was_modified(&snapshot);
        if !armed {
            self.queue.push(member);
        }
        armed
    }

    fn poll_edges(&self, member: &Arc<Member>, snapshot: &Snapshot, readable: bool) -> Option<epoll_event> {
        if readable {
            take_event(member, snapshot);
        }
        snapshot.rsocket.arm(0);
        self.report_edges(member, snapshot)
    }

    /// Reports the bits of an edge-triggered member, if it has a new edge.
    fn report_edges(&self, member: &Arc<Member>, snapshot: &Snapshot) -> Option<epoll_event> {
        // This order may report an edge twice, but never loses one.
        let edges = snapshot.rsocket.edges();
        let ready = snapshot.ready();
        let decision = member.decide(snapshot, ready != 0, Some(edges));
        if decision == Decision::Retry {
            self.queue.push(member);
        }
        (decision == Decision::Report).then(|| snapshot.interest.report(ready))
    }

    /// Calls [`Member::refresh`]. Returns whether this epoll may still read an event that was seen.
    fn refresh(&self, member: &Arc<Member>, snapshot: &Snapshot) -> Result<bool> {
        let registered = member.refresh(&self.inner, snapshot)?;
        if registered == Registered::Newly {
            // The call that used the descriptors may have left an event unread.
            take_event(member, snapshot);
        }
        // Without descriptors, a blocking call uses them and will notify the member.
        Ok(registered == Registered::Already)
    }

    /// After ADD and MOD: queues the member if something is ready, and arms it otherwise.
    pub(super) fn arm_or_queue(&self, member: &Arc<Member>) -> Result<()> {
        let Some(snapshot) = member.snapshot() else { return Ok(()) };
        let interest = snapshot.interest;
        if !interest.is_exclusive() {
            self.refresh(member, &snapshot)?;
        }
        let ready = if interest.is_exclusive() {
            snapshot.ready()
        } else if interest.is_edge() {
            snapshot.rsocket.arm(0);
            snapshot.ready()
        } else {
            snapshot.arm()
        };
        // An event that was left unread raises no other one.
        if ready != 0 || member.readable.load(Ordering::SeqCst) {
            self.queue.push(member);
        }
        Ok(())
    }
}

/// Reads an event, and notifies the other watchers that may wait for it.
fn take_event(member: &Arc<Member>, snapshot: &Snapshot) {
    snapshot.rsocket.take_event();
    let own: Arc<dyn Watcher> = member.clone();
    snapshot.rsocket.watchers().notify_except(&own);
}
