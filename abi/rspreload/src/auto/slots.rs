//! Non-blocking sockets whose attempt to connect by RDMA is under way. The thread of
//! [`super::thread`] makes the attempts.
//!
//! Each has a slot. The table entry of the program's number has the slot's ticket as its `inner`.
//! No other socket gets the same one, so the result reaches the number only as long as it is this
//! socket's. The thread works on a duplicate of the TCP descriptor, so the program may close its
//! own.

use core::ffi::c_int;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, AtomicUsize};

use libc::epoll_event;

use super::log::Reason;
use super::{attempt, log, numbers, thread};
use crate::epoll::members;
use crate::name::{AtomicName, Name};
use crate::table::{Entry, Kind};
use crate::thread::{Lock, SignalsBlocked};
use crate::time::Deadline;
use crate::transition::Moving;
use crate::{errno, own_fd, table, tcp, time, transition};

/// The most attempts of a process at a time.
pub const MAX_ATTEMPTS: usize = 256;

/// How long a slot is not used again if there are others, in nanoseconds.
const REST: i64 = 20_000_000;

static SLOTS: [Slot; MAX_ATTEMPTS] = [const { Slot::new() }; MAX_ATTEMPTS];

/// The slots behind this index have never been used: close(2) need not look at them.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Guards the membership in epoll instances.
static LOCK: Lock = Lock::new();

const FREE: u32 = 0;
/// It is being filled or emptied.
const CLAIMED: u32 = 1;
const READY: u32 = 2;

/// An attempt.
pub struct Slot {
    state: AtomicU32,
    ticket: AtomicI32,
    /// The program's number.
    fd: AtomicI32,
    /// The duplicate, plus one; 0 for none.
    tcp: AtomicI32,
    inner: AtomicI32,
    /// The end of the attempt, on the monotonic clock.
    end: AtomicU64,
    to: AtomicName,
    /// An eventfd that is readable once the attempt has ended, plus one; made once.
    done: AtomicI32,
    /// When the last attempt ended, on the monotonic clock.
    freed: AtomicI64,
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            state: AtomicU32::new(FREE),
            ticket: AtomicI32::new(-1),
            fd: AtomicI32::new(-1),
            tcp: AtomicI32::new(0),
            inner: AtomicI32::new(-1),
            end: AtomicU64::new(0),
            to: AtomicName::new(),
            done: AtomicI32::new(0),
            freed: AtomicI64::new(0),
        }
    }

    /// Takes the slot from those that would do so from the same state.
    fn claim(&self, from: u32) -> bool {
        self.state.compare_exchange(from, CLAIMED, SeqCst, SeqCst).is_ok()
    }

    fn is_ready(&self) -> bool {
        self.state.load(SeqCst) == READY
    }

    /// The duplicate of the TCP descriptor, -1 for none.
    fn tcp(&self) -> c_int {
        self.tcp.load(SeqCst) - 1
    }

    fn close_tcp(&self) {
        own_fd::close(self.tcp.swap(0, SeqCst) - 1);
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

    /// The ticket, or that of the attempt before.
    pub fn number(&self) -> c_int {
        self.ticket.load(SeqCst)
    }

    /// The destination.
    pub fn to(&self) -> Option<Name> {
        self.to.load()
    }

    /// The table's entry of the socket; `None` if the program has closed it.
    fn entry(&self) -> Option<Entry> {
        let ticket = self.number();
        table::get(self.fd.load(SeqCst)).filter(|entry| entry.kind == Kind::Connecting && entry.inner == ticket)
    }

    /// Whether the program has closed the number.
    pub fn is_abandoned(&self) -> bool {
        self.entry().is_none()
    }

    /// Ends the attempt, if nobody else does: by the rsocket, or by TCP for a reason.
    pub fn finish(&self, result: Result<(), Reason>) {
        // A handler that waited for this thread to go on would wait for ever.
        let signals = SignalsBlocked::new();
        if !self.claim(READY) {
            return;
        }
        let (fd, copy, inner) = (self.fd.load(SeqCst), self.tcp(), self.inner());
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
            (Some(entry), Ok(())) => numbers::become_rsocket(fd, copy, Some(entry), inner),
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
            numbers::connect_tcp(copy, &to);
            if result == Err(Reason::Rejected) {
                attempt::rejected(&to);
            }
            // Before the program learns the result: it may close the socket, and bind another one
            // to its port.
            self.close_tcp();
            table::replace(fd, Some(entry), None);
        }
        self.close_tcp();
        // A thread in `control` has changed the record by then.
        drop(LOCK.hold());
        if entry.is_some() {
            members::join(fd);
        }
        drop(moving);
        drop(signals);
        self.wake();
        transition::announce();
        self.free();
    }

    fn free(&self) {
        self.close_tcp();
        self.freed.store(time::now(), SeqCst);
        self.state.store(FREE, SeqCst);
    }

    /// Whether those who waited for the end of the last attempt have had time to notice it: the
    /// next attempt makes the eventfd unreadable.
    fn has_rested(&self) -> bool {
        let freed = self.freed.load(SeqCst);
        freed == 0 || time::now() - freed > REST
    }

    /// Wakes those who poll the socket.
    fn wake(&self) {
        errno::keeping(|| own_fd::signal_eventfd(self.done.load(SeqCst) - 1));
    }

    /// Makes the eventfd, or takes back what the last attempt has left in it.
    fn reset_done(&self) -> bool {
        if self.done.load(SeqCst) == 0 {
            let new = own_fd::create_eventfd();
            self.done.store(new + 1, SeqCst);
            return new >= 0;
        }
        own_fd::clear_eventfd(self.done.load(SeqCst) - 1);
        true
    }
}

