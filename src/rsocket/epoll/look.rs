//! Looking at a member: is there something to report, and who will know of the next change.

use std::ffi::c_short;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::epoll_event;

use super::Epoll;
use super::member::{Member, Shows, Verdict, View};
use crate::errno::Result;
use crate::rsocket::watch::Watcher;

impl Epoll {
    /// Looks at a member, one of whose descriptors is raised or that was taken from the queue (`queued`). It is armed,
    /// raised or queued afterwards, or not enabled. When it fails, it is queued.
    pub(super) fn look(&self, member: &Arc<Member>, queued: bool) -> Result<Option<epoll_event>> {
        let raised = member.raised.swap(false, Ordering::SeqCst);
        let Some(view) = member.view() else { return Ok(None) };
        if !view.enabled {
            if raised {
                take_event(member, &view);
            }
            if member.is_changed(&view) {
                self.queue.push(member);
            }
            return Ok(None);
        }
        if !raised && !view.interest.is_edge() {
            let ready = view.ready();
            if ready != 0 {
                // It stays in the queue, or is disabled: no descriptor need show anything.
                return Ok(self.tell_level(member, &view, ready, true));
            }
        }
        let shows = self.refresh(member, &view).inspect_err(|_| {
            member.raised.fetch_or(raised, Ordering::SeqCst);
            self.queue.push(member);
        })?;
        let raised = raised && shows;
        Ok(if view.interest.is_edge() {
            self.look_for_edges(member, &view, raised)
        } else {
            self.look_at_level(member, &view, raised, queued)
        })
    }

    fn look_at_level(&self, member: &Arc<Member>, view: &View, raised: bool, queued: bool) -> Option<epoll_event> {
        let mut ready = if raised { view.ready() } else { 0 };
        // While there is something to report, an event that stays untaken says that there may be more. Who takes it in
        // another thread sees to the rest; but if it was in the queue for that reason, this is who does.
        let leave = raised && ready != 0 && !view.interest.is_oneshot();
        if raised && !leave {
            take_event(member, view);
        }
        if ready == 0 {
            ready = view.arm();
        }
        self.tell_level(member, view, ready, queued || !leave)
    }

    /// Reports what holds, if it may. Unless `queue` the rest is with an event that was left.
    fn tell_level(&self, member: &Arc<Member>, view: &View, ready: c_short, queue: bool) -> Option<epoll_event> {
        let interest = view.interest;
        let verdict = member.decide(view, ready != 0, None);
        let stays = verdict == Verdict::Report && !interest.is_oneshot();
        if stays {
            let mut left = self.left();
            left.count += 1;
            left.only = (left.count == 1 && !queue).then(|| Arc::clone(member));
        }
        if stays && queue || verdict == Verdict::Again {
            self.queue.push(member);
        }
        (verdict == Verdict::Report).then(|| interest.report(ready))
    }

    /// Before a wait, at the one rsocket that the last one reported and whose event it left: whether there is nothing any more, and
    /// it is armed. Mostly the program has read everything, and otherwise only a wait in the kernel would lead to that.
    pub(super) fn settle_left(&self, member: &Arc<Member>) -> bool {
        let Some(view) = member.view() else { return true };
        if !view.enabled || view.interest.is_edge() || view.interest.is_oneshot() || view.holds() {
            return false;
        }
        match self.refresh(member, &view) {
            Ok(true) => take_event(member, &view),
            Ok(false) => {}
            // The event is still there to be seen.
            Err(_) => return false,
        }
        let armed = view.arm() == 0 && !member.is_changed(&view);
        if !armed {
            self.queue.push(member);
        }
        armed
    }

    fn look_for_edges(&self, member: &Arc<Member>, view: &View, raised: bool) -> Option<epoll_event> {
        let (rsocket, interest) = (&view.rsocket, view.interest);
        if raised {
            take_event(member, view);
        }
        // In this order an edge that comes meanwhile may be reported twice, but not never.
        rsocket.arm(0);
        let edges = rsocket.edges();
        let ready = view.ready();
        let verdict = member.decide(view, ready != 0, Some(edges));
        if verdict == Verdict::Again {
            self.queue.push(member);
        }
        (verdict == Verdict::Report).then(|| interest.report(ready))
    }

    /// [`Member::refresh`]; whether an event that was seen is still this epoll's to take.
    fn refresh(&self, member: &Arc<Member>, view: &View) -> Result<bool> {
        let shows = member.refresh(&self.inner, view)?;
        if shows == Shows::Anew {
            // The call that had them for itself may have left one.
            take_event(member, view);
        }
        // Without any, they are a call's, which tells us.
        Ok(shows == Shows::Yes)
    }

    /// After ADD and MOD: the member is queued if there is something to report now, else armed.
    pub(super) fn settle(&self, member: &Arc<Member>) -> Result<()> {
        let Some(view) = member.view() else { return Ok(()) };
        self.refresh(member, &view)?;
        let ready = if view.interest.is_edge() {
            view.rsocket.arm(0);
            view.ready()
        } else {
            view.arm()
        };
        if ready != 0 {
            self.queue.push(member);
        }
        Ok(())
    }
}

/// Takes the event, which may be what others wait for.
fn take_event(member: &Arc<Member>, view: &View) {
    view.rsocket.take_event();
    let own: Arc<dyn Watcher> = member.clone();
    view.rsocket.watchers().notify_except(&own);
}
