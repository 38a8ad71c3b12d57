//! Non-blocking sockets whose attempt to connect by RDMA is under way. The thread of
//! [`super::thread`] makes the attempts.
//!
//! Each has a slot, which its ticket names ([`Ticket`]).

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

use libc::epoll_event;

use super::instances::MAX_INSTANCES;
use super::log::Reason;
use super::shared::AtomicName;
use super::tcp_watch::WATCHES;
use super::{attempt, instances, log, outcome, thread};
use crate::table::{self, Entry, Kind};
use crate::tcp;
use crate::tcp::name::Name;
use crate::thread::{Lock, SignalsBlocked};
use crate::ticket::Ticket;
use crate::time::{self, Deadline};
use crate::transition::{self, Moving};
use crate::{epoll, errno, eventfd, next_symbol, open_fds};

/// The most attempts of a process at a time.
pub const MAX_ATTEMPTS: usize = 256;

/// How long a slot is not used again if there are others, in nanoseconds.
const REST: i64 = 20_000_000;

static SLOTS: [Slot; MAX_ATTEMPTS] = [const { Slot::new() }; MAX_ATTEMPTS];

/// The slots behind this index have never been used: close(2) need not look at them.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Guards the slots' contents and the membership in an epoll instance.
static LOCK: Lock = Lock::new();

/// An attempt.
pub struct Slot {
    ticket: Ticket,
    inner: AtomicI32,
    /// The end of the attempt, on the monotonic clock.
    end: AtomicU64,
    to: AtomicName,
    /// An eventfd that is readable once the attempt has ended, plus one; made once.
    done: AtomicI32,
    /// When the last attempt ended, on the monotonic clock.
    freed: AtomicI64,
    members: [Member; MAX_INSTANCES],
}

/// An epoll instance of which the program wants the socket to be a member.
struct Member {
    /// Plus one; 0 for none.
    epoll: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
}

impl Member {
    const fn new() -> Member {
        Member { epoll: AtomicI32::new(0), events: AtomicU32::new(0), data: AtomicU64::new(0) }
    }

    fn keep(&self, epfd: c_int, event: epoll_event) {
        self.events.store(event.events, SeqCst);
        self.data.store(event.u64, SeqCst);
        self.epoll.store(epfd + 1, SeqCst);
    }

