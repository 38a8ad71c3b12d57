//! The thread of automatic mode: it makes the attempts of non-blocking sockets, accepts rsockets,
//! and forwards data. It begins with the first of these and runs until the process ends.

use core::ffi::{c_int, c_short, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};

use libc::{EINTR, POLLERR, POLLHUP, POLLIN, POLLOUT, nfds_t, pollfd};

use super::forward::{Forward, Forwards};
use super::listeners::{self, MAX_ADDRESSES, MAX_LISTENERS};
use super::polled::Polled;
use super::shared::{self, MAX_SLOTS, Slot};
use super::slots::{self, MAX_ATTEMPTS};
use super::tcp_watch::WATCHES;
use super::wake::WakeSockets;
use super::watched::Watched;
use super::{attempt, connections, log};
use crate::thread as threads;
use crate::time::Deadline;
use crate::{errno, next_symbol, rsocket, rsocket_abi};

static RUNNING: AtomicBool = AtomicBool::new(false);

/// The sockets by which the thread is woken.
static WAKE: WakeSockets = WakeSockets::new();

/// The process on whose end the thread waits.
static WATCHED: Watched = Watched::new();

/// Between two looks at the connections that children may use, in milliseconds: a child that has
/// closed all descriptors can't wake the thread.
const LOOK_AT_CHILDREN: c_int = 1_000;

/// Between two looks at tokens that wait for accept(2), in milliseconds.
const LOOK_AT_TOKENS: c_int = 1_000;

/// The pause after a failure of poll(2), in milliseconds.
const AFTER_A_FAILURE: c_int = 100;

/// Starts the thread, or wakes it. Returns false if there can be none.
pub fn wake() -> bool {
    if RUNNING.swap(true, SeqCst) {
        WAKE.wake();
        return true;
    }
    let started = errno::keeping(|| WAKE.sender().is_some() && threads::start(run, ptr::null_mut()));
    if !started {
        RUNNING.store(false, SeqCst);
    }
    started
}

/// The socket that wakes the thread and its inode, for other processes.
pub fn wake_socket() -> Option<(c_int, u64)> {
    WAKE.sender()
}

/// A listener has as many tokens as it may have.
static FULL: AtomicBool = AtomicBool::new(false);

/// The ports of the listeners to which this process's waiting tokens were sent.
pub fn waiting_tokens() -> impl Iterator<Item = u16> {
    let sent = connections::indexes().filter_map(shared::slot).filter(|slot| slot.is_sent());
    sent.map(|slot| slot.listener_port())
}

/// A token was accepted.
pub fn token_accepted() {
    if FULL.swap(false, SeqCst) {
        wake();
    }
}

/// Whether `fd` is a descriptor of the thread.
pub fn is_own(fd: c_int) -> bool {
    fd >= 0 && (WAKE.has(fd) || WATCHED.has(fd))
}

/// Waits for the end of a process, whose listeners this one takes over then.
pub fn watch_process(process: c_int) {
    if WATCHED.change(process) {
        wake();
    }
}

/// In a child of fork(2): the thread is the parent's.
pub fn in_child() {
    RUNNING.store(false, SeqCst);
    WAKE.in_child();
    WATCHED.in_child();
}

/// What a descriptor is polled for.
#[derive(Clone, Copy)]
enum Purpose {
    Wake,
    Process,
    /// The rsocket of an attempt, and the number of its ticket.
    Attempt(c_int),
    Listener,
    /// A token that waits for accept(2), or whose connection a child may use.
    Token(Polled),
    /// The two descriptors of the forward of an index.
    Forward(u16),
}

/// The descriptors of a round.
const MAX_FDS: usize = 2 + MAX_ATTEMPTS + MAX_LISTENERS * MAX_ADDRESSES + 2 * MAX_SLOTS;

struct Thread {
    /// The first `count` of both have been written in this round.
    fds: &'static mut [MaybeUninit<pollfd>],
    purposes: &'static mut [MaybeUninit<Purpose>],
    count: usize,
    forwards: Forwards,
    /// A connection waits for memory to be forwarded.
    lacks_memory: bool,
    /// When tokens were last looked at.
    looked: Deadline,
}

