//! Accepted connections whose handshake is under way: what the threads of the program share with
//! the thread that makes the handshakes ([`super::passive`]).
//!
//! Each has a slot. The `inner` of its table entry is a ticket: it names the slot, and no other
//! connection gets it, so the entry is changed only as long as the number is still this
//! connection's. The handshake works on a duplicate of the TCP descriptor, so the program may close
//! its own.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use libc::F_DUPFD_CLOEXEC;

use super::decide::{self, Outcome};
use super::parked::{Member, Moving};
use super::state::State;
use super::{copy, name, passive, place, semaphore, thread};
use crate::table::{self, Entry, Kind};
use crate::{errno, fds, r, real};

/// Handshakes of a process at a time.
pub const MAX_HANDSHAKES: usize = 256;

static SLOTS: [Slot; MAX_HANDSHAKES] = [const { Slot::new() }; MAX_HANDSHAKES];

/// Whether the thread runs, or is about to.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// An eventfd that wakes the thread; -1 before there was one.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// One connection.
pub struct Slot {
    state: AtomicU32,
    ticket: AtomicI32,
    /// The program's number.
    fd: AtomicI32,
    /// The duplicate, plus one; 0 for none.
    tcp: AtomicI32,
    word_sent: AtomicBool,
    /// Its membership in an epoll of the program.
    pub member: Member,
}

/// The states of a slot. A claimed one is being filled or emptied.
const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const READY: u32 = 2;

impl Slot {
    const fn new() -> Slot {
        Slot {
            state: AtomicU32::new(FREE),
            ticket: AtomicI32::new(-1),
            fd: AtomicI32::new(-1),
            tcp: AtomicI32::new(0),
            word_sent: AtomicBool::new(false),
            member: Member::new(),
        }
    }

    /// The duplicate of the TCP descriptor.
    pub fn tcp(&self) -> c_int {
        self.tcp.load(Ordering::SeqCst) - 1
    }

    /// The peer is about to be told that this end listens.
    pub fn sends_word(&self) {
        self.word_sent.store(true, Ordering::SeqCst);
    }

    /// The table's entry of the connection; `None` if it is decided, or the program has closed it.
    pub fn entry(&self) -> Option<Entry> {
        let ticket = self.ticket.load(Ordering::SeqCst);
        table::get(self.fd.load(Ordering::SeqCst)).filter(|entry| entry.kind == Kind::Pending && entry.inner == ticket)
    }

    /// The connection that the slot has: the program's number and the ticket.
    pub fn connection(&self) -> (c_int, c_int) {
        (self.fd.load(Ordering::SeqCst), self.ticket.load(Ordering::SeqCst))
    }

    /// Ends the handshake of a connection by `outcome`, unless it has ended or the program has
    /// closed the number.
    pub fn finish(&self, (fd, ticket): (c_int, c_int), outcome: Outcome) {
        let moving = Moving::begin(fd);
        let mut member = self.member.lock();
        let entry = self.entry().filter(|entry| entry.inner == ticket);
        // Closed in a way that is not intercepted: the number is another file's.
        let is_ours = entry.is_some() && copy::identity(fd) == copy::identity(self.tcp());
        match entry {
            Some(entry) if is_ours => {
                let _ = decide::commit(fd, self.tcp(), entry, outcome);
                member.restore(fd);
                member.forget();
            }
            Some(entry) => {
                table::replace(fd, Some(entry), None);
            }
            None => {}
        }
        drop(member);
        drop(moving);
        if let (Outcome::Rsocket(inner), false) = (outcome, is_ours) {
            // SAFETY: nobody else knows it.
            unsafe { r::rclose(inner) };
        }
        decide::announce();
    }

    /// Gives the slot back, which nobody's entry names any more.
    pub fn free(&self) {
        let mut member = self.member.lock();
        self.state.store(CLAIMED, Ordering::SeqCst);
        member.forget();
        let tcp = self.tcp.swap(0, Ordering::SeqCst);
        if tcp > 0 {
            // SAFETY: the handshake's own duplicate, which nobody uses any more.
            unsafe { real::close(tcp - 1) };
        }
        drop(member);
        self.state.store(FREE, Ordering::SeqCst);
    }

    fn is_ready(&self) -> bool {
        self.state.load(Ordering::SeqCst) == READY
    }
}

/// The slots of handshakes that are to be made, by their places.
pub fn ready() -> impl Iterator<Item = (usize, &'static Slot)> {
    SLOTS.iter().enumerate().filter(|(_, slot)| slot.is_ready())
}

/// The slot that an entry's ticket names.
pub fn of(entry: Entry) -> Option<&'static Slot> {
    let number = usize::try_from(-2 - i64::from(entry.inner)).ok()?;
    SLOTS.get(number % MAX_HANDSHAKES)
}

/// The ticket for a slot after the one before: a negative number other than -1.
fn next_ticket(place: usize, before: c_int) -> c_int {
    let turns = usize::try_from(-2 - i64::from(before)).map_or(0, |number| number / MAX_HANDSHAKES + 1);
    -2 - ((turns * MAX_HANDSHAKES + place) & (i32::MAX as usize >> 1)) as c_int
}

/// Begins the handshake of an accepted connection, or decides at once that it stays TCP.
pub fn begin(fd: c_int, entry: Entry) {
    // A peer that speaks first has not waited for the word: it is not in fork mode, or has given
    // up.
    let can = name::own(fd).is_some_and(|own| place::is_shared(&own)) && decide::is_silent(fd);
    if !can || !submit(fd, entry) {
        let _ = decide::commit(fd, fd, entry, Outcome::Tcp);
        decide::announce();
    }
}