    /// Returns the instance and the event, and forgets them.
    fn take(&self) -> Option<(c_int, epoll_event)> {
        let epfd = self.epoll.swap(0, SeqCst) - 1;
        (epfd >= 0).then(|| (epfd, epoll_event { events: self.events.load(SeqCst), u64: self.data.load(SeqCst) }))
    }
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            ticket: Ticket::new(),
            inner: AtomicI32::new(-1),
            end: AtomicU64::new(0),
            to: AtomicName::new(),
            done: AtomicI32::new(0),
            freed: AtomicI64::new(0),
            members: [const { Member::new() }; MAX_INSTANCES],
        }
    }

    /// The rsocket of the attempt.
    pub fn inner(&self) -> c_int {
        self.inner.load(SeqCst)
    }

    /// The milliseconds until the attempt is given up.
    pub fn left(&self) -> c_int {
        let left = (self.end.load(SeqCst) as i64 - time::now()).max(0) as u64;
        left.div_ceil(1_000_000) as c_int
    }

    /// The number of the ticket, which identifies the attempt.
    pub fn number(&self) -> c_int {
        self.ticket.number()
    }

    /// The destination.
    pub fn to(&self) -> Option<Name> {
        self.to.load()
    }

    fn entry(&self) -> Option<Entry> {
        self.ticket.entry(Kind::Connecting)
    }

    /// Whether the program has closed the number.
    pub fn is_abandoned(&self) -> bool {
        self.entry().is_none()
    }

    /// Ends the attempt, if nobody else does: by the rsocket, or by TCP for a reason.
    pub fn finish(&self, result: Result<(), Reason>) {
        // A handler that waited for this thread to go on would wait for ever.
        let signals = SignalsBlocked::new();
        if !self.ticket.claim_ready() {
            return;
        }
        let (fd, copy, inner) = (self.ticket.fd(), self.ticket.tcp(), self.inner());
        let to = self.to();
        // Until the number is a member of its epoll instance again.
        let moving = Moving::begin(fd);
        let entry = self.entry().filter(|&entry| {
            // Otherwise the number was closed without an intercepted call, and is another file now.
            let is_same = tcp::identity(fd) == tcp::identity(copy);
            if !is_same {
                table::replace(fd, Some(entry), None);
            }
            is_same
        });
        // An attempt that is given up may have succeeded just now.
        let result = match result {
            Err(reason @ (Reason::SocketShared | Reason::Instances)) => attempt::abandon(inner, reason),
            result => result,
        };
        let connected = match (entry, result) {
            (Some(entry), Ok(())) => outcome::become_rsocket(fd, copy, Some(entry), inner),
            _ => false,
        };
        // Before the program learns the result: the line of its close(2) comes later.
        if let (Some(to), Some(_)) = (to, entry) {
            match result {
                Ok(()) if connected => log::connection(fd, &to, "RDMA", Reason::Connected),
                Ok(()) => log::connection(fd, &to, "TCP", Reason::Busy),
                Err(reason) => log::connection(fd, &to, "TCP", reason),
            }
        }
        if !connected {
            attempt::give_up(inner);
        }
        if let (Some(entry), Some(to), false) = (entry, to, connected) {
            outcome::connect_tcp(copy, &to);
            if result == Err(Reason::Rejected) {
                WATCHES.begin(fd, copy, &to);
            }
            // Before the program learns the result: it may close the socket, and bind another one to
            // its port.
            self.ticket.close_tcp();
            table::replace(fd, Some(entry), None);
        }
        self.ticket.close_tcp();
        for member in &self.members {
            let held = LOCK.hold();
            let taken = member.take();
            drop(held);
            if let (Some((epfd, event)), Some(_)) = (taken, entry) {
                epoll::add(epfd, fd, event);
            }
        }
        drop(moving);
        drop(signals);
        self.wake();
        transition::announce();
        self.free();
    }

    fn free(&self) {
        self.ticket.close_tcp();
        for member in &self.members {
            member.epoll.store(0, SeqCst);
        }
        self.freed.store(time::now(), SeqCst);
        self.ticket.free();
    }

    /// Whether those who waited for the end of the last attempt have had time to notice it: the
    /// next attempt makes the eventfd unreadable.
    fn has_rested(&self) -> bool {
        let freed = self.freed.load(SeqCst);
        freed == 0 || time::now() - freed > REST
    }

    /// Wakes those who poll the socket.
    fn wake(&self) {
        errno::keeping(|| eventfd::signal(self.done.load(SeqCst) - 1));
    }

    /// Makes the eventfd, or takes back what the last attempt has left in it.
    fn reset_done(&self) -> bool {
        if self.done.load(SeqCst) == 0 {
            let new = eventfd::create();
            self.done.store(new + 1, SeqCst);
            return new >= 0;
        }
        eventfd::clear(self.done.load(SeqCst) - 1);
        true
    }
}

/// The attempts under way.
pub fn ready() -> impl Iterator<Item = &'static Slot> {
    SLOTS.iter().filter(|slot| slot.ticket.is_ready())
}

/// The slot that an entry's ticket names.
fn of(entry: Entry) -> Option<&'static Slot> {
    let slot = SLOTS.get(usize::try_from(entry.inner).ok()? % MAX_ATTEMPTS)?;
    (slot.ticket.number() == entry.inner).then_some(slot)
}