/// Memory for `count` values, or `None`. Never freed. Pages that are never touched take no memory.
pub fn reserve<T>(count: usize) -> Option<&'static mut [MaybeUninit<T>]> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping of that size, aligned to pages, of values that need not be any.
    unsafe {
        let new = libc::mmap(ptr::null_mut(), count * size_of::<T>(), access, kind | libc::MAP_NORESERVE, -1, 0);
        (new != libc::MAP_FAILED).then(|| core::slice::from_raw_parts_mut(new.cast(), count))
    }
}

extern "C" fn run(_: *mut c_void) -> *mut c_void {
    let (Some(fds), Some(purposes), Some(forwards)) = (reserve(MAX_FDS), reserve(MAX_FDS), Forwards::new()) else {
        RUNNING.store(false, SeqCst);
        return ptr::null_mut();
    };
    let looked = Deadline::after(LOOK_AT_TOKENS);
    let mut thread = Thread { fds, purposes, count: 0, forwards, lacks_memory: false, looked };
    loop {
        thread.begin_forwards();
        let timeout = thread.collect();
        // SAFETY: `count` structures are writable.
        let ready = unsafe { rsocket_abi::rpoll(thread.fds.as_mut_ptr().cast(), thread.count as nfds_t, timeout) };
        if ready > 0 {
            thread.handle();
        } else if ready < 0 && errno::get() != EINTR {
            // No memory, or too many descriptors for the limit: later there may be enough.
            // SAFETY: no descriptors.
            unsafe { libc::poll(ptr::null_mut(), 0, AFTER_A_FAILURE) };
        }
        thread.look_at_tokens();
        thread.end_abandoned();
        WATCHES.look();
        end_attempts();
    }
}

/// Ends attempts whose time is over, and those of closed numbers.
fn end_attempts() {
    for slot in slots::ready() {
        if slot.is_abandoned() {
            slot.finish(Err(log::Reason::SocketShared));
        } else if slot.left() == 0
            && let Some(to) = slot.to()
        {
            slot.finish(attempt::expire(slot.inner(), &to));
        }
    }
}

impl Thread {
    /// Begins to forward the connections that other processes use.
    fn begin_forwards(&mut self) {
        self.lacks_memory = false;
        for index in connections::indexes() {
            let wanted = shared::slot(index).is_some_and(|slot| slot.is_wanted());
            if wanted && !self.forwards.has(index) {
                connections::demote(index);
                self.lacks_memory |= !self.forwards.begin(index);
            }
        }
    }

    fn push(&mut self, fd: c_int, events: c_short, purpose: Purpose) {
        if let (Some(entry), Some(last)) = (self.fds.get_mut(self.count), self.purposes.get_mut(self.count)) {
            entry.write(pollfd { fd, events, revents: 0 });
            last.write(purpose);
            self.count += 1;
        }
    }

    /// Collects what is to be polled. Returns the time-out.
    fn collect(&mut self) -> c_int {
        let mut timeout = WATCHES.left().or(self.lacks_memory.then_some(AFTER_A_FAILURE)).unwrap_or(-1);
        self.count = 0;
        self.push(WAKE.receiver(), POLLIN, Purpose::Wake);
        self.push(WATCHED.fd(), POLLIN, Purpose::Process);
        for slot in slots::ready() {
            let left = slot.left();
            timeout = if timeout < 0 { left } else { left.min(timeout) };
            self.push(slot.inner(), POLLOUT, Purpose::Attempt(slot.number()));
        }
        for listener in listeners::open() {
            listener.admit();
            if !listener.has_room(waiting_tokens()) {
                FULL.store(true, SeqCst);
                // A token that was accepted before this was set has not woken the thread.
                if !listener.has_room(waiting_tokens()) {
                    continue;
                }
            }
            for inner in listener.rsockets() {
                self.push(inner, POLLIN, Purpose::Listener);
            }
        }
        for index in connections::indexes() {
            let polled = Polled::now(index);
            let slot = shared::slot(index).filter(|slot| !slot.is_wanted());
            let is_sent = slot.is_some_and(|slot| slot.is_sent());
            if slot.is_some() && (is_sent || connections::is_forked(index)) {
                self.push(connections::token(index), POLLIN, Purpose::Token(polled));
                let look = if is_sent { LOOK_AT_TOKENS } else { LOOK_AT_CHILDREN };
                timeout = if timeout < 0 { look } else { look.min(timeout) };
            }
        }
        for index in self.forwards.indexes() {
            let Some((left, events)) = self.forwards.get(index).map(|forward| (forward.left(), forward.events()))
            else {
                continue;
            };
            if left >= 0 {
                timeout = if timeout < 0 { left } else { left.min(timeout) };
            }
            for (fd, events) in events {
                self.push(fd, events, Purpose::Forward(index as u16));
            }
        }
        timeout
    }