/// Returns false if there is no slot or descriptor. The entry is looked at again after true.
fn submit(fd: c_int, entry: Entry) -> bool {
    watch_forks();
    let mut places = SLOTS.iter().enumerate();
    let claimed = |slot: &Slot| slot.state.compare_exchange(FREE, CLAIMED, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let Some((place, slot)) = places.find(|(_, slot)| claimed(slot)) else { return false };
    // SAFETY: takes a number.
    let tcp = unsafe { real::fcntl(fd, F_DUPFD_CLOEXEC, fds::lowest_own() as usize) };
    if tcp < 0 {
        slot.free();
        return false;
    }
    let ticket = next_ticket(place, slot.ticket.load(Ordering::SeqCst));
    slot.ticket.store(ticket, Ordering::SeqCst);
    slot.fd.store(fd, Ordering::SeqCst);
    slot.tcp.store(tcp + 1, Ordering::SeqCst);
    slot.word_sent.store(false, Ordering::SeqCst);
    let under_way = State::of(entry).with_ticket(ticket).entry();
    if !table::replace(fd, Some(entry), Some(under_way)) {
        slot.free();
        return true;
    }
    slot.state.store(READY, Ordering::SeqCst);
    run();
    true
}

/// Has the thread look at the slots. Without a thread everything stays TCP.
fn run() {
    if RUNNING.swap(true, Ordering::SeqCst) {
        return wake();
    }
    if WAKE.load(Ordering::SeqCst) < 0 {
        WAKE.store(new_eventfd(), Ordering::SeqCst);
    }
    if !thread::start(passive::run, ptr::null_mut()) {
        RUNNING.store(false, Ordering::SeqCst);
        ready().for_each(|(_, slot)| {
            slot.finish(slot.connection(), Outcome::Tcp);
            slot.free();
        });
    }
}

/// The thread has nothing to do: whether it may end.
pub fn may_end() -> bool {
    RUNNING.store(false, Ordering::SeqCst);
    ready().next().is_none() || RUNNING.swap(true, Ordering::SeqCst)
}

fn new_eventfd() -> c_int {
    // SAFETY: numbers only; a descriptor that nobody else knows.
    unsafe {
        let low = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        let high = real::fcntl(low, F_DUPFD_CLOEXEC, fds::lowest_own() as usize);
        if high < 0 {
            return low;
        }
        real::close(low);
        high
    }
}

/// The eventfd, for the thread.
pub fn wake_fd() -> c_int {
    WAKE.load(Ordering::SeqCst)
}

fn wake() {
    let one = 1_u64;
    // SAFETY: eight bytes.
    unsafe { real::write(wake_fd(), (&raw const one).cast::<c_void>(), size_of::<u64>()) };
}

/// A pending number has got another entry: its handshake ends.
pub fn abandoned(entry: Entry) {
    if State::of(entry).has_ticket() {
        errno::keeping(wake);
    }
}

/// Ends a handshake by the program's wish: the connection stays TCP.
pub fn stay_tcp(fd: c_int, entry: Entry) {
    if let Some(slot) = of(entry) {
        slot.finish((fd, entry.inner), Outcome::Tcp);
        wake();
    }
}

/// Whether the handshakes have `fd`: programs that close all numbers there are must not close it.
pub fn is_own(fd: c_int) -> bool {
    let is_tcp = |slot: &Slot| slot.tcp.load(Ordering::SeqCst) == fd + 1;
    fd >= 0 && (fd == wake_fd() || SLOTS.iter().any(is_tcp))
}

fn watch_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.swap(true, Ordering::SeqCst) {
        // SAFETY: a function of this library, which is never unloaded. Without memory for it a
        // child's connections whose handshakes were under way become TCP after a long wait.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    }
}

/// The thread is the parent's. A connection whose peer has been told to come to the parent is TCP
/// here; the others may begin handshakes of their own.
extern "C" fn in_child() {
    errno::keeping(|| {
        for slot in &SLOTS {
            slot.member.reset();
            if slot.state.load(Ordering::SeqCst) != FREE
                && let Some(entry) = slot.entry()
            {
                let again = State::of(entry).with_ticket(-1).entry();
                let next = (!slot.word_sent.load(Ordering::SeqCst)).then_some(again);
                table::replace(slot.fd.load(Ordering::SeqCst), Some(entry), next);
            }
            slot.free();
        }
        Moving::reset();
        semaphore::forget();
        RUNNING.store(false, Ordering::SeqCst);
        let eventfd = WAKE.swap(-1, Ordering::SeqCst);
        if eventfd >= 0 {
            // SAFETY: the child's copy of a descriptor that only this library knows.
            unsafe { real::close(eventfd) };
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_name_their_slots() {
        for place in [0, 1, MAX_HANDSHAKES - 1] {
            let mut ticket = -1;
            for _ in 0..3 {
                let before = ticket;
                ticket = next_ticket(place, before);
                assert!(ticket < -1 && ticket != before);
                let entry = State::new(super::super::state::Role::Passive).with_ticket(ticket).entry();
                assert!(ptr::eq(of(entry).unwrap(), &SLOTS[place]));
            }
            let last = next_ticket(place, -2 - (i32::MAX >> 1));
            assert!(last < -1, "{last}");
        }
    }
}
