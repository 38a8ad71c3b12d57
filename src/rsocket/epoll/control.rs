//! repoll_ctl: epoll_ctl(2) with the same errors.

use std::collections::hash_map::Entry;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::{
    EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLEXCLUSIVE, EPOLLIN, EPOLLOUT, EPOLLWAKEUP, POLLNVAL,
    epoll_event,
};

use super::Epoll;
use super::exclusive;
use super::member::{ALWAYS, Interest, Member};
use crate::errno::{Errno, Result};
use crate::rsocket::pollable::{Lookup, Pollable, Watcher};

impl Epoll {
    /// Like epoll_ctl(2). Operations other than EPOLL_CTL_DEL fail with `EFAULT` without an event.
    pub fn control(
        self: &Arc<Epoll>,
        lookup: &dyn Lookup,
        op: c_int,
        fd: c_int,
        event: Option<epoll_event>,
    ) -> Result<()> {
        self.check_not_closed()?;
        self.check_process()?;
        if op != EPOLL_CTL_DEL && event.is_none() {
            return Err(Errno::new(libc::EFAULT));
        }
        let Some(rsocket) = lookup.find(fd) else { return self.control_ordinary(op, fd, event) };
        match (op, event) {
            (EPOLL_CTL_ADD, Some(event)) => self.add(fd, rsocket, event),
            (EPOLL_CTL_MOD, Some(event)) if is_exclusive(event) => Err(Errno::EINVAL),
            (EPOLL_CTL_MOD, Some(event)) => self.modify(&self.find(fd)?, event),
            (EPOLL_CTL_DEL, _) => {
                let there = self.forget(&self.find(fd)?);
                if there { Ok(()) } else { Err(Errno::ENOENT) }
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Removes a member and adds `number`, a descriptor of the kernel's, to the host with the same
    /// event. No other thread can change or remove the member, or the number, between the two. Does
    /// nothing without such a member.
    pub fn hand_over(&self, fd: c_int, number: RawFd) -> Result<()> {
        self.check_process()?;
        let host = self.host.get().ok_or(Errno::EINVAL)?;
        let Ok(member) = self.find(fd) else { return Ok(()) };
        let mut members = self.lock_without_events(&member);
        let Some(member) = members.remove(&fd) else { return Ok(()) };
        let result = host.epoll.add_programs_number(number, member.kernel_event());
        drop(members);
        self.detach(&member);
        result
    }

    fn control_ordinary(&self, op: c_int, fd: c_int, event: Option<epoll_event>) -> Result<()> {
        self.in_outer(|| self.outer.control(op, fd, event))
    }

    /// Calls `change`, which may add a member to the outer epoll. From now on threads sleep there.
    fn in_outer(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let first = !self.ordinary.swap(true, Ordering::SeqCst);
        let result = change();
        if first && self.inner_waiters.count() > 0 {
            // These threads sleep in the inner epoll, where the new member is not visible.
            self.queue.evict();
            if self.inner_waiters.count() == 0 {
                self.queue.end_eviction();
            }
        }
        result
    }

    fn find(&self, fd: c_int) -> Result<Arc<Member>> {
        self.members().get(&fd).cloned().ok_or(Errno::ENOENT)
    }

    fn add(self: &Arc<Epoll>, fd: c_int, rsocket: Arc<dyn Pollable>, event: epoll_event) -> Result<()> {
        check_exclusive(event.events)?;
        // The rsocket was closed in the meantime, or is the parent's and may be locked by threads
        // that do not exist here.
        if rsocket.ready(0) & POLLNVAL != 0 {
            return Err(Errno::EBADF);
        }
        let serial = self.next_serial();
        let member = Member::new(self, fd, serial, rsocket, interest(event))?;
        self.insert(&member)?;
        let Some(notifier) = member.notifier() else { return Ok(()) };
        let watcher: Arc<dyn Watcher> = member.clone();
        let result = notifier
            .watchers()
            .add(Arc::clone(&watcher))
            .and_then(|()| self.enter_wait_queue(&member))
            .and_then(|()| self.arm_or_queue(&member));
        if result.is_err() {
            self.forget(&member);
        }
        if member.is_removed() || self.check_not_closed().is_err() {
            // Another thread has removed the member, perhaps before it became a watcher.
            self.forget(&member);
            notifier.watchers().remove(&watcher);
        }
        result
    }

    fn enter_wait_queue(&self, member: &Arc<Member>) -> Result<()> {
        if !member.interest().is_exclusive() {
            return Ok(());
        }
        let (sleepers, mark) = self.sleepers(member.fd);
        match mark {
            Some(mark) => member.enter_wait_queue(sleepers, mark),
            None => {
                self.last_exclusive.fetch_max(member.serial(), Ordering::SeqCst);
                self.in_outer(|| member.enter_wait_queue(sleepers, exclusive::mark(member.key())))
            }
        }
    }

    fn insert(&self, member: &Arc<Member>) -> Result<()> {
        let mut members = self.members();
        members.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        self.queue.reserve(members.len() + 1)?;
        match members.entry(member.fd) {
            Entry::Vacant(entry) => entry.insert(Arc::clone(member)),
            Entry::Occupied(_) => return Err(Errno::new(libc::EEXIST)),
        };
        Ok(())
    }

    fn modify(&self, member: &Arc<Member>, event: epoll_event) -> Result<()> {
        if member.interest().is_exclusive() {
            return Err(Errno::EINVAL);
        }
        member.modify(interest(event));
        self.arm_or_queue(member)
    }

    /// Returns a number other than 0, so that no member has the eventfd's data.
    fn next_serial(&self) -> u32 {
        loop {
            let serial = self.serial.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
            if serial != 0 {
                return serial;
            }
        }
    }
}

fn interest(event: epoll_event) -> Interest {
    Interest { events: event.events, data: event.u64 }
}

fn is_exclusive(event: epoll_event) -> bool {
    interest(event).is_exclusive()
}

/// Rejects flags that epoll_ctl(2) does not allow together with EPOLLEXCLUSIVE.
fn check_exclusive(events: u32) -> Result<()> {
    let allowed = (EPOLLIN | EPOLLOUT | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE) as u32 | ALWAYS;
    if events & EPOLLEXCLUSIVE as u32 != 0 && events & !allowed != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(())
}