    /// Looks now and then whether processes without this library have accepted tokens.
    fn look_at_tokens(&mut self) {
        if self.looked.left() == 0 {
            self.looked = Deadline::after(LOOK_AT_TOKENS);
            for index in connections::indexes().filter(|&index| connections::is_lost(index)) {
                lose_token(index);
            }
        }
    }

    /// Ends the forwards that no process uses any more.
    fn end_abandoned(&mut self) {
        for index in self.forwards.indexes() {
            if self.forwards.get(index).is_some_and(|forward| !forward.goes_on()) {
                self.forwards.remove(index);
            }
        }
    }

    /// What was polled, of those that were collected.
    fn polled(&self, number: usize) -> (pollfd, Purpose) {
        debug_assert!(number < self.count);
        // SAFETY: the first `count` of both have been written.
        unsafe { (self.fds[number].assume_init_read(), self.purposes[number].assume_init_read()) }
    }

    fn handle(&mut self) {
        let mut number = 0;
        while number < self.count {
            let (first, purpose) = self.polled(number);
            number += 1;
            if let Purpose::Forward(index) = purpose {
                // Its second descriptor follows.
                let (second, _) = self.polled(number);
                number += 1;
                let index = usize::from(index);
                let ended = |forward: &mut Forward| !forward.step([first.revents, second.revents]);
                if self.forwards.get(index).is_some_and(ended) {
                    self.forwards.remove(index);
                }
            } else if first.revents != 0 {
                handle_one(first.fd, first.revents, purpose);
            }
        }
    }
}

fn handle_one(fd: c_int, revents: c_short, purpose: Purpose) {
    match purpose {
        Purpose::Wake => {
            let mut bytes = [0_u8; 64];
            // SAFETY: the array is this long.
            unsafe { next_symbol::read(fd, bytes.as_mut_ptr().cast::<c_void>(), bytes.len()) };
        }
        Purpose::Process => {
            if let Some(process) = WATCHED.take(fd) {
                listeners::take_all_of(process);
            }
        }
        Purpose::Attempt(number) => {
            if let Some(slot) = slots::ready().find(|slot| slot.number() == number && slot.inner() == fd)
                && let Some(to) = slot.to()
            {
                slot.finish(attempt::result(fd, &to));
            }
        }
        Purpose::Listener => {
            let mut all = listeners::open();
            if let (Some(listener), Some(wake)) =
                (all.find(|listener| listener.rsockets().any(|own| own == fd)), wake_socket())
            {
                listener.accept(fd, wake);
            }
        }
        Purpose::Token(polled) => {
            if let Some(index) = polled.index() {
                handle_token(index, revents);
            }
        }
        Purpose::Forward(_) => {}
    }
}

/// Something has happened at a token that nobody of this process expects.
fn handle_token(index: usize, revents: c_short) {
    let Some(slot) = shared::slot(index) else { return };
    if slot.is_sent() {
        // Refused, or accepted by a process without this library, which has sent data.
        if revents & (POLLHUP | POLLERR) == 0 {
            lose_token(index);
        } else {
            // The listener first: the client may try again at once.
            listeners::token_refused(slot.listener_port());
            withdraw(index, slot);
        }
    } else if revents & (POLLIN | POLLHUP | POLLERR) != 0 && connections::is_forked(index) {
        // A child has sent data, or the last process has closed the socket.
        slot.want(slot.generation());
    }
}

/// Ends the connection of a token that waits for accept(2). Returns false if it does not any more.
fn withdraw(index: usize, slot: &Slot) -> bool {
    let withdrawn = slot.withdraw();
    if withdrawn {
        let inner = connections::inner(index);
        connections::leave(index);
        rsocket::reset(inner);
    }
    withdrawn
}

/// A process without this library has accepted a token. It must not take the peer for a client of
/// this machine.
fn lose_token(index: usize) {
    let Some(slot) = shared::slot(index) else { return };
    let port = slot.listener_port();
    if withdraw(index, slot) {
        listeners::token_lost(port);
    }
}