/// The attempts under way.
pub fn ready() -> impl Iterator<Item = &'static Slot> {
    SLOTS.iter().take(HIGHEST.load(SeqCst)).filter(|slot| slot.is_ready())
}

/// The slot that an entry's ticket names.
fn of(entry: Entry) -> Option<&'static Slot> {
    let slot = SLOTS.get(usize::try_from(entry.inner).ok()? % MAX_ATTEMPTS)?;
    (slot.number() == entry.inner).then_some(slot)
}

/// Gives the socket `fd`, for which `inner` connects, a slot and an entry. Returns the reason for
/// TCP if that is not possible.
pub fn submit(fd: c_int, inner: c_int, to: &Name, end: &Deadline) -> Result<(), Reason> {
    let slots = || SLOTS.iter().enumerate();
    let rested = slots().find(|(_, slot)| slot.has_rested() && slot.claim(FREE));
    let claimed = rested.or_else(|| slots().find(|(_, slot)| slot.claim(FREE)));
    let Some((index, slot)) = claimed else { return Err(Reason::Busy) };
    HIGHEST.fetch_max(index + 1, SeqCst);
    let turns = usize::try_from(slot.number()).map_or(0, |ticket| ticket / MAX_ATTEMPTS + 1);
    let ticket = ((turns * MAX_ATTEMPTS + index) & (i32::MAX as usize >> 1)) as c_int;
    slot.ticket.store(ticket, SeqCst);
    slot.fd.store(fd, SeqCst);
    slot.tcp.store(own_fd::duplicate(fd) + 1, SeqCst);
    if slot.tcp() < 0 || !slot.reset_done() || table::prepare(fd).is_err() {
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
    members::leave(fd);
    slot.state.store(READY, SeqCst);
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
pub fn control(epfd: c_int, op: c_int, fd: c_int, entry: Entry, event: Option<epoll_event>) -> Option<c_int> {
    let slot = of(entry)?;
    let held = LOCK.hold();
    if slot.entry() != Some(entry) || !slot.is_ready() {
        drop(held);
        transition::wait_for_change(fd, entry);
        return None;
    }
    let result = members::control(epfd, op, fd, event);
    drop(held);
    if result == Err(libc::E2BIG) {
        slot.finish(Err(Reason::Instances));
        return None;
    }
    Some(result.map_or_else(errno::fail, |()| 0))
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

/// In a child of fork(2): the attempts are the parent's.
pub fn in_child() {
    LOCK.reset();
    for slot in &SLOTS {
        if slot.state.load(SeqCst) != FREE {
            if let Some(entry) = slot.entry() {
                table::replace(slot.fd.load(SeqCst), Some(entry), None);
            }
            // The child's copy.
            attempt::give_up(slot.inner());
            slot.free();
        }
        own_fd::close(slot.done.swap(0, SeqCst) - 1);
    }
}
