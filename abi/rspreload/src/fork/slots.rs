//! Accepted connections whose handshake is under way: what the threads of the program share with
//! the thread that makes the handshakes ([`super::passive`]).
//!
//! Each has a slot, which its ticket names ([`Ticket`]).

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use super::commit::{self, Outcome};
use super::parked::Member;
use super::semaphore;
use super::state::State;
use crate::table::{self, Entry, Kind};
use crate::ticket::Ticket;
use crate::transition::{self, Moving};
use crate::{errno, eventfd, next_symbol, open_fds, rsocket_abi, tcp};

/// The most handshakes of a process at a time.
pub const MAX_HANDSHAKES: usize = 256;

static SLOTS: [Slot; MAX_HANDSHAKES] = [const { Slot::new() }; MAX_HANDSHAKES];

/// Whether any connection ever had a slot.
static USED: AtomicBool = AtomicBool::new(false);

/// Whether the thread runs, or is about to.
static RUNNING: AtomicBool = AtomicBool::new(false);

/// An eventfd that wakes the thread; -1 before there was one.
static WAKE: AtomicI32 = AtomicI32::new(-1);

/// One connection.
pub struct Slot {
    ticket: Ticket,
    word_sent: AtomicBool,
    /// Its membership in an epoll of the program.
    pub member: Member,
}

impl Slot {
    const fn new() -> Slot {
        Slot { ticket: Ticket::new(), word_sent: AtomicBool::new(false), member: Member::new() }
    }

    /// The duplicate of the TCP descriptor.
    pub fn tcp(&self) -> c_int {
        self.ticket.tcp()
    }

    /// The peer is about to be told that this end listens.
    pub fn sends_word(&self) {
        self.word_sent.store(true, Ordering::SeqCst);
    }

    /// The table's entry of the connection; `None` if it is decided, or the program has closed it.
    pub fn entry(&self) -> Option<Entry> {
        self.ticket.entry(Kind::Pending)
    }

    /// The connection that the slot has: the program's number and the ticket.
    pub fn connection(&self) -> (c_int, c_int) {
        (self.ticket.fd(), self.ticket.number())
    }

    /// Ends the handshake of a connection by `outcome`, unless it has ended or the program has
    /// closed the number.
    pub fn finish(&self, (fd, ticket): (c_int, c_int), outcome: Outcome) {
        let moving = Moving::begin(fd);
        let mut member = self.member.lock();
        let entry = self.entry().filter(|entry| entry.inner == ticket);
        // False if the number was closed without an intercepted call and is another file now.
        let is_ours = entry.is_some() && tcp::identity(fd) == tcp::identity(self.tcp());
        match entry {
            Some(entry) if is_ours => {
                let _ = commit::commit(fd, self.tcp(), entry, outcome);
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
            // SAFETY: no other thread knows the number.
            unsafe { rsocket_abi::rclose(inner) };
        }
        transition::announce();
    }

    /// Frees the slot. No entry of the table names it any more.
    pub fn free(&self) {
        let mut member = self.member.lock();
        self.ticket.claim_always();
        member.forget();
        self.ticket.close_tcp();
        drop(member);
        self.ticket.free();
    }
}

/// The slots of handshakes to be made, with their indices.
pub fn ready() -> impl Iterator<Item = (usize, &'static Slot)> {
    SLOTS.iter().enumerate().filter(|(_, slot)| slot.ticket.is_ready())
}

/// The slot that an entry's ticket names.
pub fn of(entry: Entry) -> Option<&'static Slot> {
    let number = usize::try_from(-2 - i64::from(entry.inner)).ok()?;
    SLOTS.get(number % MAX_HANDSHAKES)
}

/// The ticket for a slot after the one before: a negative number other than -1.
fn next_ticket(index: usize, before: c_int) -> c_int {
    let turns = usize::try_from(-2 - i64::from(before)).map_or(0, |number| number / MAX_HANDSHAKES + 1);
    -2 - ((turns * MAX_HANDSHAKES + index) & (i32::MAX as usize >> 1)) as c_int
}

/// What became of a connection for which a slot was wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Submitted {
    /// There is no slot or descriptor left.
    NoRoom,
    /// The number has another entry meanwhile.
    Changed,
    /// The connection has a slot.
    Ready,
}