/// Gives the socket `fd`, for which `inner` connects, a slot and an entry. Returns the reason for
/// TCP if that is not possible.
pub fn submit(fd: c_int, inner: c_int, to: &Name, end: &Deadline, reserve: instances::Reserve) -> Result<(), Reason> {
    let slots = || SLOTS.iter().enumerate();
    let rested = slots().find(|(_, slot)| slot.has_rested() && slot.ticket.claim());
    let claimed = rested.or_else(|| slots().find(|(_, slot)| slot.ticket.claim()));
    let Some((index, slot)) = claimed else { return Err(Reason::Busy) };
    HIGHEST.fetch_max(index + 1, SeqCst);
    let turns = usize::try_from(slot.ticket.number()).map_or(0, |ticket| ticket / MAX_ATTEMPTS + 1);
    let ticket = ((turns * MAX_ATTEMPTS + index) & (i32::MAX as usize >> 1)) as c_int;
    slot.ticket.fill(ticket, fd, open_fds::duplicate(fd));
    if slot.ticket.tcp() < 0 || !slot.reset_done() || table::prepare(fd).is_err() {
        slot.free();
        return Err(Reason::Busy);
    }
    slot.inner.store(inner, SeqCst);
    slot.end.store(end.end() as u64, SeqCst);
    slot.to.store(to);
    let entry = Entry { kind: Kind::Connecting, flags: 0, inner: ticket };
    // A handler that interrupted this, and used the number, would wait for the attempt to begin.
    let signals = SignalsBlocked::new();
    table::swap(fd, Some(entry));
    drop(reserve);
    let left = instances::leave(fd);
    if left.is_incomplete {
        table::replace(fd, Some(entry), None);
        left.join_again(fd);
        slot.free();
        return Err(left.reason());
    }
    for (member, &(epfd, event)) in slot.members.iter().zip(left.iter()) {
        member.keep(epfd, event);
    }
    slot.ticket.set_ready();
    drop(signals);
    if !thread::wake() {
        slot.finish(Err(Reason::Busy));
    }
    Ok(())
}

/// The eventfd that stands for the socket in poll(2).
pub fn done(entry: Entry) -> c_int {
    of(entry).map_or(-1, |slot| slot.done.load(SeqCst) - 1)
}

/// epoll_ctl(2) on a number whose attempt is under way. Returns `None` if it has ended.
///
/// # Safety
/// `event` is null or readable.
pub unsafe fn control(epfd: c_int, op: c_int, fd: c_int, entry: Entry, event: *mut epoll_event) -> Option<c_int> {
    let slot = of(entry)?;
    let held = LOCK.hold();
    if slot.entry() != Some(entry) || !slot.ticket.is_ready() {
        drop(held);
        transition::wait_for_change(fd, entry);
        return None;
    }
    let member_of = |number| slot.members.iter().find(|member| member.epoll.load(SeqCst) == number);
    let (own, free) = (member_of(epfd + 1), member_of(0));
    let result = match (op, own) {
        (libc::EPOLL_CTL_ADD, Some(_)) => Err(libc::EEXIST),
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => Err(libc::ENOENT),
        (libc::EPOLL_CTL_DEL, Some(member)) => {
            member.epoll.store(0, SeqCst);
            Ok(0)
        }
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, _) if event.is_null() => Err(libc::EFAULT),
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, _) => match own.or(free) {
            Some(member) => {
                // SAFETY: not null, so readable: guaranteed by the caller.
                member.keep(epfd, unsafe { event.read_unaligned() });
                Ok(0)
            }
            None => {
                drop(held);
                slot.finish(Err(Reason::Instances));
                return None;
            }
        },
        _ => Err(libc::EINVAL),
    };
    drop(held);
    Some(result.unwrap_or_else(errno::fail))
}

/// The program has closed a number whose attempt was under way.
pub fn abandon(entry: Entry) {
    stay_tcp(entry);
    thread::wake();
}

/// The program gives the attempt up: the socket becomes TCP at once.
pub fn stay_tcp(entry: Entry) {
    if let Some(slot) = of(entry) {
        slot.finish(Err(Reason::SocketShared));
    }
}

/// Whether `fd` is a descriptor of the attempts.
pub fn is_own(fd: c_int) -> bool {
    let is_its = |slot: &Slot| slot.done.load(SeqCst) == fd + 1 || slot.ticket.tcp() == fd;
    fd >= 0 && SLOTS.iter().take(HIGHEST.load(SeqCst)).any(is_its)
}

/// In a child of fork(2): the attempts are the parent's.
pub fn in_child() {
    LOCK.reset();
    for slot in &SLOTS {
        if !slot.ticket.is_free() {
            if let Some(entry) = slot.entry() {
                table::replace(slot.ticket.fd(), Some(entry), None);
            }
            // The child's copy.
            attempt::give_up(slot.inner());
            slot.free();
        }
        let done = slot.done.swap(0, SeqCst);
        if done > 0 {
            // SAFETY: the child's copy of a descriptor that only this library knows.
            unsafe { next_symbol::close(done - 1) };
        }
    }
}
