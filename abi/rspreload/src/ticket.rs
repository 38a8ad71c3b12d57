//! A number of the program that a thread of the library works on meanwhile, and a ticket for that.
//!
//! The number's table entry has the ticket as its `inner`. No other socket gets the same one, so a
//! result reaches the number only as long as it is this socket's. The thread works on a duplicate
//! of the TCP descriptor, so the program may close its own.

use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};

use crate::table::{self, Entry, Kind};
use crate::{errno, next_symbol};

const FREE: u32 = 0;
/// It is being filled or emptied.
const CLAIMED: u32 = 1;
const READY: u32 = 2;

/// What a slot keeps of its socket.
pub struct Ticket {
    state: AtomicU32,
    ticket: AtomicI32,
    /// The program's number.
    fd: AtomicI32,
    /// The duplicate, plus one; 0 for none.
    tcp: AtomicI32,
}

impl Ticket {
    pub const fn new() -> Ticket {
        Ticket {
            state: AtomicU32::new(FREE),
            ticket: AtomicI32::new(-1),
            fd: AtomicI32::new(-1),
            tcp: AtomicI32::new(0),
        }
    }

    /// Takes a free slot.
    pub fn claim(&self) -> bool {
        self.state.compare_exchange(FREE, CLAIMED, SeqCst, SeqCst).is_ok()
    }

    /// Takes the slot from those who would finish it.
    pub fn claim_ready(&self) -> bool {
        self.state.compare_exchange(READY, CLAIMED, SeqCst, SeqCst).is_ok()
    }

    /// Fills a claimed slot. It has the duplicate from now on.
    pub fn fill(&self, ticket: c_int, fd: c_int, tcp: c_int) {
        self.ticket.store(ticket, SeqCst);
        self.fd.store(fd, SeqCst);
        self.tcp.store(tcp + 1, SeqCst);
    }

    /// Lets the thread begin.
    pub fn set_ready(&self) {
        self.state.store(READY, SeqCst);
    }

    pub fn is_ready(&self) -> bool {
        self.state.load(SeqCst) == READY
    }

    pub fn is_free(&self) -> bool {
        self.state.load(SeqCst) == FREE
    }

    /// The ticket, or that of the socket before.
    pub fn number(&self) -> c_int {
        self.ticket.load(SeqCst)
    }

    /// The program's number.
    pub fn fd(&self) -> c_int {
        self.fd.load(SeqCst)
    }

    /// The duplicate of the TCP descriptor, -1 for none.
    pub fn tcp(&self) -> c_int {
        self.tcp.load(SeqCst) - 1
    }

    /// The table's entry of the socket; `None` if it is decided, or the program has closed it.
    pub fn entry(&self, kind: Kind) -> Option<Entry> {
        let ticket = self.number();
        table::get(self.fd()).filter(|entry| entry.kind == kind && entry.inner == ticket)
    }

    /// Closes the duplicate, which is used no more.
    pub fn close_tcp(&self) {
        let tcp = self.tcp.swap(0, SeqCst);
        if tcp > 0 {
            // SAFETY: the slot's own duplicate, which is used no more.
            errno::keeping(|| unsafe { next_symbol::close(tcp - 1) });
        }
    }

    /// Frees the slot. No entry of the table names it any more.
    pub fn free(&self) {
        self.state.store(FREE, SeqCst);
    }
}