/// Gives an accepted connection a slot, and its entry the ticket.
pub fn submit(fd: c_int, entry: Entry) -> Submitted {
    USED.store(true, Ordering::SeqCst);
    let claimed = SLOTS.iter().enumerate().find(|(_, slot)| slot.ticket.claim());
    let Some((index, slot)) = claimed else { return Submitted::NoRoom };
    let ticket = next_ticket(index, slot.ticket.number());
    slot.ticket.fill(ticket, fd, open_fds::duplicate(fd));
    if slot.tcp() < 0 {
        slot.free();
        return Submitted::NoRoom;
    }
    slot.word_sent.store(false, Ordering::SeqCst);
    let under_way = State::of(entry).with_ticket(ticket).entry();
    if !table::replace(fd, Some(entry), Some(under_way)) {
        slot.free();
        return Submitted::Changed;
    }
    slot.ticket.set_ready();
    Submitted::Ready
}

/// Returns whether the thread is to be started. A thread that runs is woken.
pub fn may_start() -> bool {
    if RUNNING.swap(true, Ordering::SeqCst) {
        wake();
        return false;
    }
    if WAKE.load(Ordering::SeqCst) < 0 {
        WAKE.store(eventfd::create(), Ordering::SeqCst);
    }
    true
}

/// The thread could not be started: the connections that wait for it stay TCP.
pub fn thread_failed() {
    RUNNING.store(false, Ordering::SeqCst);
    ready().for_each(|(_, slot)| {
        slot.finish(slot.connection(), Outcome::Tcp);
        slot.free();
    });
}

/// The thread has nothing to do. Returns whether it may end.
pub fn may_end() -> bool {
    RUNNING.store(false, Ordering::SeqCst);
    ready().next().is_none() || RUNNING.swap(true, Ordering::SeqCst)
}

/// The eventfd, for the thread.
pub fn wake_fd() -> c_int {
    WAKE.load(Ordering::SeqCst)
}

fn wake() {
    eventfd::signal(wake_fd());
}

/// A pending number has got another entry: its handshake ends.
pub fn abandoned(entry: Entry) {
    if State::of(entry).has_ticket() {
        errno::keeping(wake);
    }
}

/// Ends a handshake by the program's choice: the connection stays TCP.
pub fn stay_tcp(fd: c_int, entry: Entry) {
    if let Some(slot) = of(entry) {
        slot.finish((fd, entry.inner), Outcome::Tcp);
        wake();
    }
}

/// Whether `fd` is a descriptor of the handshakes, which must survive programs that close every
/// number there is.
pub fn is_own(fd: c_int) -> bool {
    fd >= 0 && USED.load(Ordering::SeqCst) && (fd == wake_fd() || SLOTS.iter().any(|slot| slot.tcp() == fd))
}

/// In a child of fork(2), which does not have the thread. A connection whose peer was told to
/// connect to the parent is TCP here; the others may begin handshakes of their own.
pub fn in_child() {
    if !USED.load(Ordering::SeqCst) {
        return;
    }
    errno::keeping(|| {
        for slot in &SLOTS {
            slot.member.reset();
            if !slot.ticket.is_free()
                && let Some(entry) = slot.entry()
            {
                let again = State::of(entry).with_ticket(-1).entry();
                let next = (!slot.word_sent.load(Ordering::SeqCst)).then_some(again);
                table::replace(slot.ticket.fd(), Some(entry), next);
            }
            slot.free();
        }
        semaphore::forget();
        RUNNING.store(false, Ordering::SeqCst);
        let wake = WAKE.swap(-1, Ordering::SeqCst);
        if wake >= 0 {
            // SAFETY: the child's copy of a descriptor that only this library knows.
            unsafe { next_symbol::close(wake) };
        }
    });
}

#[cfg(test)]
mod tests {
    use core::ptr;

    use super::*;

    #[test]
    fn tickets_name_their_slots() {
        for index in [0, 1, MAX_HANDSHAKES - 1] {
            let mut ticket = -1;
            for _ in 0..3 {
                let before = ticket;
                ticket = next_ticket(index, before);
                assert!(ticket < -1 && ticket != before);
                let entry = State::new(super::super::state::Role::Passive).with_ticket(ticket).entry();
                assert!(ptr::eq(of(entry).unwrap(), &SLOTS[index]));
            }
            let last = next_ticket(index, -2 - (i32::MAX >> 1));
            assert!(last < -1, "{last}");
        }
    }
}
